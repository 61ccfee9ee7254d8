"""Every op on DTensors, however they lie: results and gradients are those of the whole tensors."""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from selection import often

import megafuse
from megafuse.registry.sample import Draw
from ranks.launch import needs_gloo, on_ranks

# Of each rank of a family's samples; odd, so that parts differ in size. Heads come in equal parts.
SHAPES = {
    "attention": (3, 4, 5, 8),
    "transformer_block": (4, 5, 12),
}
LAYOUTS = 8  # random ones for each kind of call, and three times as many for the first
MESHES = {2: (2,), 4: (2, 2)}


def kinds(name: str) -> list[tuple[Any, ...]]:
    """Kinds of calls: with everything that the op takes, with what it must have; then every choice,
    every flag and every small number that is counted with."""
    op = megafuse.OPS[name]
    found = [arguments(name, everything) for everything in (True, False)]
    for at, argument in enumerate(op.arguments):
        values: tuple[Any, ...] = argument.choices
        if argument.kind == "flag":
            values = (True, False)
        elif argument.name == "recompute":
            values = (1, 2)
        found += [(*found[1][:at], v, *found[1][at + 1 :]) for v in values if v != found[1][at]]
    return found


def arguments(name: str, everything: bool) -> tuple[Any, ...]:
    """No random numbers are drawn for."""
    op = megafuse.OPS[name]
    torch.manual_seed(0)
    shape = SHAPES.get(name, (5, 3, 7))
    args = list(op.sample(Draw(shape, requires_grad=True, everything=everything, features=9)))
    if op.random:
        args[op.position("p")] = 0.0
    for argument, value in zip(op.arguments, args, strict=True):
        if isinstance(value, torch.Tensor) and argument.name not in op.autograd.grads:
            value.requires_grad_(False)
    return tuple(args)


def called(name: str, args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Results, and the gradients of the first tensor arguments."""
    op = megafuse.OPS[name]
    results = op.listed(op.fused(*args))
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if not op.differentiable:
        return results, []
    weights = [torch.linspace(-1, 1, r.numel()).view(r.shape) for r in results]
    if wanted and type(wanted[0]) is not torch.Tensor:
        from torch.distributed.tensor import Replicate, distribute_tensor

        mesh = wanted[0].device_mesh
        weights = [distribute_tensor(w, mesh, [Replicate()] * mesh.ndim) for w in weights]
    return results, list(torch.autograd.grad(results, wanted, weights, allow_unused=True))


def layouts(args: tuple[Any, ...], dims: int, first: bool) -> list[list[Any]]:
    """Placements of each tensor: all copies, each cut alone along each dimension, then any."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    whole = [[Replicate()] * dims for _ in tensors]
    found = [whole]
    for at, tensor in enumerate(tensors if first else ()):
        for dim in range(tensor.dim()):
            found.append([*whole[:at], [Shard(dim), *whole[0][1:]], *whole[at + 1 :]])
    chance = random.Random(1)
    for _ in range(3 * LAYOUTS if first else LAYOUTS):
        made = []
        for tensor in tensors:
            choices = [Replicate(), *(Shard(dim) for dim in range(tensor.dim()))]
            if tensor.is_floating_point():
                choices.append(Partial())
            made.append([chance.choice(choices) for _ in range(dims)])
        found.append(made)
    return found


def spread(tensor: Any, mesh: Any, placements: list[Any]) -> Any:
    """A DTensor that lies so; a Partial one has a share of each value on every rank."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    there = [Replicate() if p.is_partial() else p for p in placements]
    made = distribute_tensor(tensor.detach(), mesh, there)
    if there != placements:
        share = torch.tensor(1.0)
        for dim, placement in enumerate(placements):
            if placement.is_partial():
                share = share * (0.25 if mesh.get_local_rank(dim) == 0 else 0.75)
        made = DTensor.from_local(
            (made.to_local() * share).to(tensor.dtype), mesh, placements,
            run_check=False, shape=tensor.shape, stride=tensor.stride(),
        )  # fmt: skip
    return made.requires_grad_(tensor.requires_grad)


def all_ops(rank: int, count: int) -> dict[str, list[str]]:
    """Of each op, what was wrong."""
    mesh = torch.distributed.init_device_mesh("cpu", MESHES[count])
    wrong: dict[str, list[str]] = {}
    for name in megafuse.OPS:
        wrong[name] = []
        for kind, args in enumerate(kinds(name)):
            expected = called(name, args)
            for layout in layouts(args, mesh.ndim, kind == 0):
                try:
                    wrong[name] += one_layout(name, args, layout, mesh, expected)
                except Exception as error:
                    how = "".join(traceback.format_exception(error))
                    wrong[name].append(f"{layout} of {kind}: {how}")
    return wrong


def one_layout(
    name: str, args: tuple[Any, ...], layout: list[Any], mesh: Any, expected: Any
) -> list[str]:
    places = iter(layout)
    given = tuple(spread(a, mesh, next(places)) if isinstance(a, torch.Tensor) else a for a in args)
    pairs = zip(called(name, given), expected, strict=True)
    return [problem for pair in pairs for problem in compared(*pair, str(layout))]


def compared(mine: list[Any], theirs: list[Any], layout: str) -> list[str]:
    found = []
    for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if (one is None) != (other is None):
            found.append(f"{layout}: {at} is {one}, not {other}")
        if one is None or other is None:
            continue
        try:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            torch.testing.assert_close(one.full_tensor(), other, rtol=2e-5, atol=2e-5)
        except AssertionError as error:
            found.append(f"{layout}: number {at}, {one.placements}: {error}")
    return found


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("count", often([2, 4], [2]))
def test_ops_give_what_they_give_for_whole_tensors(count: int, tmp_path: Path) -> None:
    """One test, as all of them are one set of processes."""
    wrong = on_ranks(count, all_ops, tmp_path, count)[0]
    assert set(wrong) == set(megafuse.OPS)
    assert not any(wrong.values()), "\n".join(
        f"{name}: {what}" for name, found in wrong.items() for what in found[:3]
    )
