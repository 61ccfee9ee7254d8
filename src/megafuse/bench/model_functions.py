"""Functions that models are full of, as one would write them in PyTorch: the suite `fuse`.

None of them is an op of ours. Optimizer updates return new tensors instead of writing to their
arguments: what is timed has to find the same arguments every time.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

GROUPS = 8  # of channels, in group_norm


def wide(x: Tensor) -> Tensor:
    """In float32, as models compute norms and losses; in float64 where x is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ---- activations


def gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


def squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


def hard_swish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


# ---- norms


def llama_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = wide(x)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def centred_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    h = wide(x)
    h = h - h.mean(-1, keepdim=True)
    variance = h.square().mean(-1, keepdim=True)
    return (h * torch.rsqrt(variance + eps)).to(x.dtype) * weight + bias


def gemma_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = wide(x)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return (h * (1 + wide(weight))).to(x.dtype)


def ada_layer_norm(x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
    h = F.layer_norm(x, (x.shape[-1],))
    h = h * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    return x + gate.unsqueeze(1) * h


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    h = wide(x).reshape(batch, GROUPS, -1)
    h = h - h.mean(-1, keepdim=True)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5)
    h = h.reshape(batch, channels, height, width).to(x.dtype)
    return F.silu(h * weight[:, None, None] + bias[:, None, None])


def l2_normalise(x: Tensor) -> Tensor:
    length = wide(x).square().sum(-1, keepdim=True).sqrt()
    return x / length.clamp_min(1e-12).to(x.dtype)


def qk_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, Tensor]:
    return llama_norm(q, q_weight, 1e-6), llama_norm(k, k_weight, 1e-6)


# ---- rotary embeddings


def rotated_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rope_half(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return q * cos + rotated_half(q) * sin, k * cos + rotated_half(k) * sin


def rope_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2)


# ---- losses


def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    log_p = F.log_softmax(wide(logits), -1)
    right = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return ((1 - smoothing) * right - smoothing * log_p.mean(-1)).mean()


def focal_loss(logits: Tensor, target: Tensor, alpha: float, gamma: float) -> Tensor:
    p = torch.sigmoid(logits)
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_right = p * target + (1 - p) * (1 - target)
    weight = alpha * target + (1 - alpha) * (1 - target)
    return (weight * loss * (1 - p_right) ** gamma).mean()


def huber_loss(predicted: Tensor, target: Tensor, delta: float) -> Tensor:
    off = (predicted - target).abs()
    return torch.where(off < delta, 0.5 * off.square(), delta * (off - 0.5 * delta)).mean()


def kl_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    log_p = F.log_softmax(wide(student) / temperature, -1)
    log_q = F.log_softmax(wide(teacher) / temperature, -1)
    return (log_q.exp() * (log_q - log_p)).sum(-1).mean() * temperature**2


def contrastive_rows(similarity: Tensor, log_scale: Tensor) -> Tensor:
    """What each pair of a batch costs: row i's right partner is in column i."""
    logits = wide(similarity) * log_scale.exp()
    return logits.logsumexp(-1) - logits.diagonal()


def z_loss(logits: Tensor) -> Tensor:
    return 1e-4 * wide(logits).logsumexp(-1).square().mean()


# ---- gates


def packed_swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def packed_geglu(x: Tensor) -> Tensor:
    up, gate = x.chunk(2, -1)
    return up * F.gelu(gate)


def router_weights(logits: Tensor) -> Tensor:
    """The weights of a token's two best experts, the others' set to 0; nothing is sorted."""
    p = torch.softmax(wide(logits), -1)
    best = p.amax(-1, keepdim=True)
    second = p.masked_fill(p == best, 0).amax(-1, keepdim=True)
    kept = torch.where(p >= second, p, 0.0)
    return (kept / kept.sum(-1, keepdim=True)).to(logits.dtype)


