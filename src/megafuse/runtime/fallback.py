"""What cannot be built here: said once, remembered, and the PyTorch reference runs in its place.

A compiler may be there and still fail: no Python.h, too old, a torch whose headers changed, a GPU
that NVRTC does not know, a disk that is full. None of that is the caller's mistake, so what ships
with megafuse then runs unfused. An op whose header lies outside the package is its author's to
mend, and raises.

A source that a compiler refused is refused again as long as compiler, flags, torch and headers are
the same, so its words are kept in the cache (as failure.json, under a key of its own) and the next
process does not try. `megafuse doctor` forgets them where its own builds work, `megafuse cache
--clear` always.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from megafuse.runtime import cache
from megafuse.runtime.cpp import CompileError
from megafuse.runtime.progress import logger


class Unbuildable(RuntimeError):
    """Tells the host runtime that there is no kernel for this call: it runs the reference."""


ERRORS = (CompileError, cache.CacheError, OSError)  # what a build that fails raises

_FILE = "failure.json"
_FIRST_LINES = 6
# Words of failures that pass: the next process may well succeed.
_PASSING = re.compile(
    r"no space left|disk quota|cannot allocate|out of memory|memory exhausted|killed|terminated"
    r"|could not start the compiler|read-only file system|text file busy",
    re.IGNORECASE,
)

_here: dict[str, CompileError] = {}  # what failed in this process, by key
_told: dict[str, object] = {}  # what was said already, and by whom
_strict = False


def get(key: str, filename: str, build: Callable[[Path], None]) -> Path:
    """As cache.get, but what was refused before is not compiled again: the same error is raised."""
    found = cache.find(key, filename)
    if found is not None:
        return found
    before = refused(key)
    if before is not None:
        _here[key] = before
        raise before
    try:
        return cache.get(key, filename, build)
    except CompileError as error:
        _here[key] = error
        if error.command and not _PASSING.search(error.stderr):  # a compiler ran, and refused
            _remember(key, error)
        raise


def refused(key: str) -> CompileError | None:
    """The error that building this ended in before, in this process or an earlier one."""
    return _here.get(key) or _recalled(key)


@contextlib.contextmanager
def reference_instead(label: str) -> Iterator[None]:
    """Around the build of a kernel that ships: if it fails, a warning and Unbuildable.

    One warning a process, for the first kernel: where one fails, most do.
    """
    try:
        yield
    except ERRORS as error:
        if _strict:
            raise
        consequence = f"megafuse runs {label} as its PyTorch reference, unfused, and so every op "
        tell(consequence + "that cannot be built", error, once="kernel")
        raise Unbuildable(str(error)) from error


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Inside, kernels that cannot be built raise: tests must not pass, and benchmarks not time the
    reference under the name of the kernel."""
    global _strict
    before, _strict = _strict, True
    try:
        yield
    finally:
        _strict = before


def is_strict() -> bool:
    """Whether what cannot be built, or is a mistake of ours, should raise."""
    return _strict


def tell(consequence: str, error: BaseException, once: str) -> None:
    """Logs a warning: `consequence`, and the first words of `error` as its reason.

    Further ones of the same kind, `once`, are information: the first stands for them, and only its
    source is kept.
    """
    here = object()
    again = _told.setdefault(once, here) is not here  # in one go: kernels are built by many threads
    if again and isinstance(error, CompileError):
        error.discard_source()
    logger.log(
        logging.INFO if again else logging.WARNING,
        "%s: %s\n`megafuse doctor` tells more, and has it tried again.",
        consequence,
        first_words(error),
    )


def first_words(error: BaseException, fix: bool = True) -> str:
    """What went wrong in a few lines: the compiler's first words, the fix where it is known."""
    if not isinstance(error, CompileError) or not error.command:
        return str(error)
    lines = error.stderr.strip().splitlines()
    # A compiler first says how it came to the place; the reason is the first line with "error".
    start = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
    shown = lines[start : start + _FIRST_LINES]
    parts = [f"{Path(error.command[0]).name} failed.", *(f"    {line[:200]}" for line in shown)]
    if fix and error.fix is not None:
        parts.append(f"To fix: {error.fix}.")
    if error.source is not None and error.source.exists():
        parts.append(f"The source is kept at {error.source}")
    return "\n".join(parts)


def forget() -> int:
    """Removes what is remembered of failures, here and on disk; returns how many there were."""
    _here.clear()
    notes = cache.entries_with(_FILE)
    for key in notes:
        cache.remove(key)
    return len(notes)


# ---- on disk


def _note(key: str) -> str:
    return cache.key("failed", key)


def _remember(key: str, error: CompileError) -> None:
    source = None if error.source is None else str(error.source)
    text = json.dumps({"command": error.command, "stderr": error.stderr, "source": source})
    with contextlib.suppress(cache.CacheError, OSError):
        cache.get(_note(key), _FILE, lambda path: (path.write_text(text, "utf-8"), None)[1])


def _recalled(key: str) -> CompileError | None:
    path = cache.find(_note(key), _FILE)
    if path is None:
        return None
    try:
        said = json.loads(path.read_text("utf-8"))
        source = None if said["source"] is None else Path(said["source"])
        return CompileError(said["command"], said["stderr"], source)
    except (OSError, ValueError, KeyError, TypeError):
        return None
