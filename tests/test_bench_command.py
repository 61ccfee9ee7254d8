"""`megafuse bench`: what it prints, writes and refuses."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megafuse import cli
from megafuse.bench import contenders, machine, op_job, roof, start_up, suites, timing
from megafuse.bench import run as runner
from megafuse.bench.result import Result, Roofs, read
from megafuse.bench.spec import Spec, modes, rank_of, shape_of
from megafuse.bench.suites import KI, MI, SUITES, K, M
from megafuse.ops import OPS
from megafuse.registry.sample import Draw
from megafuse.runtime import cache

SMALL = ("--elements", "1Ki", "--budget", "0.001", "--visits", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def quickly(tmp_path, monkeypatch) -> None:
    """A cache that is read in no time, and roofs that need not be measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(timing, "_flush_buffer", lambda device: torch.ones(1 << 10))
    found = Roofs(1e13, 1e13, {"float32": 1e15}, None, "2026-01-01")
    monkeypatch.setattr(roof, "roofs", lambda device, again=False: found)


@dataclass
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str

    def line(self, name: str) -> str:
        return next(line for line in self.out.splitlines() if line.startswith(name))


@pytest.fixture
def bench(capsys) -> Callable[..., Ran]:
    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        try:
            status = cli.main(["bench", *arguments])
        except SystemExit as stopped:  # argparse
            status = int(str(stopped.code))
        out, err = capsys.readouterr()
        # Whether a kernel was there already depends on the tests before.
        kept = (s for s in err.splitlines(True) if not s.startswith("megafuse: compiled "))
        return Ran(status, out, "".join(kept))

    return call


@pytest.fixture
def planned(monkeypatch) -> list[dict[str, Any]]:
    """Nothing is measured: the rows that would be, and how."""
    asked: list[dict[str, Any]] = []

    def run(jobs: Any, **how: Any) -> Result:
        rows = [(j.name, j.mode, j.dtype, j.shape, [c.name for c in j.contenders]) for j in jobs]
        asked.append({"rows": rows, "jobs": jobs, **how})
        about = {"device": "cpu", "cpu": "a CPU", "threads": 1}
        versions = {"torch": "2", "megafuse": "0"}
        command = how.get("command", "")
        return Result(how["suite"], command, "", "", False, about, versions, None, [])

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(start_up, "measure", dict)
    return asked


# ---- a row


def test_a_row_as_a_table_and_as_json(bench, tmp_path):
    ran = bench("gelu_scale", *SMALL, "--against", "eager", "--json", "f.json")
    assert (ran.status, ran.err) == (0, "")
    assert "gelu_scale, forward, float32, 1×1024" in ran.out
    assert "µs" in ran.line("fused")
    assert "×" in ran.line("eager")
    assert ran.out.endswith("written: f.json\n")
    assert max(map(len, ran.out.splitlines())) <= 80

    result = read(tmp_path / "f.json")
    typed = "--device cpu --elements 1Ki --against eager --budget 0.001 --visits 1"
    assert result.command == f"megafuse bench gelu_scale {typed}"
    assert (result.suite, result.stopped) == ("", False)
    (row,) = result.rows
    assert row.key == ("gelu_scale", "forward", "float32", "1×1024")
    assert (row.device, row.subject, row.bytes_least) == ("cpu", "fused", 8192)
    assert [e.name for e in row.entries] == ["fused", "eager", "copy"]
    assert [e.yardstick for e in row.entries] == [False, False, True]
    fused, eager, _ = row.entries
    assert (fused.launches, eager.launches) == (1, 2)
    assert fused.error is None
    assert set(fused.times) == {"cold", "warm"}
    assert min(t.n for t in fused.times.values()) >= 12
    assert fused.accuracy is not None
    assert 0 < fused.accuracy.max_abs < 1e-5
    assert set(row.speedups) == {"eager", "copy"}
    assert fused.bytes_per_second == pytest.approx(8192 / fused.times["cold"].median, rel=1e-4)
    assert {"device", "cpu", "load"} <= set(result.machine)
    assert result.versions["torch"] == torch.__version__


