"""Code that does not compile, return or stay alive does the checker no harm, and is explained."""

from __future__ import annotations

import re

import pytest

from exercises.checked import EXERCISES, NEEDS_COMPILER, check, failed, written
from megafuse.learn.exercises import runner

# Each compiles, or starts a process of its own.
pytestmark = pytest.mark.slow


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
