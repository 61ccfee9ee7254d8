"""The results in README, LEARN and docs/results.md, from what `megafuse bench --json` wrote.

python benchmarks/readme_results.py            rewrites them between their markers
python benchmarks/readme_results.py --check    only says whether they are up to date

README has a few whole models and eight rows of ops, docs/results.md has all, LEARN the demo's.
A run that was stopped before its end is in none of them: what is missing may be what is slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from megafuse.bench.result import STEP, Result, Row, Span, Speedup, read
from megafuse.bench.table import count, seconds, share, size_of, times

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
LEARN = ROOT / "LEARN.md"
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
RIVALS = ("eager", "compile", "compile-max")
Cell = Callable[[Row], str]


def table(result: Result) -> str:
    """A file's table, folded: its title is the machine."""
    columns, how = LAYOUTS[result.suite](result)
    texts = sum(name in ("op", "", "size", "dtype") for name in columns)
    lines = [
        f"<details><summary>{_title(result)}</summary>",
        "",
        how,
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * texts + "---:|" * (len(columns) - texts),
        *("| " + " | ".join(cell(row) for cell in columns.values()) + " |" for row in result.rows),
        "",
        _roofs(result),
        *_wrong(result),
    ]
    if result.start_up:
        told = (f"{what} {seconds(span.median)}" for what, span in result.start_up.items())
        lines += ["", f"Start-up on a CPU tensor: {', '.join(told)}."]
    return "\n".join([*lines, "", "</details>"])


def _title(result: Result) -> str:
    titles = {
        "transformer": "Transformer layers and rows, ",
        "fuse": "Functions, fused, ",
        "models": "Whole models, ",
    }
    where = titles.get(result.suite, "") + result.label
    if result.machine["device"] != "cuda":
        where += f", {result.machine['threads']} threads"
    return f"{where}, torch {result.versions['torch']}, {result.date[:10]}"


# ---- pointwise ops: bytes are what counts, so a copy is what they are held against


def seeds(result: Result) -> tuple[dict[str, Cell], str]:
    on_gpu = result.machine["device"] == "cuda"
    rivals, second = _rivals(result), "host" if on_gpu else "warm"
    columns: dict[str, Cell] = {
        "op": lambda row: f"`{row.op}`",
        "": lambda row: row.mode,
        "dtype": lambda row: row.dtype,
        "elements": lambda row: count(row.elements),
        "fused": _time,
        **_against(rivals),
        "of `copy`": _of_copy,
        second: lambda row: _seconds(row, second),
        **_against(("eager", "compile"), second),
    }
    words = {
        "host": "host: how long the host is busy with a call; then, how many times that.",
        "warm": "warm: the same with the arguments in the cache.",
    }
    how = f"{_how(rivals)} of `copy`: bytes per second against a copy of as many bytes."
    return columns, f"{how} {words[second]}"


# ---- layers: arithmetic counts too, so they are held against the floor that both make


def transformer(result: Result) -> tuple[dict[str, Cell], str]:
    rivals = _rivals(result)
    columns: dict[str, Cell] = {
        "op": lambda row: f"`{row.op}`",
        "size": lambda row: row.label,
        "": lambda row: row.mode,
        "dtype": lambda row: row.dtype,
        "fused": _time,
        "floor": lambda row: "" if row.floor is None else seconds(row.floor),
        **_against(rivals),
        "of floor": lambda row: share(row.entries[0].roof_share),
    }
    how = (
        f"{_how(rivals)} floor: the least time that the roofs below allow, for the arithmetic or "
        "for the bytes; of floor: that over fused."
    )
    return columns, how


# ---- functions: what fuse makes of them, at sizes where bytes count and where the host does


def fuse(result: Result) -> tuple[dict[str, Cell], str]:
    rivals, host = _rivals(result), "host" if result.machine["device"] == "cuda" else "warm"
    columns: dict[str, Cell] = {
        "op": lambda row: f"`{row.op}`",
        "size": lambda row: row.label,
        "": lambda row: row.mode,
        "dtype": lambda row: row.dtype,
        "fuse": _time,
        **_against(rivals),
        "of `copy`": _of_copy,
        host: lambda row: _seconds(row, host),
        **_against(("built-in",), host),
        "first call": lambda row: _first(row, "fuse"),
        "compile's": lambda row: _first(row, "compile"),
        "by the library": lambda row: "; ".join(row.warnings).replace("fuse: by the library: ", ""),
    }
    how = (
        f"{_how(rivals, 'fuse')} of `copy`: bytes per second against a copy of as many bytes as "
        "arguments and results have. built-in: how many times longer a call of `gelu_scale` keeps "
        "the host busy, at 1 Ki elements. first call: from empty caches, in seconds, and "
        f"torch.compile's. Another batch size compiled {_again(result)}."
    )
    return columns, how


