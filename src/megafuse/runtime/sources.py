"""The kernel headers a source includes: their text for cache keys, or pasted in for reading.

Only `#include "x.h"` that lies in KERNELS counts; `<system>` headers and quoted names that are
not there are the compiler's business.
"""

from __future__ import annotations

import re
from pathlib import Path

KERNELS: Path = Path(__file__).resolve().parent.parent / "kernels"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b")
_OPENS = re.compile(r"^[ \t]*#[ \t]*if")
_CLOSES = re.compile(r"^[ \t]*#[ \t]*endif\b")


def closure(source: str) -> str:
    """Name and text of every kernel header that `source` reaches, in order of first mention.

    It goes into cache keys, so that editing one op's header rebuilds only what includes it.
    """
    texts: dict[str, str] = {}
    _collect(source, KERNELS, texts)
    return "".join(f"// {name}: {len(text)}\n{text}" for name, text in texts.items())


def flatten(source: str) -> str:
    """`source` as one file: each kernel header pasted in where it is first included."""
    return "".join(_pasted(source, KERNELS, _Pasting()))


def _find(name: str, beside: Path) -> Path | None:
    """The header that `#include "name"` means in a file of folder `beside`; None if not ours."""
    root = KERNELS.resolve()
    for folder in (beside, KERNELS):
        path = (folder / name).resolve()
        if path.is_relative_to(root) and path.is_file():
            return path
    return None


def _collect(source: str, folder: Path, texts: dict[str, str]) -> None:
    for match in _INCLUDE.finditer(source):
        path = _find(match[1], folder)
        if path is None:
            continue
        name = path.relative_to(KERNELS.resolve()).as_posix()
        if name not in texts:
            texts[name] = path.read_text(encoding="utf-8")
            _collect(texts[name], path.parent, texts)


class _Pasting:
    """Which headers are already in the text.

    A header first included under an `#if` may not be seen by the compiler there, so it is
    pasted again at its next include, with a guard; any other is pasted once and bare.
    """

    def __init__(self) -> None:
        self.surely: set[Path] = set()
        self.perhaps: set[Path] = set()
        self.open: list[Path] = []


def _pasted(source: str, folder: Path, state: _Pasting, conditional: bool = False) -> list[str]:
    lines: list[str] = []
    depth = int(conditional)
    for line in source.splitlines(keepends=True):
        depth += bool(_OPENS.match(line)) - bool(_CLOSES.match(line))
        include = _INCLUDE.match(line)
        path = _find(include[1], folder) if include else None
        if path is not None:
            lines += _header(path, state, depth > 0)
        elif not (state.open and _PRAGMA_ONCE.match(line)):
            lines.append(line)
    return lines


def _header(path: Path, state: _Pasting, conditional: bool) -> list[str]:
    if path in state.surely or path in state.open:
        return []
    guarded = conditional or path in state.perhaps
    (state.perhaps if conditional else state.surely).add(path)
    state.open.append(path)
    text = path.read_text(encoding="utf-8")
    lines = _pasted(text, path.parent, state, conditional)
    state.open.pop()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    name = path.relative_to(KERNELS.resolve()).as_posix()
    lines = [f"// ---- {name} ----\n", *lines, f"// ---- end of {name} ----\n"]
    if guarded:
        macro = "MF_PASTED_" + re.sub(r"\W", "_", name)
        lines = [f"#ifndef {macro}\n", f"#define {macro}\n", *lines, "#endif\n"]
    return lines
