"""What a benchmark found out, and its JSON: the one source of the table, the page and README.

    Result ── machine, versions, commit, roofs
      └─ Row ── one op, mode, dtype and shape, a layer's widths, arguments that were chosen
           ├─ Entry ── one contender: its times, accuracy, traffic; or its error and no time
           └─ speedups: how many times longer each other contender took than the subject

Times are seconds, sizes bytes, rates per second. A thing that could not be measured is None, and
`missing` says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

FORMAT, VERSION = "megafuse-bench", 1
CLOCKS = ("cold", "warm", "host", "graph")  # of calls; the suite `models` has one of its own:
STEP = "step"  # steps in a row, the device waited for at the end
Choice = bool | str | int | float  # an argument's value; of an optional tensor, whether it is given


@dataclass(frozen=True)
class Span:
    """A median of `n` samples; four of five samples lie between `low` and `high`."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Speedup(Span):
    """How many times longer a contender took than the subject, and what may be said of it."""

    verdict: str  # "faster", "slower", or "ambiguous": the two spreads overlap

    @staticmethod
    def of(other: Span, ours: Span) -> Speedup:
        """Of two that were not measured in turns."""
        overlap = other.low <= ours.high and ours.low <= other.high
        verdict = "ambiguous" if overlap else "faster" if other.median > ours.median else "slower"
        low, high = other.low / ours.high, other.high / ours.low
        return Speedup(other.median / ours.median, low, high, min(other.n, ours.n), verdict)


@dataclass(frozen=True)
class Accuracy:
    """Errors against float64. Relative ones leave out results that are exactly 0."""

    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    rel_percentiles: dict[str, float]  # "50", "99", "99.9"
    exact: float  # share of results equal to the float64 one rounded to the dtype


@dataclass
class Entry:
    """One contender of a row."""

    name: str
    about: str  # what it is, in words
    error: str | None = None
    times: dict[str, Span] = field(default_factory=dict)  # by clock
    missing: dict[str, str] = field(default_factory=dict)  # what was not measured → why
    accuracy: Accuracy | None = None
    launches: int | None = None
    kernels: list[str] = field(default_factory=list)
    bytes_real: int | None = None
    peak_extra_bytes: int | None = None
    bytes_per_second: float | None = None  # least bytes over the cold time
    flop_per_second: float | None = None
    roof_share: float | None = None  # of the measured roof that binds
    yardstick: bool = False  # a copy, a bare launch: for scale, no rival
    first_call: float | None = None  # seconds, everything compiled; suites `fuse` and `models`
    another_shape: float | None = None  # seconds of the first call with another batch size
    compiled_again: bool | None = None  # whether that call compiled anything
    # Of the suite `models`:
    first_call_warm: float | None = None  # in another process, with the compilers' caches filled
    side_by_side: int = 1  # processes that prepared together when the first call was timed
    busy: float | None = None  # seconds that the GPU works in a step
    peak_bytes: int | None = None  # most memory in a step; with CUDA graphs, what is reserved
    reserved_bytes: int | None = None  # most that torch's allocator held
    gradients: Accuracy | None = None  # `accuracy` is of the outputs
    off: dict[str, float] = field(default_factory=dict)  # largest error / largest value, by kind
    against: str = ""  # what the errors are against, "float64" or "float32"
    commit: str = ""  # that this entry was measured at

    @property
    def cold(self) -> float | None:
        return self.times["cold"].median if "cold" in self.times else None


