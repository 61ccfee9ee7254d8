"""A small GPT on several ranks: PyTorch's engines over mf.optimize(model), same losses as one rank.

    torchrun --nproc-per-node 2 examples/train_distributed.py --engine ddp      or fsdp, or tp
    python examples/train_distributed.py --engine fsdp                          one rank

ddp   every rank has the model and a part of each batch; gradients are averaged
fsdp  as ddp, and every rank keeps a part of each weight (FSDP2)
tp    every rank has all of each batch, a part of the heads and of the hidden layer

On GPUs where there are enough of them, else on the CPU. The data is generated: each token is the
sum of the two before it.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf

VOCABULARY, WIDTH, HEADS, LAYERS = 64, 256, 8, 2
BATCH, LENGTH = 16, 32


class Attention(nn.Module):
    """Causal, of several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        # -1 heads: with tensor parallelism a rank has only some of them
        q, k, v = (
            layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens to logits of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(steps: int, device: torch.device) -> list[Tensor]:
    """The same on every rank: each takes its part."""
    chance, made = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=chance)
        for at in range(2, LENGTH + 1):
            tokens[:, at] = (tokens[:, at - 1] + tokens[:, at - 2]) % VOCABULARY
        made.append(tokens.to(device))
    return made


def train(model: nn.Module, data: list[Tensor], part: int = 0, parts: int = 1) -> list[float]:
    """The loss of each step, averaged over the parts of a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in data:
        tokens = batch.chunk(parts)[part]
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    total = torch.stack(losses)
    if parts > 1:
        dist.all_reduce(total)
    return (total / parts).tolist()


def data_parallel(model: GPT) -> nn.Module:
    """torch.compile cuts the graph where DDP's buckets end, so that gradients travel early."""
    return nn.parallel.DistributedDataParallel(mf.optimize(model))


def fully_sharded(model: GPT, device: torch.device) -> nn.Module:
    """Blocks are gathered one by one; each is a program of its own."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(mf.optimize(block), mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: GPT, device: torch.device) -> nn.Module:
    """Sharded first, then optimized: the sums over ranks are steps of the program."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    columns = ("attention.q", "attention.k", "attention.v", "up")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("attention.out", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return mf.optimize(model)


def start() -> torch.device:
    """Joins the others that torchrun started, if it did."""
    rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.device_count() >= ranks:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    backend = "gloo" if device.type == "cpu" else "nccl"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def main() -> None:
    parser = argparse.ArgumentParser(description="A small GPT, trained on several ranks.")
    parser.add_argument("--engine", choices=["ddp", "fsdp", "tp"], default="ddp")
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()

    device = start()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if BATCH % ranks or HEADS % ranks:
        raise SystemExit(f"{BATCH} sequences and {HEADS} heads do not divide over {ranks} ranks")
    torch.manual_seed(0)
    model = GPT().to(device)
    start_from = {name: value.clone() for name, value in model.state_dict().items()}
    data = batches(given.steps, device)

    if given.engine == "tp":
        losses = train(tensor_parallel(model, device), data)
    else:
        wrapped = data_parallel(model) if given.engine == "ddp" else fully_sharded(model, device)
        losses = train(wrapped, data, rank, ranks)

    if rank == 0:
        alone = GPT().to(device)
        alone.load_state_dict(start_from)
        print(f"{given.engine} on {ranks} ranks ({device.type}), beside one rank without megafuse")
        for step, (mine, theirs) in enumerate(zip(losses, train(alone, data), strict=True)):
            print(f"step {step}: loss {mine:.5f}   one rank {theirs:.5f}")
            if abs(mine - theirs) > 1e-3 * theirs:
                raise SystemExit(f"step {step} differs")
        print("same losses")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