def test_the_command_can_be_typed_again(bench, tmp_path):
    """Where it was written is left out: a file may be moved."""
    bench("gelu_scale", *SMALL, "--against", "eager", "--json", "a.json")
    words = read(tmp_path / "a.json").command.split()
    assert words[:2] == ["megafuse", "bench"]
    assert bench(*words[2:], "--json", "b.json").status == 0
    a, b = (read(tmp_path / f"{name}.json") for name in "ab")
    assert a.command == b.command
    assert [r.key for r in a] == [r.key for r in b]


def test_several_dtypes_modes_and_shapes(bench, tmp_path):
    ran = bench(
        *("swiglu", "--shape", "3x5,64", "--dtype", "float32,bfloat16"),
        *("--mode", "forward,backward", "--against", "eager", "--device", "cpu"),
        *("--budget", "0.001", "--visits", "1", "--json", "f.json"),
    )
    assert (ran.status, ran.err) == (0, "")
    keys = [row.key for row in read(tmp_path / "f.json")]
    assert keys == [
        ("swiglu", mode, dtype, shape)
        for mode in ("forward", "forward+backward")
        for dtype in ("float32", "bfloat16")
        for shape in ("3×5", "64")
    ]
    assert max(map(len, ran.out.splitlines())) <= 80
    assert ran.out.count("forward+backward:") == 1
    assert "8 rows in" in ran.out
    rows = read(tmp_path / "f.json").rows
    assert not [e.error for row in rows for e in row.entries if e.error]
    assert [row.entry("fused").launches for row in rows] == [1] * 4 + [2] * 4


def test_a_random_op_has_no_accuracy(bench, tmp_path):
    ran = bench("dropout_relu", *SMALL, "--against", "eager", "--json", "f.json")
    assert ran.status == 0
    fused = read(tmp_path / "f.json").rows[0].entries[0]
    assert fused.error is None
    assert fused.accuracy is None
    assert "random" in fused.missing["accuracy"]


def test_html(bench, tmp_path):
    ran = bench("gelu_scale", *SMALL, "--against", "eager", "--html", "f.html")
    assert ran.status == 0
    assert "gelu_scale" in (tmp_path / "f.html").read_text(encoding="utf-8")
    assert "written: f.html" in ran.out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.html"]


def test_several_visits_add_their_samples(bench, tmp_path):
    """A visit of twelve takes one round at least."""
    bench("gelu_scale", *SMALL, "--visits", "12", "--against", "eager", "--json", "f.json")
    assert read(tmp_path / "f.json").rows[0].entries[0].times["cold"].n >= 12


# ---- layers


def test_a_layer_in_two_forms(bench, tmp_path):
    ran = bench(
        *("linear_gelu", "--shape", "4x8", "--features", "16", "--set", "approximate=tanh,none"),
        *("--against", "eager", "--device", "cpu", "--budget", "0.001", "--visits", "1"),
        *("--json", "f.json"),
    )
    assert ran.status == 0
    assert "linear_gelu, forward, float32, 4×8→16 tanh" in ran.out
    assert "linear_gelu, forward, float32, 4×8→16 approximate=none" in ran.out
    result = read(tmp_path / "f.json")
    assert "--features 16 --set approximate=tanh,none" in result.command
    assert [row.choices for row in result] == [{"approximate": "tanh"}, {"approximate": "none"}]
    for row in result:
        assert (row.shape, row.widths, row.roof) == ([4, 8], [16], "memory")
        assert row.floor == pytest.approx(row.bytes_least / 1e13)
        assert row.entries[0].roof_share == pytest.approx(row.floor / row.entries[0].cold, rel=1e-4)
        assert row.conditions["float32_torch"] == "ieee"
        assert row.conditions["float32_megafuse"] == "ieee"
        assert row.warnings == []


def test_rows_that_differ_in_a_choice_have_a_line_each(bench):
    ran = bench(
        *("softmax", "--shape", "8x8,16x4", "--set", "causal=yes,no", "--set", "mask=yes"),
        *("--against", "eager", "--device", "cpu", "--budget", "0.001", "--visits", "1"),
    )
    assert ran.status == 0
    for label in ("8×8 causal mask", "8×8 no causal mask", "16×4 causal mask"):
        assert "µs" in ran.line(f"  {label} ") or "ms" in ran.line(f"  {label} ")
    assert ran.out.count("\nsoftmax\n") == 1
    assert max(map(len, ran.out.splitlines())) <= 80


