"""The engines, each over `mf.optimize` or backend="megafuse": what a rank runs, case by case."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from megafuse.runtime import loader
from ranks import models

Case = Callable[[int, int], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def run(rank: int, count: int, names: list[str]) -> dict[str, Any]:
    """What each case found, or how it failed."""
    found: dict[str, Any] = {}
    for name in names:
        torch._dynamo.reset()
        try:
            found[name] = CASES[name](rank, count)
        except Exception as error:
            found[name] = "".join(traceback.format_exception(error))
        dist.barrier()
    return found


def graphs(model: nn.Module) -> int:
    """How many of Dynamo's graphs became programs; raises if one did not."""
    recorded = model._compiled_call_impl.recorder.graphs
    for each in recorded:
        for made in each.parts.values():
            if isinstance(made, Exception):
                raise made
    return len(recorded)


# ---- DDP


def ddp(model: nn.Module, **options: Any) -> nn.Module:
    """With buckets of 1 MiB, the least that torch.compile can split for."""
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1, **options)


@case
def ddp_of_optimized(rank: int, count: int) -> Any:
    """And the first bucket is on its way before the last gradients are there."""
    model = mf.optimize(models.wide())
    events: list[str] = []
    model.embedding.weight.register_hook(lambda grad: events.append("embedding"))
    wrapped = ddp(model)
    wrapped.register_comm_hook(None, _watched(events))
    losses = models.train(wrapped, (rank, count))
    assert graphs(model) > 2
    # The first step has other buckets: DDP sees in it in which order gradients come.
    last = events[len(events) - 1 - events[::-1].index("bucket 0") :]
    assert "embedding" in last[1:], events
    return losses


def _watched(events: list[str]) -> Callable[[Any, Any], Any]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def hook(state: Any, bucket: dist.GradBucket) -> Any:
        events.append(f"bucket {bucket.index()}")
        return allreduce_hook(dist.group.WORLD, bucket)

    # DDP reads the annotations themselves.
    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
    return hook


@case
def optimized_ddp(rank: int, count: int) -> Any:
    model = mf.optimize(ddp(models.wide()))
    losses = models.train(model, (rank, count))
    assert graphs(model) > 2
    return losses


@case
def compiled_ddp(rank: int, count: int) -> Any:
    model = torch.compile(ddp(models.wide()), backend="megafuse")
    return models.train(model, (rank, count))


@case
def ddp_in_one_graph(rank: int, count: int) -> Any:
    """Without the split: right, but every gradient comes at the end."""
    model = mf.optimize(models.wide())
    with torch._dynamo.config.patch(optimize_ddp=False):
        losses = models.train(ddp(model), (rank, count))
    assert graphs(model) == 1
    return losses


@case
def ddp_static_graph(rank: int, count: int) -> Any:
    model = ddp(mf.optimize(models.wide()), static_graph=True)
    return models.train(model, (rank, count))


@case
def ddp_accumulates(rank: int, count: int) -> Any:
    """Two halves of each batch, the first without a word to the others."""
    model = ddp(mf.optimize(models.wide()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in models.batches():
        mine = batch.chunk(count)[rank].chunk(2)
        parts = []
        for at, part in enumerate(mine):
            with model.no_sync() if at == 0 else contextlib.nullcontext():
                loss = models.loss_of(model, part) / 2
                loss.backward()
            parts.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(parts))
    return models.averaged(losses)


class Branching(nn.Module):
    """Leaves out a layer at every other step, and has buffers that batches change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)
        self.second, self.third = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor, deep: bool) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.third(self.second(x).relu() if deep else x)


def branching(rank: int, count: int, how: Callable[[nn.Module], nn.Module]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    plain = Branching()
    model = nn.parallel.DistributedDataParallel(how(plain), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    for step in range(4):
        x = torch.randn(8, 16, generator=data).chunk(count)[rank]
        F.mse_loss(model(x, step % 2 == 0), x[:, :8]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return plain.state_dict()


@case
def ddp_unused_parameters_and_buffers(rank: int, count: int) -> Any:
    """As eager DDP does: weights and buffers, which the first rank's are sent from."""
    mine = branching(rank, count, mf.optimize)
    theirs = branching(rank, count, lambda model: model)
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5, msg=name)


# ---- FSDP2


def fsdp(model: models.GPT, **options: Any) -> models.GPT:
    from torch.distributed.fsdp import fully_shard

    kind = next(model.parameters()).device.type  # where there is a GPU, torch would take that
    options.setdefault("mesh", dist.init_device_mesh(kind, (dist.get_world_size(),)))
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


@case
def fsdp_of_optimized_blocks(rank: int, count: int) -> Any:
    model = models.gpt()
    for block in model.blocks:
        mf.optimize(block)
    losses = models.train(fsdp(model), (rank, count))
    assert all(graphs(block) == 1 for block in model.blocks)
    return losses


