"""A cluster and what it stores → a Kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from megafuse.codegen.body import Body, Term, Written
from megafuse.codegen.one_pass import in_one_pass
from megafuse.graph.affine import Coordinates, flat, mapped
from megafuse.graph.body_builder import DTYPES, BodyBuilder
from megafuse.graph.body_key import body_key
from megafuse.graph.by_rows import goes_by_rows
from megafuse.graph.cluster import Cluster
from megafuse.graph.cost import MAX_OPERANDS, Device
from megafuse.graph.ir import Reduce, Size, Value
from megafuse.graph.padding import Padded
from megafuse.graph.pieces import are_pairs, pieces
from megafuse.graph.plan import Call, Kernel, Operand, Tensor

Store = tuple[Term, Operand]


class Kernels:
    """Makes the kernels of one plan; equal bodies are one."""

    def __init__(
        self,
        name: str,
        rounds: bool,
        device: Device,
        tensors: Mapping[Value, Tensor],
        padded: Mapping[Value, Padded],
    ) -> None:
        self.name, self.rounds, self.device, self.tensors = name, rounds, device, tensors
        self.padded = padded  # what gets zeros behind its rows
        self.bodies: dict[str, Body] = {}

    def of(self, cluster: Cluster, stored: list[Value], members: list[Value]) -> list[Kernel]:
        """What computes the members, and writes what is stored of them: one kernel, or several
        where one would have more operands than a launch takes."""
        made = self._kernel(cluster, stored, members)
        if made is not None:
            return [made]
        if len(stored) == 1:
            raise NotImplementedError(f"{stored[0].name} is computed from too many tensors")
        first, rest = stored[: len(stored) // 2], stored[len(stored) // 2 :]
        left = {v: at for v, at in cluster.coordinates.items() if v not in set(first)}
        later = replace(cluster, coordinates=left)  # reads from memory what the first has written
        return [*self.of(cluster, first, members), *self.of(later, rest, rest)]

    def _kernel(self, cluster: Cluster, stored: list[Value], members: list[Value]) -> Kernel | None:
        """None if it would have too many operands."""
        builder = BodyBuilder(cluster, self.tensors)
        written = [value for value in stored if value not in cluster.sums]
        elements, rows = self._stores(builder, written, [None])
        zeros = [store for value in written for store in self._zeros(builder, value)]
        rows += zeros
        sums = [
            (
                self._summed_term(builder, value),
                self._store(builder, value, cluster.coordinates[value]),
            )
            for value in stored
            if isinstance(value, Reduce) and value in cluster.sums
        ]
        if len(builder.operands) + len(elements) + len(rows) + len(sums) > MAX_OPERANDS:
            return None
        if not cluster.rows and not sums and not zeros:
            builder, elements = self._in_pieces(cluster, written, builder) or (builder, elements)
        body = Body(
            self.name,
            tuple(builder.dtypes),
            tuple(term for term, _ in (*elements, *sums)),
            tuple(term for term, _ in rows),
            scalars=len(builder.words),
            rounds=self.rounds,
            about=_about(stored),
            by_rows=bool(zeros),
        )
        shape = builder.shape
        if cluster.rows > 1:
            shape = (*cluster.outer, sympy.prod(shape[len(cluster.outer) :]))
        inputs, outputs = builder.operands, [operand for _, operand in elements]
        once = [operand for _, operand in rows]
        if rows and not body.row_wise:
            # No reduction is left: amax(-1, keepdim=True).triu(1) is 0. What is the same all along
            # a row is an element of a kernel over rows.
            if elements or sums:
                return None
            shape = cluster.outer
            inputs, outputs = ([_of_rows(o, shape) for o in each] for each in (inputs, once))
            body, once = replace(body, outputs=body.row_outputs, row_outputs=()), []
        if self.device == "cuda":
            in_one_pass(body)
            body.by_rows = body.by_rows or goes_by_rows(body, shape, outputs, inputs)
        kernel = Kernel(
            self._shared(body),
            shape,
            outputs,
            inputs,
            once,
            [operand for _, operand in sums],
            builder.words,
            members,
        )
        _count_bytes(kernel, builder)
        return kernel

    def _in_pieces(
        self, cluster: Cluster, written: list[Value], whole: BodyBuilder
    ) -> tuple[BodyBuilder, list[Store]] | None:
        """The same over one piece's elements, with outputs for each piece, if these have no tests
        left: at first with what is merely picked decided as well, then without."""
        for asked in (whole.tests + whole.picks, whole.tests) if whole.picks else (whole.tests,):
            cut = pieces(asked, cluster.shape, self.device)
            if cut is None:
                continue
            one = BodyBuilder(replace(cluster, shape=cut.shape), self.tensors)
            parts, _ = self._stores(one, written, cut.axes)
            left = one.tests or (one.picks and asked is not whole.tests)
            if left or len(parts) + len(one.operands) > MAX_OPERANDS:
                continue
            pairs = self.device == "cuda" and cut.in_turn
            if not pairs or are_pairs([operand for _, operand in parts], one.shape):
                return one, parts
        return None

    def _stores(
        self, builder: BodyBuilder, stored: list[Value], axes: Sequence[Coordinates | None]
    ) -> tuple[list[Store], list[Store]]:
        """What is written of every element, and of every row. `axes`: where each piece has the
        cluster's axes; None: all is one piece."""
        elements: list[Store] = []
        rows: list[Store] = []
        cluster = builder.cluster
        row_axes = set(builder.axes[len(cluster.outer) :])
        for value in stored:
            for piece in axes:
                at = cluster.coordinates[value]
                if piece is not None:
                    at = mapped(at, piece, builder.shape)
                whole = not cluster.rows or _covers(at, row_axes, cluster)
                made = builder.build(value, at), self._store(builder, value, at)
                (elements if whole else rows).append(made)
        return elements, rows

    def _zeros(self, builder: BodyBuilder, value: Value) -> list[Store]:
        """Those behind each row of what is padded."""
        if value not in self.padded:
            return []
        tensor, found = self.tensors[value], []
        zero = builder.one(Written(0.0, dtype=DTYPES[value.dtype]))
        for column in range(value.shape[-1], self.padded[value].memory[-1]):
            at = (*builder.cluster.coordinates[value][:-1], sympy.Integer(column))
            place = builder.walk(flat(at, tensor.strides, tensor.offset))
            assert place is not None, f"{value.name} has rows that are apart by strides"
            found.append((zero, Operand(tensor.buffer, place[1], place[0])))
        return found

    def _shared(self, body: Body) -> Body:
        """The body itself, or the equal one from before."""
        return self.bodies.setdefault(body_key(body), body)

    def named(self, steps: list[Kernel | Call]) -> list[Kernel | Call]:
        """The steps, each body under a name of its own."""
        bodies = dict.fromkeys(id(step.body) for step in steps if isinstance(step, Kernel))
        numbers = {body: number for number, body in enumerate(bodies, 1)}
        for step in steps:
            if isinstance(step, Kernel) and numbers[id(step.body)] > 1:
                step.body.name = f"{self.name}_{numbers[id(step.body)]}"
        return steps

    def _summed_term(self, builder: BodyBuilder, value: Reduce) -> Term:
        """What is added up, in float32 or float64."""
        term = builder.build(value.source, builder.cluster.inner[value])
        if term.dtype in ("Float", "Double"):
            return term
        return builder.apply("cast", term, dtype="Float")

    def _store(self, builder: BodyBuilder, value: Value, at: Coordinates) -> Operand:
        tensor = self.tensors[value]
        found = builder.walk(flat(at, tensor.strides, tensor.offset))
        assert found is not None, f"{value.name} cannot be written by strides"
        parts = value.parts if isinstance(value, Reduce) else 0
        return Operand(tensor.buffer, found[1], found[0], parts)


