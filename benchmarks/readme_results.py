"""README's results, made from what `megafuse bench --suite seeds --json` wrote.

python benchmarks/readme_results.py            rewrites README.md between its markers
python benchmarks/readme_results.py --check    only says whether README.md is up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from megafuse.bench.result import Result, Row, read
from megafuse.bench.table import count, seconds, share, times

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
RIVALS = ("eager", "compile", "compile-max")


def table(result: Result) -> str:
    on_gpu = result.machine["device"] == "cuda"
    rivals = [n for n in RIVALS if any(n in row.speedups for row in result.rows)]
    head = ["op", "", "dtype", "elements", "fused", *rivals, "of `copy`"]
    second = "host" if on_gpu else "warm"
    head += [second, *(f"{name}, {second}" for name in ("eager", "compile"))]
    where = result.label
    if not on_gpu:
        where += f", {result.machine['threads']} threads"
    where += f", torch {result.versions['torch']}, {result.date[:10]}"
    lines = [
        f"<details><summary>{where}</summary>",
        "",
        _how(on_gpu, rivals),
        "",
        "| " + " | ".join(head) + " |",
        "|---|---|---|" + "---:|" * (len(head) - 3),
        *("| " + " | ".join(_cells(row, rivals, second)) + " |" for row in result.rows),
        "",
        _roofs(result),
    ]
    if result.start_up:
        told = (f"{what} {seconds(span.median)}" for what, span in result.start_up.items())
        lines += ["", f"Start-up on a CPU tensor: {', '.join(told)}."]
    return "\n".join([*lines, "", "</details>"])


def _how(on_gpu: bool, rivals: list[str]) -> str:
    text = (
        f"fused: median time, cold cache. {', '.join(rivals)}: how many times longer they took; "
        "≈ where the spreads overlap. of `copy`: bytes per second against a copy of as many bytes."
    )
    if on_gpu:
        return text + " host: how long the host is busy with a call; then, how many times that."
    return text + " warm: the same with the arguments in the cache."


def _cells(row: Row, rivals: list[str], second: str) -> list[str]:
    subject = row.entries[0]
    cells = [f"`{row.op}`", row.mode, row.dtype, count(row.elements)]
    cells.append("wrong" if subject.error else seconds(subject.times["cold"].median))
    cells += [_speedup(row, name, "cold") for name in rivals]
    copied = row.speedups.get("copy", {}).get("cold")
    cells.append(share(copied.median) if copied else "")
    cells.append(seconds(subject.times[second].median) if second in subject.times else "")
    return cells + [_speedup(row, name, second) for name in ("eager", "compile")]


def _speedup(row: Row, name: str, clock: str) -> str:
    entry, found = row.entry(name), row.speedups.get(name, {}).get(clock)
    if entry is not None and entry.error:
        return "wrong"
    if found is None:
        return ""
    return ("≈" if found.verdict == "ambiguous" else "") + times(found.median)


def _roofs(result: Result) -> str:
    roofs = result.roofs
    assert roofs is not None
    gemm = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in roofs.gemm.items())
    commit = f"{result.commit[:12]}{' with changes' if result.changed else ''}"
    return (
        f"Roofs measured there: copy {roofs.copy / 1e9:,.0f} GB/s, read {roofs.read / 1e9:,.0f} "
        f"GB/s, matrix products {gemm}. Commit {commit}; `{result.command}`."
    )


def rendered() -> str:
    """README.md as it should be."""
    files = sorted(RESULTS.glob("seeds-*.json"))
    tables = "\n\n".join(table(read(f)) for f in files)
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main() -> int:
    new = rendered()
    if "--check" in sys.argv:
        return int(new != README.read_text(encoding="utf-8"))
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
