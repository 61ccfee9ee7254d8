"""Every 16-bit number through the functions that are done in a few instructions (kernels/brief.h):
half an ulp off, as if they were exact and rounded once, or hardly more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from compiler.placed import here
from megafuse.compiler import fuse

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
MOST = 0.52  # ulps


def all_numbers(dtype: torch.dtype) -> Tensor:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16, device="cpu")
    return bits.view(dtype).to(here())


def ulps(got: Tensor, exact: Tensor) -> Tensor:
    """How far `got` is off, in its dtype's ulps; no ulp is less than the smallest normal one."""
    info = torch.finfo(got.dtype)
    exponent = torch.frexp(exact.abs().clamp(min=info.tiny))[1] - 1
    return (got.double() - exact).abs() / (info.eps * torch.exp2(exponent.double()))


def check(got: Tensor, exact: Tensor, given: Tensor) -> None:
    info = torch.finfo(got.dtype)
    rounded = exact.to(got.dtype)
    assert torch.equal(got.isnan(), rounded.isnan())
    assert torch.equal(got.isinf(), rounded.isinf())
    normal = rounded.isfinite() & (exact.abs() >= info.tiny)
    off = torch.where(normal, ulps(got, exact), 0.0)
    worst = int(off.argmax())
    assert off[worst] <= MOST, f"{given[worst].item()} gives {got[worst].item()}"
    small = rounded.isfinite() & ~normal  # flushed to 0, or as it should be
    assert (got.double() - exact).abs()[small].le(info.tiny).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_number(name: str, dtype: torch.dtype) -> None:
    given = all_numbers(dtype)
    check(fuse(FUNCTIONS[name])(given), FUNCTIONS[name](given.double()), given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quotients(dtype: torch.dtype) -> None:
    """Of numbers of every size, zeros and infinite ones among them."""
    given = all_numbers(dtype)
    by = given[torch.randperm(len(given), device=here())]
    check(fuse(torch.div)(given, by), given.double() / by.double(), given)


def test_a_number_s_quotient_is_eager_s() -> None:
    """On the GPU eager multiplies by the reciprocal, and so does a kernel."""
    x = torch.randn(1000)
    for number in (3.0, 6, 0.1, -7.7, 1e-30, 1e30, float("inf"), 0.0):
        torch.testing.assert_close(fuse(lambda x, n: x / n)(x, number), x / number, equal_nan=True)
