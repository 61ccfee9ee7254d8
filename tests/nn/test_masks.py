"""Attention and TransformerBlock take torch's masks and layouts, and give its results."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import megafuse.nn as fused

B, H, S, T, E = 3, 2, 9, 13, 64


def padding(kind: str, keys: int) -> Tensor | None:
    """The last keys of each sample are left out."""
    left_out = torch.arange(keys) >= torch.tensor([[keys], [keys - 4], [2]])
    return _as(kind, left_out)


def mask(kind: str, shape: str, keys: int) -> Tensor | None:
    size = (S, keys) if shape == "2d" else (B * H, S, keys)
    left_out = torch.rand(size) < 0.3
    left_out[..., 0] = False  # a row with nothing in it means nothing
    return _as(kind, left_out)


def _as(kind: str, left_out: Tensor) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "bool":
        return left_out
    return torch.randn(left_out.shape).masked_fill(left_out, -math.inf)


def causal(keys: int) -> Tensor:
    return torch.ones(S, keys, dtype=torch.bool).triu(1)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def attentions(**settings) -> tuple[fused.Attention, nn.MultiheadAttention]:
    twin = nn.MultiheadAttention(E, H, **settings).eval()
    nn.init.normal_(twin.out_proj.bias)
    if twin.in_proj_bias is not None:
        nn.init.normal_(twin.in_proj_bias)
    return fused.Attention.from_torch(twin), twin


def ask(module: nn.MultiheadAttention, *args: Tensor, **options) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch discourages masks of two kinds
        return module(*args, need_weights=False, **options)[0]


# ---- Attention

KINDS = ["none", "bool", "float"]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("attn", "pad", "shape"),
    [k for k in itertools.product(KINDS, KINDS, ["2d", "3d"]) if k[0] != "none" or k[2] == "2d"],
)
def test_masks(attn: str, pad: str, shape: str, batch_first: bool) -> None:
    ours, twin = attentions(batch_first=batch_first)
    q, k = torch.randn(B, S, E), torch.randn(B, T, E)
    if not batch_first:
        q, k = q.transpose(0, 1).contiguous(), k.transpose(0, 1).contiguous()
    options = {"attn_mask": mask(attn, shape, T), "key_padding_mask": padding(pad, T)}
    close(ask(ours, q, k, k, **options), ask(twin, q, k, k, **options))


@pytest.mark.parametrize("pad", KINDS)
def test_causal(pad: str) -> None:
    """`is_causal` says what the mask is; here it may also stand alone."""
    ours, twin = attentions(batch_first=True)
    x = torch.randn(B, S, E)
    options = {"key_padding_mask": padding(pad, S), "is_causal": True}
    expected = ask(twin, x, x, x, attn_mask=causal(S), **options)
    close(ask(ours, x, x, x, attn_mask=causal(S), **options), expected)
    close(ours(x, **options)[0], expected)


def test_causal_with_other_keys() -> None:
    """Query i sees keys 0 to i, also where there are more keys than queries."""
    ours, twin = attentions(batch_first=True)
    q, k = torch.randn(B, S, E), torch.randn(B, T, E)
    expected = ask(twin, q, k, k, attn_mask=causal(T), is_causal=True)
    close(ours(q, k, is_causal=True)[0], expected)


def test_dropout_and_masks_together() -> None:
    """torch's attention takes a mask or a causal one: both become one."""
    ours, twin = attentions(batch_first=True, dropout=1e-9)
    ours.train()
    x = torch.randn(B, S, E)
    for kind in ("bool", "float"):
        options = {"key_padding_mask": padding(kind, S), "is_causal": True}
        close(ours(x, **options)[0], ask(twin, x, x, x, attn_mask=causal(S), **options))


@pytest.mark.parametrize("batch_first", [True, False])
def test_tensors_of_their_own(batch_first: bool) -> None:
    ours, twin = attentions(batch_first=batch_first)
    ours2, twin2 = attentions(batch_first=batch_first, bias=True)
    q, k, v = torch.randn(B, S, E), torch.randn(B, T, E), torch.randn(B, T, E)
    if not batch_first:
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    close(ask(ours, q, k, v), ask(twin, q, k, v))
    close(ask(ours2, q, k, k), ask(twin2, q, k, k))


def test_no_batch() -> None:
    for batch_first in (True, False):
        ours, twin = attentions(batch_first=batch_first)
        q, k = torch.randn(S, E), torch.randn(T, E)
        left_out = torch.arange(T) >= 9
        close(ask(ours, q, q, q), ask(twin, q, q, q))
        options = {"key_padding_mask": left_out, "attn_mask": mask("bool", "2d", T)}
        close(ask(ours, q, k, k, **options), ask(twin, q, k, k, **options))


def test_weights_come_when_asked_for() -> None:
    ours, twin = attentions(batch_first=True)
    x = torch.randn(B, S, E)
    assert ours(x)[1] is None
    got, expected = ours(x, need_weights=True), twin(x, x, x)
    close(got[0], expected[0])
    close(got[1], expected[1])
    assert ours(x, need_weights=True, average_attn_weights=False)[1].shape == (B, H, S, S)


