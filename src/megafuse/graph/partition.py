"""A graph cut into kernels and calls: partition(graph) is a Plan.

stages.py       reductions as kernels have them: rows, sums beside the results, or by the library
storage.py      what must lie in memory
reads.py        what a value reads, seen through views
clusters.py     who shares a kernel
order.py        which kernel runs before which
schedule.py     the order in which they run
rows.py         the domain of one that reduces
sums.py         which sums a kernel can have beside its results
here            what else is stored, and the steps
padding.py      rows that get zeros behind their last element
kernels.py      a cluster as a kernel; by_rows.py: which go row by row with nothing to reduce
body_builder.py a cluster's values as a Body over operands
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch.utils import _pytree as pytree

from megafuse.graph.affine import contiguous
from megafuse.graph.clean import has_effect
from megafuse.graph.cluster import Cluster
from megafuse.graph.clusters import Clusters
from megafuse.graph.cost import MAX_PLACES, Device, moves, recomputes
from megafuse.graph.ir import Extern, Gather, Graph, Number, Reduce, Result, Size, Value, axis
from megafuse.graph.kernels import Kernels
from megafuse.graph.layouts import Layouts
from megafuse.graph.numbers import number_of
from megafuse.graph.padding import padded_in_place
from megafuse.graph.plan import Address, Buffer, Call, Cut, Kernel, Plan, Tensor
from megafuse.graph.reads import Cone, Read, Reads, is_memory
from megafuse.graph.schedule import ordered
from megafuse.graph.stages import Stages, library_call
from megafuse.graph.storage import Storage, base_of, tensor_arguments, view_strides


def partition(
    graph: Graph,
    name: str = "fused",
    device: Device = "cpu",
    fresh: Collection[int] = (),
    rounds: bool = False,
) -> Plan:
    """The plan of a graph. `name` is the function's; `fresh` are the outputs that eager copied, so
    that they must not be views of arguments; `rounds`: rounding="eager"."""
    return _Partition(graph, name, device, fresh, rounds).plan()


class _Partition:
    def __init__(
        self, graph: Graph, name: str, device: Device, fresh: Collection[int], rounds: bool
    ) -> None:
        stages = Stages(graph, _live(graph), device)
        self.graph, self.values, self.device = stages.graph, stages.values, device
        storage = Storage(self.graph, self.values, fresh)
        for reduction in stages.calls:
            storage.argument(reduction.operands[0])
        self.stored = storage.strides
        self.padded = padded_in_place(self.values, self.stored) if device == "cuda" else {}
        for value, padded in self.padded.items():
            self.stored[value] = contiguous(padded.memory)
        self.expanded = storage.expanded
        self.calls: set[Value] = {*stages.calls, *(p.whole for p in self.padded.values())}
        self.reads = Reads(self.values, set(self.stored), self.calls)
        self.clusters = Clusters(self.values, self.reads, self.stored, self.calls, set(stages.sums))
        self.layouts = Layouts(self.values)
        self._store_what_others_read()
        self.tensors: dict[Value, Tensor] = {}
        self.arguments = self._arguments()
        self.kernels = Kernels(name, rounds, device, self.tensors, self.padded)

    # What is stored

    def _store_what_others_read(self) -> None:
        """A member that another kernel reads is stored, unless that computes it anew."""
        readers: dict[Value, set[int]] = {}
        for cluster in self.clusters.order.live():
            for value in cluster.sources:
                readers.setdefault(value, set()).add(cluster.number)
        cones: dict[Value, Cone] = {}
        for value in self.values:
            if value not in self.clusters.of or value not in self.reads.solid:
                continue
            cluster = self.clusters.of[value]
            if cluster.call or is_memory(value):
                continue
            cone = cones[value] = self._whole_cone(value, cones)
            others = readers.get(value, set()) - {cluster.number}
            if value in self.stored or not others:
                continue
            if not self._is_made_anew(value, cone, others):
                self.stored[value] = None
        for cluster in self.clusters.order.live():
            if not cluster.call and self._places(cluster, cones) >= MAX_PLACES:
                anew = [v for v in cones if v in cluster.sources and v not in self.stored]
                self.stored.update(dict.fromkeys(anew))

    def _places(self, cluster: Cluster, cones: dict[Value, Cone]) -> int:
        """How many operands it reads, with those of what it computes anew."""
        return sum(
            1 if value in self.stored or value not in cones else cones[value].places
            for value, _ in cluster.loads
        )

    def _is_made_anew(self, value: Value, cone: Cone, others: set[int]) -> bool:
        """Whether those who read it compute it themselves."""
        if cone.reduces:
            return False
        own, moved = value.dtype.itemsize, cone.bytes(value)
        outside = [
            (reader, read)
            for reader, read in self.reads.readers.get(value, ())
            if self.clusters.of[reader] is not self.clusters.of[value]
        ]
        if all(_is_steady(reader, read) for reader, read in outside):
            return moves(cone.cost, 0, own)
        once = len(self.reads.readers[value]) == 1 and _is_read_once(*outside[0])
        if once and len(others) == 1:
            return moves(cone.cost, moved, own)
        return recomputes(self.device, cone.cost, moved, own, len(others))

    def _whole_cone(self, value: Value, cones: dict[Value, Cone]) -> Cone:
        """What it takes to compute the value from memory."""
        cone = self.reads.cones[value]
        cost, leaves, reduces, places = cone.cost, set(), cone.reduces, cone.places
        for leaf in cone.leaves:
            below = cones.get(leaf)
            if below is None or leaf in self.stored:
                leaves.add(leaf)
            else:
                cost += below.cost
                leaves |= below.leaves
                reduces |= below.reduces
                places += below.places - 1  # in its own place
        return Cone(cost, frozenset(leaves), reduces, places)

    # Memory

    def _arguments(self) -> list[Buffer | None]:
        found: list[Buffer | None] = []
        for value in self.graph.inputs:
            if isinstance(value, Number):
                found.append(None)
                continue
            buffer = Buffer(value.dtype, value.shape, value.strides, value.position, value.name)
            self.tensors[value] = Tensor(buffer, value.shape, value.strides)
            found.append(buffer)
        return found

    def _allocate(self, value: Value) -> Tensor:
        strides = self.stored.get(value)
        if strides is None:
            cluster = self.clusters.of[value]
            choices = [self.layouts.strides(value), contiguous(value.shape)]
            if not cluster.call:
                choices.append(cluster.dense(value))
            strides = next((s for s in choices if cluster.call or cluster.writes(value, s)), None)
            assert strides is not None, f"{value.name} has no layout that its kernel can write"
        if isinstance(value, Result):
            strides = value.strides
        padded = self.padded.get(value)
        shape = value.shape if padded is None else padded.memory
        buffer = Buffer(value.dtype, shape, strides, name=value.name)
        made = self.tensors[value] = Tensor(buffer, value.shape, strides)
        if padded is not None:
            whole = padded.whole
            self.tensors[whole] = Tensor(buffer, whole.shape, contiguous(whole.shape))
        return made

    def tensor(self, value: Value) -> Tensor:
        """What is stored, or a view of it."""
        if value in self.tensors:
            return self.tensors[value]
        base, at = base_of(value)
        tensor = self.tensors[base]
        found = view_strides(tensor.strides, value, at)
        assert found is not None, f"{value.name} is no view of {base.name}"
        return Tensor(tensor.buffer, value.shape, found[0], tensor.offset + found[1])

    # Steps

    def plan(self) -> Plan:
        steps: list[Kernel | Call] = []
        members: dict[Cluster, list[Value]] = {}
        for value in self.values:
            if value in self.clusters.of:
                members.setdefault(self.clusters.of[value], []).append(value)
        for cluster in ordered(self.clusters):
            if cluster.call:
                steps += self._call(members[cluster])
                continue
            stored = [v for v in members[cluster] if v in self.stored]
            for value in stored:
                self._allocate(value)
            if stored:
                steps += self.kernels.of(cluster, stored, members[cluster])
        places = zip(self.graph.outputs, self.graph.strides, strict=True)
        outputs = [
            self._output(at, value, strides is None) for at, (value, strides) in enumerate(places)
        ]
        results = (out.buffer for out in outputs if isinstance(out, Tensor))
        kept = _without_unread(steps, {*self.arguments, *results})
        left = {buffer for step in kept for buffer in step.writes}
        gone = {buffer for step in steps for buffer in step.writes} - left
        unread = {value for value, tensor in self.tensors.items() if tensor.buffer in gone}
        cuts = [cut for cut in self._cuts() if cut.value not in unread]
        return Plan(self.arguments, self.kernels.named(kept), outputs, cuts)

    def _cuts(self) -> list[Cut]:
        """A reason for each value that a kernel reads from memory though another step made it."""
        found: dict[Value, Cut] = {}
        for reader, cluster in self.clusters.of.items():
            if cluster.call or reader not in self.reads.solid:
                continue
            for read in self.reads.of(reader):
                source = self.clusters.of.get(read.value)
                if source is None or source is cluster or read.value not in self.tensors:
                    continue
                reason = self.clusters.cuts.get(reader, "")
                if source.call:
                    reason = f"{_library_name(read.value)} is the library's"
                found.setdefault(read.value, Cut(read.value, reader, reason))
        for value in (v for v in self.values if isinstance(v, Extern)):
            for arg in tensor_arguments(value):
                base, _ = base_of(arg)
                if base in self.clusters.of and base not in found:
                    found[base] = Cut(base, value, f"{_library_name(value)} is the library's")
        return list(found.values())

    def _call(self, members: list[Value]) -> list[Call]:
        value = members[0]
        if isinstance(value, Gather):
            return []  # its zeros are written where the rest is: self.padded
        if isinstance(value, Reduce):
            return library_call(value, self.tensor(value.source), self._allocate(value))
        assert isinstance(value, Extern)
        tensors = set(tensor_arguments(value))
        args, kwargs = pytree.tree_map(
            lambda arg: self._argument(arg, tensors), (value.args, value.kwargs)
        )
        count = len(value.target._schema.returns)
        writes: list[Buffer | None] = [None] * max(count, 1)
        for result in value.results:
            if result in self.clusters.of:
                while len(writes) <= result.number:
                    writes.append(None)
                writes[result.number] = self._allocate(result).buffer
        return [Call(value.target, tuple(args), kwargs, writes, value)]

    def _argument(self, arg: Any, tensors: set[Value]) -> Any:
        if not isinstance(arg, Value):
            return arg
        if arg in tensors:
            return self.tensor(arg)
        number = number_of(arg)
        if number is None:
            raise NotImplementedError(f"the library takes {arg.name} as a number")
        return number

    def _output(
        self, place: int, value: Value | None, is_number: bool
    ) -> Tensor | Size | float | None:
        if value is None:
            return None
        number = number_of(value) if is_number else None
        if number is not None:
            return number
        tensor = self.tensor(value)
        if place in self.expanded:
            shape, strides = self.expanded[place]
            return Tensor(tensor.buffer, shape, strides, tensor.offset)
        return tensor


def _without_unread(steps: list[Kernel | Call], seen: set[Buffer | None]) -> list[Kernel | Call]:
    """Without kernels whose results nobody reads: what makes masks for a kernel that then goes
    through its elements in pieces, and needs none. `seen` are buffers that callers have."""
    read = set(seen)
    kept: list[Kernel | Call] = []
    for step in reversed(steps):
        if isinstance(step, Kernel) and not read & set(step.writes):
            continue
        kept.append(step)
        read |= _read_by(step)
    return kept[::-1]


def _read_by(step: Kernel | Call) -> set[Buffer | None]:
    if isinstance(step, Kernel):
        loaded = {operand.buffer for operand in step.inputs}
        return loaded | {word.buffer for word in step.words if isinstance(word, Address)}
    leaves = pytree.tree_leaves((step.args, step.kwargs))
    return {leaf.buffer for leaf in leaves if isinstance(leaf, Tensor)}


def _is_read_once(reader: Value, read: Read) -> bool:
    """Whether no element is read for two of the reader's."""
    if read.at is None or isinstance(reader, Reduce):
        return False
    used = {symbol for place in read.at for symbol in place.free_symbols}
    return all(size == 1 or axis(d) in used for d, size in enumerate(reader.shape))


def _is_steady(reader: Value, read: Read) -> bool:
    """Whether it is the same all along the reader's last dimension: computed once for each row."""
    shape = reader.source.shape if isinstance(reader, Reduce) else reader.shape
    wide = [axis(d) for d, size in enumerate(shape) if size != 1]
    if read.at is None or not wide or len(read.value.shape) == 0:
        return read.at is not None
    return not any(wide[-1] in place.free_symbols for place in read.at)


def _library_name(value: Value) -> str:
    made = value.extern if isinstance(value, Result) else value
    return str(made.target).removeprefix("aten.") if isinstance(made, Extern) else made.name


def _live(graph: Graph) -> list[Value]:
    """The values that outputs need, and what has an effect."""
    alive: set[Value] = {out for out in graph.outputs if out is not None}
    for value in reversed(graph.values):
        if has_effect(value):
            alive.add(value)
        if value in alive:
            alive.update(value.operands)
    return [value for value in graph.values if value in alive]