def _first(row: Row, name: str) -> str:
    entry = row.entry(name)
    return "" if entry is None or entry.first_call is None else seconds(entry.first_call)


def _again(result: Result) -> str:
    found = [row.op for row in result.rows if row.entries[0].compiled_again]
    return ", ".join(f"`{op}`" for op in dict.fromkeys(found)) or "nothing"


# ---- whole models: a step, and what it takes of the device

COMPILE_MODES = ("compile", "reduce-overhead", "max-autotune")
GRAPHS = "optimize-graphs"
OURS = ("optimize", GRAPHS)
MODEL_RIVALS = (GRAPHS, "eager", *COMPILE_MODES)


def models(result: Result) -> tuple[dict[str, Cell], str]:
    def against(name: str) -> Cell:
        return lambda row: _speedup(row, name, STEP).replace("wrong", "failed")

    rivals = [n for n in MODEL_RIVALS if any(row.entry(n) for row in result.rows)]
    columns: dict[str, Cell] = {
        "op": lambda row: f"`{row.op}`",
        "size": lambda row: row.label,
        "": lambda row: row.mode,
        "dtype": lambda row: row.dtype,
        "optimize": lambda row: _seconds(row, STEP, "optimize") or "failed",
        **{name: against(name) for name in rivals},
        "kernels": lambda row: _launches(row, "optimize"),
        "eager's": lambda row: _launches(row, "eager"),
        "memory": lambda row: _peak(row, "optimize"),
        "compile's": lambda row: _peak(row, "compile"),
        "first": lambda row: _first(row, "optimize"),
        "compile's first": lambda row: _first(row, "compile"),
        "error": lambda row: _off(row, "optimize"),
        "eager's error": lambda row: _off(row, "eager"),
    }
    most = max((e.side_by_side for row in result.rows for e in row.entries), default=1)
    beside = f", with up to {most} processes side by side" if most > 1 else ""
    how = (
        f"optimize: median time of a step. {', '.join(rivals)}: how many times that they took; ≈ "
        "where the spreads overlap. kernels: launches in a step. memory: its peak. first: seconds "
        f"to the first result, caches empty{beside}. error: the largest of outputs and gradients "
        "against float64, as a share of the largest value."
    )
    return columns, how


def _peak(row: Row, name: str) -> str:
    entry = row.entry(name)
    return "" if entry is None or entry.peak_bytes is None else size_of(entry.peak_bytes)


def _off(row: Row, name: str) -> str:
    entry = row.entry(name)
    return f"{max(entry.off.values()):.0e}" if entry is not None and entry.off else ""


LAYOUTS: dict[str, Callable[[Result], tuple[dict[str, Cell], str]]] = {
    "seeds": seeds,
    "transformer": transformer,
    "fuse": fuse,
    "models": models,
}


# ---- cells


def _how(rivals: Sequence[str], subject: str = "fused") -> str:
    return (
        f"{subject}: median time, cold cache. {', '.join(rivals)}: how many times longer they "
        "took; ≈ where the spreads overlap."
    )


def _rivals(result: Result) -> list[str]:
    return [n for n in RIVALS if any(n in row.speedups for row in result.rows)]


def _against(names: Sequence[str], clock: str = "cold") -> dict[str, Cell]:
    def column(name: str) -> Cell:
        return lambda row: _speedup(row, name, clock)

    return {name if clock == "cold" else f"{name}, {clock}": column(name) for name in names}


def _time(row: Row) -> str:
    return "wrong" if row.entries[0].error else _seconds(row, "cold")


def _seconds(row: Row, clock: str, name: str = "") -> str:
    entry = row.entry(name) if name else row.entries[0]
    span = entry.times.get(clock) if entry else None
    return "" if span is None else seconds(span.median)


def _of_copy(row: Row) -> str:
    copied = row.speedups.get("copy", {}).get("cold")
    return share(copied.median) if copied else ""


def _speedup(row: Row, name: str, clock: str) -> str:
    entry, found = row.entry(name), row.speedups.get(name, {}).get(clock)
    if entry is not None and entry.error:
        return "wrong"
    return "" if found is None else _ratio(found)


def _ratio(found: Speedup) -> str:
    return ("≈" if found.verdict == "ambiguous" else "") + times(found.median)


def _roofs(result: Result) -> str:
    """And the commit; of whole models that alone."""
    roofs = result.roofs
    commit = f"{result.commit[:12]}{' with changes' if result.changed else ''}"
    if roofs is None:
        return f"Commit {commit}; `{result.command}`."
    gemm = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in roofs.gemm.items())
    return (
        f"Roofs measured there: copy {roofs.copy / 1e9:,.0f} GB/s, read {roofs.read / 1e9:,.0f} "
        f"GB/s, matrix products {gemm}. Commit {commit}; `{result.command}`."
    )


