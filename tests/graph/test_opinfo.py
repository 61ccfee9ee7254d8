"""torch's own samples for its operators (OpInfo, in the wheel) through the front end.

Every operator is captured, lowered, cleaned and interpreted for its first samples in float32 and
int64. Exceptions are listed below, with the reason.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
import unittest
import warnings
import zlib
from typing import Any

import pytest
import torch
from selection import often
from torch.utils import _pytree as pytree

from graph import compare
from megafuse.compiler import fuse
from megafuse.graph.capture import CaptureError
from megafuse.graph.errors import Untraceable

if "expecttest" not in sys.modules:  # torch's test code imports it, and uses none of it here
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stub
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
# What it imports forbids setting flags such as torch.backends.mkldnn.enabled, for every test after.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

pytestmark = pytest.mark.slow

SAMPLES = 3  # of each operator and dtype
RANDOM = """
    bernoulli cauchy exponential geometric log_normal multinomial normal rand_like randint
    randint_like randn randn_like uniform nn.functional.alpha_dropout nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.rrelu
    nn.functional.multi_head_attention_forward nn.functional.scaled_dot_product_attention
    pca_lowrank svd_lowrank
"""
UNINITIALISED = """
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided
    nn.functional.embedding_bag resize_ resize_as_
"""
VALUES = """
    allclose argwhere bincount combinations corrcoef cov equal item masked_select narrow nonzero
    repeat_interleave unique unique_consecutive linalg.lstsq nn.functional.ctc_loss
    nn.functional.gaussian_nll_loss
"""
RAISES = """
    linalg.cholesky linalg.inv linalg.ldl_factor linalg.lu_factor linalg.solve linalg.tensorinv
    linalg.tensorsolve
"""
OTHER = {
    "nn.functional.one_hot": "counts classes by value, where they are not given",
    "tensor_split": "takes places as a tensor, whose values it reads; torch's error, not ours",
    "to_sparse": "sparse tensors",
    "sparse.mm": "sparse tensors",
    "sparse.sampled_addmm": "sparse tensors",
    "as_strided": "reads the memory around a view, which the interpreter's argument lacks",
    "unravel_index": "sizes beyond 2**62",
}


def exceptions() -> dict[str, str]:
    return {
        **dict.fromkeys(RANDOM.split(), "random numbers, other on each call"),
        **dict.fromkeys(UNINITIALISED.split(), "results with memory that nobody wrote"),
        **dict.fromkeys(VALUES.split(), "depends on values: refused with a CaptureError"),
        **dict.fromkeys(RAISES.split(), "raises for some values: runs unfused"),
        **OTHER,
    }


NAMES = sorted({op.name for op in op_db})


def test_exceptions_are_operators() -> None:
    assert set(exceptions()) <= set(NAMES)


# One in eight every time: 600 operators take six minutes.
OFTEN = [name for name in NAMES if zlib.crc32(name.encode()) % 8 == 0]


@pytest.mark.parametrize(
    "name",
    often([name for name in NAMES if name not in exceptions()], OFTEN),
)
def test_operator(name: str) -> None:
    for op in (op for op in op_db if op.name == name):
        for dtype in (torch.float32, torch.int64):
            if dtype in op.supported_dtypes("cpu"):
                samples = op.sample_inputs("cpu", dtype, requires_grad=False)
                for sample in itertools.islice(samples, SAMPLES):
                    check(op.op, (sample.input, *sample.args), sample.kwargs)


@pytest.mark.parametrize("name", VALUES.split())
def test_refused(name: str) -> None:
    """At least one sample of each is refused, and with a CaptureError."""
    refused = 0
    for op in (op for op in op_db if op.name == name):
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 20):
            try:
                compare.captured(op.op, sample.input, *sample.args, **sample.kwargs)
            except CaptureError:
                refused += 1
            except RuntimeError:
                pass  # what eager says of a sample that is wrong for it too
    assert refused


@pytest.mark.parametrize("name", RAISES.split())
def test_unfused(name: str) -> None:
    """torch cannot trace an error that depends on values: fuse runs these as they are."""
    for op in (op for op in op_db if op.name == name):
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
            with pytest.raises(Untraceable, match="for some values"):
                compare.captured(op.op, sample.input, *sample.args, **sample.kwargs)
            function = functools.partial(op.op, **sample.kwargs)
            args = (sample.input, *sample.args)
            torch.testing.assert_close(fuse(function)(*args), function(*args))


def check(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        want = function(*copies[0], **copies[1])
    except Exception:
        return  # not eager's either
    # As a tuple and a dict: some operators have a `mode`, and so has compare.run.
    got = compare.run(lambda args, kwargs: function(*args, **kwargs), args, kwargs)
    for mine, eager in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        if isinstance(eager, torch.Tensor) and eager.layout == torch.strided:
            torch.testing.assert_close(mine, eager, equal_nan=True)
