"""`megafuse bench --sweep`: what is drawn, what counts as behind, what is listed and written."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from megafuse import cli
from megafuse.bench import machine
from megafuse.bench.result import NotAResult
from megafuse.bench.sweep import case as cases
from megafuse.bench.sweep import command, compiling, draw, hunt, judge, limits, look, result, show
from megafuse.bench.sweep.case import FORMS, LAYOUTS, Case
from megafuse.bench.sweep.compiling import Compiler
from megafuse.bench.sweep.draw import Drawing, shapes_of
from megafuse.bench.sweep.known import known
from megafuse.bench.timing import Timing
from megafuse.ops import OPS

DEVICES = ("cpu", "cuda")  # drawing needs neither
SMALL = Case("gelu_scale", "forward", "float32", (64, 1024), "hidden")


def drawn(count: int, device: str = "cpu", seed: int = 0, ops: Any = OPS) -> list[Case]:
    return list(itertools.islice(iter(Drawing(list(ops), device, seed)), count))


# ---- drawing


def test_the_same_seed_draws_the_same_cases():
    assert drawn(200, seed=3) == drawn(200, seed=3)
    assert drawn(200, seed=3) != drawn(200, seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_every_op_dtype_mode_kind_and_layout_comes_up(device):
    found = drawn(1200, device)
    for name, op in OPS.items():
        mine = [c for c in found if c.op == name]
        assert {c.dtype for c in mine} == set(draw.DTYPES[device]), name
        assert {c.kind for c in mine} == set(shapes_of(op)), name
        assert {c.layout for c in mine} == set(LAYOUTS), name
        modes = {"forward", "forward+backward"} if op.differentiable else {"forward"}
        assert {c.mode for c in mine} == modes, name
    assert {form for c in found for _, form in c.forms} == set(FORMS)
    for op, name in (("bias_act", "act"), ("attention", "causal"), ("linear_gelu", "bias")):
        assert any(name in dict(c.choices) for c in found if c.op == op)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_sizes_that_models_have_and_sizes_that_they_have_not(device):
    rows = [c.shape for c in drawn(1500, device) if c.shape[1:] and OPS[c.op].family != "composite"]
    last = {shape[-1] for shape in rows}
    assert set(draw.HIDDEN) <= last
    assert set(draw.VOCABULARY) <= last
    assert any(n % 2 for n in last)
    assert any(math.prod(s) > draw.ELEMENTS[device] // 4 for s in rows), "huge"
    assert any(math.prod(s) < 64 for s in rows), "tiny"
    assert any(s[0] > 2**14 and s[-1] <= 64 for s in rows), "many short rows"
    assert any(s[0] <= 16 and s[-1] >= 2**15 for s in rows), "few long rows"
    layers = [c for c in drawn(1500, device) if c.kind == "few rows"]
    assert {c.shape[0] for c in layers} == set(draw.FEW_ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_no_case_is_larger_than_the_device_is_given(device):
    for c in drawn(1000, device):
        assert min(c.shape) >= 1
        assert math.prod(c.shape) <= 1.2 * draw.ELEMENTS[device], c
        if c.features and c.kind not in ("few rows", "tiny"):
            products = math.prod(c.shape) * c.features
            # One row of the widest layer may be more than a CPU is given.
            assert products <= 1.5 * draw.PRODUCTS[device] or c.shape[0] == 1, c


def test_primes_are_prime():
    sizes = draw.Sizes(random.Random(1), "cpu")
    for n in (sizes.prime(3, 5000) for _ in range(100)):
        assert all(n % d for d in range(2, math.isqrt(n) + 1)), n


@pytest.mark.slow
def test_every_case_can_be_called():
    """The arguments are what the op takes, and where a backward is wanted there is one."""
    tiny = [c for c in drawn(1200, seed=7) if math.prod(c.shape) * (c.features or 1) < 2**12]
    assert {c.op for c in tiny} == set(OPS)
    for c in tiny:
        job = cases.job_of(c, "cpu")
        with limits.as_in_a_new_process(), look.grad_mode(c.mode):
            args = job.arguments()
            OPS[c.op].check(*args[: len(OPS[c.op].arguments)])
            job.step(job.reference)(*args)


def test_a_number_has_no_gradient():
    """dequantize_int8's scale is all that has one: found by a sweep that ended there."""
    q = Case("dequantize_int8", "forward+backward", "float32", (3, 5), "odd")
    assert cases.accepted(q)
    assert not cases.accepted(replace(q, forms=(("scale", "number"),)))
    assert cases.accepted(replace(q, mode="forward", forms=(("scale", "number"),)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 8), (4, 7)])