def highway(x: Tensor, h: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    t = torch.sigmoid(gate + bias)
    return t * torch.tanh(h) + (1 - t) * x


# ---- masks


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    place = torch.arange(scores.shape[-1], device=scores.device)
    later = place[None, :] > place[:, None]
    return torch.softmax((scores * scale).masked_fill(later, -torch.inf), -1)


def padded_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    place = torch.arange(scores.shape[-1], device=scores.device)
    padding = place >= lengths[:, None, None, None]
    return torch.softmax(scores.masked_fill(padding, torch.finfo(scores.dtype).min), -1)


def alibi_softmax(scores: Tensor, slopes: Tensor) -> Tensor:
    place = torch.arange(scores.shape[-1], device=scores.device)
    distance = (place[None, :] - place[:, None]).to(scores.dtype)
    biased = scores + slopes[:, None, None] * distance
    return torch.softmax(biased.masked_fill(distance > 0, -torch.inf), -1)


# ---- quantisation


def fake_quantise(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The gradient goes through the rounding as if it were not there."""
    level = torch.clamp(torch.round(x / scale) + zero, -128, 127)
    return x + ((level - zero) * scale - x).detach()


def dequantise_rows(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (q.to(scale.dtype) - zero) * scale


def absmax_quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = wide(x).abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127
    return torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8), scale


# ---- optimizers


def adamw(
    p: Tensor, grad: Tensor, m: Tensor, v: Tensor, lr: float, step: int
) -> tuple[Tensor, Tensor, Tensor]:
    m = 0.9 * m + 0.1 * grad
    v = 0.999 * v + 0.001 * grad.square()
    ahead, spread = m / (1 - 0.9**step), v / (1 - 0.999**step)
    return p * (1 - lr * 0.01) - lr * ahead / (spread.sqrt() + 1e-8), m, v


def lion(p: Tensor, grad: Tensor, m: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    update = torch.sign(0.9 * m + 0.1 * grad)
    return p * (1 - lr * 0.1) - lr * update, 0.99 * m + 0.01 * grad


def ema(average: Tensor, x: Tensor, decay: float) -> Tensor:
    return average * decay + x * (1 - decay)


def sgd_momentum(p: Tensor, grad: Tensor, m: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    grad = grad + 1e-4 * p
    m = 0.9 * m + grad
    return p - lr * (grad + 0.9 * m), m


def clip_gradient(grad: Tensor, norm: Tensor, most: float) -> Tensor:
    return grad * torch.clamp(most / (norm + 1e-6), max=1.0)


# ---- GANs and diffusion


def hinge_loss(real: Tensor, fake: Tensor) -> Tensor:
    return torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()


def noised(x: Tensor, noise: Tensor, alphas: Tensor, t: Tensor) -> Tensor:
    """x at step t of a diffusion, each image at a step of its own."""
    alpha = alphas[t][:, None, None, None]
    return alpha.sqrt() * x + (1 - alpha).sqrt() * noise


def denoised(x: Tensor, noise: Tensor, alphas: Tensor, t: Tensor) -> Tensor:
    """The image that x was at step t, if its noise was this."""
    alpha = alphas[t][:, None, None, None]
    return ((x - (1 - alpha).sqrt() * noise) / alpha.sqrt()).clamp(-1, 1)


def euler_step(x: Tensor, v: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """One step of Euler's method, the model's output being a velocity."""
    clean = x / (sigma**2 + 1) - v * sigma / math.sqrt(sigma**2 + 1)
    return x + (x - clean) / sigma * (sigma_next - sigma)


def guided(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    return unconditional + scale * (conditional - unconditional)


def guided_rescaled(
    conditional: Tensor, unconditional: Tensor, scale: float, share: float
) -> Tensor:
    """Guidance, brought back to the spread of what it guides."""
    made = unconditional + scale * (conditional - unconditional)
    spread = conditional.flatten(1).std(-1) / made.flatten(1).std(-1)
    rescaled = made * spread[:, None, None, None]
    return share * rescaled + (1 - share) * made
