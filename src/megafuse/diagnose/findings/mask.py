"""synchronisation by a mask: how many numbers it picks is known only when it has been read."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total
from megafuse.diagnose.record import Operation

NAME = "synchronisation"


def find(case: Case) -> Iterator[Finding]:
    """On a GPU the host waits; on any device the picking takes several passes."""
    operations = [op for op in case.record.operations if picks_by_mask(op)]
    if not operations:
        return
    streamed = sum(
        case.memory_seconds(sum(t.bytes for t in op.reads) + max(t.bytes for t in op.reads))
        for op in operations
    )
    where, lines = main_line(operations)
    yield Finding(
        NAME,
        f"{operations[0].short} picks by a boolean mask: "
        + ("the host waits to know how many" if case.on_gpu else "positions are counted first"),
        "Keep the shape and weigh instead: torch.where(mask, x, 0), and divide a sum by "
        "mask.sum() where a mean is wanted.",
        where,
        total(operations),
        case.gain(max(0.0, total(operations) - streamed) + _idle(case)),
        "likely",
        [
            Evidence("masks", float(len(operations)), ""),
            Evidence("seconds of one pass instead", streamed, "s"),
        ],
        indices(operations),
        "one pass over the values and the mask",
        lines,
    )


def _idle(case: Case) -> float:
    """Seconds in which a GPU has nothing to do, because its host waited."""
    waits = any(op.waits for op in case.record.operations)
    return case.record.idle if case.on_gpu and waits else 0.0


def picks_by_mask(op: Operation) -> bool:
    if op.short in ("masked_select", "nonzero"):
        return True
    masks = [t for t in op.reads if t.dtype in ("bool", "uint8")]
    return op.short in ("index", "index_put_", "_index_put_impl_") and bool(masks)
