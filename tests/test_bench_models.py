"""`megafuse bench --suite models`: its rows, its processes, what it judges and what it refuses."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from megafuse import cli
from megafuse.bench import suites, traffic
from megafuse.bench.models import command, measure, merge, samples, schedule, show, vision, worker
from megafuse.bench.models.case import DTYPES, MODES, Case, cases
from megafuse.bench.models.contenders import CONTENDERS
from megafuse.bench.models.moe import MoELayer
from megafuse.bench.models.order import REFERENCE, Order
from megafuse.bench.models.run import Plan, Run, finish
from megafuse.bench.models.work import work_of
from megafuse.bench.models.worker import Failed, Worker
from megafuse.bench.models.zoo import MODELS, NO_TRANSFORMERS
from megafuse.bench.result import STEP, Entry, Result, Span, read

CAUSAL = ("gpt2", "llama", "qwen3")
no_library = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers"
)
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals")


# ---- rows


def test_every_model_has_every_mode_that_it_can() -> None:
    found = cases(list(MODELS), DTYPES, list(MODES), "cuda", False)
    assert len(found) == 10 * 2 * 2 + 3 * 2
    assert {c.model for c in found if c.mode == "decode"} == set(CAUSAL)
    sizes = {c.model: c.shape for c in found if c.mode == "forward"}
    assert sizes["bert"] == [32, 128]
    assert sizes["gpt2"] == [8, 1024]
    assert sizes["llama"] == [4, 512]
    assert sizes["vit"] == [64, 224, 224]
    keys = [c.row("optimize").key for c in found]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("model", "parameters"), [("resnet50", 25_557_032), ("convnext", 28_589_128)]
)
def test_models_that_are_written_out_are_the_known_ones(model: str, parameters: int) -> None:
    with torch.device("meta"):
        made = MODELS[model].make(False)
    assert sum(p.numel() for p in made.parameters()) == parameters


def test_a_picture_goes_through_all_of_it() -> None:
    with torch.device("meta"):
        x = torch.empty(2, 3, 224, 224)
        assert vision.ResNet()(x).shape == (2, 1000)
        assert vision.ConvNeXt()(x).shape == (2, 1000)


def test_experts_do_what_a_loop_over_tokens_does() -> None:
    torch.manual_seed(0)
    layer = MoELayer(16, 32, 4).double()
    x = torch.randn(2, 24, 16, dtype=torch.float64)
    with samples.reference_mode(torch.float64):
        got = layer(x)
    room, taken = 24 * 2 * 2 * 5 // 16, [0] * 4
    expected = x.clone().view(-1, 16)
    for token, row in enumerate(layer.norm(x).view(-1, 16)):
        weights, chosen = layer.router(row).softmax(-1).topk(2)
        for weight, expert in zip(weights / weights.sum(), chosen.tolist(), strict=True):
            taken[expert] += 1
            if taken[expert] > room:
                continue
            gate, up = (row @ layer.gate_up[expert]).chunk(2)
            hidden = nn.functional.silu(gate) * up
            expected[token] = expected[token] + weight * (hidden @ layer.down[expert])
    assert max(taken) > room  # somebody was left out
    torch.testing.assert_close(got.view(-1, 16), expected)


@no_library
@pytest.mark.parametrize("model", CAUSAL)
def test_a_decode_step_continues_the_sequence(model: str) -> None:
    """Its logits are those of a forward pass over the context and the token; and the cache, which
    has as much room again, never overflows."""
    case = Case(model, "float32", "decode", "cpu", tiny=True)
    context = case.size.context
    tokens = _tokens(case)
    work = work_of(case, torch.float64)
    plain = work_of(Case(model, "float32", "forward", "cpu", tiny=True), torch.float64)
    with samples.reference_mode(torch.float64), torch.no_grad():
        work.step()
        first = work.results()["outputs"]["output"]
        whole = plain.model(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(first, whole[0, -1])
    assert tokens.shape[1] == context + 1
    for _ in range(2 * context):
        work.step()


def _tokens(case: Case) -> torch.Tensor:
    """What the decode step's context and token are: the same seed draws them again."""
    torch.manual_seed(0)
    with torch.device("cpu"):
        made = case.of.make(True)
        for parameter in made.parameters():
            if parameter.dim() == 1:
                torch.randn_like(parameter)
        ids = case.of.inputs(case.size, True)["input_ids"]
    return torch.cat([ids[:1, : case.size.context], ids[-1:, :1]], 1)


