"""quantize_int8 and dequantize_int8 give PyTorch's bits, however scale is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import megafuse as mf

SCALES = [0.1, 0.05, 0.0625, 1.0, 3.0, 1e-3, 7e-5]
LOW = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def same(x: Tensor, scale: Any, zero_point: Any) -> None:
    """Called directly and, as tracers do, through the dispatcher."""
    theirs = mf.reference.quantize_int8(x, scale, zero_point)
    for call in (mf.quantize_int8, mf.OPS["quantize_int8"]._namespace["traced"]):
        ours = call(x, scale, zero_point)
        assert ours.dtype == torch.int8
        assert ours.shape == theirs.shape
        wrong = (ours != theirs).flatten().nonzero().flatten()
        assert wrong.numel() == 0, (
            f"{wrong.numel()} of {x.numel()} differ; first x={x.flatten()[wrong[0]].item()!r}: "
            f"{ours.flatten()[wrong[0]]} not {theirs.flatten()[wrong[0]]}"
            if x.shape == ours.shape
            else f"{wrong.numel()} of {ours.numel()} differ"
        )


def inputs(dtype: torch.dtype, device: str, scale: float) -> Tensor:
    """Random, ties, neighbours of ties, huge, subnormal, NaN and Inf."""
    ties = (torch.arange(-140, 140, dtype=torch.float64) + 0.5) * scale
    tied = ties.to(dtype)
    inf = torch.tensor(float("inf"), dtype=torch.float32)
    near = [torch.nextafter(tied.float(), s * inf).to(dtype) for s in (1, -1)]
    info = torch.finfo(dtype)
    odd = [0.0, -0.0, float("nan"), float("inf"), float("-inf")]
    odd += [info.max, info.min, info.tiny, info.smallest_normal / 2, -info.tiny]
    random = (torch.randn(4096, dtype=torch.float64) * 60 * scale).to(dtype)
    return torch.cat([random, tied, *near, torch.tensor(odd, dtype=dtype)]).to(device)


@pytest.mark.parametrize("zero_point", [0, 3, -128, 0.5, 0.3, 1e6])
@pytest.mark.parametrize("scale", SCALES)
def test_numbers(dtype: torch.dtype, scale: float, zero_point: float, device: str) -> None:
    same(inputs(dtype, device, scale), scale, zero_point)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("scale", SCALES[:4])
def test_zero_dim_tensors(dtype: torch.dtype, scale: float, kind: torch.dtype, device: str) -> None:
    x = inputs(dtype, device, scale)
    as_tensor = torch.tensor(scale, dtype=kind, device=device)
    same(x, as_tensor, 3)
    same(x, as_tensor, torch.tensor(3, dtype=torch.int32, device=device))
    same(x, scale, torch.tensor(2.5, dtype=kind, device=device))
    same(x, scale, torch.tensor(0.3, dtype=kind, device=device))


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_zero_dim_cpu_tensors_count_as_numbers(
    dtype: torch.dtype, scale: float, device: str
) -> None:
    same(inputs(dtype, device, scale), torch.tensor(scale), torch.tensor(3))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("zero", [torch.int8, torch.uint8, torch.int32, torch.int64, None])
def test_per_channel(dtype: torch.dtype, axis: int, zero: torch.dtype | None, device: str) -> None:
    x = torch.randn(4, 6, 5, 9, device=device).to(dtype)
    shape = [1, 1, 1, 1]
    shape[axis] = x.shape[axis]
    scale = (torch.rand(shape, device=device) * 0.1 + 0.005).to(dtype)
    point = torch.randint(0, 20, shape, device=device).to(zero or dtype)
    same(x, scale, point)
    same(x, scale, 3)
    same(x, 0.05, point)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    """A zero-dimensional x is promoted by tensors, and not by numbers."""
    for value in (torch.randn(50) * 3).to(dtype):
        x = value.to(device).view(shape)
        for scale in (0.05, torch.tensor(0.05, device=device), torch.full((1,), 0.05).to(x)):
            same(x, scale, 3)
            same(x, scale, torch.tensor(2.5, device=device))


@pytest.mark.parametrize("shape", [(0,), (), (1,), (17,), (3, 1031), (1031, 3)])
def test_shapes(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    x = torch.randn(shape, device=device).to(dtype)
    same(x, 0.02, 3)
    same(x, (torch.rand(shape[-1:], device=device) + 0.01).to(dtype), 0)


@pytest.mark.parametrize("zero", LOW)
@pytest.mark.parametrize("scale", LOW)
@pytest.mark.parametrize("x", LOW)
def test_mixed_dtypes_round_where_pytorch_rounds(
    x: torch.dtype, scale: torch.dtype, zero: torch.dtype, device: str
) -> None:
    """x / scale is rounded to their common dtype before a wider zero_point is added."""
    rows = torch.randn(64, 50, device=device) * 3
    scales = torch.rand(50, device=device) * 0.1 + 0.01
    points = torch.randint(-9, 9, (50,), device=device) + 0.5
    for divisor in (scales.to(scale), scales[0].to(scale), scales[:1].to(scale), 0.05):
        same(rows.to(x), divisor, points.to(zero))
        same(rows[0, 0].to(x), divisor, points.to(zero))
    same(rows[0, 0].to(x), scales.to(scale), 3)


def test_scale_of_zero_and_negative(device: str) -> None:
    x = torch.tensor([-1.0, 0.0, 1.0, float("nan"), float("inf")], device=device)
    for scale in (0.0, -0.1, float("inf"), float("nan"), 1e-45, 3e38):
        same(x, scale, 3)
        same(x, torch.tensor(scale, device=device), 3)
        same(x, torch.full_like(x, scale), 3)


def test_strided(device: str) -> None:
    same(torch.randn(64, 34, device=device).t(), 0.05, 3)
    same(torch.randn(64, 34, device=device)[::2, 1::3], 0.05, 3)
    same(torch.randn(65, device=device)[1:], 0.05, 3)


# ---- back again


@pytest.mark.parametrize("zero", [torch.int8, torch.int32, torch.int64, None])
@pytest.mark.parametrize("integer", [torch.int8, torch.uint8, torch.int32])
def test_dequantize_dtypes(
    dtype: torch.dtype, integer: torch.dtype, zero: torch.dtype | None, device: str
) -> None:
    q = torch.randint(0, 127, (9, 33), device=device).to(integer)
    scale = (torch.rand(33, device=device) * 0.1).to(dtype)
    point = torch.randint(0, 9, (33,), device=device).to(zero or dtype)
    for arguments in ((q, scale, point), (q, scale, 3), (q, scale[0], 3.0), (q, scale[0], point)):
        ours, theirs = mf.dequantize_int8(*arguments), mf.reference.dequantize_int8(*arguments)
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


def test_dequantize_with_numbers(device: str) -> None:
    q = torch.arange(-128, 128, dtype=torch.int8, device=device)
    ours = mf.dequantize_int8(q, 0.1, 3)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, mf.reference.dequantize_int8(q, 0.1, 3))


@pytest.mark.parametrize("scale", [0.1, 0.0625])
def test_round_trip(dtype: torch.dtype, scale: float, device: str) -> None:
    if dtype == torch.bfloat16 and scale == 0.1:
        pytest.skip("8 bits of mantissa do not tell 127 multiples of 0.1 apart")
    q = torch.arange(-128, 128, dtype=torch.int8, device=device)
    step = torch.tensor(scale, dtype=dtype, device=device)
    assert torch.equal(mf.quantize_int8(mf.dequantize_int8(q, step, 0), step, 0), q)


@pytest.mark.parametrize("zero_point", [3, 0.3, torch.tensor([2.5, 1.0])], ids=str)
@pytest.mark.parametrize("scale", [0.05, torch.tensor([0.1, 0.3]).half()], ids=str)
def test_dequantize(scale: Any, zero_point: Any, device: str) -> None:
    """The dtype and the bits of PyTorch, numbers or not, directly and through the dispatcher."""
    q = torch.randint(-128, 128, (300, 2), dtype=torch.int8, device=device)
    scale, zero_point = (a.to(device) if isinstance(a, Tensor) else a for a in (scale, zero_point))
    theirs = mf.reference.dequantize_int8(q, scale, zero_point)
    for call in (mf.dequantize_int8, mf.OPS["dequantize_int8"]._namespace["traced"]):
        ours = call(q, scale, zero_point)
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2 * torch.finfo(ours.dtype).eps, atol=0)