def test_layouts(shape, dtype):
    vector = 16 // getattr(torch, dtype).itemsize
    for layout in LAYOUTS:
        c = Case("swiglu", "forward+backward", dtype, shape, "odd", layout)
        for t in cases.job_of(c, "cpu").draw():
            assert t.shape == shape
            assert t.requires_grad
            assert t.is_leaf
            assert t.stride(-1) == 1
            assert t.storage_offset() == (1 if layout == "offset" else 0)
            assert t.is_contiguous() == (layout != "gap")
            if layout == "gap":
                assert t.stride(-2) % vector
                assert t.stride(-2) > shape[-1]


def test_forms_broadcast():
    shapes = {"full": (2, 3, 8), "row": (8,), "channel": (3, 1)}
    for form in FORMS:
        c = Case("quantize_int8", "forward", "float32", (2, 3, 8), "odd", forms=(("scale", form),))
        assert cases.accepted(c)
        _, scale, _ = cases.job_of(c, "cpu").draw()
        if form == "number":
            assert scale == 0.05
        else:
            assert scale.shape == shapes[form]
            assert 0.02 < float(scale.min()) <= float(scale.max()) < 0.08


def test_what_an_op_refuses_is_not_drawn():
    assert cases.accepted(SMALL)
    assert not cases.accepted(Case("attention", "forward", "float32", (3, 5), "odd"))
    uneven: Any = (("heads", 5),)
    block = Case("transformer_block", "forward", "float32", (1, 2, 8), "odd", choices=uneven)
    assert not cases.accepted(block)


# ---- the known cases


def test_known_cases_are_those_of_the_losing_rows():
    found = {(c.op, c.size, c.dtype, c.mode) for c in known("cuda")}
    assert ("softmax", "8192×50257", "float32", "forward") in found
    assert ("softmax", "2048×151936", "bfloat16", "forward") in found
    assert ("bias_act", "5000×3331", "bfloat16", "forward+backward") in found
    assert ("linear_gelu", "2048×4096→11008", "bfloat16", "forward") in found
    block, drawn = known("cuda", ("transformer_block",))
    assert (block.shape, block.dtype, dict(block.choices)) == (
        (64, 128, 384),
        "float32",
        {"heads": 6},
    )
    assert (drawn.layout, dict(drawn.choices)) == ("gap", {"mask": True})
    assert all(cases.accepted(c) for device in DEVICES for c in known(device))


def test_on_a_cpu_they_have_fewer_rows_of_the_same_length():
    there, here = list(known("cuda")), list(known("cpu"))
    assert [(c.op, c.shape) for c in here[len(there) :]][:1] == [("linear_relu", (2, 4096))]
    assert all(c.dtype in ("bfloat16", "float16") for c in here[len(there) :])
    for a, b in zip(there, here[: len(there)], strict=True):
        assert (a.op, a.mode, a.shape[1:], a.features) == (b.op, b.mode, b.shape[1:], b.features)
        assert b.shape[0] <= a.shape[0]
        assert math.prod(b.shape) <= 2**21


# ---- the rule


def timing(*samples: float) -> Timing:
    return Timing.of(samples)


