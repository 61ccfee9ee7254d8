"""naive product: a matrix product far below the rate that the library has for its shape.

A kernel of the user's own may have no intermediate, one launch and no wasted byte, and still be the
slow part: what counts is its rate. So the library's product of the same shape is timed beside it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, dtype, indices, is_float, main_line, total
from megafuse.diagnose.flops import of_product
from megafuse.diagnose.record import Operation, Touched

NAME = "naive product"
_BEHIND = 0.6  # of the library's rate: below it, the kernel is what is slow
_SUSPECT = 0.3  # of the roof: a product of PyTorch's below it is timed again on dense matrices


class Sizes(NamedTuple):
    """[batch] rows × inner · inner × columns."""

    batch: int
    rows: int
    inner: int
    columns: int
    dtype: str

    @property
    def flops(self) -> int:
        return of_product(self.rows, self.inner, self.columns, self.batch)

    def __str__(self) -> str:
        many = f"{self.batch} of " if self.batch > 1 else ""
        return f"{many}{self.rows}×{self.inner} · {self.inner}×{self.columns}"


def find(case: Case) -> Iterator[Finding]:
    groups: dict[tuple[str, Sizes], list[Operation]] = defaultdict(list)
    for op in case.record.operations:
        sizes = sizes_of(op) if op.kind in ("extension", "product", "other") else None
        if sizes is not None and sizes.flops and _suspicious(op, sizes, case):
            groups[op.name, sizes].append(op)
    for (name, sizes), operations in groups.items():
        best = _library(case, sizes)
        each = total(operations) / len(operations)
        if best is None or each <= best / _BEHIND:
            continue
        yield _finding(case, name, sizes, operations, each, best)


def _finding(
    case: Case, name: str, sizes: Sizes, operations: list[Operation], each: float, best: float
) -> Finding:
    own, library = sizes.flops / each, sizes.flops / best
    where, lines = main_line(operations)
    # The rest that is fused into the kernel is one more pass over its result.
    rest = case.memory_seconds(2 * max(sum(t.bytes for t in op.writes) for op in operations))
    gain = case.gain(max(0.0, (each - best - rest) * len(operations)))
    short = operations[0].short
    extension = operations[0].kind == "extension"
    return Finding(
        NAME,
        f"{short} multiplies {sizes} at {100 * own / library:.2g} % of the library's rate",
        "Leave the product to the library, and fuse what follows: megafuse.linear_relu, "
        "megafuse.linear_gelu, or F.linear and megafuse.fuse for the rest."
        if extension
        else "Make its operands dense, of one dtype that the machine multiplies fast.",
        where,
        total(operations),
        gain,
        "measured" if case.product_seconds is not None else "likely",
        [
            Evidence("its rate", own, "FLOP/s"),
            Evidence("the library's rate", library, "FLOP/s"),
            Evidence("share of the library's rate", 100 * own / library, "%"),
            Evidence("seconds of the library's product", best, "s"),
        ],
        indices(operations),
        "the library's product of this shape, timed here, and one pass for what is fused into it",
        lines,
    )


def _suspicious(op: Operation, sizes: Sizes, case: Case) -> bool:
    if op.kind == "product":  # the library's: only where its operands' layout may be why
        if not any(_scattered(t) for t in op.reads):
            return False
        least = sizes.flops / (case.machine.flop_rate(sizes.dtype) or 1.0)
        moved = case.memory_seconds(op.bytes_moved)
        return max(least, moved) < _SUSPECT * op.seconds and not case.tiny(op)
    return case.share(op.seconds) > 0.03


def _scattered(t: Touched) -> bool:
    """Whether neither its rows nor its columns are dense: the library copies it, or goes slowly."""
    return len(t.shape) >= 2 and 1 not in t.strides[-2:] and min(t.shape[-2:]) > 1


def _library(case: Case, sizes: Sizes) -> float | None:
    if case.product_seconds is not None:
        return case.product_seconds(*sizes)
    rate = case.machine.flop_rate(sizes.dtype)
    return sizes.flops / (0.7 * rate) if rate else None


def sizes_of(op: Operation) -> Sizes | None:
    """The product that the shapes look like: a result, and two operands that fit it."""
    operands = [t for t in op.reads if is_float(t) and len(t.shape) >= 2]
    results = [t for t in op.writes if is_float(t) and len(t.shape) >= 2]
    if not results:  # its result may be an argument
        results = operands
    for out in sorted(results, key=lambda t: -t.bytes):
        for a, b in itertools.permutations(operands, 2):
            if a is not out and b is not out:
                found = _fits(out, a, b)
                if found is not None:
                    return Sizes(*found, dtype(op))
    return None


def _fits(out: Touched, a: Touched, b: Touched) -> tuple[int, int, int, int] | None:
    """out[…, M, N] = a[…, M, K] · b[K, N], b[N, K], or with as many matrices b as a has."""
    *lead, columns = out.shape
    *mine, inner = a.shape
    if lead != mine:
        return None
    batch, rows = 1, 1
    for n in lead:
        rows *= n
    if len(b.shape) == 2:
        if sorted(b.shape) != sorted((columns, inner)):
            return None
    else:
        *many, first, second = b.shape
        if many != lead[:-1] or sorted((first, second)) != sorted((columns, inner)):
            return None
        batch = 1
        for n in many:
            batch *= n
        rows //= max(1, batch)
    return batch, rows, inner, columns
