"""Functions of the kind that real models have, and arguments for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = x.to(torch.float32)
    variance = h.pow(2).mean(-1, keepdim=True)
    h = h * torch.rsqrt(variance + eps)
    return weight * h.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    h = x * torch.sigmoid(gate)
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight


def label_smoothing(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    log_p = F.log_softmax(logits, -1)
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return ((1 - smoothing) * nll - smoothing * log_p.mean(-1)).mean()


def adamw(p: Tensor, grad: Tensor, m: Tensor, v: Tensor, lr: float, step: int) -> None:
    p.mul_(1 - lr * 0.01)
    m.lerp_(grad, 1 - 0.9)
    v.mul_(0.999).addcmul_(grad, grad, value=1 - 0.999)
    bias1, bias2 = 1 - 0.9**step, 1 - 0.999**step
    denominator = (v.sqrt() / bias2**0.5).add_(1e-8)
    p.addcdiv_(m, denominator, value=-lr / bias1)


def lion(p: Tensor, grad: Tensor, m: Tensor, lr: float, decay: float) -> tuple[Tensor, Tensor]:
    update = torch.sign(m * 0.9 + grad * 0.1)
    return p * (1 - lr * decay) - lr * update, m * 0.99 + grad * 0.01


def ema(average: Tensor, x: Tensor, decay: float) -> Tensor:
    return average * decay + x * (1 - decay)


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    n = scores.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return (scores * scale).masked_fill(~mask, float("-inf")).softmax(-1)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 2, weight, bias))


def layer_norm_residual(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    h = x + y
    return F.layer_norm(h, (h.shape[-1],), weight, bias)


def dequantise(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    blocks = q.reshape(q.shape[0], -1, 4)
    return ((blocks.float() - zero[..., None]) * scale[..., None]).reshape(q.shape)


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def focal_loss(logits: Tensor, target: Tensor, gamma: float) -> Tensor:
    p = torch.sigmoid(logits)
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    return (loss * (1 - p_t) ** gamma).mean()


def ddim_step(x: Tensor, noise: Tensor, alpha: float, alpha_next: float) -> Tensor:
    x0 = (x - (1 - alpha) ** 0.5 * noise) / alpha**0.5
    return alpha_next**0.5 * x0.clamp(-1, 1) + (1 - alpha_next) ** 0.5 * noise


def batch_norm_inference(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, var, w, b))


@dataclass
class Sample:
    """A function and what it is called with; `float` arguments require grad where asked."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    gradients: bool = True

    def __str__(self) -> str:
        return self.function.__name__

    def drawn(self, dtype: torch.dtype = torch.float32, gradients: bool = False) -> list[Any]:
        """Fresh copies: integers stay, floats get the dtype."""
        return [_copied(arg, dtype, gradients) for arg in self.args]


def _copied(arg: Any, dtype: torch.dtype, gradients: bool) -> Any:
    if not isinstance(arg, Tensor):
        return arg
    if not arg.is_floating_point():
        return arg.clone()
    return arg.to(dtype, copy=True).requires_grad_(gradients)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _positive(*shape: int) -> Tensor:
    return _normal(*shape).abs() + 0.1


SAMPLES = [
    Sample(rms_norm, (_normal(3, 5, 16), _normal(16), 1e-6)),
    Sample(rope, (_normal(2, 4, 5, 8), _normal(2, 3, 5, 8), _normal(2, 5, 8), _normal(2, 5, 8))),
    Sample(swiglu, (_normal(7, 11), _normal(7, 11))),
    Sample(gated_norm, (_normal(7, 33), _normal(7, 33), _normal(33))),
    Sample(label_smoothing, (_normal(5, 9), torch.tensor([0, 8, 3, 3, 1]), 0.1)),
    Sample(adamw, (_normal(13), _normal(13), _normal(13), _positive(13), 1e-2, 7), False),
    Sample(lion, (_normal(13), _normal(13), _normal(13), 1e-2, 0.1), False),
    Sample(ema, (_normal(4, 6), _normal(4, 6), 0.9)),
    Sample(causal_softmax, (_normal(2, 3, 6, 6), 0.35)),
    Sample(group_norm, (_normal(3, 6, 5, 4), _normal(6), _normal(6))),
    Sample(layer_norm_residual, (_normal(5, 12), _normal(5, 12), _normal(12), _normal(12))),
    Sample(
        dequantise, (torch.arange(24, dtype=torch.int8).view(3, 8), _normal(3, 2), _normal(3, 2))
    ),
    Sample(gelu_bias, (_normal(4, 10), _normal(10))),
    Sample(focal_loss, (_normal(6, 3), (_normal(6, 3) > 0).float(), 2.0)),
    Sample(ddim_step, (_normal(2, 3, 4, 4), _normal(2, 3, 4, 4), 0.4, 0.6)),
    Sample(
        batch_norm_inference,
        (_normal(2, 3, 4, 5), _normal(3), _positive(3), _normal(3), _normal(3)),
        gradients=False,  # of the running mean there is none
    ),
]
