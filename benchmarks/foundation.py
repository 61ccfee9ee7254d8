"""The foundation's targets, measured: fused against eager, torch.compile, copy_ and a bare launch.

    python benchmarks/foundation.py                  this machine's device → benchmarks/results/
    python benchmarks/foundation.py --device cpu --quick --output /tmp/try.json

Everything that is compared is timed in one run, contenders taking turns (megafuse.bench.timing).
On CUDA the L2 is overwritten before each sample. The results file holds every number with its
spread, the machine, the versions and the commit; `--device cpu` also times start-up in fresh
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

import megafuse as mf
from megafuse.bench.timing import Timing, compare
from megafuse.registry.sample import Draw
from megafuse.runtime import cpp, loader

ROOT = Path(__file__).resolve().parent.parent
K, M = 1_000, 1_000_000
FACTS_SIZES = {  # of shared/FACTS.md
    "gelu_scale": [1 << 10, 1 << 20, 1 << 24, 1 << 26],
    "add_mul_exp": [100 * K, 300 * K, M, 5 * M, 20 * M],
    "quantize_int8": [500 * K, M, 5 * M, 10 * M, 50 * M],
}
CPU_SIZES = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24]


def machine(device: str) -> dict[str, Any]:
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    commit = asked.stdout.strip() if asked.returncode == 0 else os.environ.get("MEGAFUSE_COMMIT")
    compiler = cpp.find()
    about = {
        "date": date.today().isoformat(),
        "commit": commit or "unknown",
        "megafuse": mf.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": compiler.version if compiler else None,
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        about |= {
            "gpu": properties.name,
            "cuda": torch.version.cuda,
            "driver": _driver(),
            "l2_bytes": properties.L2_cache_size,
        }
    return about


def _cpu_name() -> str:
    fields = dict(part.strip().partition("=")[::2] for part in cpp.cpu_features().split(";"))
    return fields.get("model name") or fields.get("CPU part") or platform.machine()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def shape_of(elements: int) -> tuple[int, ...]:
    """Rows of 1000 or 1024: ops with a bias get a row vector as long."""
    columns = 1024 if elements % 1024 == 0 else 1000
    return (elements // columns, columns)


def timed(timing: Timing) -> dict[str, float | int]:
    return {"median": timing.median, "low": timing.low, "high": timing.high, "n": timing.n}


def row(
    name: str, elements: int, dtype: torch.dtype, device: str, budget: float, compiled: bool
) -> dict[str, Any]:
    """One op at one size: device time of every contender; on CUDA also of copy_."""
    op = mf.OPS[name]
    # Several sets of inputs in turn, so that no call finds its own in the cache on the CPU.
    sets = [op.sample(Draw(shape_of(elements), dtype, device)) for _ in range(3)]
    cost = op.cost(*sets[0])
    contenders: dict[str, Callable[[int], object]] = {
        "fused": lambda i: op.fused(*sets[i % 3]),
        "eager": lambda i: op.reference(*sets[i % 3]),
    }
    if compiled:
        torch._dynamo.reset()
        made = torch.compile(op.reference, dynamic=False)
        contenders["compile"] = lambda i: made(*sets[i % 3])
    if device == "cuda":
        size = cost.bytes_moved // 2 // 4096 * 4096  # an odd size would slow the copy down
        source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        contenders["copy"] = lambda i: target.copy_(source)
    with torch.no_grad():
        wrong = _difference(op, sets[0])
        times = compare(contenders, device=device, budget=budget)
        wall = compare(contenders, device=device, clock="wall", budget=budget / 3)
    return {
        "op": name,
        "elements": elements,
        "dtype": str(dtype).removeprefix("torch."),
        "bytes_moved": cost.bytes_moved,
        "max_difference_to_eager": wrong,
        "seconds": {contender: timed(t) for contender, t in times.items()},
        "wall_seconds": {contender: timed(t) for contender, t in wall.items()},
    }


def _difference(op: Any, args: tuple[Any, ...]) -> float | None:
    if op.random:
        return None
    fused, eager = op.fused(*args), op.reference(*args)
    return float((fused.double() - eager.double()).abs().max())


def host_cost(budget: float) -> dict[str, Any]:
    """Microseconds of host time a call takes at 1 K elements, on CUDA."""
    x = torch.randn(1024, device="cuda")
    with_grad = x.clone().requires_grad_()
    host = loader.load()
    assert host is not None
    host.remember_launches(True)
    mf.gelu_scale(x, 1.7)
    host.remember_launches(False)
    reference = mf.reference.gelu_scale
    compiled = torch.compile(reference, dynamic=False)
    with torch.no_grad():
        plain = compare(
            {
                "bare": lambda i: host.bare_launch(x),
                "fused": lambda i: mf.gelu_scale(x, 1.7),
                "eager": lambda i: reference(x, 1.7),
                "compile": lambda i: compiled(x, 1.7),
            },
            device="cuda",
            clock="wall",
            budget=budget,
        )
    graph = compare(
        {
            "fused": lambda i: mf.gelu_scale(with_grad, 1.7),
            "eager": lambda i: reference(with_grad, 1.7),
            "compile": lambda i: compiled(with_grad, 1.7),
        },
        device="cuda",
        clock="wall",
        budget=budget,
    )
    return {
        "no_grad": {name: timed(t) for name, t in plain.items()},
        "grad": {name: timed(t) for name, t in graph.items()},
    }


def start_up(repeats: int = 5) -> dict[str, Any]:
    """Seconds of fresh processes: import torch alone, first result with warm and cold cache."""
    first = (
        "import time; t = time.perf_counter(); import torch; a = time.perf_counter(); "
        "import megafuse as mf; mf.gelu_scale(torch.ones(1024), 1.7); "
        "print(a - t, time.perf_counter() - a)"
    )

    def seconds(cache: str) -> tuple[float, float]:
        env = {**os.environ, "MEGAFUSE_CACHE": cache, "PYTHONPATH": str(ROOT / "src")}
        ran = subprocess.run(
            [sys.executable, "-c", first], env=env, capture_output=True, text=True, check=True
        )
        torch_alone, after = ran.stdout.split()
        return float(torch_alone), float(after)

    with tempfile.TemporaryDirectory() as cache:
        cold = seconds(cache)
        warm = [seconds(cache) for _ in range(repeats)]
    return {
        "import_torch": timed(Timing.of([t for t, _ in warm])),
        "warm_first_result_after_torch": timed(Timing.of([t for _, t in warm])),
        "cold_first_result_after_torch": cold[1],
    }


def plan(device: str, quick: bool) -> list[tuple[str, int, torch.dtype, bool]]:
    """(op, elements, dtype, also torch.compile?)"""
    if device == "cpu":
        sizes = [1 << 10, 1 << 20] if quick else CPU_SIZES
        return [(name, n, torch.float32, True) for name in mf.OPS for n in sizes]
    rows = [(name, n, torch.float32, True) for name, sizes in FACTS_SIZES.items() for n in sizes]
    # The least size that counts as large, and one where the launch's ramp no longer shows.
    for dtype in (torch.float32, torch.bfloat16):
        for n in (1 << 24, 1 << 26):
            rows += [
                (name, n, dtype, dtype == torch.float32)
                for name in mf.OPS
                if (name, n, dtype, True) not in rows
            ]
    return rows[:3] if quick else rows


def line(result: dict[str, Any]) -> str:
    seconds = {name: t["median"] for name, t in result["seconds"].items()}
    fused = seconds["fused"]
    text = f"{result['op']:<19}{result['dtype']:<9}{result['elements']:>9} {fused * 1e6:9.1f} µs"
    for name in ("eager", "compile"):
        text += f"  {name} ×{seconds[name] / fused:<5.2f}" if name in seconds else " " * 15
    if "copy" in seconds:
        text += f"  {seconds['copy'] / fused:6.1%} of copy"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few rows, for trying")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    started = time.perf_counter()
    budget = 0.15 if args.device == "cuda" else 0.3 if args.quick else 1.0
    results: dict[str, Any] = {"suite": "foundation", "machine": machine(args.device), "rows": []}
    for name, elements, dtype, compiled in plan(args.device, args.quick):
        results["rows"].append(row(name, elements, dtype, args.device, budget, compiled))
        print(line(results["rows"][-1]), flush=True)
    if args.device == "cuda":
        results["host_cost"] = host_cost(budget=0.5)
        for kind, contenders in results["host_cost"].items():
            told = ", ".join(f"{n} {t['median'] * 1e6:.2f}" for n, t in contenders.items())
            print(f"host µs at 1 K, {kind}: {told}")
    if not args.quick:
        results["start_up"] = start_up()
        print("start-up:", json.dumps(results["start_up"]))
    results["seconds_taken"] = time.perf_counter() - started
    about = results["machine"]
    label = about.get("gpu") or f"{about['architecture']}-cpu"
    default = ROOT / "benchmarks" / "results" / f"foundation-{label.lower().replace(' ', '-')}.json"
    output = args.output or default
    output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written: {output}")


if __name__ == "__main__":
    main()
