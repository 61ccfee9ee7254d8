"""Result on odd sizes, then the lines of memory that the walk takes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megafuse.learn.exercises import patterns, roof, tensors
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_SPARE = 1.1  # times the least: room for `scale`, which is read again in each row


def check(work: Work) -> Iterator[Finding]:
    """The counted run comes first: it catches steps outside the arrays."""
    native = work.native()
    for rows, cols in ((37, 29), (1, 5), (6, 1)):
        arrays = _arrays(rows, cols)
        native.counted(arrays, (rows, cols))
        finding = _result(f"{rows} × {cols}", arrays)
        yield finding
        if not finding.ok:
            return
    rows, cols = 2048, 256
    arrays = _arrays(rows, cols)
    counts = native.counted(arrays, (rows, cols))
    yield _result(f"{rows} × {cols}", arrays)
    each = counts.bytes_moved / (rows * cols)
    yield Finding(
        "bytes moved",
        each <= 8 * _SPARE,
        f"{each:.1f} an element; the least is 8, 4 to read and 4 to write",
        "" if each <= 8 * _SPARE else _why(each),
    )
    rows, cols = 4096, 1024
    large = _arrays(rows, cols)
    native.plain(large, (rows, cols))
    yield _result("at full speed", large)
    run = lambda: native.plain(large, (rows, cols))  # noqa: E731
    floats = rows * cols
    yield roof.share(run, 8 * floats, "cpu", threads=1, operations=floats, moved=each * floats)


def _arrays(rows: int, cols: int) -> dict[str, Tensor]:
    out = patterns.blank(rows, cols)
    return {"x": torch.randn(rows, cols), "scale": torch.randn(cols), "out": out}


def _result(what: str, arrays: dict[str, Tensor]) -> Finding:
    exact = arrays["x"].double() * arrays["scale"].double()
    says = (
        "Each element of x is multiplied by the number of its column. Look at where the loops "
        "begin and end."
    )
    known = [("The scale is left out: out is x as it was.", arrays["x"].double())]
    return tensors.close(what, arrays["out"], exact, torch.float32, 1e-6, says, known)


def _why(each: float) -> str:
    return (
        f"The result is right, but {each:.0f} bytes travel for each float where 8 would do. The "
        "cache gets a line of 64 bytes, sixteen neighbours, and your loop takes too few of them "
        "before it jumps on; when it comes back for the rest, the line has had to make room, and "
        "is fetched again. Written lines go the same way. Let the inner loop step from one float "
        "to the next, and each line is fetched once and used whole."
    )
