"""The headers a source includes: their text for cache keys, or pasted in for reading.

What counts is `#include "x.h"` that is found as the compiler finds it: by its path, beside the file
that includes it, or in KERNELS. `<system>` headers belong to the compiler, whose version is in the
keys. Only headers of KERNELS are pasted.
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
    """Name and text of every header that `source` reaches, in order of first mention.

    It goes into cache keys, so that editing one op's header, wherever it lies, rebuilds what
    includes it and nothing else.
    """
    texts: dict[Path, str] = {}
    _collect(source, KERNELS, texts)
    root = KERNELS.resolve()
    names = [p.relative_to(root).as_posix() if p.is_relative_to(root) else str(p) for p in texts]
    each = zip(names, texts.values(), strict=True)
    return "".join(f"// {name}: {len(text)}\n{text}" for name, text in each)


def ships(header: str) -> bool:
    """Whether a functor's header is one of the package's own."""
    path = (KERNELS / header).resolve()
    return path.is_relative_to(KERNELS.resolve()) and path.is_file()


def flatten(source: str) -> str:
    """`source` as one file: each kernel header pasted in where it is first included."""
    return "".join(_pasted(source, KERNELS, _Pasting()))


def _find(name: str, beside: Path) -> Path | None:
    """The header that `#include "name"` means in a file of folder `beside`; None if not found."""
    for folder in (beside, KERNELS):
        path = (folder / name).resolve()
        if path.is_file():
            return path
    return None


def _find_ours(name: str, beside: Path) -> Path | None:
    """The same, None also where it is not a header of KERNELS."""
    path = _find(name, beside)
    return path if path is not None and path.is_relative_to(KERNELS.resolve()) else None


def _collect(source: str, folder: Path, texts: dict[Path, str]) -> None:
    for match in _INCLUDE.finditer(source):
        path = _find(match[1], folder)
        if path is not None and path not in texts:
            texts[path] = path.read_text(encoding="utf-8", errors="surrogateescape")
            _collect(texts[path], path.parent, texts)


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
        path = _find_ours(include[1], folder) if include else None
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