@dataclass
class Row:
    """One op at one size: every contender, timed in turns."""

    op: str
    mode: str  # "forward", "forward, grad" (the graph is recorded), "forward+backward"
    dtype: str
    shape: list[int]
    elements: int
    device: str
    subject: str  # whom the speed-ups are about
    bytes_least: int | None
    flops: int | None
    roof: str | None  # which roof binds: "memory" or "compute"
    entries: list[Entry]
    widths: list[int] = field(default_factory=list)  # of a layer: hidden features, the output's
    choices: dict[str, Choice] = field(default_factory=dict)  # arguments that set the row apart
    floor: float | None = None  # seconds: the least that the roofs allow
    speedups: dict[str, dict[str, Speedup]] = field(default_factory=dict)  # by name, then clock
    conditions: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def entry(self, name: str) -> Entry | None:
        return next((e for e in self.entries if e.name == name), None)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes two rows of different files comparable."""
        return self.op, self.mode, self.dtype, self.label

    @property
    def size(self) -> str:
        """64×768→3072: the shape of the first tensor, and how wide a layer makes it."""
        return "→".join(["×".join(map(str, self.shape)), *map(str, self.widths)])

    @property
    def label(self) -> str:
        """64×768→3072 tanh: the size, and the choices in words."""
        return " ".join([self.size, *(worded(n, v) for n, v in self.choices.items())])


def worded(name: str, value: Choice) -> str:
    """causal, no mask, tanh, approximate=none, p=0.1"""
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, str) and value != "none":
        return value
    return f"{name}={value if isinstance(value, str) else f'{value:g}'}"


@dataclass
class Roofs:
    """What the machine was measured to do at best: bytes and FLOP a second."""

    copy: float
    read: float
    gemm: dict[str, float]  # by dtype
    launch: float | None = None  # seconds of an empty device-side step, on CUDA
    date: str = ""

    def matching(self, dtype: str, gemm: bool = False) -> float:
        """FLOP a second for this dtype; arithmetic outside matrix products is done in float32.

        A float32 product may be three of float16 (docs/fp32.md), where that is faster.
        """
        wanted = dtype if gemm or dtype == "float64" else "float32"
        rate = self.gemm.get(wanted) or self.gemm["float32"]
        return max(rate, self.gemm.get("float16", 0.0) / 3) if gemm and dtype == "float32" else rate


@dataclass
class Result:
    """Everything one run found out."""

    suite: str
    command: str
    date: str
    commit: str
    changed: bool  # the working tree had changes that the commit does not hold
    machine: dict[str, Any]
    versions: dict[str, str | None]
    roofs: Roofs | None
    rows: list[Row]
    seconds_taken: float = 0.0
    stopped: bool = False  # by the user, before all rows were measured
    start_up: dict[str, Span] | None = None

    @property
    def label(self) -> str:
        """The machine's name, short."""
        return str(self.machine.get("gpu") or f"{self.machine['cpu']}")

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def write(self, path: str | Path) -> None:
        """Rounded to 6 digits: no measurement here has more."""
        text = json.dumps(plain(self.to_json()), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def __str__(self) -> str:
        from megafuse.bench import table

        return table.text(self)

    def _repr_html_(self) -> str:
        from megafuse.bench import table

        return table.html(self)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


class NotAResult(ValueError):
    """The file is not one that `megafuse bench --json` wrote."""


def read(path: str | Path) -> Result:
    """Reads a results file; says what is wrong with one that is not."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise NotAResult(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not JSON, not text, or nested without end
        raise NotAResult(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise NotAResult(f"{path} is not a results file: `megafuse bench --json FILE` writes one.")
    if data.get("version") != VERSION:
        raise NotAResult(
            f"{path} has version {data.get('version')} of the format, this megafuse reads "
            f"{VERSION}: measure again, or use the megafuse that wrote it."
        )
    try:
        return from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAResult(f"{path} is damaged: {type(error).__name__}: {error}") from None


def from_json(data: dict[str, Any]) -> Result:
    rows = [_row(r) for r in data["rows"]]
    roofs = Roofs(**_known(Roofs, data["roofs"])) if data["roofs"] else None
    start = data.get("start_up")
    start_up = {k: _span(v) for k, v in start.items()} if start else None
    return Result(**_known(Result, data) | {"rows": rows, "roofs": roofs, "start_up": start_up})


def _row(data: dict[str, Any]) -> Row:
    speedups = {
        name: {clock: Speedup(**_known(Speedup, s)) for clock, s in by_clock.items()}
        for name, by_clock in data["speedups"].items()
    }
    entries = [_entry(e) for e in data["entries"]]
    return Row(**_known(Row, data) | {"entries": entries, "speedups": speedups})


def _entry(data: dict[str, Any]) -> Entry:
    times = {clock: _span(t) for clock, t in data["times"].items()}
    errors = {name: _accuracy(data.get(name)) for name in ("accuracy", "gradients")}
    return Entry(**_known(Entry, data) | {"times": times} | errors)


def _accuracy(data: dict[str, Any] | None) -> Accuracy | None:
    return Accuracy(**_number(_known(Accuracy, data))) if data else None


def _span(data: dict[str, Any]) -> Span:
    return Span(**_known(Span, data))


def _known(cls: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Only what this class has: a newer minor addition does not make a file unreadable."""
    kept = {f.name: data[f.name] for f in fields(cls) if f.name in data}
    for f in fields(cls):
        kind = {"dict": dict, "list": list}.get(f.type.partition("[")[0])  # annotations are text
        if kind and not isinstance(kept.get(f.name, kind()), kind) and not f.type.endswith("None"):
            raise TypeError(f"{f.name} is {kept[f.name]!r}, expected a {kind.__name__}")
    return kept


def _number(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _number(v) for k, v in value.items()}
    return math.nan if value is None else value


def plain(value: Any) -> Any:
    """What JSON can hold: dicts for dataclasses, floats of 6 digits, None for NaN and Inf."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
