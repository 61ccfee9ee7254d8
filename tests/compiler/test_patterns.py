"""Patterns of graph/patterns: what they find, what they leave, and that results stay right.

Products become steps of ours on CUDA only. Here every graph is treated as if it were there: the
step runs on any device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from compiler.placed import here
from megafuse.compiler import compile as compiler
from megafuse.compiler.compile import compiled
from megafuse.graph import patterns
from megafuse.graph.ir import Extern, Graph, Pointwise
from megafuse.graph.patterns import product


@pytest.fixture(autouse=True)
def as_on_cuda(monkeypatch: pytest.MonkeyPatch, anew: None) -> None:
    found = patterns.matched
    monkeypatch.setattr(
        compiler, "matched", lambda graph, device, rounds: found(graph, "cuda", rounds)
    )


def tanh_form(x: Tensor) -> Tensor:
    return (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    )


def cube_by_products(x: Tensor) -> Tensor:
    return x * 0.5 * (torch.tanh(0.7978845608 * (0.044715 * x * x * x + x)) + 1)


def erf_form(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def erf_by_factor(x: Tensor) -> Tensor:
    return (torch.erf(x * 0.7071067811865476) + 1) * (x * 0.5)


def another_cube(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.05 * torch.pow(x, 3.0))))


def of_two(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf((x + 1) / math.sqrt(2.0)))


def graph_of(function: Callable[..., Any], *args: Any) -> Graph:
    return compiled(function, args, {}, "fused").forward[0]


def prims(graph: Graph) -> set[str]:
    return {value.prim.name for value in graph.values if isinstance(value, Pointwise)}


@pytest.mark.parametrize(
    ("function", "prim"),
    [
        (tanh_form, "gelu_tanh"),
        (cube_by_products, "gelu_tanh"),
        (erf_form, "gelu"),
        (erf_by_factor, "gelu"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_is_found_however_it_is_written(
    function: Callable[[Tensor], Tensor], prim: str, dtype: torch.dtype
) -> None:
    x = torch.linspace(-9, 9, 1001).to(dtype)
    assert prims(graph_of(function, x)) == {prim}
    form = "tanh" if prim == "gelu_tanh" else "none"
    torch.testing.assert_close(mf.fuse(function)(x), F.gelu(x, approximate=form))


@pytest.mark.parametrize("function", [another_cube, of_two])
def test_what_only_looks_like_gelu_stays(function: Callable[[Tensor], Tensor]) -> None:
    assert not prims(graph_of(function, torch.randn(7))) & {"gelu", "gelu_tanh"}


def test_the_parts_stay_where_their_roundings_are_wanted() -> None:
    x = torch.randn(1000).bfloat16()
    assert torch.equal(mf.fuse(rounding="eager")(tanh_form)(x), tanh_form(x))


def mish_of_softplus(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


def mish_by_hand(x: Tensor) -> Tensor:
    return torch.tanh(torch.where(x > 20, x, torch.log1p(torch.exp(x)))) * x


@pytest.mark.parametrize("function", [mish_of_softplus, mish_by_hand, F.mish])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_mish_has_no_logarithm(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    many = torch.cat([torch.linspace(-110, 110, 4001), torch.randn(4000) * 4])
    ends = torch.tensor([0.0, -0.0, 20.0, torch.inf, torch.nan, 1e-30, -1e-30, 3e38, -87.5])
    x = torch.cat([many, ends]).to(dtype)
    assert prims(graph_of(function, x)) & {"log1p", "tanh"} == set()
    exactly = mish_of_softplus(x.double())
    found = mf.fuse(function)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)
    if dtype == torch.float32:
        off = ((found - exactly) / exactly).abs()[exactly.abs() > 1e-30]
        assert off[off.isfinite()].max() < 5 * torch.finfo(dtype).eps


def test_mish_beside_other_tanhs() -> None:
    """Whose names are tanh, tanh_1 and tanh_2 (fuzz 3262)."""
    x = torch.randn(100)
    function = lambda x: F.mish(x) + torch.tanh(x) * torch.tanh(x + 1)  # noqa: E731
    torch.testing.assert_close(mf.fuse(function)(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tanh(F.softplus(x, threshold=9)),
        lambda x: torch.tanh(F.softplus(x, threshold=50)),
        lambda x: torch.tanh(F.softplus(x, beta=2)),
        lambda x: torch.tanh(torch.where(x > 20, x + 1, torch.log1p(torch.exp(x)))),
        lambda x: torch.tanh(torch.where(x > 20, x, torch.log1p(torch.exp(-x)))),
    ],
)
def test_what_only_looks_like_mish_stays(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-60, 60, 1001)
    assert {"log1p", "tanh"} <= prims(graph_of(function, x))
    torch.testing.assert_close(mf.fuse(function)(x), function(x))


class Layers(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 40, bias), nn.Linear(40, 9, bias=False)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down(self.act(self.up(x)))
        return made


def steps(graph: Graph) -> list[str]:
    found = [value for value in graph.values if isinstance(value, Extern)]
    assert all(value.target is product.ops.product.default for value in found)
    return [product.label(value.args) for value in found]


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("act", "name"),
    [(F.gelu, "gelu"), (tanh_form, "gelu_tanh"), (F.relu, "relu")],
    ids=["gelu", "tanh", "relu"],
)
def test_an_activation_is_a_part_of_its_product(
    act: Callable[[Tensor], Tensor], name: str, bias: bool
) -> None:
    def layers(x: Tensor, up: Tensor, down: Tensor, added: Tensor | None) -> Tensor:
        return F.linear(act(F.linear(x, up, added)), down)

    model = Layers(act, bias)
    x = torch.randn(3, 5, 16, requires_grad=True)
    with torch.no_grad():
        made = graph_of(layers, x, model.up.weight, model.down.weight, model.up.bias)
    assert steps(made) == ["product + bias + " + name if bias else "product + " + name, "product"]
    assert not prims(made)
    expected = model(x)
    wanted = torch.autograd.grad(expected.square().sum(), (x, *model.parameters()))
    mf.optimize(model)
    out = model(x)
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad(out.square().sum(), (x, *model.parameters()))
    torch.testing.assert_close(found, wanted)
    assert "library product" in str(mf.explain(model))


def test_what_others_read_is_kept() -> None:
    def both(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        pre = x @ weight
        return F.gelu(pre), pre

    x, weight = torch.randn(6, 16), torch.randn(16, 24)
    made = graph_of(both, x, weight)
    assert steps(made) == ["product + gelu"]
    (step,) = (value for value in made.values if isinstance(value, Extern))
    assert step.args[4] is True
    torch.testing.assert_close(mf.fuse(both)(x, weight), both(x, weight))


def test_an_activation_with_more_after_it_is_in_the_kernel_of_that() -> None:
    def gated(x: Tensor, weight: Tensor) -> Tensor:
        return F.gelu(x @ weight) * x[:, :1]

    made = graph_of(gated, torch.randn(6, 16), torch.randn(16, 24))
    assert steps(made) == ["product"]
    assert "gelu" in prims(made)


def test_half_of_a_product_keeps_its_activation() -> None:
    def halves(x: Tensor, weight: Tensor) -> Tensor:
        return F.gelu((x @ weight)[:, :12])

    assert steps(graph_of(halves, torch.randn(6, 16), torch.randn(16, 24))) == ["product"]


@pytest.mark.parametrize(
    "other",
    [
        lambda x, w: torch.addmm(torch.ones(24), x, w, beta=0.5),
        lambda x, w: torch.addmm(torch.ones(6, 24), x, w),
        lambda x, w: x.double() @ w.double(),
    ],
    ids=["factor", "matrix", "float64"],
)
def test_other_products_are_the_librarys(other: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, weight = torch.randn(6, 16), torch.randn(16, 24)
    made = graph_of(other, x, weight)
    assert not any(
        v.target is product.ops.product.default for v in made.values if isinstance(v, Extern)
    )
    torch.testing.assert_close(mf.fuse(other)(x, weight), other(x, weight))


SIZES = [(8, 16, 24), (1, 16, 24), (0, 16, 24), (600, 1001, 513), (515, 520, 1026)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_step_itself(size: tuple[int, int, int], turned: str, dtype: torch.dtype) -> None:
    """On CUDA the larger ones are padded, where their sizes are odd, and split in float32."""
    m, k, n = size
    a = torch.randn(k, m).t() if "a" in turned else torch.randn(m, k)
    b = torch.randn(n, k).t() if "b" in turned else torch.randn(k, n)
    a, b, bias = (t.to(dtype) for t in (a, b, torch.randn(n)))
    out, pre = product.ops.product(a, b, bias, "gelu", True)
    exact = torch.addmm(bias.double(), a.double(), b.double())
    near = (
        {"rtol": 1e-5, "atol": 1e-5 * k**0.5}
        if dtype == torch.float32
        else {"rtol": 2e-2, "atol": 0.5}
    )
    torch.testing.assert_close(pre.double(), exact, **near)
    torch.testing.assert_close(out.double(), F.gelu(exact), **near)
    plain, nothing = product.ops.product(a, b)
    assert nothing.numel() == 0
    torch.testing.assert_close(plain.double(), a.double() @ b.double(), **near)
    assert plain.device.type == here().type