@pytest.mark.parametrize("model", ["moe", "unet", pytest.param("bert", marks=no_library)])
def test_a_train_step_changes_every_parameter(model: str) -> None:
    work = work_of(Case(model, "float32", "train", "cpu", tiny=True))
    before = {name: p.clone() for name, p in work.model.named_parameters()}
    first = work.results()
    work.step()
    again = work.results()  # nothing was learnt so far
    assert set(first["gradients"]) == set(again["gradients"]) == set(before)
    for kind in ("outputs", "gradients"):
        for name, value in first[kind].items():
            torch.testing.assert_close(again[kind][name], value)
    work.learn()
    work.step()
    assert all(not torch.equal(p, before[name]) for name, p in work.model.named_parameters())


# ---- how far results are off


def test_the_reference_is_float64_where_the_code_says_float32() -> None:
    x = torch.randn(64, dtype=torch.float64)
    with samples.reference_mode(torch.float64):
        assert torch.equal(x.float(), x)
        assert torch.equal(x.to(torch.float32), x)
        soft = nn.functional.softmax(x, -1, dtype=torch.float32)
    assert soft.dtype == torch.float64


def test_every_nth_element_is_kept() -> None:
    kept = samples.thinned({"x": torch.arange(1000.0).view(10, 100)}, 100)["x"]
    assert kept.tolist() == list(range(0, 1000, 11))


def entry(name: str, seconds: float = 1.0) -> Entry:
    spans = {STEP: Span(seconds, 0.99 * seconds, 1.01 * seconds, 5)}
    return Entry(name, "", times=spans, first_call=2.0, launches=7, peak_bytes=10**9)


def test_a_gradient_that_is_nothing_but_rounding_does_not_count() -> None:
    """A key's bias: its gradient is 0, whatever the error is a share of it."""
    exact = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0]), "key": torch.tensor([1e-17])}
    got = {"a": torch.tensor([1.0, 2.1]), "b": torch.tensor([4.0]), "key": torch.tensor([1e-7])}
    found = entry("eager")
    samples.fill(found, {"gradients": got}, {"gradients": exact})
    assert found.off["gradients"] == pytest.approx(0.05, rel=1e-4)
    assert found.gradients is not None
    assert found.gradients.max_abs == pytest.approx(0.1, rel=1e-4)


def test_what_is_no_number_is_an_error() -> None:
    found = entry("optimize")
    exact = {"outputs": {"outputs": torch.tensor([1.0, 2.0])}}
    samples.fill(found, {"outputs": {"outputs": torch.tensor([1.0, torch.nan])}}, exact)
    assert found.error == "outputs: NaN or Inf where float64 has a number"
    found = entry("optimize")
    samples.fill(found, {"gradients": {"a": torch.ones(1)}}, {"gradients": {"b": torch.ones(1)}})
    assert found.error is not None


def test_who_is_farther_off_than_eager_is_named() -> None:
    row = Case("moe", "float32", "forward", "cpu").row("optimize")
    row.entries = [entry("optimize", 1.0), entry("eager", 2.0), entry("compile", 1.005)]
    for each, off in zip(row.entries, (1e-3, 1e-6, 3e-6), strict=True):
        each.off["outputs"] = off
    finish(row)
    assert len(row.warnings) == 1
    assert row.warnings[0].startswith("optimize: outputs off by 1.0e-03")
    assert row.speedups["eager"][STEP].verdict == "faster"
    assert row.speedups["eager"][STEP].median == 2.0
    assert row.speedups["compile"][STEP].verdict == "ambiguous"


# ---- processes