def test_every_combination_is_a_row(bench, planned):
    bench(
        *("ffn", "--shape", "2x8", "--features", "16,32", "--set", "act=gelu,relu"),
        *("--set", "p=0", "--set", "residual=yes", "--device", "cpu", "--against", "eager"),
    )
    jobs = planned[0]["jobs"]
    assert [(j.widths, j.choices["act"]) for j in jobs] == [
        ((n, 8), act) for n in (16, 32) for act in ("gelu", "relu")
    ]
    assert all(j.choices["p"] == 0 and j.choices["residual"] is True for j in jobs)
    assert "--set act=gelu,relu --set p=0 --set residual=yes" in planned[0]["command"]


def test_a_float32_row_is_not_measured_with_tf32(bench, planned, monkeypatch):
    """The environment can allow it behind our back: eager would look fast, and be wrong."""
    products = {"float32_torch": "tf32", "float32_megafuse": "tf32"}
    monkeypatch.setattr(machine, "float32_products", lambda device: products)
    ran = bench("linear_relu", "--shape", "4x8", "--device", "cpu")
    assert ran.status == 2
    assert "multiply float32 matrices as tf32" in ran.err
    assert planned == []
    for fine in (("linear_relu", "--dtype", "bfloat16"), ("swiglu",)):
        assert bench(*fine, "--shape", "4x8", "--device", "cpu").status == 0


# ---- contenders of the user's


def test_a_wrong_contender_shows_its_error_and_the_others_are_timed(bench, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch.nn.functional as F\n"
        "def good(x, scale, approximate): return F.gelu(x, approximate=approximate) * scale\n"
        "def bad(x, scale, approximate): return x * scale\n"
        "def broken(x): return x\n"
    )
    against = "mine.py:bad,mine.py:good,mine.py:broken,eager"
    ran = bench("gelu_scale", *SMALL, "--against", against, "--json", "f.json")
    assert ran.status == 0, "ours was right"
    assert "wrong result: " in ran.line("bad")
    assert "TypeError" in ran.line("broken")
    assert "µs" not in ran.line("bad") + ran.line("broken")
    for name in ("fused", "good", "eager"):
        assert "µs" in ran.line(name)
    (row,) = read(tmp_path / "f.json").rows
    assert "1,024 elements" in str(row.entry("bad").error)
    assert not row.entry("bad").times
    assert set(row.speedups) == {"good", "eager", "copy"}


def test_the_op_itself_is_wrong(bench, monkeypatch):
    """Exit status 1, and the table says what is wrong."""
    wrong = contenders.Contender("fused", "megafuse", lambda: lambda x, scale, approximate: x)
    monkeypatch.setattr(contenders, "fused", lambda op, device: wrong)
    ran = bench("gelu_scale", *SMALL, "--against", "eager")
    assert ran.status == 1
    assert "wrong result" in ran.line("fused")
    assert "µs" in ran.line("eager")


def test_two_contenders_of_one_name_are_two(bench, tmp_path):
    (tmp_path / "a.py").write_text("def gelu(x, s, a): return x\n")
    (tmp_path / "b.py").write_text(
        "import torch.nn.functional as F\ndef gelu(x, s, a): return F.gelu(x, approximate=a) * s\n"
    )
    bench("gelu_scale", *SMALL, "--against", "a.py:gelu,b.py:gelu", "--json", "f.json")
    (row,) = read(tmp_path / "f.json").rows
    errors = {e.name: bool(e.error) for e in row.entries}
    assert errors == {"fused": False, "gelu": True, "gelu-2": False, "copy": False}


# ---- what is measured by default


def test_without_options_it_is_the_quick_suite(bench, planned):
    assert bench("--device", "cpu").status == 0
    (asked,) = planned
    assert asked["suite"] == "quick"
    assert {name for name, *_ in asked["rows"]} == set(OPS)
    assert asked["effort"].budget < 1.0


def test_all_ops_with_options_of_ones_own_are_no_suite(bench, planned):
    """`megafuse bench --elements 1Ki` is not the quick suite, and must not pass for it."""
    bench("--elements", "1Ki", "--device", "cpu")
    (asked,) = planned
    assert {name for name, *_ in asked["rows"]} == set(OPS)
    assert {math.prod(shape) for _, _, _, shape, _ in asked["rows"]} == {1024}
    assert asked["suite"] == ""
    assert asked["effort"].budget == 1.0


