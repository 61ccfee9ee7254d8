"""loop over the batch: one product for each sample, where one for all of them would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, dtype, indices, main_line, total
from megafuse.diagnose.findings.product import sizes_of
from megafuse.diagnose.record import Operation, Touched

NAME = "loop over the batch"
_LEAST = 4  # turns
_KINDS = ("product", "pointwise", "reduction")


def find(case: Case) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[Operation]] = defaultdict(list)
    for op in case.record.operations:
        if op.kind in _KINDS and op.phase == "forward" and op.where.file and op.reads:
            shapes = tuple(t.shape for t in op.reads)
            groups[op.name, op.where, op.numbers, shapes].append(op)
    found = [each for group in groups.values() if (each := _turns(group))]
    if not found:
        return
    operations = [op for group in found for op in group]
    most = max(found, key=total)
    predicted = sum(_at_once(case, group) for group in found)
    where, lines = main_line(operations)
    turns = len(most)
    yield Finding(
        NAME,
        f"{most[0].short} runs {turns} times, once for each sample of a batch",
        "Give it the whole batch: PyTorch's operations take a leading dimension, and "
        "torch.vmap adds one to a function of yours.",
        where,
        total(operations),
        case.gain(total(operations) - predicted, len(operations) - len(found)),
        "likely",
        [
            Evidence("turns", float(turns), ""),
            Evidence("seconds of a turn", total(most) / turns, "s"),
            Evidence("seconds for all at once", predicted, "s"),
        ],
        indices(operations),
        "one operation over all samples at once: shared operands are read once",
        lines,
    )


def _turns(group: list[Operation]) -> list[Operation] | None:
    """The operations, if each reads another piece of the same memory, and else the same things."""
    if len(group) < _LEAST:
        return None
    places = range(min(len(op.reads) for op in group))
    pieces = [i for i in places if _are_pieces([op.reads[i] for op in group])]
    same = [i for i in places if len({op.reads[i].value for op in group}) == 1]
    fixed = [i for i in same if i not in pieces]
    if not pieces or len(pieces) + len(fixed) < len(places):
        return None
    return group


def _are_pieces(tensors: list[Touched]) -> bool:
    one = {t.storage for t in tensors}
    return len(one) == 1 and len({t.offset for t in tensors}) == len(tensors)


def _at_once(case: Case, group: list[Operation]) -> float:
    """Seconds: pieces and results are read and written once, what is shared as well."""
    shared = {t.value: t.bytes for op in group for t in op.reads}
    pieces = sum(t.bytes for op in group for t in op.reads)
    values = [{t.value for t in op.reads} for op in group]
    common = set.intersection(*values)
    once = sum(shared[v] for v in common)
    written = sum(t.bytes for op in group for t in op.writes)
    moved = once + max(0, pieces - once * len(group)) + written
    sizes = sizes_of(group[0]) if group[0].kind == "product" else None
    if sizes is not None and case.product_seconds is not None:
        together = sizes._replace(batch=1, rows=sizes.batch * sizes.rows * len(group))
        measured = case.product_seconds(*together)
        if measured is not None:
            return measured
    rate = case.machine.flop_rate(dtype(group[0]))
    compute = sum(op.flops for op in group) / (0.7 * rate) if rate else 0.0
    return max(case.memory_seconds(moved), compute, case.machine.call)