def noisy(median: float, spread: float, n: int, seed: int) -> Timing:
    drawn = random.Random(seed)
    return timing(*(median * math.exp(drawn.gauss(0, spread)) for _ in range(n)))


def test_an_interval_holds_the_median_as_often_as_it_says():
    """Of 2000 intervals of 99 % for samples of a skewed distribution, some 20 miss."""
    drawn = random.Random(5)
    missed = 0
    for _ in range(2000):
        found = judge.interval([drawn.expovariate(1.0) for _ in range(15)])
        assert found.low <= found.median <= found.high
        missed += not found.low <= math.log(2) <= found.high
    assert missed <= 45  # 20 expected of 1 %, its standard deviation 4.5


@pytest.mark.parametrize(("n", "k"), [(8, 1), (15, 3), (30, 8), (5, 1), (1, 1)])
def test_ranks(n, k):
    """2·P(Binomial(n, ½) < k) ≤ 1 % < 2·P(… < k + 1), but for too few samples."""
    samples = list(map(float, range(1, n + 1)))
    found = judge.interval(samples)
    assert (found.low, found.high) == (k, n + 1 - k)


def test_behind_by_a_tenth_is_behind():
    assert judge.behind(noisy(100e-6, 0.01, 15, 1), noisy(110e-6, 0.01, 15, 2), "wall")
    assert not judge.behind(noisy(110e-6, 0.01, 15, 1), noisy(100e-6, 0.01, 15, 2), "wall")


def test_the_same_is_not_behind_however_noisy():
    """The same distribution on both sides, 400 times, at every size of noise."""
    for spread in (0.002, 0.02, 0.2):
        pairs = (
            (noisy(1e-3, spread, 15, 2 * i), noisy(1e-3, spread, 15, 2 * i + 1)) for i in range(400)
        )
        assert sum(judge.behind(a, b, "wall") for a, b in pairs) <= (6 if spread == 0.2 else 0)


def test_within_the_margin_is_not_behind():
    assert not judge.behind(timing(*[98e-6] * 15), timing(*[100e-6] * 15), "wall")
    assert judge.behind(timing(*[96e-6] * 15), timing(*[100e-6] * 15), "wall")


def test_less_than_a_clock_resolves_is_not_behind():
    """2.0 µs against 1.8 by two events: a tenth, and nothing."""
    assert not judge.behind(timing(*[1.8e-6] * 15), timing(*[2.0e-6] * 15), "cold")
    assert judge.behind(timing(*[1.8e-6] * 15), timing(*[2.0e-6] * 15), "wall")


def test_few_rounds_prove_nothing():
    assert not judge.behind(timing(*[1e-6] * 5), timing(*[9e-6] * 5), "wall")


def test_who_is_near():
    at = {"fused": timing(*[10e-6] * 5), "eager": timing(*[20e-6] * 5), "c": timing(*[10.5e-6] * 5)}
    near = {**at, "eager": timing(*[9e-6] * 5)}
    assert look.near_to_fused({"wall": at}) == ["c"]
    assert look.near_to_fused({"cold": at, "wall": near}) == ["c", "eager"]


# ---- the hunt


@pytest.fixture
def no_compiling(monkeypatch) -> None:
    monkeypatch.setattr(compiling, "SHARE", 0.0)
    monkeypatch.setattr(compiling, "_AHEAD", 0.0)


@pytest.fixture
def planted(monkeypatch) -> Callable[[str, Any], None]:
    return lambda name, function: monkeypatch.setattr(OPS[name], "fused", function)


def slow(*args: Any) -> torch.Tensor:
    """Twenty times what eager does."""
    return [OPS["gelu_scale"].reference(*args) for _ in range(20)][-1]


def fast(x: torch.Tensor, *args: Any) -> torch.Tensor:
    return x


