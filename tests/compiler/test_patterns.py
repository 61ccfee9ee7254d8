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
from megafuse.compiler import attend
from megafuse.compiler import compile as compiler
from megafuse.compiler.compile import compiled
from megafuse.graph import patterns, proof
from megafuse.graph.ir import Extern, Graph, Pointwise, Value
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


class Attends(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.qkv, self.how = nn.Linear(16, 3 * 16), how

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        if self.how.get("enable_gqa"):
            k, v = k[:, :2], v[:, :2]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.how)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("how", "masked", "ours"),
    [
        ({}, False, True),
        ({"is_causal": True, "scale": 0.3}, False, True),
        ({"enable_gqa": True}, False, True),
        ({}, True, True),
        ({"dropout_p": 0.1}, False, False),
    ],
    ids=["plain", "causal", "groups", "masked", "dropout"],
)
def test_attention_is_our_op(
    how: dict[str, Any], masked: bool, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend, "DEVICES", ("cpu", "cuda"))
    model, x = Attends(**how), torch.randn(2, 7, 16, requires_grad=True)
    mask = torch.rand(2, 1, 7, 7) > 0.3 if masked else None
    if mask is not None:
        mask[..., 0] = True
    expected = model(x, mask)
    wanted = torch.autograd.grad(expected.square().sum(), (x, *model.parameters()))
    mf.optimize(model)
    out = model(x, mask)
    assert ("megafuse.attention" in str(mf.explain(model))) == ours
    if not ours:
        return
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad(out.square().sum(), (x, *model.parameters()))
    torch.testing.assert_close(found, wanted)
    other = torch.randn(3, 5, 16)  # of other sizes
    with torch.no_grad():
        found = model(other)
        torch.testing.assert_close(found, mf.deoptimize(model)(other))


def test_a_mask_that_wants_a_gradient_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "DEVICES", ("cpu", "cuda"))
    model, x = Attends(), torch.randn(2, 7, 16)
    mask = torch.randn(1, 4, 7, 7, requires_grad=True)
    (wanted,) = torch.autograd.grad(model(x, mask).square().sum(), mask)
    mf.optimize(model)
    (found,) = torch.autograd.grad(model(x, mask).square().sum(), mask)
    torch.testing.assert_close(found, wanted)


def below(n: int) -> Tensor:
    return torch.arange(n)[None, :] <= torch.arange(n)[:, None]


def packed(n: int) -> Tensor:
    """As the transformers library looks for sequences packed into one: there are none."""
    places = torch.arange(n) + 0
    before = torch.cat([places[:1] - 1, places])
    sequence = (before.diff() != 1).cumsum(-1)
    return below(n) & (sequence[torch.arange(n)[:, None]] == sequence[torch.arange(n)[None, :]])


MASKS: dict[str, tuple[Callable[[int], Tensor], str | None]] = {
    "causal": (below, "causal"),
    "turned": (lambda n: torch.arange(n)[:, None] >= torch.arange(n), "causal"),
    "packed": (packed, "causal"),
    "ones": (lambda n: torch.arange(n)[None, :] >= torch.zeros(n, 1, dtype=torch.int64), "all"),
    "strictly": (lambda n: torch.arange(n) < torch.arange(n)[:, None] + 0, None),
    "next": (lambda n: torch.arange(n) <= torch.arange(n)[:, None] + 1, None),
    "window": (lambda n: below(n) & (torch.arange(n) > torch.arange(n)[:, None] - 99), None),
    "backwards": (lambda n: below(n).flip(0), None),
    "two packed": (
        lambda n: below(n) & ((torch.arange(n) < 3) == (torch.arange(n)[:, None] < 3)),
        None,
    ),
}


class Masked(Attends):
    def __init__(self, mask: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, self.mask(x.shape[1]).expand(x.shape[0], 1, -1, -1))


QUICK = ("causal", "packed", "window")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in QUICK else pytest.mark.slow) for k in MASKS]
)
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_masks_that_are_known(kind: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mask lets queries see is proven, never guessed; both passes then read none."""
    monkeypatch.setattr(attend, "DEVICES", ("cpu", "cuda"))
    found = []
    prove = proof.seen

    def noted(mask: Value) -> str | None:
        found.append(prove(mask))
        return found[-1]

    monkeypatch.setattr(proof, "seen", noted)
    mask, expected = MASKS[kind]
    model, x = Masked(mask), torch.randn(2, 7, 16, requires_grad=True)
    with torch.set_grad_enabled(grad):
        wanted = model(x)
        mf.optimize(model)
        out = model(x)
    assert set(found) == {expected}
    torch.testing.assert_close(out, wanted)
    plain = mf.optimize(Attends())
    with torch.set_grad_enabled(grad):
        plain(x)
    kernels = [mf.explain(each).kernels for each in (model, plain)]
    assert (kernels[0] == kernels[1]) == (expected is not None)
    if grad:
        gradients = [
            torch.autograd.grad(y.square().sum(), (x, *model.parameters())) for y in (out, wanted)
        ]
        torch.testing.assert_close(*gradients)
    other = torch.randn(3, 200, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(other), mf.deoptimize(model)(other))


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
