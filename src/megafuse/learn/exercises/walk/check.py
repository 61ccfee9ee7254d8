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
    # Fewer rows than columns first: an index that mixes them up then stays inside the arrays.
    for rows, cols in ((29, 37), (37, 29), (1, 5), (6, 1)):
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
    known = _known(arrays["x"].double(), arrays["scale"].double())
    return tensors.close(what, arrays["out"], exact, torch.float32, 1e-6, says, known)


def _known(x: Tensor, scale: Tensor) -> Iterator[tuple[str, Tensor]]:
    rows, cols = x.shape
    yield "The scale is left out: out is x as it was.", x
    yield "The scale is added: it is a factor.", x + scale
    yield "Every column has the factor of the first one, scale[0].", x * scale[0]
    told = "x is read at c * rows + r and written at r * cols + c: rows became columns."
    yield told, x.flatten().view(cols, rows).t() * scale
    down = scale.repeat_interleave(rows).view(rows, cols)
    told = "The matrix was walked at c * rows + r: row r begins at r * cols, so (r, c) lies at "
    yield told + "r * cols + c.", x * down
    if rows > cols:
        return
    told = "A place's column is the place modulo cols, the length of a row, and not modulo rows."
    yield told, x * scale[torch.arange(rows * cols) % rows].view(rows, cols)
    told = "The scale is taken by row, scale[r]: each column has a number of its own, scale[c]."
    yield told, x * scale[:rows, None]
    strided = patterns.blank(rows * cols).double()
    for r in range(rows):  # the later row stays
        part = slice(r * rows, r * rows + cols)
        strided[part] = x.flatten()[part] * scale
    told = "Row r was taken from r * rows on: a row is cols floats long, so it begins at r * cols."
    yield told, strided.view(rows, cols)


def _why(each: float) -> str:
    return (
        f"The result is right, but {each:.0f} bytes travel for each float where 8 would do. The "
        "cache gets a line of 64 bytes, sixteen neighbours, and your loop takes too few of them "
        "before it jumps on; when it comes back for the rest, the line has had to make room, and "
        "is fetched again. Written lines go the same way. Let the inner loop step from one float "
        "to the next, and each line is fetched once and used whole."
    )