@case
def optimized_fsdp(rank: int, count: int) -> Any:
    """The whole model after it was sharded; its weights are gathered and saved as before."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model = mf.optimize(fsdp(models.gpt()))
    losses = models.train(model, (rank, count))
    assert graphs(model) >= 1  # that of a block: both have the same
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        plain = models.gpt()
        models.train(plain)
        assert list(whole) == list(plain.state_dict())
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(whole[name], value, rtol=1e-3, atol=1e-4, msg=name)
    return losses


@case
def fsdp_clips_gradients(rank: int, count: int) -> Any:
    norms: dict[str, list[float]] = {"fsdp": [], "alone": []}

    def clip(into: list[float]) -> Callable[[nn.Module], None]:
        def finish(model: nn.Module) -> None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            into.append(getattr(norm, "full_tensor", lambda: norm)().item())

        return finish

    mine = models.train(mf.optimize(fsdp(models.gpt())), (rank, count), clip(norms["fsdp"]))
    theirs = models.train(models.gpt(), finish=clip(norms["alone"]))
    torch.testing.assert_close(norms["fsdp"], norms["alone"], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@case
def fsdp_mixed_precision(rank: int, count: int) -> Any:
    """bfloat16 in the forward and backward: as far from float32 as eager FSDP is, or nearer."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mine = models.train(mf.optimize(fsdp(models.gpt(), mp_policy=policy)), (rank, count))
    theirs = models.train(fsdp(models.gpt(), mp_policy=policy), (rank, count))
    exact = models.train(models.gpt())
    for ours, eager, right in zip(mine, theirs, exact, strict=True):
        assert abs(ours - right) <= 2 * abs(eager - right) + 2e-3, (mine, theirs, exact)


# ---- Tensor parallelism


def tensor_parallel(model: models.GPT, mesh: Any, sequence: bool = False) -> models.GPT:
    """Heads and the hidden layer over the ranks; with `sequence`, norms and residuals too."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {f"attn.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"up": ColwiseParallel()}
    row = RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    plan |= {"attn.proj": row, "down": row}
    if sequence:
        gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attn": gather}
        plan |= {"up": ColwiseParallel(input_layouts=Shard(1))}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    if sequence:
        embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        last = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
        parallelize_module(
            model, mesh, {"embedding": embedding, "norm": SequenceParallel(), "head": last}
        )
    return model


def mesh_of(count: int, kind: str = "cpu") -> Any:
    return torch.distributed.init_device_mesh(kind, (count,), mesh_dim_names=("tp",))


@case
def tp_optimized(rank: int, count: int) -> Any:
    """One program each way, collectives included."""
    model = mf.optimize(tensor_parallel(models.gpt(), mesh_of(count)))
    losses = models.train(model)
    assert graphs(model) == 1
    return losses


@case
def tp_sequence_parallel(rank: int, count: int) -> Any:
    model = mf.optimize(tensor_parallel(models.gpt(), mesh_of(count), sequence=True))
    losses = models.train(model)
    graphs(model)
    return losses


class OurBlock(models.Block):
    """The same with our modules: attention as torch has it, the norms and the rest ours."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm1 = mf.nn.LayerNorm(width)
        self.norm2 = mf.nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(mf.gelu_scale(self.up(self.norm2(x)), 1.0, "none"))


def ours() -> models.GPT:
    model = models.gpt()
    for at, block in enumerate(model.blocks):
        made = OurBlock(models.WIDTH)
        made.load_state_dict(block.state_dict())
        model.blocks[at] = made
    return model


@case
def tp_of_our_modules(rank: int, count: int) -> Any:
    return models.train(tensor_parallel(ours(), mesh_of(count), sequence=True))


@case
def tp_of_our_modules_optimized(rank: int, count: int) -> Any:
    return models.train(mf.optimize(tensor_parallel(ours(), mesh_of(count), sequence=True)))


@case
def fsdp_and_tp(rank: int, count: int) -> Any:
    mesh = torch.distributed.init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("dp", "tp"))
    model = fsdp(tensor_parallel(models.gpt(), mesh["tp"]), mesh=mesh["dp"])
    part = (mesh.get_local_rank("dp"), 2)
    return models.train(mf.optimize(model), part)


# ---- optimizers


@case
def shards_step_as_wholes_do(rank: int, count: int) -> None:
    """mf.optim over FSDP2's shards, one launch a step, and the state is sharded as torch's is."""
    from torch.distributed.fsdp import fully_shard

    host: Any = loader.load()
    found = []
    for kind in (mf.optim.AdamW, torch.optim.AdamW):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))  # 5 rows: uneven shards
        fully_shard(model)
        optimizer = kind(model.parameters(), lr=0.1)
        for step in range(3):
            model(torch.full((2, 6), 0.1 * (step + 1))).square().sum().backward()
            before = host.launch_count()
            optimizer.step()
            assert kind is torch.optim.AdamW or host.launch_count() - before == 1
            optimizer.zero_grad()
        kept = [t for p in model.parameters() for t in (p, *optimizer.state[p].values())]
        found.append([t.full_tensor() if hasattr(t, "full_tensor") else t for t in kept])
    torch.testing.assert_close(*found)
