"""Speed and error of float32 products on a GPU: split, strict and TF32, against float64.

    python benchmarks/fp32_matmul.py --json benchmarks/results/fp32-nvidia-h200.json
    python benchmarks/fp32_matmul.py --docs    writes the tables of docs/fp32.md: of that file, if
                                               it is there, and of the suite `transformer`

Errors are those of linear_relu before its relu matters: over all results, relative to their root
mean square. Each size is drawn three times; the worst of the three counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import megafuse as mf
from megafuse.bench import machine
from megafuse.bench.result import Result, read
from megafuse.bench.table import seconds
from megafuse.bench.timing import compare

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "fp32.md"
RESULTS = ROOT / "benchmarks" / "results" / "fp32-nvidia-h200.json"
OPS_RESULTS = RESULTS.with_name("transformer-nvidia-h200.json")
SPLIT = ("layernorm_linear", "linear_gelu", "ffn", "transformer_block", "linear_relu")
BEGIN, END = "<!-- table -->", "<!-- /table -->"
MODES = ("ieee", "split", "tf32")
SIZES = [
    (16384, 768, 768),
    (16384, 768, 2304),
    (16384, 768, 3072),
    (16384, 3072, 768),
    (8192, 4096, 4096),
    (4096, 8192, 4096),
    (1024, 784, 2048),
    (8192, 256, 512),
]
DRAWS = 3


def product(mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    def run(x: Tensor, w: Tensor) -> Tensor:
        mf.set_fp32_matmul(mode)
        return mf.linear_relu(x, w)

    return run


def measured(m: int, k: int, n: int) -> dict[str, Any]:
    errors: dict[str, list[float]] = {mode: [] for mode in MODES}
    worst: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(DRAWS):
        x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda") * k**-0.5
        exact = torch.relu(x.double() @ w.double().t())
        size = exact.square().mean().sqrt()
        for mode in MODES:
            off = product(mode)(x, w).double().sub_(exact).abs_().div_(size)
            errors[mode].append(off.square().mean().sqrt().item())
            worst[mode].append(off.max().item())
        del exact
    products = {mode: product(mode) for mode in MODES}
    calls = {mode: (lambda i, mode=mode: products[mode](x, w)) for mode in MODES}
    times = compare(calls, device="cuda", budget=0.4)
    return {
        "size": [m, k, n],
        **{
            mode: {
                "seconds": times[mode].median,
                "rms_error": max(errors[mode]),
                "worst_error": max(worst[mode]),
            }
            for mode in MODES
        },
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "Products with a relu; the error is the root mean square, relative to that of the result.",
        "",
        "| M × K × N | ieee | split | tf32 | error: ieee | split | split / ieee | tf32 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        micro = [f"{row[mode]['seconds'] * 1e6:,.0f} µs" for mode in MODES]
        ieee, split, tf32 = (row[mode]["rms_error"] for mode in MODES)
        size = " × ".join(map(str, row["size"]))
        cells = [size, *micro, f"{ieee:.1e}", f"{split:.1e}", f"{split / ieee:.2f}", f"{tf32:.1e}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _where(result)])


def table_of_ops(result: Result) -> str:
    """The float32 rows of layers, which are split, beside eager, which is strict."""
    lines = [
        "| op | size | strict | split | | mean error: strict | split | worst: strict | split |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result.rows:
        fused, eager = (row.entry(name) for name in ("fused", "eager"))
        if row.dtype != "float32" or row.op not in SPLIT or not (fused and eager):
            continue
        times = (entry.times["cold"].median for entry in (eager, fused))
        errors = [
            f"{getattr(entry.accuracy, which):.1e}"
            for which in ("mean_abs", "max_abs")
            for entry in (eager, fused)
        ]
        gain = f"{row.speedups['eager']['cold'].median:.2f}×"
        cells = [f"`{row.op}`", row.label, *map(seconds, times), gain, *errors]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _where(asdict(result))])


def _where(result: dict[str, Any]) -> str:
    where = f"{result['machine']['gpu']}, torch {result['versions']['torch']}"
    return f"{where}, commit {result['commit'][:12]}."


def rendered() -> str:
    """docs/fp32.md as it should be."""
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = [table_of_ops(read(OPS_RESULTS))]
    if RESULTS.exists():
        tables.append(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    joined = "\n\n".join(tables)
    return f"{before}{BEGIN}\n{joined}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    parser.add_argument("--docs", action="store_true", help="only write docs/fp32.md again")
    args = parser.parse_args()
    if args.docs:
        DOCS.write_text(rendered(), encoding="utf-8")
        return
    commit, changed = machine.commit()
    result = {
        "machine": machine.about("cuda"),
        "versions": machine.versions(),
        "commit": commit,
        "changed": changed,
        "rows": [measured(*size) for size in SIZES],
    }
    mf.set_fp32_matmul(None)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