def test_one_op_of_a_suite(bench, planned):
    bench("gelu_scale", "--suite", "seeds", "--device", "cpu", "--against", "eager")
    (asked,) = planned
    assert {name for name, *_ in asked["rows"]} == {"gelu_scale"}
    assert asked["suite"] == "seeds"
    assert {tuple(names) for *_, names in asked["rows"]} == {("fused", "eager")}


def test_forward_rows_come_first(bench, planned):
    bench("swiglu", "gelu_scale", "--mode", "all", "--device", "cpu", "--against", "eager")
    modes = [mode for _, mode, *_ in planned[0]["rows"]]
    assert modes == ["forward"] * 2 + ["forward, grad"] * 2 + ["forward+backward"] * 2


def test_an_op_without_a_gradient_is_left_out_of_the_backward_rows(bench, planned):
    bench("quantize_int8", "--mode", "all", "--device", "cpu", "--against", "eager")
    assert [mode for _, mode, *_ in planned[0]["rows"]] == ["forward"]


@pytest.mark.parametrize(
    ("text", "elements"),
    [("7", 7), ("1K", K), ("500K", 500 * K), ("1Ki", KI), ("3M", 3 * M), ("1Mi", MI)],
)
def test_sizes(bench, planned, text, elements):
    bench("gelu_scale", "--elements", text, "--device", "cpu", "--against", "eager")
    ((_, _, _, shape, _),) = planned[0]["rows"]
    assert math.prod(shape) == elements


def test_options_that_change_the_measurement_are_in_the_command(bench, planned):
    given = ("--suite", "quick", "--device", "cpu", "--against", "eager", "--measure-roofs")
    bench(*given, "--json", "f.json")
    command = planned[0]["command"]
    assert "--json" not in command
    assert all(word in command for word in given)


# ---- what is refused


