"""Products in 16 bits on the CPU: one rounding, whatever instructions the CPU has, and PyTorch's
oneDNN left as it is.

Without bfloat16 instructions PyTorch's own product fails inside oneDNN, warns, and PyTorch switches
oneDNN off for the whole process; ours are then made in float32 (runtime/host/programs/widened.h).
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor

import megafuse as mf
from contract.cases import ONE_EACH, Case, leaves, listed, wanting_grad
from contract.rules import _ulp

HALVES = [torch.bfloat16, torch.float16]
each_half = pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
PRODUCTS = [c for c in ONE_EACH if c.op.family == "composite" and c.name != "dropout_add"]


def positive(*shape: int) -> Tensor:
    return torch.rand(shape) + 0.1


def rounded_once(got: Tensor, exact: Tensor, terms: int) -> None:
    """Half an ulp of the dtype, and what float32 sums of so many positive terms are off by."""
    added = exact * terms**0.5 * torch.finfo(torch.float32).eps
    error = (got.double() - exact).abs()
    worst = (error - added).div(_ulp(exact, got.dtype)).max().item()
    assert worst <= 0.5, f"{worst} ulps"


# Rows, K and N: of few rows the weight is read as it lies, once for four of them; odd sizes;
# several blocks of K·N.
SIZES = [(1, 64, 7), (1, 769, 300), (2, 100, 33), (3, 96, 64), (4, 96, 64), (5, 1, 3), (33, 65, 17)]
SIZES += [(7, 20_000, 301), (300, 20_000, 5), (2, 4100, 130), (4, 70, 2101), (9, 133, 77)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@each_half
def test_rounded_once(sizes: tuple[int, int, int], half: torch.dtype) -> None:
    """All numbers are positive, so that relu keeps everything and nothing cancels."""
    rows, k, n = sizes
    x, weight, bias = (positive(*s).to(half) for s in ((rows, k), (n, k), (n,)))
    weight = (weight / k).to(half)
    apart = torch.empty(n, k + 3, dtype=half)[:, 1:-2].copy_(weight)
    for lying in (weight, weight.t().contiguous().t(), apart):
        given = [x, lying, bias]
        fresh = [t.detach().requires_grad_() for t in given]
        out = mf.linear_relu(*fresh)
        wide = [t.detach().double() for t in given]
        rounded_once(out, wide[0] @ wide[1].t() + wide[2], k)
        grad = positive(rows, n).to(half)
        dx, dweight, dbias = torch.autograd.grad(out, fresh, grad)
        rounded_once(dx, grad.double() @ wide[1], n)
        rounded_once(dweight, grad.double().t() @ wide[0], rows)
        rounded_once(dbias, grad.double().sum(0), rows)


@each_half
def test_bias_and_relu_are_not_rounded_between(half: torch.dtype) -> None:
    """A product of −1 + 2⁻¹² and a bias of 1: rounded before the bias is added, their sum is 0."""
    tiny = 2.0**-12
    x = torch.tensor([[1.0, tiny]]).repeat(8, 1).to(half)
    weight = torch.tensor([[-1.0, 1.0]]).repeat(5, 1).to(half)
    out = mf.linear_relu(x, weight, torch.ones(5, dtype=half))
    assert torch.equal(out, torch.full((8, 5), tiny, dtype=half))


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
@each_half
def test_onednn_stays_switched_on(case: Case, half: torch.dtype) -> None:
    before = torch._C._get_mkldnn_enabled()
    for shape, features in itertools.product([(1, 64), (4, 64), (33, 64)], (None, 8)):
        args = wanting_grad(case, case.args(shape, half, features=features))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outs = listed(case.op.fused(*args))
            torch.autograd.grad(outs, leaves(args), [torch.ones_like(t) for t in outs])
        assert torch._C._get_mkldnn_enabled() == before
