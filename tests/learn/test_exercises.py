"""Exercises: solutions pass, starters and typical mistakes fail with the sentence that helps, and
nothing that a learner writes can hurt the checker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import megafuse
from megafuse.learn.exercises import catalog, roof, runner
from megafuse.learn.exercises.child import findings
from megafuse.learn.exercises.findings import Finding, passed
from megafuse.learn.exercises.native import Counts, Native
from megafuse.learn.exercises.work import Work
from megafuse.runtime import cpp, nvrtc

# Each compiles, or starts a process of its own.
pytestmark = pytest.mark.slow

EXERCISES = {exercise.name: exercise for exercise in catalog.exercises()}
NEEDS_COMPILER = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
EACH = pytest.mark.parametrize(
    "name",
    [n if e.is_python else pytest.param(n, marks=NEEDS_COMPILER) for n, e in EXERCISES.items()],
)


@pytest.fixture(autouse=True)
def short_timings(monkeypatch):
    """Times are shown, not judged: a test need not wait for good ones."""
    monkeypatch.setattr(roof, "_BUDGET", 0.01)


def check(name: str, path: Path, device: str = "cpu") -> list[Finding]:
    """In this process: for code that ends and does not crash."""
    return list(findings(Work(EXERCISES[name], path, device)))


def written(name: str, text: str, folder: Path) -> Path:
    path = folder / EXERCISES[name].file
    path.write_text(text, encoding="utf-8")
    return path


def failed(found: list[Finding]) -> Finding:
    """The first thing that is wrong."""
    wrong = [finding for finding in found if finding.ok is False]
    assert wrong, found
    return wrong[0]


# ---- what every exercise is


def test_there_are_enough_in_order():
    assert [e.number for e in EXERCISES.values()] == list(range(1, len(EXERCISES) + 1))
    assert len(EXERCISES) >= 8


@pytest.mark.parametrize("name", EXERCISES)
def test_texts_fit_80_columns(name):
    exercise = EXERCISES[name]
    assert len(exercise.hints) >= 2
    assert len(name) <= 14  # the list's column
    assert exercise.starter.suffix == exercise.solution.suffix
    for file in (exercise.starter, exercise.solution):  # a diff puts one more in front
        assert max(map(len, file.read_text(encoding="utf-8").splitlines())) <= 79
    verbatim = [line for line in exercise.task.splitlines() if line.startswith("    ")]
    assert max(map(len, verbatim), default=0) <= 80


@EACH
def test_solution_passes(name, device):
    before = dict(megafuse.OPS)
    found = check(name, EXERCISES[name].solution, device)
    assert passed(found), found
    assert any(finding.what == "of the roof" for finding in found)
    assert dict(megafuse.OPS) == before  # the learner's functor is no op of the library


TEACHES = {
    "count_bytes": "count 4 bytes for every large tensor that it reads",
    "functor": "The result should be x * sigmoid",
    "walk": "Let the inner loop step from one float to the next",
    "fuse_chain": "one op for act(x + bias)",
    "cut_a_pass": "can one loop collect all that mean and variance need",
    "stable_sums": "Sum squares of distances from something near the mean",
    "backward": "gate would never learn",
    "fuse_or_not": "count as in exercise 1",
    "cuda_index": "must come from blockIdx.x",
}


@EACH
def test_starter_fails_and_teaches(name):
    found = check(name, EXERCISES[name].starter)
    assert not passed(found)
    assert TEACHES[name] in failed(found).says


def test_starters_of_wrong_numerics_name_both_mistakes():
    if cpp.find() is None:
        pytest.skip("needs a C++ compiler")
    found = check("stable_sums", EXERCISES["stable_sums"].starter)
    wrong = {finding.what: finding for finding in found if finding.ok is False}
    assert set(wrong) == {"around 10,000", "up to 400", "at full speed"}
    assert "inf / inf is nan" in wrong["up to 400"].says


# ---- typical mistakes: what of the solution becomes what, and which finding says what

MISTAKES = {
    "one pass counted as separate": (
        *("count_bytes", '"separate": 20', '"separate": 12'),
        *("swiglu", "PyTorch writes each result out and reads it back"),
    ),
    "a byte count too low": (
        *("count_bytes", '"separate": 24', '"separate": 16'),
        *("scale_bias_sigmoid", "8 too few"),
    ),
    "a fused count too high": (
        *("count_bytes", '"separate": 24, "fused": 8', '"separate": 24, "fused": 24'),
        *("scale_bias_sigmoid", "stays in a register"),
    ),
    "a row is missing": (
        *("count_bytes", '"swiglu"', '"swish"'),
        *("swiglu", "Keep the form of the starter"),
    ),
    "shift is forgotten": (
        *("functor", "scale * x + shift", "scale * x"),
        *("float32", "x * sigmoid(1.3 * x - 0.4)"),
    ),
    "libm in a functor": (
        *("functor", '#include "pointwise.h"', '#include "pointwise.h"\n#include <cmath>'),
        *("for the GPU", "no system headers"),
    ),
    "four columns at a time": (
        "walk",
        "  for (long r = 0; r < rows; ++r) {\n    for (long c = 0; c < cols; ++c) {",
        "  for (long b = 0; b < cols; b += 4) for (long r = 0; r < rows; ++r) {\n"
        "    for (long c = b; c < b + 4 && c < cols; ++c) {",
        *("bytes moved", "32 bytes travel for each float"),
    ),
    "a step too far": (
        *("walk", "r < rows", "r <= rows"),
        *("stays inside", "In C++ nothing stops such an access"),
    ),
    "the last column is left out": (
        *("walk", "c < cols", "c < cols - 1"),
        *("37 × 29", "never written"),
    ),
    "half fused": (
        "fuse_chain",
        "mf.add_mul_add(h, residual, scale, shift)",
        "(h + residual) * scale + shift",
        *("operations", "4 operations are 4 launches"),
    ),
    "the wrong gelu": (
        *("fuse_chain", '"gelu"', '"relu"'),
        *("33 × 7", "It must compute what the starter does"),
    ),
    "a function is gone": (
        *("fuse_chain", "def block", "def blocks"),
        *("complete", "The check calls `block`"),
    ),
    "nothing is returned": (
        *("fuse_chain", "return ", "h = "),
        *("33 × 7", "without `return`"),
    ),
    "divided by cols - 1": (
        *("cut_a_pass", "squares / cols", "squares / (cols - 1)"),
        *("short rows", "not by cols - 1"),
    ),
    "stable with a pass more": (
        "stable_sums",
        "float largest = -3e38f, sum = 0;",
        "float largest = -3e38f, sum = 0;\n"
        "  for (long i = 0; i < n; ++i) largest = std::fmax(largest, x[i]);\n",
        *("reads", "twice would do"),
    ),
    "masked first": (
        *("stable_sums", "-3e38f", "-INFINITY"),
        *("masked", "-inf - (-inf)"),
    ),
    "the derivative of sigmoid, not of silu": (
        *("backward", "slope = s + gate * s * (1 - s)", "slope = s * (1 - s)"),
        *("of gate", "s + v * s * (1 - s)"),
    ),
    "saves what it could recompute": (
        "backward",
        "ctx.save_for_backward(gate, up)",
        "ctx.save_for_backward(gate, up)\n        ctx.s = torch.sigmoid(gate)",
        *("forward", "in one launch"),
    ),
    "leaves it to the library": (
        *("backward", "swiglu = Swiglu.apply", "swiglu = mf.swiglu"),
        *("by hand", "The exercise is the Function"),
    ),
    "own loops for a large product": (
        *("fuse_or_not", '"fuse": False, "number": 2 *', '"fuse": True, "number": 2 *'),
        *("gemm", "waits for arithmetic"),
    ),
    "a count that is off": (
        *("fuse_or_not", "28 / 12", "28 / 8"),
        *("chain", "count as in exercise 1"),
    ),
    "fuse is a word": (
        *("fuse_or_not", '"fuse": True, "number": 28', '"fuse": "yes", "number": 28'),
        *("chain", "fuse is True or False"),
    ),
    "no bounds check": (
        *("cuda_index", "if (i < n) ", ""),
        *("10,000", "whose i is not below n must do nothing"),
    ),
    "two kinds of index mixed": (
        *("cuda_index", "+ threadIdx.x;", "+ threadIdx.x * 4;"),
        *("one block", "each once"),
    ),
    "elements written twice": (
        *("cuda_index", "k * blockDim.x", "k * (blockDim.x - 1)"),
        *("one block", "no thread wrote there"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_typical_mistakes(mistake, tmp_path):
    name, right, wrong, what, says = MISTAKES[mistake]
    if not EXERCISES[name].is_python and cpp.find() is None:
        pytest.skip("needs a C++ compiler")
    if what == "for the GPU" and nvrtc.problem() is not None:
        pytest.skip("needs NVRTC")
    text = EXERCISES[name].solution.read_text(encoding="utf-8")
    assert right in text, "the solution has changed"
    found = failed(check(name, written(name, text.replace(right, wrong), tmp_path)))
    assert (found.what, says in found.says) == (what, True), found
    assert "Traceback" not in found.found + found.says


@NEEDS_COMPILER
def test_right_and_uncoalesced(tmp_path):
    """Four neighbours a thread: right everywhere, and four times the sectors."""
    source = """extern "C" __global__ void axpy(Input x, Input y, Output out, float a, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  for (int i = first; i < first + 4 && i < n; ++i) out[i] = a * x[i] + y[i];
}"""
    found = check("cuda_index", written("cuda_index", source, tmp_path))
    wrong = [finding for finding in found if finding.ok is False]
    assert [finding.what for finding in wrong] == ["bytes moved"]
    assert "48 an element" in wrong[0].found
    assert "16 sectors" in wrong[0].says


def test_a_saved_result_is_counted(tmp_path):
    text = EXERCISES["backward"].solution.read_text(encoding="utf-8")
    for right, wrong in (
        ("return mf.swiglu(gate, up)", "return out"),
        ("ctx.save_for", "out = mf.swiglu(gate, up)\n        ctx.save_for"),
        ("ctx.save_for_backward(gate, up)", "ctx.save_for_backward(gate, up, out)"),
        ("gate, up = ctx", "gate, up, _ = ctx"),
    ):
        assert right in text
        text = text.replace(right, wrong)
    found = failed(check("backward", written("backward", text, tmp_path)))
    assert (found.what, found.found[:8]) == ("saved", "12 bytes")
    assert "stays in memory until the backward has run" in found.says


@NEEDS_COMPILER
def test_sums_that_cancel_pass_with_a_word(tmp_path):
    """Sum and sum of squares cut the pass; that they lose digits far from 0 is told."""
    text = EXERCISES["cut_a_pass"].solution.read_text(encoding="utf-8")
    path = written("cut_a_pass", text.replace("first = row[0]", "first = 0"), tmp_path)
    found = check("cut_a_pass", path)
    assert passed(found), found
    (told,) = [finding for finding in found if finding.what == "far from 0"]
    assert "Exercise 6" in told.says


# ---- what is counted


def counts(body: str, folder: Path, size: int = 4096) -> tuple[Counts, torch.Tensor]:
    """What `body` moves, with Input x, Output out and n."""
    path = folder / "code.cpp"
    path.write_text(f"void run(Input x, Output out, long n) {{ {body} }}\n")
    harness = folder / "harness.cpp"
    harness.write_text(
        "void exercise(const Arrays& a, const long long* n) "
        "{ run(a.input(0), a.output(1), long(n[0])); }\n"
    )
    x, out = torch.arange(size, dtype=torch.float32), torch.zeros(size)
    return Native(path, harness).counted({"x": x, "out": out}, (size,)), out


@NEEDS_COMPILER
def test_counted_memory(tmp_path):
    lines = 4096 // 16
    copied, out = counts("for (long i = 0; i < n; ++i) out[i] = x[i];", tmp_path)
    assert (copied.read_lines, copied.written_lines) == (lines, lines)
    assert (copied.read_elements, copied.written_elements) == (4096, 4096)
    assert copied.bytes_moved == 8 * 4096
    assert torch.equal(out, torch.arange(4096.0))

    # 512 lines stay; of 513 read in turn, the next one is always the one that has just gone.
    twice = "for (int k = 0; k < 2; ++k) for (long i = 0; i < n; i += 16) s += x[i];"
    assert counts(f"float s = 0; {twice} out[0] = s;", tmp_path, 512 * 16 - 16)[0].read_lines == 511
    assert counts(f"float s = 0; {twice} out[0] = s;", tmp_path, 513 * 16)[0].read_lines == 1026

    moved = "Input p = x + 3; ++p; p += 2; out[1] = *p + p[-1]; out[1] *= 2; out[0] = out[1];"
    stepped, out = counts(moved, tmp_path)
    assert out[:2].tolist() == [22, 22]
    assert (stepped.read_elements, stepped.written_elements) == (4, 3)


# ---- broken code


@pytest.mark.parametrize(
    ("text", "what", "told"),
    [
        ("def block(:\n    pass\n", "runs", "line 1: "),
        ("def block(*a):\n    return a[0] / 0 + b\n", "runs", "line 2: NameError"),
        ("import sys\nsys.exit(3)\n", "runs", "line 2: SystemExit: 3"),
        ("def block(x, *a):\n    return x[0]\n", "33 × 7", "shape [7], expected [33, 7]"),
        ("def block(x, *a):\n    return x.double()\n", "33 × 7", "dtype float64"),
        ("def block(x, *a):\n    return 3.0\n", "33 × 7", "a float came back"),
    ],
)
def test_broken_python(text, what, told, tmp_path):
    found = failed(check("fuse_chain", written("fuse_chain", text, tmp_path)))
    assert found.what == what
    assert told in found.found


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("text", "what", "told"),
    [
        ("void scale_columns(Input x) {\n  int a = 3\n}\n", "compiles", "line 3: expected"),
        ("void scaled(Input x) {}\n", "compiles", "scale_columns"),
        (
            "void scale_columns(Input x, Input s, Output out, long r, long c) {\n"
            "  out[0] =\n    x[-1];\n}\n",
            *("stays inside", "line 3: x[-1] is read; x has 1073 floats"),
        ),
    ],
)
def test_broken_cpp(text, what, told, tmp_path):
    found = failed(check("walk", written("walk", text, tmp_path)))
    assert found.what == what
    assert told in found.found


@NEEDS_COMPILER
def test_broken_functor_names_the_line(tmp_path):
    text = EXERCISES["functor"].solution.read_text(encoding="utf-8")
    found = failed(check("functor", written("functor", text.replace("value(", "valu("), tmp_path)))
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "value(" in row)
    assert found.what == "compiles"
    assert f"line {line}: " in found.found
    assert "Sigmoid::valu(" in found.says


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print('so far')\nwhile True:\n    pass\n", "still running after 2 s"),
        ("import os\nprint('so far')\nos._exit(5)\n", "ended early, with status 5"),
    ],
)
def test_python_that_does_not_return(text, told, tmp_path):
    path = written("fuse_chain", text, tmp_path)
    report = runner.check(EXERCISES["fuse_chain"], path, "cpu", limit=2)
    assert not report.passed
    assert told in failed(report.findings).found
    assert "while your file was run" in failed(report.findings).says
    assert report.printed == "so far"
    if "still" in told:
        assert re.match("line [23]: ", failed(report.findings).found)


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("volatile int* nowhere = nullptr;\n  *nowhere = 3;", "crashed"),
        ("for (;;) out[0] = 1;", "still running after 3 s"),
    ],
)
def test_cpp_that_does_not_return(body, told, tmp_path):
    head = "void scale_columns(Input x, Input s, Output out, long r, long c) {"
    text = f"{head}\n  out[0] = x[0];\n  {body}\n}}\n"
    report = runner.check(EXERCISES["walk"], written("walk", text, tmp_path), "cpu", limit=3)
    assert told in failed(report.findings).found
    assert re.match("after the access in line [23]: ", failed(report.findings).found)


# ---- without a compiler


@pytest.mark.parametrize("name", ["count_bytes", "fuse_or_not"])
def test_python_exercises_need_none(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    report = runner.check(EXERCISES[name], EXERCISES[name].solution, "cpu")
    assert report.passed, report
    assert not report.printed