def _wrong(result: Result) -> list[str]:
    """What each "wrong" of the table is about."""
    notes = [
        f"- `{row.op}` {row.label}, {row.mode}, {row.dtype}, {entry.name}: {entry.error}"
        for row in result.rows
        for entry in row.entries
        if entry.error
    ]
    if not notes:
        return []
    words = (
        "wrong: the result did not pass the check that comes before the clock, so it has no time."
        if result.suite != "models"
        else "failed: an error, a wrong result or none in time."
    )
    return ["", words, "", *notes]


# ---- README's tables: which row it is, on which machine

WHICH: dict[str, Callable[[Result, Row], str]] = {
    "size": lambda _, row: row.label,
    "": lambda _, row: row.mode,
    "dtype": lambda _, row: row.dtype,
    "machine": lambda result, _: _machine(result),
}

# ---- README's first table: whole models

# Of the rows of the suite, those that everyone knows: in the type that each machine is used with.
MODELS = ("bert", "gpt2", "llama", "vit")
MODELS_DTYPE = {"cuda": "bfloat16", "cpu": "float32"}


def whole_models(results: Sequence[Result]) -> str:
    """A step of each: eager, and the best of torch.compile's modes and of ours."""
    columns: dict[str, Callable[[Result, Row], str]] = {
        "model": lambda _, row: f"`{row.op}`",
        **WHICH,
        "eager": lambda _, row: _seconds(row, STEP, "eager"),
        "torch.compile": lambda _, row: _seconds(row, STEP, _best(row, COMPILE_MODES)),
        "optimize": lambda _, row: _optimized(row),
        "× eager": lambda _, row: _than_ours(row, "eager"),
        "× compile": lambda _, row: _than_ours(row, _best(row, COMPILE_MODES)),
    }
    shown = [
        (result, row)
        for result in results
        for row in result.rows
        if result.suite == "models"
        and row.op in MODELS
        and row.dtype == MODELS_DTYPE[result.machine["device"]]
    ]
    if not shown:
        return ""
    ran = [name for name in COMPILE_MODES if any(_steps(row, [name]) for _, row in shown)]
    modes = ", ".join("default" if name == "compile" else name for name in ran)
    words = f"torch.compile: the fastest of its modes that ran ({modes})."
    if any(_best(row, OURS) == GRAPHS for _, row in shown):
        words += " optimize: with `graphs=True` where that is faster, as it says."
    return f"{_beside(columns, shown)}\n\n{words}"


def _steps(row: Row, names: Sequence[str]) -> dict[str, Span]:
    """Of those that ran."""
    found = {name: row.entry(name) for name in names}
    return {n: e.times[STEP] for n, e in found.items() if e and not e.error and STEP in e.times}


def _best(row: Row, names: Sequence[str]) -> str:
    """That of these which takes least time."""
    steps = _steps(row, names)
    return min(steps, key=lambda name: steps[name].median, default=names[0])


def _optimized(row: Row) -> str:
    name = _best(row, OURS)
    return (_seconds(row, STEP, name) or "failed") + (", graphs" if name == GRAPHS else "")


def _than_ours(row: Row, name: str) -> str:
    """How many times as long it took as the faster of ours."""
    entry, ours = row.entry(name), _best(row, OURS)
    if entry is not None and entry.error:
        return "wrong"
    steps = _steps(row, (name, ours))
    return _ratio(Speedup.of(steps[name], steps[ours])) if len(steps) == 2 else ""


# ---- README's rows: what fusing brings, and what torch.compile reaches

SHOWN = 8
# (suite, device, and the row's key); the first eight that complete runs have.
HEADLINES = [
    ("seeds", "cuda", "gelu_scale", "forward", "float32", "16384×1024"),
    ("seeds", "cuda", "swiglu", "forward", "bfloat16", "16384×1024"),
    ("transformer", "cuda", "softmax", "forward", "bfloat16", "4096×16384"),
    ("transformer", "cuda", "layer_norm", "forward+backward", "bfloat16", "65536×1024"),
    ("transformer", "cuda", "linear_gelu", "forward", "bfloat16", "32×512×768→3072 tanh"),
    (
        *("transformer", "cuda", "transformer_block", "forward+backward", "bfloat16"),
        "32×512×768→3072→768 gelu_tanh heads=12",
    ),
    ("seeds", "cpu", "quantize_int8", "forward", "float32", "16384×1024"),
    (
        *("transformer", "cpu", "transformer_block", "forward+backward", "float32"),
        "4×64×768→3072→768 gelu_tanh heads=12",
    ),
    # Until there is a complete run of the suite `transformer` on a GPU.
    ("seeds", "cuda", "quantize_int8", "forward", "float32", "16384×1024"),
    ("seeds", "cuda", "dropout_relu", "forward", "float32", "16384×1024"),
    ("transformer", "cpu", "layer_norm", "forward+backward", "float32", "1024×1024"),
    ("transformer", "cpu", "linear_gelu", "forward", "bfloat16", "4×64×768→3072 tanh"),
]