@pytest.mark.parametrize(
    "settings", [{"kdim": 40, "vdim": 24}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str
)
def test_settings_that_no_op_has(settings: dict) -> None:
    ours, twin = attentions(batch_first=True, **settings)
    q = torch.randn(B, S, E)
    k, v = torch.randn(B, T, settings.get("kdim", E)), torch.randn(B, T, settings.get("vdim", E))
    close(ask(ours, q, k, v), ask(twin, q, k, v))


def test_mask_that_learns() -> None:
    """A float mask that wants a gradient, such as a relative position's bias, gets it."""
    ours, twin = attentions(batch_first=True)
    x, bias = torch.randn(B, S, E), torch.randn(S, S)
    grads = []
    for module in (ours, twin):
        learned = bias.clone().requires_grad_()
        ask(module, x, x, x, attn_mask=learned).square().sum().backward()
        grads.append(learned.grad)
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 64])
def test_heads_of_any_width(heads: int) -> None:
    twin = nn.MultiheadAttention(E, heads, batch_first=True)
    x = torch.randn(B, S, E)
    close(fused.Attention.from_torch(twin)(x)[0], ask(twin, x, x, x))


# ---- TransformerBlock


def blocks(**settings) -> tuple[fused.TransformerBlock, nn.TransformerEncoderLayer]:
    settings = {"batch_first": True, "norm_first": True, **settings}
    twin = nn.TransformerEncoderLayer(E, H, 96, **settings).eval()
    return fused.TransformerBlock.from_torch(twin), twin


layers = pytest.mark.parametrize(
    "settings",
    [{}, {"norm_first": False}, {"batch_first": False}, {"bias": False, "activation": "gelu"}],
    ids=str,
)


@layers
@pytest.mark.parametrize("pad", KINDS)
@pytest.mark.parametrize("attn", KINDS)
def test_masks_of_a_block(attn: str, pad: str, settings: dict) -> None:
    ours, twin = blocks(**settings)
    x = torch.randn(S, B, E) if settings.get("batch_first") is False else torch.randn(B, S, E)
    options = {"src_mask": mask(attn, "2d", S), "src_key_padding_mask": padding(pad, S)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(ours(x, **options), twin(x, **options))


@layers
def test_causal_block(settings: dict) -> None:
    ours, twin = blocks(**settings)
    x = torch.randn(S, B, E) if settings.get("batch_first") is False else torch.randn(B, S, E)
    expected = twin(x, src_mask=causal(S), is_causal=True)
    close(ours(x, src_mask=causal(S), is_causal=True), expected)
    close(ours(x, is_causal=True), expected)


@layers
def test_block_without_a_batch(settings: dict) -> None:
    ours, twin = blocks(**settings)
    x = torch.randn(S, E)
    close(ours(x), twin(x))
    masked = {"src_mask": mask("bool", "2d", S), "src_key_padding_mask": torch.arange(S) >= 6}
    close(ours(x, **masked), twin(x, **masked))


@pytest.mark.parametrize("norm_first", [True, False])
def test_in_torchs_encoder(norm_first: bool) -> None:
    """nn.TransformerEncoder hands its layers float masks, and nested tensors for inference."""
    settings = {"batch_first": True, "norm_first": norm_first, "dropout": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, or not used here
        layer = nn.TransformerEncoderLayer(E, H, 96, **settings)
        twin = nn.TransformerEncoder(layer, 2)
        ours = nn.TransformerEncoder(fused.TransformerBlock(E, H, 96, **settings), 2)
        ours.load_state_dict(twin.state_dict(), strict=True)
        x, left_out = torch.randn(B, S, E), padding("bool", S)
        kept = ~left_out
        for mode in (True, False):
            ours.train(mode)
            twin.train(mode)
            for grad in (torch.enable_grad, torch.no_grad):
                with grad():
                    options = {"src_key_padding_mask": left_out}
                    close(ours(x, **options)[kept], twin(x, **options)[kept])
                    options = {"mask": causal(S), "is_causal": True}
                    close(ours(x, **options), twin(x, **options))
                    close(ours(x), twin(x))


def test_activation_that_no_op_has() -> None:
    block = fused.TransformerBlock(E, H, 96, activation=torch.nn.functional.silu, dropout=0.0)
    twin = nn.TransformerEncoderLayer(E, H, 96, activation=torch.nn.functional.silu, dropout=0.0)
    twin.load_state_dict(block.state_dict())
    x = torch.randn(S, B, E)
    close(block(x), twin(x))


def test_norms_with_an_eps_of_their_own() -> None:
    ours, twin = blocks(dropout=0.0)
    ours.norm2.eps = twin.norm2.eps = 0.1
    x = torch.randn(B, S, E)
    close(ours(x), twin(x))