def order(contender: str, model: str = "gpt2", mode: str = "train") -> Order:
    return Order(Case(model, "float32", mode, "cuda"), contender, 1.0)


def test_batches_are_of_one_pace_and_fit_the_device() -> None:
    names = ["max-autotune", "compile", REFERENCE, "optimize", "eager", "reduce-overhead"]
    found = list(schedule.batches([order(n) for n in names], 4, 1e15))
    told = [[o.contender for o in batch] for batch in found]
    assert told == [[REFERENCE, "optimize", "eager"], ["compile", "reduce-overhead"], names[:1]]
    few = list(schedule.batches([order("eager") for _ in range(5)], 2, 1e15))
    assert [len(batch) for batch in few] == [2, 2, 1]
    tight = list(schedule.batches([order("eager", "llama") for _ in range(3)], 3, 60e9))
    assert [len(batch) for batch in tight] == [1, 1, 1]  # however small the device, each gets on


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A worker whose process runs this code instead."""
    begun = []

    def start(code: str) -> Worker:
        monkeypatch.setattr(worker, "CHILD", (sys.executable, "-c", code))
        begun.append(Worker(order("eager"), tmp_path / f"{len(begun)}.log", {}))
        return begun[-1]

    yield start
    for each in begun:
        each.end()


READY = 'import sys; print(\'{"ready": {"first": 1.5}}\', flush=True); '


def test_a_process_is_asked_and_answers(process) -> None:
    code = READY + "assert input() == 'go'; print('{\"measured\": {}}')"
    each = process(code)
    assert each.prepared(60.0) == {"ready": {"first": 1.5}}
    assert each.measured(60.0) == {"measured": {}}


@posix
def test_a_process_that_dies_says_how(process) -> None:
    with pytest.raises(Failed, match="ended with SIGABRT"):
        process("import os; os.abort()").prepared(60.0)
    with pytest.raises(Failed, match="ended with status 1: ZeroDivisionError"):
        process("1 / 0").prepared(60.0)
    each = process(READY)
    each.prepared(60.0)
    with pytest.raises(Failed, match="ended with status 0"):
        each.measured(60.0)


def test_a_process_that_takes_too_long_is_ended(process) -> None:
    each = process("import time; time.sleep(600)")
    with pytest.raises(Failed, match="no result of the first step within 0 s"):
        each.prepared(0.1)
    each.end()
    assert each._process.returncode is not None


FAKE = """
import json, os, sys
def say(**what): print(json.dumps(what), flush=True)
who = json.loads(sys.argv[1])["contender"]
if who == "compile":
    os.abort()
if who == "optimize":
    say(error="RuntimeError: no kernel")
    sys.exit()
if who == "optimize-graphs":
    say(skipped="not in training")
    sys.exit()
say(ready={"first": 1.0, "remarks": ["a graph is not fused"]})
assert input() == "go"
if who == "max-autotune":
    os.abort()
say(measured={"times": [2.0, 1.0, 3.0, 5], "peak_bytes": 10})
if who == "eager":
    say(profiled={"launches": 3})
