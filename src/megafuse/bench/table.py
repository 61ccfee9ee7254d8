"""A result in a terminal of 80 columns, and in a notebook.

Many rows: a line each, the speed-up over each contender, "≈" where it is ambiguous. Few rows: a
table for each, a line for each contender.
"""

from __future__ import annotations

import html as markup
import textwrap
from collections.abc import Callable, Sequence

from megafuse.bench.result import CLOCKS, Accuracy, Entry, Result, Row, Span, Speedup

WIDTH = 80
FEW = 3  # rows that get a table each
_CLOCKS = {
    "cold": "cold cache",
    "warm": "warm cache",
    "host": "of the host alone",
    "graph": "replayed from a CUDA graph",
}
_INDENT = "  "
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


def text(result: Result) -> str:
    """The whole result, as printed."""
    lines = [heading(result), ""]
    if len(result.rows) <= FEW:
        for row in result.rows:
            lines += [*details(row), ""]
    else:
        summary = Summary(result.rows)
        lines += [*summary.head(), *(line for row in result.rows for line in summary.lines(row))]
        lines += ["", *summary.legend()]
    return "\n".join(lines).rstrip()


def heading(result: Result) -> str:
    versions = result.versions
    tree = result.commit[:12] + (" with changes" if result.changed else "")
    where = result.label
    if result.machine["device"] == "cpu":
        where += f", {result.machine['threads']} threads"
    first = f"{where} · torch {versions['torch']} · megafuse {versions['megafuse']} ({tree})"
    return "\n".join([*wrapped(first), *busy(result)])


def busy(result: Result) -> list[str]:
    """A warning where other programs were running."""
    load, cores = result.machine.get("load"), result.machine.get("cores") or 1
    if not load or load < cores / 2 or result.machine["device"] != "cpu":
        return []
    return [f"Other programs were running ({load:.1f} of {cores} cores): read with care."]


# ---- many rows


