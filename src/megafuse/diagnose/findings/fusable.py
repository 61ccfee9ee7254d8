"""fusable: a chain of operations that each read and write memory, where one pass would do.

seconds of one pass = bytes that come in and go out / the best rate of the chain's own operations
                      + half of what its arithmetic takes beyond that rate
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from megafuse.compiler.explained import size
from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, apart, indices, main_line, total
from megafuse.diagnose.record import Operation

NAME = "fusable"
_KINDS = ("pointwise", "reduction")
_PAGES = 0.7  # of a copy's rate: below, memory that is just allocated is what takes time
_LARGE = 0.5  # of a chain's seconds must be in operations whose work is more than their call


def find(case: Case) -> Iterator[Finding]:
    found = [(chain, one_pass(case, chain)) for chain in chains(case)]
    found = [(chain, once) for chain, once in found if total(chain) > 1.15 * once]
    if not found:
        return
    operations = [op for chain, _ in found for op in chain]
    predicted = sum(once for _, once in found)
    moved = sum(op.bytes_moved for op in operations)
    least = sum(sum(_ends(case, chain)) for chain, _ in found)
    where, lines = main_line(operations)
    many = f" in {len(found)} chains" if len(found) > 1 else ""
    yield Finding(
        NAME,
        f"{len(operations)} operations{many} move {size(moved)}, where one pass "
        f"moves {size(least)}",
        "Put them into one function under @megafuse.fuse, or megafuse.optimize(model).",
        where,
        total(operations),
        case.gain(total(operations) - predicted, len(operations) - len(found)),
        "likely",
        [
            Evidence("operations", float(len(operations)), ""),
            Evidence("bytes moved", float(moved), "B"),
            Evidence("bytes of one pass", float(least), "B"),
            Evidence("chains", float(len(found)), ""),
        ],
        indices(operations),
        "what comes in and goes out at the best rate of these operations, and half of the "
        "arithmetic beyond it",
        lines,
    )


def chains(case: Case) -> list[list[Operation]]:
    """Operations that hand each other values, of at least two; each in one chain."""
    chain_of: dict[int, int] = {}
    members: dict[int, list[Operation]] = {}
    for op in case.record.operations:
        if not _may(op):
            continue
        sources = [case.writer.get(t.value) for t in op.reads]
        before = {
            chain_of[s.index]
            for s in sources
            if s is not None and s.index in chain_of and s.phase == op.phase and s.index < op.index
        }
        chain = min(before, default=op.index)
        merged = [o for c in sorted(before) for o in members.pop(c)] + [op]
        members[chain] = merged
        chain_of |= {o.index: chain for o in merged}
    return [sorted(m, key=lambda o: o.index) for m in members.values() if _pays(case, m)]


def _may(op: Operation) -> bool:
    cast = op.kind == "copy" and op.short == "_to_copy"
    one_device = len({t.device for t in (*op.reads, *op.writes) if t.shape}) <= 1
    return (op.kind in _KINDS or cast) and op.phase != "optimizer" and one_device and bool(op.reads)


def _pays(case: Case, chain: Sequence[Operation]) -> bool:
    large = [op for op in chain if not case.tiny(op)]
    return len(large) > 1 and total(large) >= _LARGE * total(chain)


def _ends(case: Case, chain: Sequence[Operation]) -> tuple[int, int]:
    """Bytes that come into the chain, and that leave it: read by others, or by nobody."""
    inside = {op.index for op in chain}
    made = {t.value: t.bytes for op in chain for t in op.writes}
    comes = apart(t for op in chain for t in op.reads if t.value not in made)
    goes = 0
    for value, held in made.items():
        readers = case.readers.get(value, [])
        if not readers or any(r.index not in inside for r in readers):
            goes += held
    return comes, goes


def one_pass(case: Case, chain: Sequence[Operation]) -> float:
    """Seconds of the chain as one kernel."""
    comes, goes = _ends(case, chain)
    large = [op for op in chain if op.seconds > 0 and not case.tiny(op)]
    rate = max((op.bytes_moved / op.seconds for op in large), default=case.machine.copy)
    writing = math.inf
    if not case.on_gpu and case.machine.fresh < _PAGES * case.machine.copy:
        # Fresh memory comes page by page, which takes longer than reading: results decide.
        writing = max((_written(op) / op.seconds for op in large if _written(op)), default=rate)
    memory = max((comes + goes) / rate, goes / writing)
    beyond = sum(
        max(0.0, op.seconds - max(op.bytes_moved / rate, _written(op) / writing))
        for op in large
        if op.roof == "compute" or op.flops > 4 * op.bytes_moved
    )
    return max(memory + beyond / 2, case.machine.launch or case.machine.call)


def _written(op: Operation) -> int:
    return sum(t.bytes for t in op.writes)
