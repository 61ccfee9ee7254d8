"""The gallery's programs, mended as diagnose advises: what was found must not be found again.

Each function gets the program's module, and returns the step without its one mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional as F

import megafuse as mf

Step = Callable[[], Any]


def attention_by_hand(m: ModuleType) -> Step:
    return lambda: F.scaled_dot_product_attention(m.q, m.k, m.v)


def boolean_mask(m: ModuleType) -> Step:
    return lambda: torch.where(m.valid, m.values, 0).sum() / m.valid.sum()


def dtype_round_trip(m: ModuleType) -> Step:
    fused = mf.fuse(lambda x, y: torch.clamp(x + y, 0, 1))
    return lambda: fused(m.x, m.y)


def gelu_by_hand(m: ModuleType) -> Step:
    return lambda: F.gelu(m.x, approximate="tanh")


def graph_break(m: ModuleType) -> Step:
    @torch.compile
    def blended(x, y):
        mixed = torch.sigmoid(x) * y + x
        return torch.sigmoid(mixed) * y + mixed

    return lambda: blended(m.x, m.y)


def layer_norm_by_hand(m: ModuleType) -> Step:
    return lambda: F.layer_norm(m.x, m.x.shape[-1:], m.weight, m.bias)


def loop_over_batch(m: ModuleType) -> Step:
    return lambda: F.linear(m.documents, m.weight)


def naive_linear_relu(m: ModuleType) -> Step:
    return lambda: F.linear(m.x, m.weight, m.bias).relu_()


naive_linear_relu_cuda = naive_linear_relu


def odd_head(m: ModuleType) -> Step:
    padded = F.pad(m.head, (0, 0, 0, -len(m.head) % 64))
    return lambda: F.linear(m.hidden, padded)


def optimizer_loop(m: ModuleType) -> Step:
    optimizer = torch.optim.AdamW(m.parameters, lr=1e-4, fused=True)
    return lambda: optimizer.step()


def recompiles(m: ModuleType) -> Step:
    normalised = torch.compile(m.normalised._torchdynamo_orig_callable, backend="aot_eager")
    x = torch.randn(64, 100, device=m.device)
    return lambda: normalised(x)


def repeated_casts(m: ModuleType) -> Step:
    layer = m.layer.to(torch.bfloat16)

    def step():
        total = 0
        for batch in m.batches:
            with torch.autocast(m.device, torch.bfloat16):
                total = total + layer(batch).sum()
        return total

    return step


def same_every_time(m: ModuleType) -> Step:
    def step():
        weights = torch.softmax(m.scores, dim=-1)
        return [weights @ each for each in m.inputs]

    return step


def slow_loader(m: ModuleType) -> Step:
    batch = next(m.loader).to(m.device)

    def step():
        m.optimizer.zero_grad()
        m.model(batch).square().mean().backward()
        m.optimizer.step()

    return step


def strict_float32(m: ModuleType) -> Step:
    if not m.x.is_cuda:
        return m.step  # nothing is advised there; in bfloat16 it takes some CPUs half a minute
    x, weight = m.x.bfloat16(), m.weight.bfloat16()
    return lambda: F.linear(x, weight)


def strided_reduction(m: ModuleType) -> Step:
    channel = m.images[..., 3].contiguous()
    return lambda: channel.mean()


def tiny_batch(m: ModuleType) -> Step:
    requests = m.request.expand(256, -1).contiguous()
    return lambda: m.model(requests)


def tiny_launches(m: ModuleType) -> Step:
    """h = Σ inputs[t]·decay^(last − t), in a few operations."""
    inputs = torch.stack(m.inputs)
    age = torch.arange(len(inputs) - 1, -1, -1, device=m.device)[:, None]
    return lambda: (inputs * m.decay**age).sum(0)


def to_device(m: ModuleType) -> Step:
    positions = m.positions.to(m.device)
    return lambda: m.embedded + positions


def transposed_copies(m: ModuleType) -> Step:
    return lambda: m.x @ m.weight


def zeroed_gradients(m: ModuleType) -> Step:
    def step():
        m.model.zero_grad()
        m.model(m.batch).sum().backward()

    return step


def loss_item(m: ModuleType) -> Step:
    @torch.no_grad()
    def step():
        return torch.stack([F.mse_loss(m.model(batch), batch) for batch in m.batches])

    return step
