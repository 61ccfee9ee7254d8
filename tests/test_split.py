"""float32 as two halves of float16: the CPU runs the same functors, so their arithmetic is tested
here; tests/contract/test_fp32_matmul.py has the products, which need a GPU."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import megafuse as mf
from megafuse.runtime import build, cpp

needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")


def run(
    op: str, family: str, choices: dict[str, str | bool], outs: Sequence[tuple[Tensor, str, int]],
    ins: Sequence[Tensor], shape: tuple[int, int],
) -> None:  # fmt: skip
    """A CPU kernel on operands seen in `shape`: (tensor, walk, result) or tensor, any strides."""
    operands = [*outs, *((t, "", 0) for t in ins)]
    names = {torch.float32: "Float", torch.float16: "Half"}

    def walk(t: Tensor, given: str) -> str:
        return given or ("c" if t.stride(-1) == 1 else "b" if t.stride(-1) == 0 else "s")

    described = tuple((names[t.dtype], walk(t, w), r) for t, w, r in operands)
    asked = build.Asked(op, family, choices, "Float", False, 2, 1, False, len(outs), described)
    path, symbol = build.kernel(-1, asked)[:2]
    words = [t.data_ptr() for t, _, _ in operands]
    words += [shape[0] * shape[1], shape[1], 0]
    for t, _, _ in operands:
        words += [t.stride(-1), t.stride(0)]
    packed = b"".join(struct.pack("q", w) for w in words)
    function = getattr(ctypes.CDLL(str(path)), str(symbol))
    function.argtypes = [ctypes.c_char_p] + [ctypes.c_int64] * 3
    count = shape[0] if family.startswith("rows") else shape[0] * shape[1]
    function(packed, 0, count, 0)


def halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """low, high and exponents, as the kernel makes them."""
    rows, k = x.shape
    low, high = (torch.full((rows, k), math.nan, dtype=torch.float16) for _ in range(2))
    exponents = torch.full((rows,), math.nan)
    outs = [(low, "c", 0), (high, "c", 1), (exponents[:, None].expand(rows, k), "w", 0)]
    run("split_halves", "rows_forward", {}, outs, [x], (rows, k))
    return low, high, exponents


def joined(low: Tensor, high: Tensor, exponents: Tensor) -> Tensor:
    return (high.double() + low.double() / 2048) * torch.exp2(exponents.double())[:, None]


@needs_compiler
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e30, 1e-30, 3e38, 1e-38, 1e-42])
@pytest.mark.parametrize("columns", [1, 7, 64, 1000])
def test_halves_hold_float32(scale: float, columns: int) -> None:
    """All 24 bits, or half the last bit of the row's largest: nothing that float32 would keep."""
    x = (torch.rand(50, columns) * 2 - 1) * scale
    low, high, exponents = halves(x)
    most = x.double().abs().amax(1, keepdim=True)
    error = (joined(low, high, exponents) - x.double()).abs()
    assert (error <= x.double().abs() * 2.0**-23 + most * 2.0**-40).all()
    assert high.abs().max() <= 2**15


@needs_compiler
def test_small_beside_large() -> None:
    """Elements a factor 2^28 below the row's largest keep their bits."""
    x = (torch.rand(20, 64) / 2 + 0.5) * torch.exp2(-torch.arange(64.0) / 64 * 28)
    error = (joined(*halves(x)) - x.double()).abs()
    assert (error <= x.double().abs() * 2.0**-22).all()


@needs_compiler
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
def test_a_row_that_is_not_finite_is_marked(special: float) -> None:
    x = torch.randn(5, 33)
    x[2, 7] = special
    low, high, exponents = halves(x)
    assert exponents.isnan().tolist() == [False, False, True, False, False]
    assert not torch.stack([low[2], high[2]]).any()
    assert torch.equal(halves(x[:2])[1], high[:2])


@needs_compiler
def test_zeros() -> None:
    low, high, exponents = halves(torch.zeros(3, 5))
    assert not torch.stack([low, high]).any()
    assert not exponents.any()


@needs_compiler
@pytest.mark.parametrize("act", ["none", "relu", "gelu", "gelu_tanh"])
def test_epilogue_scales_back(act: str) -> None:
    """The exponents of row and column may each be far outside of what their sum is."""
    product = torch.randn(6, 40)
    far = 1.0 if "gelu" in act else 0.0  # its tails are test_value.py's
    row = torch.tensor([100.0, -126.0, 0.0, 3.0, math.nan, 113.0]) * (1 - far * 0.95)
    row = row.round()
    column = torch.full((40,), -98.0 + far * 94)
    column[:20] = 90.0 - far * 87
    column[1] = math.nan
    bias, residual = torch.randn(40), torch.randn(6, 40)
    out = torch.full_like(product, math.nan)
    ins = [product, row[:, None].expand(6, 40), column.expand(6, 40), bias.expand(6, 40), residual]
    run("split_epilogue", "forward", {"act": act}, [(out, "c", 0)], ins, (6, 40))
    exponent = (row[:, None] + column).double()
    value = product.double() * torch.exp2(exponent)
    value = torch.where(exponent.isnan(), product.double(), value).float().double() + bias
    functions = {
        "none": lambda t: t,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    }
    torch.testing.assert_close(out, (functions[act](value) + residual).float())


def test_the_switch() -> None:
    assert mf.get_fp32_matmul() is None
    try:
        for mode in ("split", "ieee", "tf32", None):
            mf.set_fp32_matmul(mode)
            assert mf.get_fp32_matmul() == mode
            x, w = torch.randn(9, 8), torch.randn(4, 8)
            torch.testing.assert_close(mf.linear_relu(x, w), mf.reference.linear_relu(x, w))
    finally:
        mf.set_fp32_matmul(None)
    with pytest.raises(ValueError, match="'split', 'ieee', 'tf32' or None, got 'fp16'"):
        mf.set_fp32_matmul("fp16")
