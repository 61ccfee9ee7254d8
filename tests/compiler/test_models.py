"""The functions of the suite `fuse` at odd shapes, held to float64 as fuzzed programs are."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.placed import here
from megafuse.bench import fuse_suite
from megafuse.bench.model_cases import CASES, KI, ODD, SIZES, Case, Draw, Sizes
from megafuse.compiler import Fused, fuse
from megafuse.compiler.fuzz.exact import widened
from megafuse.compiler.fuzz.judge import Results, Yardstick, wrong
from megafuse.compiler.fuzz.noise import Noise

# Three kinds of views whose sizes torch's tracer writes in several ways.
QUICK = ("packed_swiglu", "rope_interleaved", "contrastive_rows")
EACH = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if str(c) in QUICK else pytest.mark.slow) for c in CASES],
    ids=str,
)


pytestmark = pytest.mark.usefixtures("poisoned")


def called(function: Any, args: list[Any], mode: TorchDispatchMode | None = None) -> Results:
    """Results, then gradients of what requires them; cotangents are the same in every dtype."""
    within = mode or nullcontext()
    with within:
        results = [t for t in pytree.tree_leaves(function(*args)) if isinstance(t, Tensor)]
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    if not wanted:
        return list(results)
    random = torch.Generator().manual_seed(len(results))
    cotangents = [
        torch.randn(r.shape, generator=random, device="cpu").bfloat16().to(r.device, r.dtype)
        for r in results
    ]
    if isinstance(mode, Noise):  # what the backward is given
        cotangents = [mode.argument(each) for each in cotangents]
    with within:
        return [*results, *torch.autograd.grad(results, wanted, cotangents)]


def drawn(sizes: Sizes, dtype: torch.dtype = torch.float32) -> Draw:
    return Draw(sizes, dtype, here().type)


def judged(case: Case, fused: Fused, args: list[Any]) -> str | None:
    def noisy(noise: Noise) -> Results:
        return called(case.function, [noise.argument(a) for a in args], noise)

    eager = called(case.function, args)
    yardstick = Yardstick(eager, called(case.function, [widened(a) for a in args]), noisy)
    taken = sum(isinstance(a, Tensor) and a.requires_grad for a in args)
    names = [f"result {at}" for at in range(len(eager) - taken)]
    names += [f"the gradient {at}" for at in range(taken)]
    return wrong(names, called(fused, args), yardstick)


@EACH
def test_values_and_gradients(case: Case) -> None:
    check(case, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_in_16_bits(case: Case, hasty: None) -> None:
    check(case, torch.bfloat16)


def check(case: Case, dtype: torch.dtype) -> None:
    fused = fuse(case.function)
    for gradients in (False, True) if case.grads else (False,):
        found = judged(case, fused, case.arguments(drawn(ODD, dtype), gradients))
        assert found is None, found
    assert fused.variants, fused.explain(*case.arguments(drawn(ODD, dtype), False))


@EACH
def test_another_batch_compiles_nothing(case: Case) -> None:
    fused = fuse(case.function)
    for sizes in (SIZES[KI], SIZES[KI].another_batch()):
        args = case.arguments(drawn(sizes), False)
        torch.testing.assert_close(fused(*args), case.function(*args))
    assert len(fused.variants) == 1


def test_every_function_is_there_once() -> None:
    names = [str(case) for case in CASES]
    assert len(set(names)) == len(names) >= 32
    assert set(fuse_suite.SMALL) <= set(names)