@pytest.mark.usefixtures("no_compiling")
def test_a_planted_slow_op_is_found(planted):
    planted("gelu_scale", slow)
    told: list[hunt.Loser] = []
    found = hunt.hunt([SMALL], "cpu", 60.0, hunt.Watcher(found=told.append))
    (loser,) = found.losers
    assert told == [loser]
    assert (loser.seen.case, loser.clock, loser.other) == (SMALL, "wall", "eager")
    assert found.suspects == 1
    timings = loser.seen.careful["wall"]
    assert timings["fused"].median > 5 * timings["eager"].median
    assert loser.seen is not found.seen[0], "measured a second time"


@pytest.mark.usefixtures("no_compiling")
def test_a_fast_op_is_not_listed_and_not_looked_at_for_long(planted):
    planted("gelu_scale", fast)
    found = hunt.hunt([SMALL], "cpu", 60.0, hunt.Watcher())
    assert (found.losers, found.suspects) == ([], 0)
    (seen,) = found.seen
    assert seen.stage == "screened"
    assert seen.screened["wall"]["fused"].n == 5


@pytest.mark.usefixtures("no_compiling")
def test_an_op_that_was_slow_once_only_is_not_listed(planted, monkeypatch):
    """A neighbour's noise: the second measurement does not find it."""
    planted("gelu_scale", slow)
    again = look.look_again

    def quiet_by_now(seen: look.Seen, device: str) -> look.Seen:
        seen.functions["fused"] = fast
        return again(seen, device)

    monkeypatch.setattr(hunt, "look_again", quiet_by_now)
    found = hunt.hunt([SMALL], "cpu", 60.0, hunt.Watcher())
    assert (found.losers, found.suspects) == ([], 1)


@pytest.mark.usefixtures("no_compiling")
def test_an_op_that_fails_is_told(planted):
    def broken(*args: Any) -> torch.Tensor:
        raise RuntimeError("no kernel for this")

    planted("gelu_scale", broken)
    told: list[look.Seen] = []
    found = hunt.hunt([SMALL, SMALL], "cpu", 60.0, hunt.Watcher(failed=told.append))
    assert [seen.why for seen in told] == ["RuntimeError: no kernel for this"] * 2
    assert found.failed == told
    assert found.losers == []


@pytest.mark.usefixtures("no_compiling")
def test_what_eager_refuses_is_skipped(monkeypatch):
    def refuses(*args: Any) -> torch.Tensor:
        raise RuntimeError("not for so many dimensions")

    monkeypatch.setattr(look, "job_of", lambda case, device: job)
    job = replace(cases.job_of(replace(SMALL, op="swiglu"), "cpu"), reference=refuses)
    (seen,) = hunt.hunt([SMALL], "cpu", 60.0, hunt.Watcher()).seen
    assert (seen.stage, seen.why) == ("skipped", "eager: RuntimeError: not for so many dimensions")


@pytest.mark.usefixtures("no_compiling")
@pytest.mark.parametrize("whose", ["eager", "fused"])
def test_a_lost_device_ends_it_and_what_was_seen_is_kept(monkeypatch, planted, whose):
    """Eager attention of torch 2.11 reads misaligned addresses: one case took all others along."""

    def kills(*args: Any) -> torch.Tensor:
        raise limits.LOST("CUDA error: misaligned address")

    if whose == "fused":
        planted("swiglu", kills)
    else:
        job = replace(cases.job_of(SMALL, "cpu"), reference=kills)
        jobs = {"gelu_scale": cases.job_of(SMALL, "cpu"), "swiglu": job}
        monkeypatch.setattr(look, "job_of", lambda case, device: jobs[case.op])
    found = hunt.hunt([SMALL, replace(SMALL, op="swiglu"), SMALL], "cpu", 60.0, hunt.Watcher())
    assert [seen.lost for seen in found.seen] == [False, True]
    assert [seen.why for seen in found.failed] == [
        f"{'eager: ' if whose == 'eager' else ''}AcceleratorError: CUDA error: misaligned address"
    ]
    assert "failed: swiglu 64×1024 float32" in show.text(sweep_of(found))