def headlines(results: Sequence[Result]) -> str:
    """Eight rows, those of one machine together."""
    columns: dict[str, Callable[[Result, Row], str]] = {
        "op": lambda _, row: f"`{row.op}`",
        **WHICH,
        "eager": lambda _, row: _of(row, "eager"),
        "torch.compile": lambda _, row: _of(row, "compile"),
        "fused": lambda _, row: _time(row),
        "× eager": lambda _, row: _speedup(row, "eager", "cold"),
        "× compile": lambda _, row: _speedup(row, "compile", "cold"),
    }
    rows = {
        (result.suite, result.machine["device"], *row.key): (result, row)
        for result in results
        for row in result.rows
    }
    return _beside(columns, [rows[key] for key in HEADLINES if key in rows][:SHOWN])


def _beside(
    columns: dict[str, Callable[[Result, Row], str]], shown: Sequence[tuple[Result, Row]]
) -> str:
    """Rows of several machines, those of GPUs first. Five columns are words."""
    shown = sorted(shown, key=lambda pair: pair[0].machine["device"] != "cuda")
    return "\n".join(
        [
            "| " + " | ".join(columns) + " |",
            "|" + "---|" * 5 + "---:|" * (len(columns) - 5),
            *("| " + " | ".join(cell(*pair) for cell in columns.values()) + " |" for pair in shown),
        ]
    )


def _machine(result: Result) -> str:
    if result.machine["device"] == "cuda":
        return result.label
    return f"{result.label.replace('(R)', '')}, {result.machine['threads']} threads"


def _of(row: Row, name: str) -> str:
    entry = row.entry(name)
    return "wrong" if entry is not None and entry.error else _seconds(row, "cold", name)


# ---- what a learner may expect: one way against the other, in a few rows of each machine

EXPECTED = 1 << 24  # elements of the rows beside the demo's own


def expected(result: Result) -> str:
    """The demo's op at every size, then each pointwise op at one; float32, forward, cold."""
    rows = [r for r in result.rows if (r.mode, r.dtype) == ("forward", "float32")]
    demo = sorted((r for r in rows if r.op == "gelu_scale"), key=lambda r: r.elements)
    others = {r.op: r for r in rows if r.elements == EXPECTED and r.op != "gelu_scale"}
    columns: dict[str, Cell] = {
        "op": lambda row: f"`{row.op}`",
        "floats": lambda row: count(row.elements),
        "launches": lambda row: _launches(row, "eager"),
        "launches, fused": lambda row: _launches(row, row.subject),
        "separate": lambda row: _seconds(row, "cold", "eager"),
        "fused": _time,
        "speed-up": lambda row: _speedup(row, "eager", "cold"),
        "of a copy's rate": _of_copy,
    }
    shown = [*demo, *(others[name] for name in sorted(others))]
    lines = ["| " + " | ".join(cell(row) for cell in columns.values()) + " |" for row in shown]
    head = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([f"**{_title(result)}**", "", *head, *lines])


def _launches(row: Row, name: str) -> str:
    entry = row.entry(name)
    return "" if entry is None or entry.launches is None else str(entry.launches)


# ---- the pages


def _filled(page: Path, text: str) -> str:
    """The page with this text between its markers."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page.name} has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def rendered() -> dict[Path, str]:
    """The three pages as they should be."""
    files = [f for suite in LAYOUTS for f in sorted(RESULTS.glob(f"{suite}-*.json"))]
    results = [result for f in files if not (result := read(f)).stopped]
    seen = [expected(result) for result in results if result.suite == "seeds"]
    first = whole_models(results), headlines(results)
    return {
        README: _filled(README, "\n\n".join(table for table in first if table)),
        PAGE: _filled(PAGE, "\n\n".join(table(result) for result in results)),
        LEARN: _filled(LEARN, "\n\n".join(seen)),
    }


def main() -> int:
    pages = rendered()
    stale = [page for page, text in pages.items() if text != page.read_text(encoding="utf-8")]
    if "--check" in sys.argv:
        for page in stale:
            print(f"{page.name} and benchmarks/results disagree")
        return int(bool(stale))
    for page in stale:
        page.write_text(pages[page], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
