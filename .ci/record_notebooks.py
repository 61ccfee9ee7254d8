"""Runs the notebooks and writes what their cells show into them: python .ci/record_notebooks.py

    python .ci/record_notebooks.py notebooks/01_why_fusion.ipynb    one of them

A digest of the cells goes into the file, so that a test finds outputs of other cells than these.
What was measured is this machine's: the numbers on the docs site are as good as it was quiet.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))


def main(paths: list[Path]) -> int:
    """Each in a namespace of its own."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        record(notebook)
        indent = len(text.splitlines()[1]) - len(text.splitlines()[1].lstrip())
        written = json.dumps(notebook, indent=indent, ensure_ascii=False)
        path.write_text(written + "\n", encoding="utf-8")
        print(f"{path.name}: {sum(bool(c.get('outputs')) for c in notebook['cells'])} outputs")
    return 0


def record(notebook: dict[str, Any]) -> None:
    """Fills in the outputs, in place."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = outputs("".join(cell["source"]), names)
    notebook["metadata"]["megafuse"] = {"cells": digest(notebook)}


def digest(notebook: dict[str, Any]) -> str:
    """Of the code, without its outputs."""
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:16]


def outputs(cell: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line."""
    lines = ast.parse(cell).body
    last = lines.pop() if lines and isinstance(lines[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(lines, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    made: list[dict[str, Any]] = []
    if printed.getvalue():
        made.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value)[:2000])}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": _lines(value._repr_html_()), "text/plain": ["a figure"]}
        made.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return made


def _lines(text: str) -> list[str]:
    """The cache's place is this machine's own: it stands as the usual one."""
    from megafuse.runtime import cache

    return text.replace(str(cache.directory()), "~/.cache/megafuse").splitlines(keepends=True)


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    sys.exit(main(given or sorted((ROOT / "notebooks").glob("*.ipynb"))))