@pytest.mark.usefixtures("no_compiling")
def test_it_ends_when_the_time_is_over():
    endless = itertools.repeat(SMALL)
    assert hunt.hunt(endless, "cpu", 0.5, hunt.Watcher()).seen != []
    assert hunt.hunt(endless, "cpu", 0.0, hunt.Watcher()).seen == []


@pytest.mark.usefixtures("no_compiling")
def test_ctrl_c_keeps_what_was_found():
    def stopping() -> Any:
        yield SMALL
        raise KeyboardInterrupt

    found = hunt.hunt(stopping(), "cpu", 60.0, hunt.Watcher())
    assert found.stopped
    assert len(found.seen) == 1


@pytest.mark.usefixtures("no_compiling")
def test_a_compiler_whose_result_is_wrong_is_no_rival(planted):
    planted("gelu_scale", slow)
    first = look.look(SMALL, "cpu", Compiler(0.0))
    first.functions = {"fused": slow, "compile": fast}
    again = look.look_again(first, "cpu")
    assert list(again.functions) == ["fused"]
    assert again.careful == {}
    first.functions = {"fused": slow, "compile": OPS["gelu_scale"].reference}
    assert set(look.look_again(first, "cpu").behind.values()) == {"compile"}


# ---- torch.compile in its share of the time


@pytest.fixture
def compiles(monkeypatch) -> list[bool]:
    """Whether shapes were dynamic, for each function that was compiled: to itself."""
    asked: list[bool] = []

    def compiled(function: Any, mode: str | None = None, dynamic: bool = False) -> Any:
        asked.append(dynamic)
        return lambda *args: function(*args)

    monkeypatch.setattr(compiling, "compiled", compiled)
    return asked


def test_a_group_is_compiled_once(compiles):
    compiler = Compiler(1000.0)
    wide = Case("gelu_scale", "forward", "float32", (64, 2048), "hidden")
    job = cases.job_of(SMALL, "cpu")
    assert compiler.of_group(SMALL, job) is compiler.of_group(wide, job)
    assert compiles == [True]
    assert SMALL.group != Case("gelu_scale", "forward", "float32", (1, 64), "hidden").group
    assert compiler.of_shape(SMALL, job) is not compiler.of_shape(wide, job)
    assert compiles == [True, False, False]


def test_compiling_has_its_share_of_the_time(compiles):
    job = cases.job_of(SMALL, "cpu")
    compiler = Compiler(100.0)
    compiler.spent = 9.0
    assert compiler.of_shape(SMALL, job) is not None
    compiler.spent = 30.0
    assert compiler.of_shape(SMALL, job) is None, "a tenth of it at the beginning"
    compiler.started -= 75.0
    assert compiler.of_shape(SMALL, job) is not None, "40 % of what has passed"
    compiler.spent = 41.0
    assert compiler.of_shape(SMALL, job) is None, "40 % of all"


def test_what_takes_long_to_compile_is_not_begun(compiles):
    compiler = Compiler(100.0)
    compiler._took["gelu_scale", "forward"] = 20.0
    assert compiler.of_shape(SMALL, cases.job_of(SMALL, "cpu")) is None


def test_a_compiler_that_fails_is_not_asked_again(compiles):
    def fails(*args: Any) -> None:
        raise RuntimeError("no C++ compiler")

    compiler = Compiler(1000.0)
    assert not compiler.runs(SMALL, fails, [])
    assert compiler.failed == {"gelu_scale, forward": "RuntimeError: no C++ compiler"}
    assert compiler.of_shape(SMALL, cases.job_of(SMALL, "cpu")) is None


