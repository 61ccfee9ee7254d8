"""Measured numbers as text: times, sizes, amounts. What they prove is said in verdicts/."""

from __future__ import annotations

from collections.abc import Sequence

from megafuse.bench.table import seconds as seconds
from megafuse.learn.ledger import Ledger


def operations(ledger: Ledger) -> str:
    """1 operation, 2 operations"""
    return "1 operation" if ledger.passes == 1 else f"{ledger.passes} operations"


def kernels(number: int) -> str:
    """1 kernel, 2 kernels"""
    return "1 kernel" if number == 1 else f"{number} kernels"


def amount(size: int) -> str:
    """1 Ki, 16 Mi: powers of 1024."""
    for unit, name in ((1 << 20, " Mi"), (1 << 10, " Ki")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


def megabytes(size: int) -> str:
    """268 MB: powers of 1000, as bandwidth is counted."""
    return f"{_three_figures(size / 1e6)} MB"


def mebibytes(size: int) -> str:
    """32 KiB, 1.5 MiB: powers of 1024, as caches are built."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.{0 if size >= 10 * unit else 1}f} {name}"
    return f"{size} bytes"


def listed(names: Sequence[str]) -> str:
    """gelu, then mul"""
    return ", then ".join(names)


def _three_figures(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
