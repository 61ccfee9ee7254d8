"""Arguments for the functions of model_functions.py: at a model's sizes, and at odd ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from megafuse.bench import model_functions as f

KI, MI = 1 << 10, 1 << 20
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """How large a model's tensors are, all with about as many elements."""

    tokens: Shape  # [tokens, features]
    sequence: Shape  # [batch, tokens, features]
    heads: Shape  # [batch, heads, tokens, features of a head]
    scores: Shape  # [batch, heads, tokens, tokens]
    logits: Shape  # [tokens, words]
    image: Shape  # [batch, channels, height, width]

    def another_batch(self) -> Sizes:
        """The first size of each is one more."""
        return Sizes(*(_more(getattr(self, field.name)) for field in fields(self)))


def _more(shape: Shape) -> Shape:
    return (shape[0] + 1, *shape[1:])


SIZES = {  # by elements
    16 * MI: Sizes(
        tokens=(16 * KI, KI),
        sequence=(16, KI, KI),
        heads=(16, 8, 2 * KI, 64),
        scores=(4, 4, KI, KI),
        logits=(512, 32 * KI),
        image=(16, 256, 64, 64),
    ),
    MI: Sizes(
        tokens=(KI, KI),
        sequence=(4, 256, KI),
        heads=(2, 8, KI, 64),
        scores=(2, 2, 512, 512),
        logits=(32, 32 * KI),
        image=(4, 64, 64, 64),
    ),
    KI: Sizes(
        tokens=(4, 256),
        sequence=(2, 4, 128),
        heads=(2, 2, 4, 64),
        scores=(2, 2, 16, 16),
        logits=(2, 512),
        image=(2, 8, 8, 8),
    ),
}
ODD = Sizes(
    tokens=(7, 33),
    sequence=(3, 5, 33),
    heads=(2, 3, 5, 18),
    scores=(2, 3, 9, 9),
    logits=(5, 101),
    image=(3, 16, 5, 7),
)


@dataclass(frozen=True)
class Draw:
    """Random arguments of these sizes."""

    sizes: Sizes
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def normal(self, shape: Shape, spread: float = 1.0) -> Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device) * spread

    def positive(self, shape: Shape) -> Tensor:
        return torch.rand(shape, dtype=self.dtype, device=self.device) + 0.1

    def bits(self, shape: Shape) -> Tensor:
        return (torch.rand(shape, device=self.device) < 0.5).to(self.dtype)

    def below(self, most: int, shape: Shape) -> Tensor:
        return torch.randint(0, most, shape, device=self.device)


@dataclass(frozen=True)
class Case:
    """A function, how its arguments are drawn, and which of them a model wants gradients of."""

    function: Callable[..., Any]
    draw: Callable[[Draw], list[Any]]
    grads: tuple[str, ...] = ()  # none: it only ever runs without
    half: bool = True  # whether models have it in 16 bits, where they have a GPU

    def __str__(self) -> str:
        return self.function.__name__

    def arguments(self, draw: Draw, gradients: bool) -> list[Any]:
        names = self.function.__code__.co_varnames
        wanted = self.grads if gradients else ()
        return [
            value.requires_grad_() if name in wanted else value
            for name, value in zip(names, self.draw(draw), strict=False)
        ]


def _tokens(d: Draw) -> list[Any]:
    return [d.normal(d.sizes.tokens, 2.0)]


def _normed(d: Draw) -> list[Any]:
    return [*_tokens(d), d.normal(d.sizes.tokens[-1:]), 1e-6]


def _with_bias(d: Draw) -> list[Any]:
    features = d.sizes.tokens[-1:]
    return [*_tokens(d), d.normal(features), d.normal(features), 1e-5]


def _conditioned(d: Draw) -> list[Any]:
    batch, _, features = d.sizes.sequence
    return [d.normal(d.sizes.sequence), *(d.normal((batch, features)) for _ in range(3))]


def _image(d: Draw) -> list[Any]:
    channels = d.sizes.image[1:2]
    return [d.normal(d.sizes.image), d.normal(channels), d.normal(channels)]


def _heads(d: Draw) -> list[Any]:
    return [d.normal(d.sizes.heads), d.normal(d.sizes.heads)]


def _turned(d: Draw, width: int) -> list[Any]:
    tokens = d.sizes.heads[2]
    angle = d.normal((tokens, width), 3.0)
    return [angle.cos(), angle.sin()]


def _classified(d: Draw) -> list[Any]:
    tokens, words = d.sizes.logits
    return [d.normal(d.sizes.logits, 2.0), d.below(words, (tokens,))]


def _pairs(d: Draw) -> list[Any]:
    batch = d.sizes.scores[-1]
    return [d.normal((batch, batch)), d.normal(()).abs()]


def _masked(d: Draw) -> list[Any]:
    return [d.normal(d.sizes.scores, 2.0)]


def _lengths(d: Draw) -> Tensor:
    return 1 + d.below(d.sizes.scores[-1], d.sizes.scores[:1])


def _quantised(d: Draw) -> list[Any]:
    q = d.below(256, d.sizes.tokens).sub(128).to(torch.int8)
    rows = (d.sizes.tokens[0], 1)
    return [q, d.positive(rows), d.normal(rows)]


