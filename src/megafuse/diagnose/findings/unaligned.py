"""unaligned product: a width that is no multiple of 16 bytes keeps tensor cores from loading it."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total
from megafuse.diagnose.findings.product import Sizes, sizes_of
from megafuse.diagnose.record import Operation

NAME = "unaligned product"
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_PAD = 64  # columns: what vocabularies are usually rounded up to


def find(case: Case) -> Iterator[Finding]:
    """Only on a GPU: a CPU's library packs its operands, and any width is as good as another."""
    if not case.on_gpu:
        return
    found = [(op, sizes) for op in case.record.operations if (sizes := _odd(op)) is not None]
    slow = [(op, s, padded) for op, s in found if (padded := _seconds(case, s)) < 0.9 * op.seconds]
    if not slow:
        return
    operations = [op for op, _, _ in slow]
    predicted = sum(padded for _, _, padded in slow)
    sizes = slow[0][1]
    odd = sizes.columns if sizes.columns * _BYTES[sizes.dtype] % 16 else sizes.inner
    where, lines = main_line(operations)
    yield Finding(
        NAME,
        f"a product with {odd:,} columns, no multiple of 8: it runs at "
        f"{100 * predicted / total(operations):.2g} % of the rate of {_padded(odd):,}",
        f"Pad the weight to {_padded(odd):,} and cut the result (a view), or make the vocabulary "
        "that large.",
        where,
        total(operations),
        case.gain(total(operations) - predicted),
        "measured" if case.product_seconds is not None else "likely",
        [
            Evidence("columns", float(odd), ""),
            Evidence("seconds with padding", predicted, "s"),
        ],
        indices(operations),
        "the product with the next multiple of 64 columns",
        lines,
    )


def _odd(op: Operation) -> Sizes | None:
    sizes = sizes_of(op) if op.kind == "product" else None
    if sizes is None or sizes.dtype not in _BYTES or sizes.flops < 1e8:
        return None
    size = _BYTES[sizes.dtype]
    return sizes if sizes.columns * size % 16 or sizes.inner * size % 16 else None


def _padded(count: int) -> int:
    return -(-count // _PAD) * _PAD


def _seconds(case: Case, sizes: Sizes) -> float:
    wide = sizes._replace(columns=_padded(sizes.columns), inner=-(-sizes.inner // 8) * 8)
    if case.product_seconds is not None:
        measured = case.product_seconds(*wide)
        if measured is not None:
            return measured
    return wide.flops / (0.7 * case.machine.flop_rate(sizes.dtype))
