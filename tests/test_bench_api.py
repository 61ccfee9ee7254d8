"""`mf.bench`: functions, ops and modules against others, on arguments of the user's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import megafuse as mf
from megafuse.bench import Timing, compare, honesty, machine, roof, row, timing
from megafuse.bench.job import MODES
from megafuse.bench.result import Result, Roofs, Row, read

QUICK: dict[str, Any] = {"budget": 0.001, "against": ["eager"]}


@pytest.fixture(autouse=True)
def quickly(monkeypatch) -> None:
    """A cache that is read in no time, and roofs that need not be measured."""
    monkeypatch.setattr(timing, "_flush_buffer", lambda device: torch.ones(1 << 10))
    found = Roofs(1e13, 1e13, {"float32": 1e15}, None, "2026-01-01")
    monkeypatch.setattr(roof, "roofs", lambda device, again=False: found)


def double(x: Tensor) -> Tensor:
    return x + x


def one_row(result: Result) -> Row:
    (row,) = result.rows
    return row


def errors(row: Row) -> dict[str, str]:
    return {e.name: e.error for e in row.entries if e.error}


# ---- what can be measured


@pytest.mark.parametrize("which", [mf.gelu_scale, "gelu_scale", mf.OPS["gelu_scale"]])
def test_an_op(which):
    row = one_row(mf.bench(which, torch.randn(8, 64), 1.7, **QUICK))
    assert row.key == ("gelu_scale", "forward", "float32", "8×64")
    assert [e.name for e in row.entries] == ["fused", "eager", "copy"]
    assert errors(row) == {}
    assert row.bytes_least == 2 * 8 * 64 * 4
    assert (row.entries[0].launches, row.entries[1].launches) == (1, 2)


def test_a_function_of_the_users():
    def four_times(x: Tensor) -> Tensor:
        return double(double(x))

    row = one_row(mf.bench(four_times, torch.randn(100), against=[lambda x: 4 * x], budget=0.001))
    assert [e.name for e in row.entries] == ["four_times", "<lambda>"]
    assert row.subject == "four_times"
    assert errors(row) == {}
    assert row.bytes_least is None, "nobody can know"
    assert [e.launches for e in row.entries] == [2, 1]
    assert set(row.speedups) == {"<lambda>"}
    assert all(e.accuracy is not None for e in row.entries)


def test_functions_of_one_name_are_told_apart():
    """Each lambda is timed as itself: the wrong one does not hide behind the right one."""
    contenders = [lambda x: x + x, lambda x: x, lambda x: 2 * x]
    row = one_row(mf.bench(lambda x: x * 2, torch.randn(9), against=contenders, budget=0.001))
    assert len({e.name for e in row.entries}) == 4
    assert [bool(e.error) for e in row.entries] == [False, False, True, False]
    times = [e.times["cold"] for e in row.entries if not e.error]
    assert len(set(times)) == 3, "one's samples were taken for another's"


@pytest.mark.parametrize("mode", ["forward", "forward, grad", "forward+backward"])
def test_a_module(mode):
    linear = nn.Linear(8, 4)
    weight = linear.weight.detach().clone()
    row = one_row(mf.bench(linear, torch.randn(3, 8), mode=mode, **QUICK))
    assert (row.op, row.mode) == ("Linear", mode)
    assert errors(row) == {}
    assert row.entries[0].accuracy is not None
    assert torch.equal(linear.weight, weight)
    assert linear.weight.dtype == torch.float32
    assert linear.weight.grad is None


def test_a_random_function():
    dropout = nn.Dropout(0.5)
    row = one_row(mf.bench(dropout, torch.randn(10_000), **QUICK))
    assert errors(row) == {}
    assert row.entries[0].accuracy is None
    assert "random" in row.entries[0].missing["accuracy"]


def test_a_random_number():
    """A loss: one number, another each time."""

    def loss(x: Tensor) -> Tensor:
        return nn.functional.dropout(x).sum()

    assert errors(one_row(mf.bench(loss, torch.randn(1000), **QUICK))) == {}


def test_a_random_function_against_one_that_is_not():
    identity = one_row(
        mf.bench(nn.Dropout(0.5), torch.randn(10_000), against=[lambda x: x + 0], budget=0.001)
    )
    assert "mean square" in errors(identity)["<lambda>"]


def test_a_result_with_nan_is_not_random():
    """log of what may be negative: NaN is not equal to itself, but it is the same."""

    def logarithm(x: Tensor) -> Tensor:
        return x.log()

    row = one_row(mf.bench(logarithm, torch.randn(1000), **QUICK))
    assert errors(row) == {}
    assert row.entries[0].accuracy is not None


def test_a_function_for_one_dtype_only():
    """float64 cannot be had: no accuracy, for that reason."""

    def float32_only(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("expected float32")
        return x * 2

    row = one_row(mf.bench(float32_only, torch.randn(100), against=[double], budget=0.001))
    assert errors(row) == {}
    assert row.entries[0].accuracy is None
    assert "float64" in row.entries[0].missing["accuracy"]
    assert "random" not in row.entries[0].missing["accuracy"]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype):
    def turned(x: Tensor) -> Tensor:
        return x * 1j

    x = torch.randn(100, dtype=dtype)
    row = one_row(mf.bench(turned, x, against=[lambda x: x.real * 1j], budget=0.001))
    assert set(errors(row)) == {"<lambda>"}


def test_integers_and_nested_results():
    def split(x: Tensor, n: int) -> dict[str, Any]:
        return {"whole": x.long(), "rest": [x - x.long(), n]}

    row = one_row(mf.bench(split, torch.randn(100) * 10, 3, **QUICK))
    assert errors(row) == {}


def test_a_result_with_nothing_in_it():
    row = one_row(mf.bench(double, torch.empty(0, 4), **QUICK))
    assert errors(row) == {}


def test_expanded_and_strided_arguments():
    x, y = torch.randn(8, 1).expand(8, 16), torch.randn(16, 8).t()
    row = one_row(mf.bench(torch.add, x, y, against=[lambda a, b: a + b], budget=0.001))
    assert errors(row) == {}


def test_forward_and_backward_of_an_op():
    gate, up = torch.randn(4, 64), torch.randn(4, 64, requires_grad=True)
    row = one_row(mf.bench("swiglu", gate, up, mode="forward+backward", **QUICK))
    assert errors(row) == {}
    assert row.entries[0].launches == 2
    assert not gate.requires_grad
    assert up.grad is None


def test_fuse_and_compile_are_the_default_rivals(monkeypatch):
    """On an op, which is fused already, eager and compile."""
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    x = torch.randn(64)
    row = one_row(mf.bench(double, x, budget=0.001))
    assert [e.name for e in row.entries] == ["double", "fuse", "compile"]
    assert errors(row) == {}
    row = one_row(mf.bench(mf.gelu_scale, x, 1.7, budget=0.001))
    assert [e.name for e in row.entries][:3] == ["fused", "eager", "compile"]


def test_a_compiler_that_fails_is_an_error_of_that_contender(monkeypatch):
    def fail(function: object, **how: object) -> None:
        raise RuntimeError("no C++ compiler\nand a long story")

    monkeypatch.setattr(torch, "compile", fail)
    row = one_row(mf.bench(double, torch.randn(64), against=["compile", "eager"], budget=0.001))
    assert "no C++ compiler" in errors(row)["compile"]
    assert "\n" not in errors(row)["compile"]
    assert row.entry("eager").times


# ---- options


def test_visits_and_budget():
    row = one_row(mf.bench(double, torch.randn(64), visits=2, **QUICK))
    assert row.entries[0].times["cold"].n >= 12
    assert row.entries[0].times["cold"].n == row.entries[1].times["cold"].n


def test_against_one_name():
    """A string is a list of letters, too: that is never meant."""
    row = one_row(mf.bench(double, torch.randn(64), against="eager", budget=0.001))
    assert [e.name for e in row.entries] == ["double", "eager"]


def test_against_nobody():
    result = mf.bench(double, torch.randn(64), against=[], budget=0.001)
    assert [e.name for e in one_row(result).entries] == ["double"]
    assert "double" in str(result)


X = torch.ones(4)
BAD: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "an unknown op": (("no_such_op", X), {}, ValueError, "there is no op 'no_such_op'"),
    "no function": ((3, X), {}, TypeError, "a int is not a function"),
    "no tensor": ((double, 3.0), {}, ValueError, "no tensor among the arguments"),
    "no argument": ((double,), {}, ValueError, "no tensor among the arguments"),
    "an op without arguments": (("gelu_scale",), {}, TypeError, "argument 'x' must be a Tensor"),
    "an argument too few": (("gelu_scale", X), {}, TypeError, "argument 'scale' must be a float"),
    "too many": (("gelu_scale", X, 1.0, "tanh", 2), {}, TypeError, "takes 3 arguments, got 4"),
    "mode": ((double, X), {"mode": "backward"}, ValueError, "mode is 'backward', expected one of"),
    "no gradient": (
        ("quantize_int8", X, 0.1, 0.0),
        {"mode": "forward+backward"},
        ValueError,
        "quantize_int8 has no gradient",
    ),
    "no gradient of a function": (
        (torch.argmax, X),
        {"mode": "forward+backward"},
        ValueError,
        "no gradient",
    ),
    "contender": ((double, X), {"against": ["eagre"]}, ValueError, "no contender 'eagre'"),
    "contender of another kind": ((double, X), {"against": [3]}, TypeError, "3"),
    "visits": ((double, X), {"visits": 0}, ValueError, "visits"),
    "budget": ((double, X), {"budget": -1.0}, ValueError, "budget"),
    "an option that is none": ((double, X), {"warmup": 3}, TypeError, "warmup"),
}


@pytest.mark.parametrize(("args", "options", "error", "says"), BAD.values(), ids=BAD)
def test_bad_arguments(args, options, error, says):
    with pytest.raises(error, match=says):
        mf.bench(*args, **QUICK | options)


def test_a_function_that_fails_says_so_itself():
    """There is nothing to compare with: its own exception, not a row without times."""

    def broken(x: Tensor) -> Tensor:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        mf.bench(broken, X, **QUICK)


# ---- the result


def test_the_result_prints(tmp_path):
    result = mf.bench(mf.gelu_scale, torch.randn(4, 64), 1.7, **QUICK)
    text = str(result)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("gelu_scale", "fused", "eager", "cold", "warm", torch.__version__):
        assert word in text
    html = result._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 1
    assert "eager" in html
    assert result.command == "mf.bench"
    result.write(tmp_path / "a.json")
    again = read(tmp_path / "a.json")
    again.write(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert [row.key for row in again] == [row.key for row in result]


@pytest.mark.parametrize(
    ("theirs", "verdict"), [([4.0, 5.0, 6.0], "faster"), ([0.1, 0.2, 0.3], "slower")]
)
def test_verdicts(theirs, verdict):
    """Of the spreads of the samples: those that overlap tell nothing."""
    ours = Timing.of([1.0, 2.0, 3.0])
    found = row._speedup(Timing.of(theirs), ours)
    assert found.verdict == verdict
    assert found.n == 3
    assert found.median == pytest.approx(theirs[1] / 2)
    assert row._speedup(Timing.of([2.5, 2.6, 9.0]), ours).verdict == "ambiguous"


def test_bench_is_a_package_and_a_function():
    import megafuse.bench

    assert megafuse.bench is mf.bench
    assert megafuse.bench.compare is compare
    assert megafuse.bench.Timing is Timing
    assert callable(megafuse.bench)
    with pytest.raises(ValueError, match="there is no op"):
        megafuse.bench("no_such_op", X)
    with pytest.raises(ValueError, match="there is no op"):
        megafuse.bench.bench("no_such_op", X)


FRESH = """
import sys
import megafuse as mf
assert "megafuse.bench" not in sys.modules, "a program that measures nothing pays for it"

