"""One rank on each device: what a machine with a single GPU can show of nccl and its streams."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import megafuse as mf
from ranks import cases, models
from ranks.launch import needs_gloo, on_ranks


def all_engines(rank: int, kind: str) -> dict[str, list[float]]:
    import torch.distributed._functional_collectives as functional

    from megafuse.compiler.backend import backend

    found = {"alone": models.train(models.gpt().to(kind))}
    found["ddp"] = models.train(cases.ddp(mf.optimize(models.gpt().to(kind))))
    found["fsdp"] = models.train(mf.optimize(cases.fsdp(models.gpt().to(kind))))
    mesh = cases.mesh_of(1, kind)
    tp = mf.optimize(cases.tensor_parallel(models.gpt().to(kind), mesh, sequence=True))
    found["tp"] = models.train(tp)

    def function(x: Tensor) -> Tensor:
        total = functional.all_reduce(x.exp(), "sum", dist.group.WORLD)
        return (x @ x).relu() + total * 2

    x = torch.linspace(-1, 1, 64 * 64, device=kind).view(64, 64)
    compiled = torch.compile(function, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-4)
    return found


@needs_gloo
@pytest.mark.seldom
def test_one_rank_trains_as_without_engines(device: str, tmp_path: Path) -> None:
    backend = "nccl" if device == "cuda" else "gloo"
    (found,) = on_ranks(1, all_engines, tmp_path, device, backend=backend)
    for engine in ("ddp", "fsdp", "tp"):
        torch.testing.assert_close(found[engine], found["alone"], rtol=1e-3, atol=1e-4)
