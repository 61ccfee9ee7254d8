"""README's results table, made from benchmarks/results/foundation-*.json.

python benchmarks/readme_results.py            rewrites README.md between its markers
python benchmarks/readme_results.py --check    only says whether README.md is up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results -->", "<!-- /results -->"


def table(results: dict[str, Any]) -> str:
    about, rows = results["machine"], results["rows"]
    on_gpu = "gpu" in about
    where = about["gpu"] if on_gpu else f"{about['cpu']}, {about['threads']} threads"
    head = ["op", "dtype", "elements", "fused", "eager", "compile"]
    if on_gpu:
        head += ["of `copy_`", "eager, wall", "compile, wall"]
    lines = [
        f"<details><summary>{where}, torch {about['torch']}, {about['date']}</summary>",
        "",
        _how(on_gpu),
        "",
        "| " + " | ".join(head) + " |",
        "|---|---|" + "---:|" * (len(head) - 2),
        *(_row(row, rows, on_gpu) for row in rows if _shown(row, on_gpu)),
    ]
    if "host_cost" in results:
        lines += ["", _host_cost(results["host_cost"])]
    if "start_up" in results:
        lines += ["", _start_up(results["start_up"])]
    return "\n".join([*lines, "", "</details>"])


def _shown(row: dict[str, Any], on_gpu: bool) -> bool:
    """All rows of a GPU; on a CPU the ends and the middle."""
    return on_gpu or row["elements"] in (1 << 10, 1 << 20, 1 << 24)


def _how(on_gpu: bool) -> str:
    if not on_gpu:
        return "Median wall time. eager, compile: how many times longer they took."
    return (
        "Median device time, cold L2. eager, compile: how many times longer they took; “wall”: the "
        "same for calls in a row, host included. of `copy_`: bytes per second against a copy of as "
        "many bytes."
    )


def _row(row: dict[str, Any], rows: list[dict[str, Any]], on_gpu: bool) -> str:
    median = {name: t["median"] for name, t in row["seconds"].items()}
    fused = median["fused"]
    cells = [f"`{row['op']}`", row["dtype"], _count(row["elements"]), _time(fused)]
    cells += [_times(median, name) for name in ("eager", "compile")]
    if on_gpu:
        wall = {name: t["median"] for name, t in row["wall_seconds"].items()}
        cells.append(f"{_copy_seconds(row, rows) / fused:.0%}")
        cells += [_times(wall, name) for name in ("eager", "compile")]
    return "| " + " | ".join(cells) + " |"


def _times(median: dict[str, float], name: str) -> str:
    return f"{median[name] / median['fused']:.2f}×" if name in median else ""


def _copy_seconds(row: dict[str, Any], rows: list[dict[str, Any]]) -> float:
    """The fastest copy of as many bytes, to within 1 %, in the run.

    A few KB more or less changed a copy's time by up to 10 %; the fastest is the fair measure.
    """
    size = row["bytes_moved"]
    near = [r for r in rows if abs(r["bytes_moved"] - size) <= size / 100]
    return min(float(r["seconds"]["copy"]["median"]) for r in near)


def _host_cost(cost: dict[str, Any]) -> str:
    def told(times: dict[str, Any]) -> str:
        return ", ".join(f"{name} {t['median'] * 1e6:.1f}" for name, t in times.items())

    return (
        f"Host time a call of `gelu_scale` at 1 K elements, µs: {told(cost['no_grad'])}; "
        f"with grad: {told(cost['grad'])}. “bare” is one output allocation and one driver launch."
    )


def _start_up(times: dict[str, Any]) -> str:
    return (
        f"Start-up, CPU tensor, seconds after `import torch` "
        f"({times['import_torch']['median']:.1f} itself): first result "
        f"{times['warm_first_result_after_torch']['median']:.2f} with a warm cache, "
        f"{times['cold_first_result_after_torch']:.0f} when everything is compiled."
    )


def _count(n: int) -> str:
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10), ("M", 10**6), ("K", 10**3)):
        if n % size == 0:
            return f"{n // size} {unit}"
    return str(n)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def rendered() -> str:
    """README.md as it should be."""
    files = sorted(RESULTS.glob("foundation-*.json"))
    tables = "\n\n".join(table(json.loads(f.read_text(encoding="utf-8"))) for f in files)
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
