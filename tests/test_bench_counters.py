"""megafuse.bench.counters: what ncu prints, read; and what is missing, said."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from typing import Any

import bench_results as made
import pytest
import torch

from megafuse.bench import counters
from megafuse.bench.counters import NoCounters, read
from megafuse.bench.spec import Spec

SPEC = Spec("gelu_scale", "forward", torch.float32, (4, 1024), ("eager",))
READ, WRITTEN = counters._METRICS


def printed(*kernels: tuple[str, str, str], columns: tuple[str, ...] = counters._METRICS) -> str:
    """As `ncu --csv --page raw --print-units base` prints it: (range, read, written) a kernel."""
    out = io.StringIO()
    write = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    write.writerow(["ID", "Kernel Name", "thread Domain:Push/Pop_Range:PL_Type:…", *columns])
    write.writerow(["", "", "", *["sector"] * len(columns)])
    for i, (label, *cells) in enumerate(kernels):
        named = f'1166  "<default domain>:{label}:none:none:none:none:none:none" ' if label else ""
        write.writerow([i, f"void kernel<{i}, float>(int, float *)", named, *cells])
    return (
        "==PROF== Connected to process 1166 (/usr/bin/python3.12)\n"
        '==PROF== Profiling "kernel" - 0: 0%....50%....100% - 1 pass\n'
        "==PROF== Disconnected from process 1166\n" + out.getvalue()
    )


def test_the_quoted_range_is_what_ncu_prints():
    assert '"1166  ""<default domain>:megafuse row 7 fused:none' in printed(
        ("megafuse row 7 fused", "1", "1")
    )


def test_sectors_are_32_bytes_and_have_thousands_separators():
    text = printed(("megafuse row 7 fused", "1,048,576", "524288"))
    assert read(text) == {(7, "fused"): 32 * (1_048_576 + 524_288)}


def test_kernels_of_a_range_add_up():
    text = printed(
        ("megafuse row 0 fused", "10", "5"),
        ("megafuse row 0 eager", "100", "50"),
        ("megafuse row 0 eager", "1,000", "500"),
        ("megafuse row 11 eager", "7", "0"),
        ("", "99", "99"),
        ("somebody else's range", "99", "99"),
    )
    assert read(text) == {(0, "fused"): 480, (0, "eager"): 52_800, (11, "eager"): 224}


@pytest.mark.parametrize("name", ["compile-max", "Kernel.apply", "gelu_scale-2", "_mine"])
def test_names_of_contenders(name):
    assert read(printed((f"megafuse row 3 {name}", "1", "1"))) == {(3, name): 64}


def test_an_unused_table_is_empty():
    assert read(printed()) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ncu printed no table"),
        (
            "==PROF== Connected to process 7\n"
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n",
            "ERR_NVGPUCTRPERM",
        ),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        (printed(("megafuse row 0 fused", "n/a", "1")), "n/a"),
        (printed(("megafuse row 0 fused", "1"), columns=(READ,)), WRITTEN),
    ],
)
def test_no_numbers(text, says):
    with pytest.raises(NoCounters) as refused:
        read(text)
    assert says in str(refused.value)


# ---- what is missing


def test_available_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch sees no CUDA device" in str(counters.available())


def test_available_without_ncu(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ncu is not on PATH" in str(counters.available())
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\n")
    ncu.chmod(0o755)
    assert counters.available() is None


# ---- ncu's process


class Ran:
    """In place of ncu: remembers what it was asked, prints what it is told."""

    def __init__(self, stdout: str = "", stderr: str = "", status: int = 0) -> None:
        self.answer = subprocess.CompletedProcess([], status, stdout, stderr)
        self.command: list[str] = []
        self.rows: Any = None

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.command = command
        with open(command[-1]) as file:
            self.rows = json.load(file)
        return self.answer


def test_counted_bytes_are_added_to_the_result(monkeypatch):
    ran = Ran(printed(("megafuse row 0 fused", "10", "5"), ("megafuse row 1 eager", "3", "1")))
    monkeypatch.setattr(subprocess, "run", ran)
    result = made.result([made.row(), made.row(), made.row()])
    for row in result.rows:
        for entry in row.entries:
            entry.bytes_real = None
    result.rows[1].entries[0].error = "wrong"
    counters.add(result, [SPEC] * 3)
    real = [[e.bytes_real for e in row.entries] for row in result.rows]
    assert real == [[480, None, None, None], [None, 128, None, None], [None] * 4]
    assert ran.command[0] == "ncu"
    assert ",".join(counters._METRICS) in ran.command
    assert len(ran.rows) == 3


def test_rows_reach_the_profiled_process(monkeypatch):
    ran = Ran(printed())
    monkeypatch.setattr(subprocess, "run", ran)
    counters.add(made.result([]), [SPEC])
    (row,) = ran.rows
    assert row == {
        "op": "gelu_scale",
        "mode": "forward",
        "dtype": "float32",
        "shape": [4, 1024],
        "against": ["eager"],
        "features": None,
        "choices": [],
    }


def test_ncu_fails(monkeypatch):
    ran = Ran(stderr="==ERROR== The application returned an error code (1)\n", status=1)
    monkeypatch.setattr(subprocess, "run", ran)
    with pytest.raises(NoCounters, match=r"ncu failed: ==ERROR== The application"):
        counters.add(made.result([]), [SPEC])


def test_ncu_takes_too_long(monkeypatch):
    def run(command: list[str], **how: Any) -> None:
        raise subprocess.TimeoutExpired(command, how["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(NoCounters, match="not done after"):
        counters.add(made.result([]), [SPEC])


def test_a_layers_row_survives_the_way_to_the_other_process(monkeypatch, tmp_path):
    spec = Spec(
        *("ffn", "forward", torch.bfloat16, (4, 8), ("eager",)),
        features=16,
        choices=(("act", "relu"), ("residual", True), ("p", 0.0)),
    )
    asked: list[Spec] = []

    def stop(spec: Spec, device: str) -> Any:
        asked.append(spec)
        raise KeyboardInterrupt

    monkeypatch.setattr(counters.run, "of_spec", stop)
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps([counters._plain(spec)]))
    with pytest.raises(KeyboardInterrupt):
        counters.main(str(listed))
    assert asked == [spec]