def _updated(d: Draw, moments: int) -> list[Any]:
    return [d.normal(d.sizes.tokens) for _ in range(2 + moments)]


def _diffused(d: Draw) -> list[Any]:
    schedule = torch.linspace(0.99, 0.01, 1000, dtype=d.dtype, device=d.device)
    images = [d.normal(d.sizes.image), d.normal(d.sizes.image)]
    return [*images, schedule, d.below(1000, d.sizes.image[:1])]


def _both(d: Draw) -> list[Any]:
    return [d.normal(d.sizes.image), d.normal(d.sizes.image)]


CASES = [
    Case(f.gelu_tanh, _tokens, ("x",)),
    Case(f.squared_relu, _tokens, ("x",)),
    Case(f.mish, _tokens, ("x",)),
    Case(f.hard_swish, _tokens, ("x",)),
    Case(f.quick_gelu, _tokens, ("x",)),
    Case(f.llama_norm, _normed, ("x", "weight")),
    Case(f.centred_norm, _with_bias, ("x", "weight", "bias")),
    Case(f.gemma_norm, _normed, ("x", "weight")),
    Case(f.ada_layer_norm, _conditioned, ("x", "shift", "scale", "gate")),
    Case(f.group_norm_silu, _image, ("x", "weight", "bias")),
    Case(f.l2_normalise, _tokens, ("x",)),
    Case(
        f.qk_norm,
        lambda d: [*_heads(d), *(d.normal(d.sizes.heads[-1:]) for _ in range(2))],
        ("q", "k", "q_weight", "k_weight"),
    ),
    Case(f.rope_half, lambda d: [*_heads(d), *_turned(d, d.sizes.heads[-1])], ("q", "k")),
    Case(
        f.rope_interleaved,
        lambda d: [d.normal(d.sizes.heads), *_turned(d, d.sizes.heads[-1] // 2)],
        ("x",),
    ),
    Case(f.smoothed_cross_entropy, lambda d: [*_classified(d), 0.1], ("logits",)),
    Case(
        f.focal_loss,
        lambda d: [*_tokens(d), d.bits(d.sizes.tokens), 0.25, 2.0],
        ("logits",),
        half=False,
    ),
    Case(f.huber_loss, lambda d: [*_tokens(d), *_tokens(d), 1.0], ("predicted",), half=False),
    Case(
        f.kl_distillation,
        lambda d: [*(d.normal(d.sizes.logits, 2.0) for _ in range(2)), 2.0],
        ("student",),
    ),
    Case(f.contrastive_rows, _pairs, ("similarity", "log_scale")),
    Case(f.z_loss, lambda d: [d.normal(d.sizes.logits, 2.0)], ("logits",)),
    Case(f.packed_swiglu, lambda d: [d.normal(_doubled(d.sizes.tokens))], ("x",)),
    Case(f.packed_geglu, lambda d: [d.normal(_doubled(d.sizes.tokens))], ("x",)),
    Case(f.router_weights, lambda d: [d.normal(_experts(d.sizes.tokens))], ("logits",)),
    Case(
        f.highway,
        lambda d: [*(d.normal(d.sizes.tokens) for _ in range(3)), d.normal(d.sizes.tokens[-1:])],
        ("x", "h", "gate", "bias"),
    ),
    Case(f.causal_softmax, lambda d: [*_masked(d), 0.35], ("scores",)),
    Case(f.padded_softmax, lambda d: [*_masked(d), _lengths(d)], ("scores",)),
    Case(f.alibi_softmax, lambda d: [*_masked(d), d.positive(d.sizes.scores[1:2])], ("scores",)),
    Case(
        f.fake_quantise,
        lambda d: [*_tokens(d), d.positive(()) / 16, torch.zeros_like(d.positive(()))],
        ("x",),
    ),
    Case(f.dequantise_rows, _quantised),
    Case(f.absmax_quantise, _tokens),
    Case(
        f.adamw,
        lambda d: [*_updated(d, 1), d.positive(d.sizes.tokens), 1e-3, 10],
        half=False,
    ),
    Case(f.lion, lambda d: [*_updated(d, 1), 1e-4], half=False),
    Case(f.ema, lambda d: [*_updated(d, 0), 0.999], half=False),
    Case(f.sgd_momentum, lambda d: [*_updated(d, 1), 0.1], half=False),
    Case(f.clip_gradient, lambda d: [*_tokens(d), 10 * d.positive(()), 1.0], half=False),
    Case(f.hinge_loss, lambda d: [*_tokens(d), *_tokens(d)], ("real", "fake"), half=False),
    Case(f.noised, _diffused),
    Case(f.denoised, _diffused, ("noise",)),
    Case(f.euler_step, lambda d: [*_both(d), 2.0, 1.5], ("v",)),
    Case(f.guided, lambda d: [*_both(d), 7.5], ("conditional", "unconditional")),
    Case(f.guided_rescaled, lambda d: [*_both(d), 7.5, 0.7], ("conditional", "unconditional")),
]


def _doubled(shape: Shape) -> Shape:
    return (*shape[:-1], 2 * shape[-1])


def _experts(shape: Shape) -> Shape:
    """Of a router, the features are experts, and few."""
    features = shape[-1]
    experts = 64 if features % 64 == 0 else features
    return (shape[0] * features // experts, experts)
