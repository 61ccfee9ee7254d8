"""Operations one by one against eager: dtypes, odd shapes, sizes 0 and 1, strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graph import compare
from graph.compare import check
from megafuse.graph.show import show

# Every operation, by way of the interpreter; tests/compiler runs most of them through fuse.
pytestmark = pytest.mark.slow

aten = torch.ops.aten
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]
SHAPES = [(), (1,), (0, 3), (5,), (3, 7), (2, 1, 4)]

UNARY = """
    abs neg sign floor ceil trunc round sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma
    sigmoid relu square isnan isinf isfinite signbit logical_not frac sgn positive isposinf isneginf
    rad2deg nan_to_num logit sinc
"""
FUNCTIONAL = """
    gelu silu mish softplus elu selu celu leaky_relu relu6 hardswish hardsigmoid hardtanh logsigmoid
    softsign tanhshrink hardshrink softshrink
"""
BINARY = """
    add sub mul div pow atan2 hypot copysign maximum minimum fmax fmin fmod remainder floor_divide
    eq ne lt le gt ge logical_and logical_or logical_xor logaddexp logaddexp2 xlogy heaviside
"""
BITWISE = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"
INTEGER_BINARY = "add sub mul floor_divide remainder fmod eq lt maximum minimum"


def values(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Normal numbers; of floats some special ones."""
    x = torch.randn(shape) * 2
    if not dtype.is_floating_point:
        return (x * 3).abs().to(dtype)
    if x.numel() > 4:
        x.view(-1)[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    return x.to(dtype)


@pytest.mark.parametrize("name", UNARY.split())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_unary(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    if name == "frac" and not dtype.is_floating_point:
        pytest.skip("not in PyTorch")
    x = [values(shape, dtype) for shape in SHAPES]
    check(lambda x: [function(each) for each in x], x)


@pytest.mark.parametrize("name", FUNCTIONAL.split())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_activation(name: str, dtype: torch.dtype) -> None:
    check(getattr(F, name), values((3, 7), dtype))


@pytest.mark.parametrize("name", BINARY.split())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_binary(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    shapes = (((3, 7), (3, 7)), ((3, 1), (7,)), ((), (5,)), ((0, 3), (3,)))
    pairs = [(values(one, dtype), values(other, dtype)) for one, other in shapes]
    check(lambda pairs: [function(*pair) for pair in pairs], pairs)


@pytest.mark.parametrize("name", INTEGER_BINARY.split())
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_binary(name: str, dtype: torch.dtype) -> None:
    check(getattr(torch, name), values((3, 7), dtype), values((7,), dtype) + 1)


@pytest.mark.parametrize("name", BITWISE.split())
def test_bitwise(name: str) -> None:
    check(getattr(torch, name), values((3, 7), torch.int32), values((7,), torch.int32) % 8)
    if "shift" not in name:
        check(getattr(torch, name), torch.tensor([True, False]), torch.tensor([True, True]))


def test_mixed_dtypes() -> None:
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
    pairs = [(values((3, 4), one), values((4,), other)) for one in kinds for other in kinds]

    def function(x: Tensor, y: Tensor) -> Any:  # a tensor of no dimensions promotes less
        return x + y, x * y, x >= y, torch.where(x > 0, x, y), x * y[0], x >= y[0]

    check(lambda pairs: [function(*pair) for pair in pairs], pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_casts(dtype: torch.dtype) -> None:
    x = torch.randn(4, 5).mul(4).to(dtype)
    check(lambda x: [x.to(to) for to in (*FLOATS, *INTEGERS[:3], torch.bool)], x)


POINTWISE: list[Callable[..., Any]] = [
    lambda x, y: torch.clamp(x, -0.5, 0.5),
    lambda x, y: torch.clamp(x, min=y),
    lambda x, y: torch.clamp(x, max=0.25),
    lambda x, y: torch.round(x, decimals=2),
    lambda x, y: torch.round(x * 100, decimals=-1),
    lambda x, y: torch.addcmul(x, x, y, value=0.5),
    lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=-2),
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: torch.lerp(x, y, 0.7),
    lambda x, y: torch.lerp(x, y, y.sigmoid()),
    lambda x, y: torch.add(x, y, alpha=3),
    lambda x, y: torch.sub(x, y, alpha=0.5),
    lambda x, y: torch.rsub(x, y, alpha=2),
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: x % 0.75,
    lambda x, y: 2 - x,
    lambda x, y: 1 / x,
    lambda x, y: 2.0**x,
    lambda x, y: (x**2, x**3, x**0.5, x**-0.5, x**-1, x**-2, x**2.5, x**1, x**0),
    lambda x, y: x.masked_fill(y > 0, 3.0),
    lambda x, y: torch.where(x > y, x, 0.0),
    lambda x, y: F.threshold(x, 0.1, 20.0),
    lambda x, y: F.gelu(x, approximate="tanh"),
    lambda x, y: F.glu(torch.cat([x, y.expand_as(x)], -1), -1),
    lambda x, y: F.prelu(x, torch.tensor([0.25])),
    lambda x, y: (x.eq(y), x.isclose(y), x != 0),
    lambda x, y: F.mse_loss(x, y.expand_as(x)),
    lambda x, y: F.smooth_l1_loss(x, y.expand_as(x)),
    lambda x, y: F.huber_loss(x, y.expand_as(x), delta=0.5),
    lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid().expand_as(x)),
    lambda x, y: F.kl_div(x, y.expand_as(x).softmax(-1), reduction="batchmean"),
    lambda x, y: F.soft_margin_loss(x, torch.sign(y).expand_as(x)),
    lambda x, y: F.poisson_nll_loss(x, y.expand_as(x)),
]


@pytest.mark.parametrize("number", range(len(POINTWISE)))
def test_pointwise(number: int) -> None:
    check(POINTWISE[number], torch.randn(4, 6), torch.randn(6))


REDUCTIONS: list[Callable[..., Any]] = [
    lambda x, d: x.sum(d),
    lambda x, d: x.sum(d, keepdim=True),
    lambda x, d: x.mean(d),
    lambda x, d: x.amax(d),
    lambda x, d: x.amin(d, keepdim=True),
    lambda x, d: x.var(d),
    lambda x, d: x.std(d, correction=0, keepdim=True),
    lambda x, d: torch.var_mean(x, d),
    lambda x, d: torch.std_mean(x, d, correction=2),
    lambda x, d: torch.linalg.vector_norm(x, 2, d),
    lambda x, d: torch.linalg.vector_norm(x, 1, d),
    lambda x, d: torch.linalg.vector_norm(x, float("inf"), d),
    lambda x, d: torch.linalg.vector_norm(x, 3, d, keepdim=True),
    lambda x, d: torch.logsumexp(x, d),
    lambda x, d: (x > 0).any(d),
    lambda x, d: (x > -1).all(d),
    lambda x, d: torch.count_nonzero(x > 0, d),
    lambda x, d: x.nansum(d),
]


@pytest.mark.parametrize("number", range(len(REDUCTIONS)))
@pytest.mark.parametrize("dims", [0, 1, -1, (0, 2), (0, 1, 2)], ids=str)
def test_reduction(number: int, dims: Any) -> None:
    function = REDUCTIONS[number]
    strided = torch.randn(4, 5, 3).permute(2, 1, 0)
    check(lambda x, y: (function(x, dims), function(y, dims)), torch.randn(3, 5, 4), strided)


ALONG_ONE: list[Callable[..., Any]] = [
    lambda x, d: x.argmax(d),
    lambda x, d: x.argmin(d, keepdim=True),
    lambda x, d: x.max(d),
    lambda x, d: x.min(d, keepdim=True),
    lambda x, d: x.prod(d),
    lambda x, d: F.normalize(x, dim=d),
    lambda x, d: F.cosine_similarity(x, x + 1, dim=d),
]


@pytest.mark.parametrize("number", range(len(ALONG_ONE)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_along_one_dimension(number: int, dtype: torch.dtype) -> None:
    function = ALONG_ONE[number]
    check(lambda x: [function(x, dim) for dim in (0, 1, -1)], torch.randn(3, 5, 4).to(dtype))


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, F.softmin])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_softmax_of_rows_that_lie_together(function: Any, dtype: torch.dtype) -> None:
    """Along any other dimension it is the library's."""
    x = torch.randn(3, 5, 4).to(dtype)
    check(lambda x: function(x, -1), x)
    check(lambda x: function(x, 1), x.transpose(1, 2))
    for dim in (0, 1):
        check(lambda x, dim=dim: function(x, dim), x, whole=False)
        with pytest.raises(AssertionError):
            check(lambda x, dim=dim: function(x, dim), x)


def test_reductions_of_everything() -> None:
    x = torch.randn(3, 5)
    check(lambda x: (x.sum(), x.mean(), x.max(), x.min(), x.var(), x.norm(), x.prod()), x)
    check(lambda x: (x.argmax(), x.argmin(), (x > 0).any(), (x > 0).all()), x)
    check(lambda x: (x.sum(), x.mean(), x.softmax(0), x.amax(0)), torch.tensor(2.5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_reductions_of_integers(dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (4, 6)).to(dtype)
    check(lambda x: (x.sum(0), x.prod(1), x.amax(0), x.amin(1), x.any(0), x.all(1)), x)
    check(lambda x: (x.sum(), x.float().mean(), x.sum(0, dtype=torch.float32)), x)


def test_argmax_of_equals_and_nan() -> None:
    x = torch.tensor([[1.0, 2.0, 2.0], [float("nan"), 3.0, float("nan")]])
    check(lambda x: (x.argmax(1), x.argmin(1), x.max(1), x.amax(1)), x)


def test_sums_of_halves_are_in_float32() -> None:
    x = torch.full((4096,), 1.0).bfloat16()
    assert compare.run(lambda x: x.sum(), x).item() == 4096
    graph = compare.lowered(lambda x: x.sum(), x)
    assert "f32[] = sum(" in show(graph)


VIEWS: list[Callable[..., Any]] = [
    lambda x: x.permute(2, 0, 1),
    lambda x: x.transpose(0, 2),
    lambda x: x.reshape(-1),
    lambda x: x.reshape(12, 10),
    lambda x: x.reshape(4, 5, 2, 3),
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.flatten(1).unflatten(1, (x.shape[1], x.shape[2])),
    lambda x: x.unflatten(2, (3, 2)).permute(0, 2, 1, 3).reshape(x.shape[0], 3, -1),
    lambda x: x[1:, ::2, -3:],
    lambda x: x[:, 1],
    lambda x: x[-1, :, 2],
    lambda x: x[:, None, :, 1:-1],
    lambda x: x[..., :100],
    lambda x: x.unsqueeze(1).expand(4, 3, 5, 6),
    lambda x: x[:1].expand(7, -1, -1),
    lambda x: x.flip(0, 2),
    lambda x: x.diagonal(),
    lambda x: x.diagonal(-1, 0, 2),
    lambda x: x.diagonal(1, 1, 2),
    lambda x: x.unfold(2, 3, 2),
    lambda x: x.split(2, 1),
    lambda x: x.split([1, 2, 3], 2),
    lambda x: x.chunk(3, -1),
    lambda x: x.unbind(1),
    lambda x: x.roll(2, 1),
    lambda x: x.roll((-1, 7), (0, 2)),
    lambda x: x.roll(3),
    lambda x: x.repeat(2, 1, 3),
    lambda x: x.tile(2),
    lambda x: x.movedim(0, -1).contiguous(),
    lambda x: x.squeeze().unsqueeze(0).squeeze(0),
    lambda x: x.narrow(1, 1, 3),
    lambda x: torch.cat([x, x + 1, x[:1]], 0),
    lambda x: torch.cat([x[..., 3:], -x[..., :3]], -1),
    lambda x: torch.stack([x, -x], 1),
    lambda x: torch.hstack([x, x[:, :2]]),
    lambda x: F.pad(x, (1, 2)),
    lambda x: F.pad(x, (-1, 2, 3, 0), value=4.5),
    lambda x: F.pad(x, (1, 1), mode="reflect"),
    lambda x: (x.tril(), x.triu(1), x.tril(-1)),
    lambda x: x.rot90(1, (0, 2)),
    lambda x: F.pixel_shuffle(x.reshape(4, 5, 6)[:, :5].reshape(4, 5, 6), 2),
    lambda x: F.pixel_unshuffle(x[:, :4], 2),
    lambda x: F.channel_shuffle(x[None], 2),
    lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    lambda x: x.swapaxes(0, 1).reshape(5, -1).t(),
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_view(number: int) -> None:
    x, strided = torch.arange(120).view(4, 5, 6), torch.arange(120.0).view(6, 5, 4)
    function = VIEWS[number]
    check(lambda x, y: (function(x), function(y)), x, strided.permute(2, 1, 0))


def test_views_of_nothing() -> None:
    x = torch.randn(3, 0, 2)
    check(lambda x: (x.reshape(-1), x.permute(2, 1, 0), torch.cat([x, x]), x.sum(1), x[1:]), x)


def test_writes_into_views() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        h = x.clone()
        h[:, 1:3] = y
        h[0] += 1
        h[::2] *= 2
        h[1, 2] = 7
        h.diagonal().zero_()
        return h

    check(function, torch.randn(4, 5), torch.randn(2), whole=False)


CREATION: list[Callable[..., Any]] = [
    lambda x: torch.arange(x.shape[0]) + x.sum(),
    lambda x: torch.arange(2, 11, 3) * x[0, 0],
    lambda x: torch.arange(0.5, 3.0, 0.25) + x[0, 0],
    lambda x: torch.arange(5, 0, -1, dtype=torch.float32),
    lambda x: torch.linspace(0, 1, 7),
    lambda x: torch.full_like(x, 2.5) + torch.zeros_like(x) + torch.ones_like(x),
    lambda x: x.new_full((2, 3), 4),
    lambda x: torch.eye(3) + torch.zeros(3),
    lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(),
    lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
    lambda x: torch.tensor(3) * x,
]


@pytest.mark.parametrize("number", range(len(CREATION)))
def test_creation(number: int) -> None:
    check(CREATION[number], torch.randn(4, 5))


def test_one_hot() -> None:
    """The library checks that the classes are there."""
    check(lambda x: F.one_hot(torch.arange(4) % 3, 3), torch.randn(4, 5), whole=False)


NORMS: list[Callable[..., Any]] = [
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: F.layer_norm(x, x.shape[-2:], eps=0.1),
    lambda x: F.rms_norm(x, x.shape[-1:]),
    lambda x: F.group_norm(x, 2),
    lambda x: F.group_norm(x, 3, x[0, :, 0], x[1, :, 0]),
    lambda x: F.instance_norm(x),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.local_response_norm(x, 2),
]


@pytest.mark.parametrize("number", range(len(NORMS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_norm(number: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 6, 5).to(dtype) * 3 + (100 if dtype == torch.float64 else 1)
    check(NORMS[number], x, whole=number < 7)


INDICES: list[Callable[..., Any]] = [
    lambda x, i: F.embedding(i, x),
    lambda x, i: x.index_select(1, i),
    lambda x, i: x.gather(1, i[:5].expand(7, 5)),
    lambda x, i: x[i],
    lambda x, i: x[:, i],
    lambda x, i: x[i, i - 5],
    lambda x, i: torch.take_along_dim(x, i[None, :5].expand(7, 5), 1),
]


@pytest.mark.parametrize("number", range(len(INDICES)))
def test_indices(number: int) -> None:
    """With an error where they are out of bounds; or as loads, where they are trusted."""
    x, i = torch.randn(7, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    function = INDICES[number]
    check(function, x, i, whole=False)
    assert compare.externs(compare.lowered(function, x, i))
    assert not compare.externs(compare.lowered(function, x, i, trust_indices=True))
    compare.assert_same(compare.run(function, x, i, trust_indices=True), function(x, i))


GRADIENTS: list[Callable[..., Any]] = [
    lambda x: x.softmax(-1).square().sum(),
    lambda x: x.log_softmax(0)[0],
    lambda x: F.layer_norm(x, x.shape[-1:]).sin(),
    lambda x: F.group_norm(x[None], 2).cos(),
    lambda x: F.gelu(x) * F.silu(x),
    lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1, 1])),
    lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1, 1]), label_smoothing=0.1),
    lambda x: x.std(0) + x.var(0) + x.norm(dim=0),
    lambda x: x.amax(-1) + x.logsumexp(-1),
    lambda x: torch.cat([x[:, 2:], -x[:, :2]], 1) * x,
    lambda x: x.cumsum(0) * x,
    lambda x: F.softplus(x) + F.elu(x) + F.hardswish(x) + F.logsigmoid(x) + F.mish(x),
    lambda x: x.t() @ x,
    lambda x: x.clamp(-0.5, 0.5) * x.abs() * torch.where(x > 0, x, 2 * x),
    lambda x: F.normalize(x, dim=1).prod(1),
    lambda x: x.repeat(2, 2).roll(1, 0).flip(1).reshape(-1).unfold(0, 3, 2).sum(0),
]


@pytest.mark.parametrize("number", range(len(GRADIENTS)))
def test_gradient(number: int) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    _, got, want = compare.gradients(GRADIENTS[number], x)
    compare.assert_same(got, want)