def refused():
    try:
        mf.bench("no_such_op", 1)
    except ValueError as error:
        assert "there is no op" in str(error), error
    else:
        raise AssertionError("not refused")

assert "bench" in mf.__all__
refused()
import megafuse.bench
refused()
assert mf.bench is megafuse.bench
assert callable(megafuse.bench.compare)
from megafuse import bench
assert bench is mf.bench
print("fine")
"""


def test_bench_before_and_after_its_package_is_imported():
    ran = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.stdout == "fine\n", ran.stderr


@pytest.mark.cuda
def test_on_cuda():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    result = mf.bench(mf.gelu_scale, torch.randn(1 << 16, device="cuda"), 1.7, **QUICK)
    row = one_row(result)
    assert errors(row) == {}
    assert row.device == "cuda"
    assert set(row.entries[0].times) == {"cold", "warm", "host", "graph"}
    assert [e.launches for e in row.entries[:2]] == [1, 2]
    assert max(map(len, str(result).splitlines())) <= 80


def test_a_float32_layer_says_how_its_matrices_are_multiplied(monkeypatch):
    x, weight = torch.randn(4, 8), torch.randn(16, 8)
    row = one_row(mf.bench(mf.linear_relu, x, weight, **QUICK))
    assert errors(row) == {}
    assert (row.shape, row.widths) == ([4, 8], [16])
    assert row.conditions["float32_torch"] == "ieee"
    assert row.warnings == []
    loose = {"float32_torch": "tf32", "float32_megafuse": "tf32"}
    monkeypatch.setattr(machine, "float32_products", lambda device: loose)
    row = one_row(mf.bench(mf.linear_relu, x, weight, **QUICK))
    assert "multiply float32 matrices as tf32" in row.warnings[0]
    row = one_row(mf.bench(mf.swiglu, x, x, **QUICK))
    assert "float32_torch" not in row.conditions
    assert row.warnings == []


def test_several_results_of_an_op():
    x = torch.randn(4, 8)
    row = one_row(mf.bench(mf.residual_layer_norm, x, x, mode="forward+backward", **QUICK))
    assert errors(row) == {}
    assert row.entries[0].accuracy is not None, "without dropout nothing is random"
    random = one_row(mf.bench(mf.residual_layer_norm, x, x, None, None, 0.5, **QUICK))
    assert random.choices == {"p": 0.5}
    assert random.entries[0].accuracy is None


@pytest.mark.parametrize("mode", MODES)
def test_the_floor_is_what_the_roofs_allow(mode, monkeypatch):
    """One slow roof after the other: it binds, and the share is the floor over the time."""
    x, weight = torch.randn(4, 8), torch.randn(16, 8)
    for roofs, binding in (
        (Roofs(1e13, 1e13, {"float32": 1e6}), "compute"),
        (Roofs(1e6, 1e13, {"float32": 1e15}), "memory"),
    ):
        monkeypatch.setattr(roof, "roofs", lambda device, again=False, r=roofs: r)
        monkeypatch.setattr(honesty, "below_floor", lambda *_: None)
        row = one_row(mf.bench(mf.linear_relu, x, weight, mode=mode, **QUICK))
        assert row.roof == binding
        work = row.flops if binding == "compute" else row.bytes_least
        assert row.floor == pytest.approx(work / 1e6)
        for entry in row.entries[:2]:
            assert entry.roof_share == pytest.approx(row.floor / entry.times["cold"].median)