class Summary:
    """One line a row. Made from the rows' entries, before or after they are measured.

    Where op and shape leave no room for the numbers, or rows differ in their choices (a mask), each
    op has a title, and its rows begin with their shape and choices.
    """

    def __init__(self, rows: Sequence[Row], clock: str = "cold") -> None:
        self.clock = clock
        rivals = [e for row in rows for e in row.entries if e.name != row.subject]
        self.rivals = list(dict.fromkeys(e.name for e in rivals if not e.yardstick))
        self.subjects = list(dict.fromkeys(row.subject for row in rows)) or ["fused"]
        numbers = len(" fp32 12.3 µs ±123% 100%")
        self.width = min(max([len(row.op) for row in rows] + [2]), 18)
        self.size = max([len(row.size) for row in rows] + [len("size")])
        beside = WIDTH - numbers - self.width - self.size - 1
        fits = beside >= len(" 1.23×±4%") * len(self.rivals)
        self.titled = not fits or any(row.choices for row in rows)
        if self.titled:
            longest = max(len(_INDENT + row.label) for row in rows)
            room = WIDTH - numbers - len(" 1.23×±4%") * len(self.rivals)
            self.width = max(min(longest, room), len("size"))
        else:
            numbers += 1 + self.size
        left = WIDTH - self.width - numbers
        self.cell = min(left // (len(self.rivals) or 1) - 1, 10)
        self.mode = self.op = self.label = ""

    def head(self) -> list[str]:
        cells = [f"{'size' if self.titled else 'op':<{self.width}}", "    "]
        cells += [] if self.titled else [f"{'size':>{self.size}}"]
        cells.append(f"{self.subjects[0][:13]:>13}")
        cells += [_fitting(self.cell, name, _short(name)) for name in self.rivals]
        line = " ".join([*cells, "roof"])
        return [line, "─" * len(line)]

    def lines(self, row: Row) -> list[str]:
        return [*self._titles(row), *self._named(row, self._numbers(row)), *self._notes(row)]

    def _titles(self, row: Row) -> list[str]:
        found = []
        if row.mode != self.mode:
            self.mode, self.op = row.mode, ""
            found.append(f"{row.mode}:")
        if self.titled and row.op != self.op:
            self.op, self.label = row.op, ""
            found += wrapped(row.op)
        return found

    def _named(self, row: Row, numbers: str) -> list[str]:
        if not self.titled:
            name, dtype = row.op[: self.width], short_dtype(row.dtype)
            return [f"{name:<{self.width}} {dtype} {row.size:>{self.size}} {numbers}"]
        label = _INDENT + row.label
        if len(label) <= self.width:
            return [f"{label:<{self.width}} {short_dtype(row.dtype)} {numbers}"]
        named = []
        if row.label != self.label:  # the next dtype of the same row needs no name
            self.label = row.label
            named = textwrap.wrap(
                row.label, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
            )
        return [*named, f"{'':<{self.width}} {short_dtype(row.dtype)} {numbers}"]

    def _numbers(self, row: Row) -> str:
        subject = row.entries[0]
        cells = [_time(subject.times.get(self.clock))]
        for name in self.rivals:
            entry = row.entry(name)
            ratio = row.speedups.get(name, {}).get(self.clock)
            if entry is not None and entry.error:
                cells.append(_fitting(self.cell, "wrong"))
            else:
                cells.append(_ratio(ratio, self.cell))
        return " ".join([*cells, f"{share(subject.roof_share):>4}"]).rstrip()

    def _notes(self, row: Row) -> list[str]:
        failed = [f"{e.name}: {e.error}" for e in row.entries if e.error]
        return [n for words in (*failed, *row.warnings) for n in note(words)]

    def legend(self) -> list[str]:
        who = ", ".join(self.rivals) or "others"
        return wrapped(
            f"{self.subjects[0]}: median time, {_CLOCKS[self.clock]}, ± half of the spread (10th "
            f"to 90th percentile). {who}: how many times longer they took; ≈ is ambiguous, the two "
            "spreads overlap. roof: share, with a cold cache, of what this machine can do at best; "
            "that is, its floor over its time."
        )


# ---- one row


def details(row: Row) -> list[str]:
    """A contender a line; its ratio is how many times as long as the subject it took."""
    lines = wrapped(f"{row.op}, {row.mode}, {row.dtype}, {row.label}")
    clocks = [c for c in CLOCKS if any(c in e.times for e in row.entries)]
    head = [f"{clocks[0] if clocks else '':>13}", *(f"{c:>7}" for c in clocks[1:])]
    ratio = 9 if len(clocks) > 3 else 11  # ≈12.3×±123%, where there is room
    columns = " ".join([*head, f"{'as long':>{ratio}}", "roof", "launches", f"{'error':>7}"])
    width = min(max(len(e.name) for e in row.entries), WIDTH - len(columns) - 1)
    lines += [f"{'':<{width}} {columns}", "─" * (width + 1 + len(columns))]
    lines += [_entry_line(row, entry, clocks, width, ratio) for entry in row.entries]
    for entry in row.entries:
        for what, why in entry.missing.items():
            lines += note(f"{entry.name}, no {what}: {why}")
    for entry in _hungry(row):
        lines += note(f"{entry.name} takes {size_of(entry.peak_extra_bytes)} beside its results")
    if row.bytes_least is not None:
        lines += note(_least(row))
    return lines + [n for w in row.warnings for n in note(w)]


def _entry_line(row: Row, entry: Entry, clocks: Sequence[str], width: int, ratio: int) -> str:
    name = f"{_fitting(width, entry.name, _short(entry.name)).strip():<{width}}"
    if entry.error:
        indent = " " * (width + 1)
        return textwrap.fill(
            entry.error, WIDTH, initial_indent=f"{name} ", subsequent_indent=indent
        )
    cells = [name]
    for i, clock in enumerate(clocks):
        span = entry.times.get(clock)
        alone = seconds(span.median) if span else ""
        cells.append(_time(span) if i == 0 else f"{alone:>7}")
    cells.append(_ratio(row.speedups.get(entry.name, {}).get("cold"), ratio))
    cells.append(f"{share(entry.roof_share):>4}")
    cells.append(f"{'' if entry.launches is None else entry.launches:>8}")
    cells.append(f"{_worst(entry.accuracy):>7}")
    return " ".join(cells).rstrip()


def _least(row: Row) -> str:
    told = f"least to move: {size_of(row.bytes_least)}; binding roof: {row.roof}"
    return told if row.floor is None else f"{told}; floor: {seconds(row.floor)}"


def _hungry(row: Row) -> list[Entry]:
    return [e for e in row.entries if (e.peak_extra_bytes or 0) > (row.bytes_least or 0) / 100]


def short_dtype(name: str) -> str:
    """fp32, bf16: four letters."""
    return _DTYPES.get(name, name)[:4].ljust(4)


def _worst(accuracy: Accuracy | None) -> str:
    return "" if accuracy is None else f"{accuracy.max_abs:.1e}"


# ---- a notebook


def html(result: Result) -> str:
    """A table for each row."""
    parts = [f"<p>{markup.escape(heading(result))}</p>"]
    for row in result.rows:
        title = f"{row.op}, {row.mode}, {row.dtype}, {row.label}"
        parts.append(f"<table><caption>{markup.escape(title)}</caption><thead><tr>")
        titles = (
            "",
            "cold",
            "warm",
            "host",
            "graph",
            "times as long",
            "roof",
            "launches",
            "max error",
        )
        parts.append("".join(f"<th>{t}</th>" for t in titles) + "</tr></thead><tbody>")
        for entry in row.entries:
            cells = _html_cells(row, entry)
            parts.append("<tr>" + "".join(f"<td>{markup.escape(c)}</td>" for c in cells) + "</tr>")
        parts.append("</tbody></table>")
    return "".join(parts)


def _html_cells(row: Row, entry: Entry) -> list[str]:
    if entry.error:
        return [entry.name, entry.error]
    ratio = row.speedups.get(entry.name, {}).get("cold")
    said = "" if ratio is None else _spread(ratio, times)
    if ratio is not None and ratio.verdict == "ambiguous":
        said += " (ambiguous)"
    clocks = [_spread(entry.times.get(c), seconds) for c in CLOCKS]
    launches = "" if entry.launches is None else str(entry.launches)
    return [entry.name, *clocks, said, share(entry.roof_share), launches, _worst(entry.accuracy)]


# ---- numbers for people


def seconds(value: float) -> str:
    """3.52 µs, 128 µs, 1.24 ms: three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if value >= 0.9995 * size:  # else it would be rounded to 1000 of the smaller unit
            return f"{_three(value / size)} {unit}"
    return f"{_three(value * 1e12)} ps"


def times(value: float) -> str:
    return f"{_three(value)}×"


def count(n: int) -> str:
    """16 Mi, 500 K, 10007: as short as can be without rounding."""
    units = (("Mi", 1 << 20), ("Ki", 1 << 10), ("M", 10**6), ("K", 10**3))
    exact = [f"{n // size} {unit}" for unit, size in units if n and n % size == 0]
    return min(exact, key=len, default=str(n))


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def size_of(n: int | None) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n is not None and n >= 0.9995 * size:
            return f"{_three(n / size)} {unit}"
    return f"{n} bytes"


def _spread(span: Span | None, shown: Callable[[float], str]) -> str:
    if span is None:
        return ""
    half = (span.high - span.low) / 2 / span.median if span.median else 0
    return f"{shown(span.median)}{' ' if shown is seconds else ''}±{half:.0%}"


def _time(span: Span | None) -> str:
    if span is None:
        return " " * 13
    return _fitting(13, _spread(span, seconds), seconds(span.median))


def _ratio(ratio: Speedup | None, width: int) -> str:
    if ratio is None:
        return " " * width
    sign = "≈" if ratio.verdict == "ambiguous" else ""
    return _fitting(width, sign + _spread(ratio, times), sign + times(ratio.median))


def _fitting(width: int, *texts: str) -> str:
    """The first of these texts that fits, else the last, cut."""
    chosen = next((t for t in texts if len(t) <= width), texts[-1])
    return f"{chosen[:width]:>{width}}"


def _three(value: float) -> str:
    """Three digits, also of 9.996 and 99.96."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _short(name: str) -> str:
    return name.replace("compile-", "c-")[:10]


def note(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent="  ", subsequent_indent="    ")


def wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH)
