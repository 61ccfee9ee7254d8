"""The notebooks run from top to bottom, and hold what people wrote and what a command recorded."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megafuse.runtime import cpp

# Each runs a whole notebook.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

# What a notebook shows for the value of a cell's last line.
SHOW = """
def show(value):
    if value is not None:
        print(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
"""


def cells(path: Path, kind: str = "code") -> list[str]:
    read = json.loads(path.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in read if cell["cell_type"] == kind]


def shown(cell: str) -> str:
    """The cell as a script: its last line, if it is an expression, is shown."""
    lines = ast.parse(cell).body
    if lines and isinstance(lines[-1], ast.Expr):
        last = lines[-1]
        lines[-1] = ast.Expr(ast.Call(ast.Name("show"), [last.value], []))
        return "\n".join(ast.unparse(line) for line in lines)
    return cell


def test_there_are_some():
    assert len(NOTEBOOKS) >= 2


@EACH
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_runs(path, tmp_path):
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n\n".join([SHOW, *map(shown, cells(path))]), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=path.parent,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr
    assert ran.stdout.count("\n") > 10


def recorder():
    spec = importlib.util.spec_from_file_location("recorder", ROOT / ".ci/record_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@EACH
def test_outputs_are_those_of_these_cells(path):
    """Made by `python .ci/record_notebooks.py`, which leaves a digest of the cells that it ran."""
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    for number, cell in enumerate(notebook["cells"]):
        assert cell["id"] == f"{path.stem[:2]}-{number:02d}"
        assert cell.get("execution_count") is None
    assert set(notebook["metadata"]) == {"kernelspec", "language_info", "megafuse"}
    assert notebook["metadata"]["megafuse"]["cells"] == recorder().digest(notebook), (
        f"the cells of {path.name} have changed: python .ci/record_notebooks.py {path}"
    )
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) / 2
    assert "Traceback" not in json.dumps(notebook)


def test_the_recorder_records_prints_and_figures():
    made = recorder()
    notebook = {
        "metadata": {},
        "cells": [
            {"cell_type": "code", "source": ["x = 3\n", "print(x)\n", "x + 1"]},
            {"cell_type": "code", "source": ["x = 4"]},
        ],
    }
    before = made.digest(notebook)
    made.record(notebook)
    printed, value = notebook["cells"][0]["outputs"]
    assert (printed["text"], value["data"]["text/plain"]) == (["3\n"], ["4"])
    assert notebook["cells"][1]["outputs"] == []
    assert made.digest(notebook) == before


@EACH
def test_links_exist(path):
    import re

    links = {link for text in cells(path, "markdown") for link in re.findall(r"\]\(([^)#]+)", text)}
    assert not {link for link in links if not (path.parent / link).exists()}
