"""DDP and FSDP2 on two CPU ranks train as one process does."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn import functional as F

# Each starts two processes.
pytestmark = pytest.mark.slow

RANKS, STEPS, WIDTH, BATCH = 2, 3, 64, 4


def model() -> nn.Module:
    """Every module once, in a model of two parts that FSDP shards apart."""
    import megafuse.nn as fused

    torch.manual_seed(0)
    block = {"dropout": 0.0, "activation": "gelu", "batch_first": True}
    return nn.Sequential(
        nn.Sequential(
            fused.TransformerBlock(WIDTH, 2, 96, norm_first=True, **block),
            fused.TransformerBlock(WIDTH, 2, 96, **block),
            fused.LayerNormLinear(WIDTH, WIDTH),
        ),
        nn.Sequential(
            fused.FFN(WIDTH, 96),
            fused.RMSNorm(WIDTH),
            fused.SwiGLUFFN(WIDTH, 96),
            fused.LinearGELU(WIDTH, WIDTH),
            fused.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH)),
            fused.LayerNorm(WIDTH),
        ),
    )


def batches() -> list[Tensor]:
    made = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 5, WIDTH, generator=made) for _ in range(STEPS)]


def train(module: nn.Module, rank: int | None = None) -> list[float]:
    """The losses of three steps, on this rank's half of each batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches():
        part = batch if rank is None else batch.chunk(RANKS)[rank]
        loss = F.mse_loss(module(part), part.flip(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run_rank(rank: int, port: int, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))

    replicated = DistributedDataParallel(model())
    losses = {"ddp": train(replicated, rank)}

    sharded = model()
    fully_shard(sharded[0][0].linear1, mesh=mesh)  # inside a block: it is then called as such
    for part in (*sharded[0], *sharded[1], sharded):
        fully_shard(part, mesh=mesh)
    losses["fsdp"] = train(sharded, rank)
    whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))

    results = {"losses": losses, "ddp": replicated.module.state_dict(), "fsdp": whole}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each rank found: both kinds in one pair of processes, as starting them takes longest."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, (port, str(folder)), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], dict[str, Tensor]]:
    module = model()
    return train(module), module.state_dict()


@pytest.mark.skipif(os.name == "nt" or not dist.is_available(), reason="needs gloo")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_train_as_one_process(kind: str, ranks: list[dict], alone: tuple) -> None:
    losses, expected = alone
    both = [rank["losses"][kind] for rank in ranks]
    mean = [sum(step) / RANKS for step in zip(*both, strict=True)]
    torch.testing.assert_close(mean, losses, rtol=1e-4, atol=1e-5)
    assert losses[-1] < losses[0]
    got = ranks[0][kind]
    assert list(got) == list(expected)
    for name, value in got.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4, msg=name)
