"""Bytes that kernels really move, as the GPU's own counters tell: through Nsight Compute (ncu).

The counters are of the L2, where all traffic of the multiprocessors passes: sectors of 32 bytes
that they read and write. Memory's own would tell less: a result that stays in the L2 is not counted
there. Counters of all L2 traffic would tell more: on an H200 half of what is read crosses from one
half of the L2 to the other, and counts twice.

ncu slows a program down a hundredfold, so it runs in a process of its own, after the timing: each
call of interest stands in an NVTX range that says which row and contender it is of.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from megafuse.bench import run
from megafuse.bench.arguments import Arguments
from megafuse.bench.job import Job
from megafuse.bench.result import Result
from megafuse.bench.row import grad_mode
from megafuse.bench.spec import Spec

_METRICS = ("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum")
_SECTOR = 32
# Of smaller rows the kernel's own code and parameters are most of it: 72 kB at 1 Ki floats.
_LEAST_BYTES = 4_000_000
_RANGE = re.compile(r"megafuse row (\d+) ([\w.-]+)")
_TIMEOUT = 900


class NoCounters(RuntimeError):
    """The counters cannot be read here; the message says why."""


def available() -> str | None:
    """What is missing, or None."""
    if not torch.cuda.is_available():
        return "counters are a GPU's: torch sees no CUDA device here"
    if shutil.which("ncu") is None:
        return "counters need Nsight Compute: ncu is not on PATH"
    return None


def add(result: Result, specs: Sequence[Spec]) -> None:
    """Sets `bytes_real` of every contender of the result, whose rows are those of `specs`."""
    counted = read(_profiled(specs))
    for i, row in enumerate(result.rows):
        for entry in row.entries:
            if entry.error is None and (i, entry.name) in counted:
                entry.bytes_real = counted[i, entry.name]


def read(text: str) -> dict[tuple[int, str], int]:
    """Bytes by row and contender, from ncu's CSV: one line a kernel, the range in one column."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise NoCounters(f"ncu printed no table; its last words: {' '.join(lines[-3:])}")
    found: Counter[tuple[int, str]] = Counter()
    for kernel in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        named = _RANGE.search(" ".join(str(cell) for cell in kernel.values()))
        if named:
            found[int(named[1]), named[2]] += _SECTOR * sum(_count(kernel, m) for m in _METRICS)
    return dict(found)


def _count(kernel: dict[str, Any], metric: str) -> int:
    told = str(kernel.get(metric))
    try:
        return int(told.replace(",", ""))
    except ValueError:
        raise NoCounters(f"ncu has no {metric} here: it says {told}") from None


def _profiled(specs: Sequence[Spec]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "rows.json"
        listed.write_text(json.dumps([_plain(spec) for spec in specs]))
        command = [
            "ncu",
            *("--clock-control", "none"),  # the card's settings are not ours to change
            *("--nvtx", "--nvtx-include", "regex:megafuse row.*"),  # no "/": ranges of all threads
            *("--csv", "--page", "raw", "--print-units", "base"),
            *("--metrics", ",".join(_METRICS)),
            *(sys.executable, "-m", "megafuse.bench.counters", str(listed)),
        ]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise NoCounters(f"ncu was not done after {_TIMEOUT} s") from None
    if ran.returncode != 0:
        raise NoCounters(f"ncu failed: {(ran.stderr or ran.stdout).strip()[-300:]}")
    return ran.stdout


def _plain(spec: Spec) -> dict[str, Any]:
    return {
        "op": spec.op,
        "mode": spec.mode,
        "dtype": str(spec.dtype).removeprefix("torch."),
        "shape": spec.shape,
        "against": spec.against,
        "features": spec.features,
        "choices": spec.choices,
    }


# ---- in the profiled process


def main(listed: str) -> None:
    """One call of each contender of each row, in its range."""
    for i, data in enumerate(json.loads(Path(listed).read_text())):
        spec = Spec(
            data["op"],
            data["mode"],
            getattr(torch, data["dtype"]),
            tuple(data["shape"]),
            tuple(data["against"]),
            data["features"],
            tuple((name, value) for name, value in data["choices"]),
        )
        job = run.of_spec(spec, "cuda")
        if job.work is not None and job.work.bytes_moved < _LEAST_BYTES:
            continue
        with grad_mode(job.mode):
            args = Arguments(job)[0]
            for contender in job.contenders:
                if contender.replays_graph:
                    continue  # its kernels are inside a graph, which ncu counts as one
                try:
                    _one_call(job, contender.make(), args, f"megafuse row {i} {contender.name}")
                except Exception as error:  # it has shown its error when it was timed
                    print(f"{spec.op}, {contender.name}: {error}", file=sys.stderr)


def _one_call(job: Job, function: Any, args: Sequence[Any], label: str) -> None:
    step = job.step(function)
    for _ in range(2):
        step(*args)
    torch.cuda.synchronize()
    # Not range_push: that is of this thread only, and the backward pass runs in another.
    named = torch.cuda.nvtx.range_start(label)
    step(*args)
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_end(named)


if __name__ == "__main__":
    main(sys.argv[1])
