"""Rows that are no whole number of vectors, or start at an odd address: on a GPU vectors are then
cut across rows, and hold elements of two of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import megafuse as mf
from contract.test_rows import compare, drawn
from contract.views import VIEWS

# Of a warp, a block, a cluster of blocks; vocabularies; more rows than blocks.
SHAPES = [(19, 65), (9, 77), (3000, 129), (700, 333), (40, 1001), (17, 1537), (600, 3331)]
SHAPES += [(1, 333), (1, 100_003), (5, 12345), (3, 50257), (2, 151936), (2, 151937), (3, 300001)]
FLOATS = [torch.float32, torch.bfloat16]
LAYOUTS = ["plain", "unaligned", "padded", "rows apart", "transposed"]
ROWS = ["softmax", "layer_norm", "rms_norm", "residual_layer_norm", "residual_rms_norm"]


def laid(t: Tensor, layout: str) -> Tensor:
    return t if layout == "plain" else VIEWS[layout](t)


def arguments(name: str, x: Tensor, other: Tensor, row: Tensor) -> tuple[object, ...]:
    return {
        "softmax": (x, 0.7, None, False),
        "layer_norm": (x, row, row.flip(0), 0.5),
        "rms_norm": (x, row, 0.5),
        "residual_layer_norm": (x, other, row, row.flip(0), 0.0, True, 0.5),
        "residual_rms_norm": (x, other, row, 0.0, True, 0.5),
    }[name]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", ROWS)
def test_lengths(name: str, shape: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    x, other = drawn(shape, dtype, device), drawn(shape, dtype, device)
    row = drawn(shape[1:], dtype, device)
    compare(name, *arguments(name, x, other, row))


@pytest.mark.of_gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(50, 333), (50, 336), (9, 2, 1001)], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_layouts(name: str, shape: tuple[int, ...], layout: str, device: str) -> None:
    x, other = (drawn(shape, torch.bfloat16, device) for _ in range(2))
    row = drawn(shape[-1:], torch.bfloat16, device)
    compare(name, *arguments(name, laid(x, layout), other, row))
    compare(name, *arguments(name, x, laid(other, layout), row))


@pytest.mark.of_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_other_dtypes(name: str, dtype: torch.dtype, device: str) -> None:
    cols = 501 if dtype == torch.float64 else 5001  # torch.softmax's float64 is the yardstick
    x, other = drawn((33, cols), dtype, device), drawn((33, cols), dtype, device)
    compare(name, *arguments(name, x, other, drawn((cols,), dtype, device)))
    wide = drawn((cols,), torch.float32, device)  # a weight of its own dtype
    if dtype == torch.float16 and name != "softmax":
        compare(name, *arguments(name, x, other, wide))


@pytest.mark.slow
@pytest.mark.parametrize("mask", [(333,), (77, 333), (77, 1), (5, 1, 333)], ids=str)
def test_masked_softmax(mask: tuple[int, ...], device: str) -> None:
    x = drawn((5, 77, 333), torch.bfloat16, device)
    compare("softmax", x, 0.7, drawn(mask, torch.bfloat16, device), False)


@pytest.mark.parametrize("shape", [(3, 129, 129), (2, 333, 777), (2, 777, 333)], ids=str)
def test_causal_softmax(shape: tuple[int, ...], device: str) -> None:
    compare("softmax", drawn(shape, torch.bfloat16, device), 0.7, None, True)


def test_neighbours_do_not_leak(device: str) -> None:
    """NaN and Inf in the rows beside, which share a vector, change nothing."""
    x = drawn((5, 333), torch.float32, device)
    x[1::2] = torch.tensor([torch.nan, torch.inf, -torch.inf], device=device).repeat(111)
    row = drawn((333,), torch.float32, device)
    for name in ROWS:
        got = mf.OPS[name].fused(*arguments(name, x, torch.zeros_like(x), row))
        for t in got if isinstance(got, tuple) else (got,):
            assert t[::2].isfinite().all(), name


@pytest.mark.parametrize("name", ["residual_layer_norm", "residual_rms_norm"])
def test_dropout_goes_by_place(name: str, device: str) -> None:
    """An element's random number is that of its place, whatever the rows' length; the backward
    draws the forward's again."""
    ones = torch.ones(1001, 64, device=device)
    masks = []
    for shape in ((64, 1001), (1001, 64)):
        x = ones.view(shape).requires_grad_()
        torch.manual_seed(5)
        rest = (torch.zeros_like(x), torch.ones(shape[1], device=device))
        rest += (torch.zeros(shape[1], device=device),) if name == "residual_layer_norm" else ()
        _, s = mf.OPS[name].fused(x, *rest, 0.5)
        (grad,) = torch.autograd.grad(s.sum(), x)
        assert torch.equal(s, grad)
        assert set(s.unique().tolist()) == {0, 2}
        masks.append(s.flatten())
    assert torch.equal(*masks)


# ---- pointwise ops


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [(7, 5), (300, 333), (50, 3331), (11, 3, 49), (9, 7, 65), (9001, 4), (1501, 47)],
    ids=str,
)
@pytest.mark.parametrize("layout", ["plain", "unaligned", "padded", "transposed"])
def test_pointwise(layout: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Against rows, columns and channels of their own, in every place of a vector."""
    x = laid(drawn(shape, dtype, device), layout)
    for other in (shape[-1:], (*shape[:-1], 1), (shape[1], *(1 for _ in shape[2:]))):
        y, z = drawn(other, dtype, device), drawn(shape, dtype, device)
        compare("add_mul_add", x, y, z, drawn(other, dtype, device))
    compare("bias_act", x, drawn(shape[-1:], dtype, device), "gelu")


@pytest.mark.parametrize("shape", [(300, 333), (11, 3, 49)], ids=str)
def test_quantize(shape: tuple[int, ...], device: str) -> None:
    x = drawn(shape, torch.float32, device)
    scale = torch.rand(shape[-1], device=device) + 0.1
    for y in (x, VIEWS["unaligned"](x)):
        got, want = mf.quantize_int8(y, scale, 3), mf.reference.quantize_int8(y, scale, 3)
        assert torch.equal(got, want)
        back = mf.dequantize_int8(got, scale, 3)
        assert torch.equal(back, mf.reference.dequantize_int8(got, scale, 3))
