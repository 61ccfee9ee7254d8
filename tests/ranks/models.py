"""A small GPT, and three steps of training it: what every engine must do as one rank does."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, VOCABULARY, BATCH, STEPS = 128, 4, 61, 4, 3


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.dim = width // HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.dim)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = (
            nn.LayerNorm(width),
            Attention(width),
            nn.LayerNorm(width),
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int = WIDTH, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(width: int = WIDTH, layers: int = 2) -> GPT:
    torch.manual_seed(0)
    return GPT(width, layers)


def wide() -> GPT:
    """Of one layer with 3 MiB of weights: several buckets of gradients."""
    return gpt(256, 1)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def batches() -> list[Tensor]:
    made = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (BATCH, 13), generator=made) for _ in range(STEPS)]


def train(
    model: nn.Module,
    part: tuple[int, int] = (0, 1),
    finish: Callable[[nn.Module], object] = lambda model: None,
) -> list[float]:
    """The losses over all ranks; `part` (rank, ranks) is this one's share of each batch, `finish`
    what is done between backward and step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    device = next(model.parameters()).device
    losses = []
    for batch in batches():
        loss = loss_of(model, batch.to(device).chunk(part[1])[part[0]])
        loss.backward()
        finish(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return averaged(losses) if part[1] > 1 else torch.stack(losses).tolist()


def averaged(losses: list[Tensor]) -> list[float]:
    """Over all ranks."""
    total = torch.stack(losses)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()