os.abort()
"""


@posix
def test_a_contender_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CHILD", (sys.executable, "-c", FAKE))
    monkeypatch.setattr("megafuse.bench.models.run.loader.load", lambda: None)
    monkeypatch.setattr("megafuse.bench.models.run.refused", lambda name, device: "")
    row = Case("moe", "float32", "train", "cpu", tiny=True)
    said: list[str] = []
    running = Run(
        Plan([row], list(CONTENDERS), "", jobs=3, accuracy=False), said.append, Run.result
    )
    running.all()
    found = running.result()
    assert not found.stopped
    by_name = {e.name: e for e in found.rows[0].entries}
    assert list(by_name) == list(CONTENDERS)
    assert by_name["optimize"].error == "RuntimeError: no kernel"
    assert by_name["optimize-graphs"].missing[STEP] == "not in training"
    assert by_name["compile"].error == "its process ended with SIGABRT"
    assert by_name["max-autotune"].error == "its process ended with SIGABRT"
    assert by_name["max-autotune"].first_call == 1.0
    eager = by_name["eager"]
    assert (eager.times[STEP], eager.launches) == (Span(2.0, 1.0, 3.0, 5), 3)
    assert (eager.side_by_side, eager.error) == (3, None)
    unprofiled = by_name["reduce-overhead"]  # its time stands
    assert unprofiled.times[STEP].median == 2.0
    assert unprofiled.missing["launches"] == "its process ended with SIGABRT"
    assert "eager: a graph is not fused" in found.rows[0].warnings


def test_memory_and_device_time_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a CUDA that only counts: what is called in which order, and what is told of it."""
    called: list[str] = []

    def count(name: str, answer: object = None) -> None:
        monkeypatch.setattr(torch.cuda, name, lambda *_: called.append(name) or answer)

    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        count(name)
    count("max_memory_allocated", 10)
    count("max_memory_reserved", 30)

    def step() -> None:
        called.append("step")

    for who, shown in (("eager", 10), ("reduce-overhead", 30)):
        called.clear()
        told = measure.times_and_memory(step, CONTENDERS[who], "cuda", 0.001)
        assert (told["peak_bytes"], told["reserved_bytes"]) == (shown, 30)
        assert told["times"][3] >= measure.ROUNDS
        start = ["empty_cache", "step", "synchronize", "reset_peak_memory_stats", "step"]
        assert called[:5] == start
        assert called[-3:] == ["synchronize", "max_memory_allocated", "max_memory_reserved"]
    work = work_of(Case("moe", "float32", "forward", "cpu", tiny=True))
    told = measure.profiled(work, work.step, CONTENDERS["eager"], "cuda")
    assert told == {"missing": {"busy": "the profiler saw no kernels"}}  # it was a CPU's
    monkeypatch.setattr(traffic, "device_work", lambda step: (2e-3, 7))
    told = measure.profiled(work, work.step, CONTENDERS["eager"], "cuda")
    assert told == {"busy": 2e-3, "launches": 7}


# ---- files


def result(*names: str, model: str = "moe", stopped: bool = False) -> Result:
    row = Case(model, "float32", "forward", "cpu").row("optimize")
    row.entries = [entry(name) for name in names]
    finish(row)
    machine = {"device": "cpu", "cpu": "a CPU", "threads": 2}
    versions = {"torch": torch.__version__, "megafuse": "0"}
    made = Result("models", "a", "", "c", False, machine, versions, None, [row], stopped=stopped)
    return made


def test_runs_are_added_up(tmp_path: Path) -> None:
    before, now = result("optimize", "eager"), result("eager", "compile")
    now.command = "b"
    now.rows[0].entries[0].commit = "later"
    both = merge.added(before, now)
    (row,) = both.rows
    assert [e.name for e in row.entries] == ["optimize", "eager", "compile"]
    assert row.entry("eager").commit == "later"
    assert set(row.speedups) == {"eager", "compile"}
    assert (both.command, both.stopped) == ("a; b", False)
    both = merge.added(both, result("eager", model="gpt2"))
    assert [row.op for row in both.rows] == ["gpt2", "moe"]
    assert both.stopped  # gpt2 has one contender of three

    both.write(tmp_path / "a.json")
    about = {"device": "cpu", "cpu": "a CPU", "threads": 2}
    back = merge.earlier(str(tmp_path / "a.json"), about)
    assert back is not None
    assert [row.key for row in back.rows] == [row.key for row in both.rows]
    assert back.rows[1].entries == both.rows[1].entries
    assert merge.earlier(str(tmp_path / "none.json"), about) is None
    with pytest.raises(ValueError, match="threads 2, and this is 4"):
        merge.earlier(str(tmp_path / "a.json"), {**about, "threads": 4})


