"""The ways to cut a call into calls on parts, and the one that moves the least data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from megafuse.registry.declared import Op
from megafuse.registry.sharding.labels import Labelled

Role: TypeAlias = Literal["argument", "result", "gradient", "incoming", "saved"]


@dataclass(frozen=True)
class Cut:
    """Along dimensions of these labels. `added`: arguments that come to the result once, where that
    is a sum of parts. `even`: into equal parts alone."""

    labels: tuple[str, ...]
    added: tuple[str, ...] = ()
    even: bool = False


@dataclass(frozen=True)
class Tensor:
    """One of the call's tensors: a name in the op's signature, and what it is to this call."""

    name: str
    role: Role
    placements: tuple[Placement, ...] = ()
    size: float = 0.0  # what moving it costs


def cuts_of(op: Op, found: Labelled, values: Mapping[str, Any]) -> Iterator[Cut]:
    """All that the op allows with these numbers and flags: none where it has not said enough."""
    if not found.complete:
        return
    flat = {
        label.name for labels in found.dims.values() for label in labels if label and label.flat
    }
    first = found.dims.get(op.arguments[0].name) or next(iter(found.dims.values()))
    whole = {
        label.name
        for flag, dim in op.sharding.whole.items()
        if values.get(flag) and len(first) >= -dim
        for label in [first[dim]]
        if label is not None
    }
    leading = [name for name in found.sizes if name.isdigit() and name not in whole]
    yield from (Cut((name,)) for name in leading)
    for letters, added in op.sharding.cuts.items():
        yield Cut(tuple(letters), added, even=len(letters) > 1 or letters in flat)


def placement(cut: Cut | None, tensor: Tensor, found: Labelled) -> Placement:
    """What the cut makes of a tensor on one dimension of the mesh."""
    if cut is None:
        return Replicate()
    dim = found.place(tensor.name, cut.labels)
    if dim is not None:
        return Shard(dim)
    if tensor.role == "argument" and tensor.name in cut.added:
        return Partial()
    if tensor.role == "result" and cut.added:
        return Partial()
    if tensor.role == "gradient" and tensor.name not in cut.added:
        return Partial()  # every part adds to it
    return Replicate()


def chosen(
    cuts: Sequence[Cut], tensors: Sequence[Tensor], found: Labelled, mesh: Sequence[int]
) -> list[Cut | None]:
    """A cut for each dimension of the mesh, or None: every rank does the whole call."""
    made: list[Cut | None] = []
    parts = dict.fromkeys(cuts, 1)
    for dim, ranks in enumerate(mesh):
        possible = [cut for cut in cuts if _fits(cut, found, parts[cut] * ranks)]
        best = min((None, *possible), key=lambda cut: _cost(cut, tensors, found, dim))
        if best is not None:
            parts[best] *= ranks
        made.append(best)
    return made


def _fits(cut: Cut, found: Labelled, parts: int) -> bool:
    """Every rank has a part."""
    sizes = [found.sizes[label] for label in cut.labels if label in found.sizes]
    if cut.even:
        return bool(sizes) and all(bool(size % parts == 0) and bool(size > 0) for size in sizes)
    return bool(sizes) and all(bool(size >= parts) for size in sizes)


def _cost(cut: Cut | None, tensors: Sequence[Tensor], found: Labelled, dim: int) -> float:
    moves = (
        _move(tensor.placements[dim], placement(cut, tensor, found)) * tensor.size
        for tensor in tensors
        if tensor.placements
    )
    return sum(moves)


def _move(now: Placement, then: Placement) -> float:
    """How often the data crosses the network, or a little for a copy of one's own part."""
    if now == then:
        return 0.0
    if now.is_replicate():
        return 1e-3
    if now.is_partial():
        return 1.0 if then.is_shard() else 2.0
    return 0.5 if then.is_shard() else 1.0
