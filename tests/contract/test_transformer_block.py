"""transformer_block beyond the registry-driven suite: recomputation, autocast, its torch twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import megafuse as mf

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
NAMES = [
    "ln1_weight",
    "ln1_bias",
    "qkv_weight",
    "qkv_bias",
    "proj_weight",
    "proj_bias",
    "ln2_weight",
    "ln2_bias",
    "w1",
    "b1",
    "w2",
    "b2",
]


def parameters(
    features: int, hidden: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> dict[str, Tensor]:
    shapes = [
        (features,),
        (features,),
        (3 * features, features),
        (3 * features,),
        (features, features),
        (features,),
        (features,),
        (features,),
        (hidden, features),
        (hidden,),
        (features, hidden),
        (features,),
    ]
    made = {}
    for name, shape in zip(NAMES, shapes, strict=True):
        scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.5
        made[name] = (torch.randn(shape, device=device) * scale).to(dtype).requires_grad_()
    return made


def gradients(x: Tensor, given: dict[str, Tensor], **more: Any) -> tuple[Tensor, list[Tensor]]:
    """The result and the gradients of x and all parameters, for one fixed incoming gradient."""
    x = x.detach().requires_grad_()
    out = mf.transformer_block(x, *given.values(), **more)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
    return out, list(torch.autograd.grad(out, [x, *given.values()], weights))


def close(got: list[Tensor], want: list[Tensor], tolerance: float) -> None:
    for name, a, b in zip(["x", *NAMES], got, want, strict=True):
        size = max(b.abs().max().item(), 1e-2)
        error = (a.double() - b.double()).abs().max().item()
        assert error <= tolerance * size, f"{name}: {error:.1e} of {size:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_recomputed_gradients_are_the_kept_ones(act: str, dtype: torch.dtype, device: str) -> None:
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("float64 is the CPU's")
    given = parameters(48, 96, dtype, device)
    x = torch.randn(2, 20, 48, device=device).to(dtype)
    kept = gradients(x, given, heads=4, causal=True, act=act)
    for level in (1, 2):
        again = gradients(x, given, heads=4, causal=True, act=act, recompute=level)
        assert torch.equal(kept[0], again[0])
        # In 16 bits the activation's argument is rounded when it is kept, and its value is of what
        # was kept: on the CPU by the very same arithmetic.
        if device == "cpu" and dtype == torch.bfloat16:
            assert all(torch.equal(a, b) for a, b in zip(again[1], kept[1], strict=True))
        close(again[1], kept[1], {torch.bfloat16: 1e-2, torch.float32: 1e-6}.get(dtype, 1e-14))


def _kept_bytes(x: Tensor, given: dict[str, Tensor], level: int, **more: Any) -> int:
    """What a call keeps for its backward, without its arguments."""
    kept: dict[int, int] = {}
    own = {t.data_ptr() for t in (x, *given.values())}

    def pack(t: Tensor) -> Tensor:
        if t.data_ptr() not in own:
            kept[t.data_ptr()] = t.numel() * t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        mf.transformer_block(x, *given.values(), heads=4, recompute=level, **more)
    return sum(kept.values())


@pytest.mark.parametrize("act", ["gelu", "relu"])
def test_recomputation_saves_memory(act: str) -> None:
    features, hidden, tokens = 64, 256, 40
    given = parameters(features, hidden)
    x = torch.randn(2, tokens, features, requires_grad=True)
    levels = [_kept_bytes(x, given, level, act=act) for level in (0, 1, 2)]
    row = 4 * 2 * tokens
    heads, moments = 4, 4
    always = row * (heads + moments)  # the attention's sums, mean and scale of both norms
    # Norms, q k v, attention, the sum in the middle; the activation's argument and value.
    wide = 2 * hidden if act == "gelu" else hidden
    assert levels[0] == row * (7 * features + wide) + always
    assert levels[1] == row * (5 * features + hidden) + always
    assert levels[2] == row * features + always


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_autocast_keeps_the_residual_stream(
    lower: torch.dtype, recompute: int, device: str
) -> None:
    """As near to float64 as eager is under autocast, and float32 comes out."""
    given = parameters(48, 96, device=device)
    x = torch.randn(2, 24, 48, device=device)
    more = {"heads": 4, "causal": True, "act": "gelu_tanh"}
    with torch.autocast(device, lower):
        out, ours = gradients(x, given, **more, recompute=recompute)
    assert out.dtype == torch.float32
    assert all(g.dtype == torch.float32 for g in ours)
    exact = _through(mf.reference.transformer_block, x.double(), _doubled(given), more)
    with torch.autocast(device, lower):
        eager = _through(mf.reference.transformer_block, x, given, more)
    for a, b, c in zip([out, *ours], eager, exact, strict=True):
        mine, theirs = ((t.double() - c).norm() / c.norm() for t in (a, b))
        assert mine <= 1.5 * theirs + 1e-4


def _doubled(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().double().requires_grad_() for name, t in given.items()}


def _through(f: Any, x: Tensor, given: dict[str, Tensor], more: dict[str, Any]) -> list[Tensor]:
    x = x.detach().requires_grad_()
    out = f(x, *given.values(), **more)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
    return [out, *torch.autograd.grad(out, [x, *given.values()], weights)]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_float32_beside_narrow_weights(device: str) -> None:
    """Without autocast too: x and the norms in float32, products in bfloat16."""
    given = parameters(32, 64, torch.bfloat16, device)
    for name in ("ln1_weight", "ln1_bias", "ln2_weight", "ln2_bias"):
        given[name] = given[name].detach().float().requires_grad_()
    x = torch.randn(2, 16, 32, device=device)
    out, ours = gradients(x, given, heads=2)
    assert out.dtype == torch.float32
    for gradient, of in zip(ours, [x, *given.values()], strict=True):
        assert gradient.dtype == of.dtype
    exact = _through(mf.reference.transformer_block, x.double(), _doubled(given), {"heads": 2})
    for got, want in zip([out, *ours], exact, strict=True):
        assert (got.double() - want).norm() <= 5e-2 * want.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_is_torchs_encoder_layer(device: str) -> None:
    layer = nn.TransformerEncoderLayer(
        64, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, device=device
    )
    x = torch.randn(3, 10, 64, device=device)
    given = [
        layer.norm1.weight, layer.norm1.bias, layer.self_attn.in_proj_weight,
        layer.self_attn.in_proj_bias,
        layer.self_attn.out_proj.weight, layer.self_attn.out_proj.bias,
        layer.norm2.weight, layer.norm2.bias, layer.linear1.weight, layer.linear1.bias,
        layer.linear2.weight, layer.linear2.bias,
    ]  # fmt: skip
    torch.testing.assert_close(
        mf.transformer_block(x, *given, heads=4), layer(x), rtol=1e-4, atol=1e-4
    )
    hidden = torch.ones(10, 10, dtype=torch.bool, device=device).tril()
    torch.testing.assert_close(
        mf.transformer_block(x, *given, heads=4, mask=hidden),
        mf.transformer_block(x, *given, heads=4, causal=True),
    )


@pytest.mark.slow
def test_nothing_for_what_is_not_wanted() -> None:
    """Frozen parts get no gradient, and the others the same as ever."""
    given = parameters(16, 32)
    x = torch.randn(2, 5, 16)
    everything = dict(zip(["x", *NAMES], gradients(x, given, heads=2)[1], strict=True))
    for trained in (["w2"], ["b1"], ["ln2_bias"], ["proj_weight"], ["qkv_bias"], ["ln1_weight"]):
        some = {n: t.detach().requires_grad_(n in trained) for n, t in given.items()}
        out = mf.transformer_block(x, *some.values(), heads=2)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        for name, t in some.items():
            assert (t.grad is not None) == (name in trained)
            if t.grad is not None:
                torch.testing.assert_close(t.grad, everything[name])


def test_heads_must_divide() -> None:
    given = parameters(16, 32)
    with pytest.raises(ValueError, match="multiple of 'heads', got 16 and 3"):
        mf.transformer_block(torch.randn(1, 2, 16), *given.values(), heads=3)