BAD = {
    "op": (("no_such_op",), "there is no op 'no_such_op'. There are "),
    "suite": (
        ("--suite", "slow"),
        "there is no suite 'slow'. There are quick, seeds, transformer, all",
    ),
    "a misspelt op": (("sofmax",), "there is no op 'sofmax': did you mean softmax?"),
    "a misspelt suite": (("--suite", "sedes"), "did you mean seeds?"),
    "a misspelt contender": (("gelu_scale", "--against", "complie"), "did you mean compile?"),
    "a misspelt option": (("gelu_scale", "--elemets", "4"), "--elemets: did you mean --elements?"),
    "a comma for an x": (
        ("gelu_scale", "--shape", "4,5"),
        "between its sizes, 4x5; several",
    ),
    "dtype": (("gelu_scale", "--dtype", "int8"), "--dtype int8: expected one of float32"),
    "second dtype": (("gelu_scale", "--dtype", "float32,fp16"), "--dtype fp16"),
    "mode": (("gelu_scale", "--mode", "training"), "--mode training: expected one of forward"),
    "no gradient": (("quantize_int8", "--mode", "backward"), "quantize_int8 has no gradient"),
    "shape": (("gelu_scale", "--shape", "4by4"), "--shape 4by4: expected sizes"),
    "shape of nothing": (("gelu_scale", "--shape", "0x4"), "--shape 0x4"),
    "negative shape": (("gelu_scale", "--shape", "-4x4"), "--shape"),
    "elements": (("gelu_scale", "--elements", "many"), "--elements many: expected a number"),
    "no elements": (("gelu_scale", "--elements", "0"), "--elements 0"),
    "only a comma for elements": (("gelu_scale", "--elements", ","), "--elements ,"),
    "only a comma for a dtype": (("gelu_scale", "--dtype", ","), "--dtype ,"),
    "only a comma for a shape": (("gelu_scale", "--shape", ","), "--shape ,"),
    "only a comma for a mode": (("gelu_scale", "--mode", ","), "--mode ,"),
    "more than 64 bits": (("gelu_scale", "--elements", "9" * 30), "9" * 30),
    "shape and elements": (("gelu_scale", "--shape", "4", "--elements", "4"), "not both"),
    "contender": (("gelu_scale", "--against", "eagre"), "there is no contender 'eagre'"),
    "module": (("gelu_scale", "--against", "nowhere:f"), "No module named 'nowhere'"),
    "file": (("gelu_scale", "--against", "nowhere.py:f"), "nowhere.py:f"),
    "folder": (("gelu_scale", "--json", "nowhere/f.json"), "there is no folder"),
    "folder of the page": (("gelu_scale", "--html", "nowhere/f.html"), "there is no folder"),
    "a folder as file": (("gelu_scale", "--json", "."), "is a folder, expected a file"),
    "suite with dtype": (("--suite", "quick", "--dtype", "float32"), "leave out --dtype"),
    "suite with elements": (("--suite", "quick", "--elements", "1Ki"), "leave out --elements"),
    "suite with features": (("--suite", "quick", "--features", "8"), "leave out --features"),
    "suite with a choice": (("--suite", "quick", "--set", "p=0"), "leave out --set"),
    "a suite without the op": (("swiglu", "--suite", "transformer"), "has no rows of swiglu"),
    "features": (("linear_relu", "--features", "wide"), "--features wide: expected"),
    "no features": (("linear_relu", "--features", "0"), "--features 0"),
    "features of no layer": (("swiglu", "--features", "8"), "swiglu has no layer to be so wide"),
    "no value": (("ffn", "--set", "act"), "--set act: expected an argument and its value"),
    "an empty value": (("ffn", "--set", "act="), "nothing is named"),
    "no such argument": (
        ("ffn", "--set", "acts=relu"),
        "of ffn 'acts': did you mean act?",
    ),
    "no such word": (("ffn", "--set", "act=tanh"), "expected one of gelu, gelu_tanh, relu"),
    "no number": (("ffn", "--set", "p=much"), "--set p=much: expected a number"),
    "a number out of range": (("ffn", "--set", "p=2"), "between 0 and 1"),
    "neither yes nor no": (("softmax", "--set", "causal=maybe"), "expected yes or no"),
    "a tensor's value": (("softmax", "--set", "mask=3"), "expected yes or no"),
    "a tensor that must be": (("softmax", "--set", "x=yes"), "x is a tensor, which the op draws"),
    "budget": (("gelu_scale", "--budget", "0"), "--budget: expected more than 0"),
    "negative budget": (("gelu_scale", "--budget", "-1"), "--budget"),
    "budget of letters": (("gelu_scale", "--budget", "long"), "--budget: expected"),
    "visits": (("gelu_scale", "--visits", "0"), "--visits: expected a whole number, 1 or more"),
    "half a visit": (("gelu_scale", "--visits", "1.5"), "--visits: expected"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD.values(), ids=BAD)
def test_bad_options_are_refused(bench, planned, tmp_path, arguments, says):
    given = arguments if "--json" in arguments else (*arguments, "--json", "f.json")
    ran = bench(*given, "--device", "cpu")
    assert ran.status == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("megafuse")
    if not last.startswith("megafuse bench: error:"):  # argparse prints the usage before
        assert len(ran.err.splitlines()) == 1
    assert ran.out == ""
    assert planned == [], "it was measured all the same"
    assert list(tmp_path.iterdir()) == []


def test_more_than_memory_can_hold(bench, tmp_path):
    """4 PB: known only when the tensors are made."""
    ran = bench("gelu_scale", "--elements", "1000000G", "--against", "eager", "--json", "f.json")
    assert ran.status == 2
    assert len(ran.err.splitlines()) == 1
    assert "memory" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_device(bench):
    ran = bench("gelu_scale", "--device", "tpu")
    assert ran.status == 2
    assert "invalid choice: 'tpu'" in ran.err


@pytest.mark.parametrize(
    ("option", "says"),
    [(("--device", "cuda"), "torch sees no CUDA device"), (("--counters",), "no CUDA device")],
)
def test_without_a_gpu(bench, planned, monkeypatch, tmp_path, option, says):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = bench("gelu_scale", *option, "--json", "f.json")
    assert ran.status == 2
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""
    assert planned == []
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_used(bench, monkeypatch):
    def refuse(device: str, again: bool = False) -> None:
        raise cache.CacheError("the kernel cache is not a directory")

    monkeypatch.setattr(roof, "roofs", refuse)
    ran = bench("gelu_scale", *SMALL, "--against", "eager")
    assert ran.status == 2
    assert ran.err == "megafuse: the kernel cache is not a directory\n"


def test_ctrl_c_keeps_what_was_measured(bench, monkeypatch, tmp_path):
    """The second row is interrupted: the first is printed and written."""
    seen: list[str] = []
    real = runner.Measurement.visit

    def visit(self: Any, *how: Any) -> None:
        seen.append(self.job.name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        real(self, *how)

    monkeypatch.setattr(runner.Measurement, "visit", visit)
    ran = bench("gelu_scale", "swiglu", *SMALL, "--against", "eager", "--json", "f.json")
    assert ran.status == 130
    assert "Traceback" not in ran.err
    result = read(tmp_path / "f.json")
    assert result.stopped
    assert [row.op for row in result] == ["gelu_scale"]


def test_help_fits_the_terminal(bench):
    ran = bench("--help")
    assert ran.status == 0
    assert "examples:" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


# ---- suites


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("suite", SUITES)
def test_every_row_of_a_suite_is_valid(suite, device):
    specs = list(SUITES[suite](device))
    assert specs
    assert len({replace(s, against=()) for s in specs}) == len(specs), "rows twice"
    for spec in specs:
        op = OPS[spec.op]
        assert spec.mode in modes(op)
        assert all(n > 0 for n in spec.shape)
        drawn = Draw(spec.shape, spec.dtype, "meta", features=spec.features)
        op.check(*op_job.sample(op, drawn, dict(spec.choices)))
        assert "eager" in spec.against
        assert set(spec.against) <= {"eager", "compile", "compile-max", "bare"}
        assert "bare" not in spec.against or device == "cuda"


@pytest.mark.parametrize("suite", SUITES)
def test_rows_of_a_suite_are_jobs(suite):
    specs = list(SUITES[suite]("cpu"))
    jobs = runner.jobs_of(specs, "cpu")
    for spec, made in zip(specs, jobs, strict=True):
        assert (made.name, made.mode, made.shape) == (spec.op, spec.mode, spec.shape)
        assert made.contenders[0].name == "fused"
        assert made.choices == dict(spec.choices)
        assert spec.features is None or made.widths[0] == spec.features
    keys = {(j.name, j.mode, j.dtype, j.shape, j.widths, *j.choices.items()) for j in jobs}
    assert len(keys) == len(jobs), "a reader could not tell two rows apart"


def sizes(specs: list[Spec], op: str, mode: str = "forward") -> set[int]:
    return {math.prod(s.shape) for s in specs if s.op == op and s.mode == mode}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_quick_covers_every_op(device):
    assert {s.op for s in suites.quick(device) if s.mode == "forward"} == set(OPS)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_covers_every_op_mode_and_dtype(device):
    found = {(s.op, s.mode, s.dtype) for s in suites.everything(device)}
    for name, op in OPS.items():
        for mode in modes(op, ("forward", "forward+backward")):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                assert (name, mode, dtype) in found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_seeds_covers_every_size_of_the_record(device):
    """The sizes of shared/FACTS.md, and what is promised for every op."""
    specs = list(suites.seeds(device))
    for mode in ("forward", "forward+backward"):
        assert {KI, MI, 16 * MI} <= sizes(specs, "gelu_scale", mode)
        assert {100 * K, 300 * K, M, 5 * M, 20 * M} <= sizes(specs, "add_mul_exp", mode)
    assert {500 * K, M, 5 * M, 10 * M, 50 * M} <= sizes(specs, "quantize_int8")
    for name in (name for name, op in OPS.items() if op.pointwise):
        promised = {16 * MI, 64 * MI} if device == "cuda" else {KI, 16 * MI}
        assert promised <= sizes(specs, name)
    assert ("bare" in {n for s in specs for n in s.against}) == (device == "cuda")


@pytest.mark.parametrize("n", [1, 7, 1000, 1024, 1025, 500 * K, MI, 16 * MI, 50 * M])
def test_a_shape_of_so_many_elements(n):
    shape = shape_of(n)
    assert math.prod(shape) == n
    assert len(shape) == 2


@pytest.mark.parametrize("n", [1, 7, 1000, 500 * K, KI, MI])
@pytest.mark.parametrize("op", OPS)
def test_a_shape_that_the_op_takes(op, n):
    shape = shape_of(n, OPS[op])
    assert math.prod(shape) == n
    assert len(shape) == (rank_of(OPS[op]) or 2)


# ---- the suite `transformer`


def rows_of(device: str, op: str, mode: str = "forward") -> list[Spec]:
    return [s for s in suites.transformer(device) if s.op == op and s.mode == mode]


LAYERS = {
    "layernorm_linear": {(2304, ())},
    "linear_gelu": {(3072, (("approximate", form),)) for form in ("tanh", "none")},
    "gelu_linear": {(768, (("approximate", "none"),))},
    "ffn": {(3072, (("act", act),)) for act in ("gelu_tanh", "gelu", "relu")},
    "swiglu_ffn": {(2048, ())},
    "transformer_block": {(3072, (("act", act), ("heads", 12))) for act in ("gelu_tanh", "gelu")},
    "attention": {(None, c) for c in ((), (("causal", True),), (("mask", True),))},
    "linear_relu": {(512, ()), (2048, ()), (4096, ())},
}


@pytest.mark.parametrize("op", LAYERS)
def test_transformer_has_every_layer_that_is_promised(op):
    found = [s for s in rows_of("cuda", op) if s.dtype == torch.bfloat16]
    assert {(s.features, s.choices) for s in found} == LAYERS[op]
    width = 3072 if op == "gelu_linear" else 768
    sizes = {
        "attention": {(32, 12, 512, 64), (256, 12, 64, 64)},
        "linear_relu": {(256, 256), (1024, 784), (8192, 4096)},
    }
    assert {s.shape for s in found} == sizes.get(op, {(32, 512, width)})
    assert {(s.features, s.choices) for s in rows_of("cpu", op)} == LAYERS[op]


def test_transformer_in_float32_and_backward():
    def named(mode: str, dtype: torch.dtype) -> set[str]:
        return {s.op for op in LAYERS for s in rows_of("cuda", op, mode) if s.dtype == dtype}

    promised = {"layernorm_linear", "ffn", "transformer_block", "linear_relu"}
    assert named("forward", torch.float32) == promised | {"linear_gelu", "attention"}
    assert named("forward+backward", torch.bfloat16) == promised
    (large,) = (s for s in rows_of("cuda", "linear_relu") if s.dtype == torch.float32)
    assert (large.shape, large.features) == ((8192, 4096), 4096)


def test_transformer_tunes_the_headlines_only():
    tuned = [s for s in suites.transformer("cuda") if "compile-max" in s.against]
    assert {s.op for s in tuned} == {
        *("layernorm_linear", "linear_gelu", "ffn", "transformer_block", "linear_relu")
    }
    assert len(tuned) == 6
    assert {s.dtype for s in tuned} == {torch.bfloat16}
    assert not [s for s in suites.transformer("cpu") if "compile-max" in s.against]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "op", ["layer_norm", "rms_norm", "softmax", "residual_layer_norm", "residual_rms_norm"]
)
def test_transformer_has_rows_of_every_length(op, dtype):
    forward, backward = (
        [s for s in rows_of("cuda", op, mode) if s.dtype == dtype]
        for mode in ("forward", "forward+backward")
    )
    assert {s.shape[-1] for s in forward} == {KI, 4 * KI, 16 * KI, 64 * KI}
    assert {s.shape[-1] for s in backward} == {KI, 4 * KI, 64 * KI}
    assert all(16 * MI <= math.prod(s.shape) <= 64 * MI for s in forward + backward)
    if op == "softmax":
        assert {c for s in forward for c, _ in s.choices} == {"mask", "causal"}
        for s in (s for s in forward if ("causal", True) in s.choices):
            assert s.shape[-1] == s.shape[-2], "most of the triangle would be missing"


def test_rows_of_an_op_and_mode_come_together():
    for device in ("cpu", "cuda"):
        names = [(s.mode, s.op) for s in suites.by_mode(suites.transformer(device))]
        assert len([n for n, _ in itertools.groupby(names)]) == len(set(names))


def test_json_is_plain(bench, tmp_path):
    """No NaN, no Infinity: a browser must read it."""
    bench("quantize_int8", *SMALL, "--against", "eager", "--json", "f.json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(Path("f.json").read_text(), parse_constant=refuse)
