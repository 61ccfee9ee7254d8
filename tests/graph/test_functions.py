"""Functions of real models through capture, lowering, cleaning and the interpreter."""

from __future__ import annotations

import pytest
import torch

from graph import compare, functions
from graph.functions import SAMPLES, Sample

# By way of the interpreter; tests/compiler runs such functions through fuse.
pytestmark = pytest.mark.slow

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
FUSED_WHOLE = [s for s in SAMPLES if s.function is not functions.label_smoothing]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_forward(sample: Sample, dtype: torch.dtype, mode: str) -> None:
    args, again = sample.drawn(dtype), sample.drawn(dtype)
    got = compare.run(sample.function, *args, mode=mode)
    compare.assert_same(got, sample.function(*again))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_exact(sample: Sample) -> None:
    """In float64 throughout, as eager is for arguments of float64."""
    got = compare.run(sample.function, *sample.drawn(), mode="exact")
    want = sample.function(*sample.drawn(torch.float64))
    if sample.function is functions.rms_norm or sample.function is functions.dequantise:
        pytest.skip("asks for float32 itself")
    compare.assert_same(got, want)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.gradients], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_backward(sample: Sample, dtype: torch.dtype) -> None:
    _, got, want = compare.gradients(sample.function, *sample.drawn(dtype, gradients=True))
    assert len(got) == len(want)
    compare.assert_same(got, want)


@pytest.mark.parametrize("sample", FUSED_WHOLE, ids=str)
def test_nothing_is_left_to_the_library(sample: Sample) -> None:
    assert not compare.externs(compare.lowered(sample.function, *sample.drawn()))


def test_trusted_indices_are_loads() -> None:
    sample = next(s for s in SAMPLES if s.function is functions.label_smoothing)
    graph = compare.lowered(sample.function, *sample.drawn(), trust_indices=True)
    assert not compare.externs(graph)
    got = compare.run(sample.function, *sample.drawn(), trust_indices=True)
    compare.assert_same(got, sample.function(*sample.drawn()))


def test_written_arguments() -> None:
    sample = next(s for s in SAMPLES if s.function is functions.adamw)
    found = compare.captured(sample.function, *sample.drawn())
    assert [found.arguments[i].name for i in found.writes] == ["p", "m", "v"]
    args = sample.drawn()
    outputs = compare.interpret(compare.clean(compare.lower(found)), args)
    again = sample.drawn()
    sample.function(*again)
    compare.assert_same(outputs, [again[0], again[2], again[3]])
    assert torch.equal(args[0], sample.drawn()[0])  # the interpreter itself writes to nothing
