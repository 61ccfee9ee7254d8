"""Which folder may import which: CONTRIBUTING.md's table of the layout holds for every module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import megafuse

PACKAGE = Path(megafuse.__file__).parent
GUIDE = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"
FACE = "megafuse"  # the files of the package itself
ROW = re.compile(r"^\| `src/megafuse/(\w*)/?` \| [^|]+ \|([^|]*)\|$", re.M)
LEARNERS = {"starter.py", "solution.py"}  # an exercise's: users' code, which imports megafuse


def table() -> dict[str, list[str]]:
    """Folder → what it may import besides itself, in the guide's order."""
    rows = ROW.findall(GUIDE.read_text(encoding="utf-8"))
    return {folder or FACE: allowed.replace(",", " ").split() for folder, allowed in rows}


def modules(folder: str) -> Iterator[Path]:
    inside = PACKAGE.glob("*.py") if folder == FACE else (PACKAGE / folder).rglob("*.py")
    return (path for path in sorted(inside) if path.name not in LEARNERS)


class Import(NamedTuple):
    line: int
    folder: str


def imports(source: str) -> Iterator[Import]:
    """Every import of the package in a module, also in a function or under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports name the package"
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        for name in names:
            package, _, inner = name.partition(".")
            folder = inner.partition(".")[0]
            if package == "megafuse":
                yield Import(node.lineno, folder if folder in table() else FACE)


@pytest.mark.slow
@pytest.mark.parametrize("folder", table())
def test_a_folder_imports_what_the_guide_allows(folder: str) -> None:
    allowed = [folder, *table()[folder]]
    if "all" in allowed:
        return
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in modules(folder)
        for line, name in imports(path.read_text(encoding="utf-8"))
        if name not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_the_guide_has_every_folder() -> None:
    """And those that its lines name stand above them, so that no two import each other."""
    held = {p.relative_to(PACKAGE).parts[0] for p in PACKAGE.glob("*/*") if p.name[0] not in "._"}
    assert held - {"__pycache__"} <= set(table())
    above: list[str] = []
    for folder, allowed in table().items():
        assert set(allowed) - {"all"} <= set(above), f"{folder}'s line"
        above.append(folder)
    assert table()[FACE] == ["all"]


def test_every_kind_of_import_is_seen() -> None:
    source = """
import megafuse
import torch, megafuse.runtime.cache as c
from megafuse import nn, __version__
if TYPE_CHECKING:
    from megafuse.registry.declared import Op
def late():
    from megafuse.bench import run
"""
    seen = [name for _, name in imports(source)]
    assert sorted(seen) == sorted([FACE, "runtime", "nn", FACE, "registry", "bench"])