def _of_rows(operand: Operand, outer: Sequence[Size]) -> Operand:
    """The same where there are rows, and no elements of them."""
    return replace(operand, strides=operand.strides[: len(outer)])


def _covers(at: tuple[sympy.Expr, ...], axes: set[sympy.Symbol], cluster: Cluster) -> bool:
    """Whether a value has an element for each of the row's, not one for the row."""
    used = {symbol for place in at for symbol in place.free_symbols}
    wide = {i for i, n in zip(cluster.axes, cluster.shape, strict=True) if n != 1}
    return bool(used & axes) or not wide & axes


def _about(stored: list[Value]) -> list[str]:
    lines = dict.fromkeys(v.origin.text.strip() for v in stored if v.origin.text)
    return list(lines)


def _count_bytes(kernel: Kernel, builder: BodyBuilder) -> None:
    def moved(operand: Operand) -> Size:
        if operand.buffer is None:
            return 0
        sizes = [n for n, s in zip(kernel.shape, operand.strides, strict=True) if s != 0]
        return sympy.prod(sizes) * operand.buffer.dtype.itemsize

    kernel.bytes_written = sum(map(moved, (*kernel.outputs, *kernel.sums, *kernel.row_outputs)))
    kernel.bytes_read = sum(map(moved, kernel.inputs))
    for tensor, _ in builder.fetches:
        kernel.bytes_read += sympy.prod(tensor.shape) * tensor.buffer.dtype.itemsize