def test_a_compiled_rival_is_timed_carefully(compiles, planted):
    planted("gelu_scale", slow)
    seen = look.look(SMALL, "cpu", Compiler(1000.0))
    assert compiles == [True, False]
    assert set(seen.screened["wall"]) == {"fused", "eager", "compile-dynamic"}
    assert set(seen.careful["wall"]) == {"fused", "eager", "compile-dynamic", "compile"}
    assert seen.compiled


# ---- limits


def test_what_takes_the_device_along_in_eager_is_not_called():
    case = Case("attention", "forward", "bfloat16", (2, 2, 1, 8), "tiny", "gap")
    assert limits.kills_torch(case, "cuda")
    for fine in (replace(case, layout="plain"), replace(case, shape=(2, 2, 3, 8)), SMALL):
        assert limits.kills_torch(fine, "cuda") is None
    assert limits.kills_torch(case, "cpu") is None


def test_a_case_that_needs_too_much_memory_is_skipped(monkeypatch):
    monkeypatch.setattr(limits, "free_bytes", lambda device: 1 << 20)
    seen = look.look(SMALL, "cpu", Compiler(0.0))
    assert (seen.stage, seen.failed) == ("skipped", False)
    assert "would need" in seen.why


def test_a_product_that_takes_too_long_is_skipped(monkeypatch):
    """Without 16-bit instructions some CPUs take seconds where float32 takes milliseconds."""
    monkeypatch.setattr(limits, "_product_rate", lambda dtype: 1e3)
    layer = Case("linear_relu", "forward", "bfloat16", (8, 64), "tiny", features=64)
    seen = look.look(layer, "cpu", Compiler(0.0))
    assert seen.stage == "skipped"
    assert "a call would take" in seen.why


def test_onednn_is_as_it_was_after_each_case():
    onednn: Any = torch.backends.mkldnn
    was = onednn.enabled
    with limits.as_in_a_new_process():
        onednn.enabled = not was
    assert onednn.enabled == was


# ---- the file, the table, the command


def sweep_of(found: hunt.Found) -> result.Sweep:
    return result.of(found, machine.about("cpu"), "megafuse bench --sweep", 3, 10.0, 11.0)


def seen_with(careful: look.Timings, case: Case = SMALL) -> look.Seen:
    return look.Seen(case, screened=careful, careful=careful)


def two_losers() -> hunt.Found:
    slower = {"fused": timing(*[2e-3] * 15), "eager": timing(*[1e-3] * 15)}
    compiled = {"fused": timing(*[20e-6] * 15), "compile-dynamic": timing(*[15e-6] * 15)}
    long = Case(
        "transformer_block",
        "forward+backward",
        "bfloat16",
        (128, 1024, 12345),
        "hidden",
        "gap",
        151936,
        (("causal", True), ("act", "gelu_tanh")),
    )
    first, second = seen_with({"wall": slower}), seen_with({"cold": compiled}, long)
    losers = [hunt.Loser(first, "wall", "eager"), hunt.Loser(second, "cold", "compile-dynamic")]
    broken = look.Seen(SMALL, why="RuntimeError: " + "no " * 60, failed=True)
    return hunt.Found([first, second, broken, look.Seen(SMALL, why="too large")], losers, 3)


def test_a_file_can_be_read_again(tmp_path):
    made = sweep_of(two_losers())
    path = tmp_path / "sweep.json"
    made.write(path)
    again = result.read(path)
    assert again.counts == {
        "drawn": 4,
        "skipped": 1,
        "screened": 2,
        "careful": 2,
        "with_compile": 1,
        "suspects": 3,
        "behind": 2,
        "failed": 1,
    }
    assert (again.seed, again.seconds, again.command) == (3, 10.0, "megafuse bench --sweep")
    first, second = again.losers
    assert (first["op"], first["size"], first["clock"]) == ("gelu_scale", "64×1024", "wall")
    assert (first["fused"], first["other"], first["whose"]) == (2e-3, 1e-3, "eager")
    assert (first["ratio"], first["interval"]) == (0.5, [0.5, 0.5])
    assert second["notes"] == "causal, gelu_tanh, gap"
    assert again.cases[0]["careful"]["wall"]["fused"] == [2e-3, 2e-3, 2e-3, 15]
    assert again.cases[3]["why"] == "too large"
    assert again.machine["device"] == "cpu"
    assert again.versions["torch"] == torch.__version__
    assert "8192" not in path.read_text(encoding="utf-8")
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80, "a case a line"