def test_the_table_fits_the_terminal() -> None:
    made = result(*CONTENDERS)
    row = made.rows[0]
    for each in row.entries:
        each.off |= {"outputs": 1.23e-5, "gradients": 1.23e-5}
        each.busy, each.side_by_side = 123.4e-3, 12
        each.first_call = 1234.5
    row.entries[1].times.clear()
    row.entries[1].missing[STEP] = "CUDA graphs need CUDA"
    row.entries[2].error = "RuntimeError: " + "no " * 60
    printed = show.text(made)
    assert max(map(len, printed.splitlines())) <= 80
    assert "optimize-graphs: left out, CUDA graphs need CUDA" in printed
    assert "eager: RuntimeError" in printed
    assert "12 processes did so side by side" in " ".join(printed.split())


# ---- the command


def bench(*arguments: str) -> int:
    return cli.main(["bench", "--suite", "models", "--device", "cpu", "--tiny", *arguments])


@pytest.mark.slow
def test_the_whole_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train steps in processes of their own, against float64; a contender that needs CUDA is left
    out."""
    out = tmp_path / "models.json"
    chosen = ["--model", "moe", "--mode", "train", "--dtype", "float32", "--jobs", "2"]
    who = ["--contender", "eager,optimize-graphs", "--budget", "0.01", "--json", str(out)]
    assert bench(*chosen, *who) == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if not line.startswith("written: ")]
    assert max(map(len, lines)) <= 80
    assert "optimize-graphs: left out" in printed
    found = read(out)
    assert not found.stopped
    (row,) = found.rows
    assert row.key == ("moe", "train step", "float32", "2×32 tiny")
    eager = row.entry("eager")
    assert eager is not None
    assert eager.error is None
    assert eager.times[STEP].median > 0
    assert eager.side_by_side == 2  # it and float64
    assert eager.launches is not None
    assert eager.launches > 50
    assert eager.peak_bytes is not None
    assert eager.peak_bytes > 4 * 4 * 100_000  # weights, gradients, AdamW's two moments
    assert eager.against == "float64"
    assert 0 < eager.off["gradients"] < 1e-5
    assert 0 < eager.off["outputs"] < 1e-6


@no_library
@pytest.mark.seldom
def test_ours_in_every_mode(tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    chosen = ["--model", "gpt2", "--dtype", "bfloat16", "--contender", "optimize,eager"]
    assert bench(*chosen, "--jobs", "2", "--budget", "0.01", "--json", str(out)) == 0
    rows = read(out).rows
    assert [row.mode for row in rows] == list(MODES.values())
    for row in rows:
        assert [e.name for e in row.entries] == ["optimize", "eager"]
        assert not row.warnings
        assert set(row.speedups) == {"eager"}
        assert all("outputs" in e.off for e in row.entries)


def test_what_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in {
        ("--model", "gpt3"): "there is no model 'gpt3': did you mean gpt2?",
        ("--contender", "eagre"): "there is no contender 'eagre': did you mean eager?",
        ("--dtype", "float16"): "there is no dtype 'float16'",
        ("--model", "moe", "--mode", "decode"): "only causal language models decode",
        ("--shape", "1x2"): "--shape is no option of the suite models",
        ("gelu_scale",): "the suite models has no ops",
        ("--add",): "--add adds to a file",
    }.items():
        assert bench(*arguments) == 2
        assert words in capsys.readouterr().err
    assert cli.main(["bench", "--suite", "quick", "--model", "gpt2"]) == 2
    assert "--model is an option of --suite models" in capsys.readouterr().err
    assert cli.main(["bench", "--suite", "modles"]) == 2
    assert f"did you mean {suites.MODELS}?" in capsys.readouterr().err


def test_without_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert bench("--model", "gpt2") == 2
    assert NO_TRANSFORMERS in capsys.readouterr().err
    asked = []
    monkeypatch.setattr(command, "Plan", lambda cases, *_, **__: asked.extend(cases) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench()
    assert {c.model for c in asked} == {"resnet50", "convnext", "unet", "moe"}
    assert "left out, bert, gpt2, llama, qwen3, vit, t5" in capsys.readouterr().err


def test_an_order_arrives_as_it_was_given() -> None:
    given = replace(order("compile"), cache="somewhere", only_first=True)
    assert Order.from_json(given.to_json()) == given
