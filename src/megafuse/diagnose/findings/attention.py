"""attention written out: softmax(q·kᵀ)·v with the N×N matrix in memory."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, dtype, indices, largest, main_line, shape, total
from megafuse.diagnose.record import Operation

NAME = "attention written out"
_SOFTMAX = ("_softmax", "_safe_softmax", "softmax")
_BETWEEN = ("pointwise", "copy", "reduction")
_FLASH = 0.6  # of the products' roof: what fused attention reaches on a GPU


def find(case: Case) -> Iterator[Finding]:
    found = groups(case)
    if found:
        yield _finding(case, found)


def groups(case: Case) -> list[list[Operation]]:
    """From each product q·kᵀ over its softmax to the product with v."""
    found: list[list[Operation]] = []
    for op in case.record.operations:
        if op.phase == "forward" and op.short in _SOFTMAX:
            before, after = _product_before(case, op), _product_after(case, op)
            if before and after:
                path = {o.index: o for o in (*before, op, *after)}
                found.append([path[i] for i in sorted(path)])
    return found


def _product_before(case: Case, op: Operation) -> list[Operation]:
    """From the product q·kᵀ to the softmax: what scales, masks and casts."""
    path: list[Operation] = []
    value = largest(op.reads)
    while value is not None:
        made = case.writer.get(value.value)
        if made is None or made in path:
            return []
        path.append(made)
        if made.kind == "product":
            out, first = largest(made.writes), made.reads[-2] if len(made.reads) > 1 else None
            square = out is not None and first is not None and out.bytes > first.bytes
            return path if square else []
        if made.kind not in _BETWEEN:
            return []
        value = largest(made.reads)
    return []


def _product_after(case: Case, op: Operation) -> list[Operation]:
    path: list[Operation] = []
    current = op
    for _ in range(6):
        readers = [r for t in current.writes for r in case.readers.get(t.value, [])]
        readers = [r for r in readers if r.phase == "forward" and r.index > current.index]
        if not readers:
            return []
        current = min(readers, key=lambda r: r.index)
        path.append(current)
        if current.kind == "product":
            return path
        if current.kind not in _BETWEEN:
            return []
    return []


def _finding(case: Case, found: list[list[Operation]]) -> Finding:
    operations = [op for each in found for op in each]
    scores = largest([t for op in found[0] for t in op.writes])
    assert scores is not None
    stored = sum(t.bytes for op in operations for t in op.writes if t.bytes == scores.bytes)
    products = [op for op in operations if op.kind == "product"]
    rate = _FLASH * case.machine.flop_rate(dtype(products[0])) if case.on_gpu else 0.0
    compute = sum(op.flops for op in products) / rate if rate else total(products)
    # exp of every score, once, in registers: an eighth of what the separate passes take; a GPU does
    # most of it while its tensor cores multiply.
    others = total(op for op in operations if op.kind != "product")
    predicted = min(compute, total(products)) + others / (50 if case.on_gpu else 8)
    fewer = len(operations) - len(found)
    where, lines = main_line([op for op in operations if op.kind != "product"] or operations)
    return Finding(
        NAME,
        f"attention is written out: {shape(scores)} scores go through memory "
        f"{len([1 for op in found[0] for t in op.writes if t.bytes == scores.bytes])} times",
        "Call torch.nn.functional.scaled_dot_product_attention(q, k, v), or megafuse.attention: "
        "the scores then stay in registers.",
        where,
        total(operations),
        case.gain(total(operations) - predicted, fewer),
        "likely",
        [
            Evidence("bytes of scores stored", float(stored), "B"),
            Evidence("attentions", float(len(found)), ""),
            Evidence("operations", float(len(operations)), ""),
        ],
        indices(operations),
        "the two products at their rate, and the scores never stored",
        lines,
    )