def test_an_empty_sweep_can_be_read_again(tmp_path):
    sweep_of(hunt.Found()).write(tmp_path / "f.json")
    assert result.read(tmp_path / "f.json").losers == []


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"format": "megafuse-sweep"}'])
def test_a_file_that_is_no_sweep(tmp_path, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(NotAResult, match="f\\.json"):
        result.read(tmp_path / "f.json")


def test_the_table_fits_the_terminal():
    printed = show.text(sweep_of(two_losers()))
    assert max(map(len, printed.splitlines())) <= 80
    assert "behind, calls in a row:" in printed
    assert "behind, device time, cold L2:" in printed
    line = next(line for line in printed.splitlines() if line.startswith("gelu_scale"))
    assert " ".join(line.split()) == "gelu_scale 64×1024 fp32 fwd 2.00 ms 1.00 ms eager 0.50"
    assert "128×1024×12345→151936" in printed
    assert "15.0 µs c-dyn  0.75" in printed
    assert "4 cases in 11 s, seed 3" in printed
    assert "failed: gelu_scale 64×1024 float32: RuntimeError" in printed


@pytest.fixture
def bench(capsys, tmp_path, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = cli.main(["bench", "--device", "cpu", *arguments])
        except SystemExit as stopped:
            status = int(str(stopped.code))
        return status, *capsys.readouterr()

    return call


@pytest.mark.usefixtures("no_compiling")
def test_the_command_lists_what_is_behind(bench, planted, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "Drawing", lambda ops, device, seed: [SMALL] if seed == 7 else [])
    planted("gelu_scale", slow)
    given = ("--sweep", "gelu_scale", "--seconds", "20", "--seed", "7", "--json", "f.json")
    status, out, err = bench(*given)
    assert (status, err) == (1, "")
    assert "behind, calls in a row:" in out
    assert "written: f.json" in out
    made = result.read(tmp_path / "f.json")
    assert made.command == "megafuse bench gelu_scale --sweep --seconds 20 --device cpu --seed 7"
    assert len(made.losers) == 1
    planted("gelu_scale", fast)
    status, out, _ = bench(*given)
    assert status == 0
    assert "0 behind the first time" in out


REFUSED = {
    "an op": (("sofmax",), "there is no op 'sofmax': did you mean softmax?"),
    "a shape": (("--shape", "4x5"), "--sweep draws its cases itself: leave out --shape"),
    "a suite": (("--suite", "quick"), "leave out --suite"),
    "counters": (("--counters",), "leave out --counters"),
    "roofs": (("--measure-roofs",), "leave out --measure-roofs"),
    "no time": (("--seconds", "0"), "expected more than 0 seconds"),
    "a seed": (("--seed", "-1"), "expected a whole number, 0 or more"),
    "threads": (("--threads", "0"), "expected a whole number, 1 or more"),
    "a file": (("--json", "no/such/f.json"), "there is no folder"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED)
def test_options_that_a_sweep_refuses(bench, given, said):
    status, out, err = bench("--sweep", *given)
    assert (status, out) == (2, "")
    assert said in " ".join(err.split())


@pytest.mark.parametrize("option", ["seed", "threads"])
def test_options_of_a_sweep_alone(bench, option):
    status, _, err = bench("gelu_scale", f"--{option}", "3")
    assert status == 2
    assert f"--{option} is an option of --sweep" in err
