"""CPU kernels in less time: GCC parses their headers once, and links no C++ library.

A kernel is 20 lines of its own and 1,500 of headers. GCC can write what it made of those to a file
of 8 MB, and reads that in place of their text. The machine code is the same. It saves 27 ms of each
kernel's 150 to 500, and making the file takes 240: it is made along with the host runtime, and else
by a process that has built WORTH kernels without it. Not linking the C++ library, which no kernel
of ours calls, and -pipe save 20 ms more.

Whatever goes wrong with that fails no build: the kernel is compiled the plain way instead.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from megafuse.runtime import cache, cpp, sources
from megafuse.runtime.progress import logger

WORTH = 8
# What kernels of any op include, and generated ones.
HEADERS = ("draws.h", "graph_short_rows_cpu.h", "sum_cpu.h", "short_rows_cpu.h")
FILE = "kernels.h.gch"

_GCC = re.compile(r"(\S*[-/])?[gc]\+\+\S* \(")  # c++ (Debian 12.2.0-14) 12.2.0; clang's has no (
_SHORTER = ("-pipe", "-nodefaultlibs")
_LIBRARIES = ("m", "gcc", "c")
_CHECKED_AGAIN = 300.0  # seconds: within cache_limit.GRACE nobody removes what was looked at

# By the place of the cache and the header's key:
_missed: Counter[tuple[Path, str]] = Counter()  # kernels that were built without it
_tried: set[tuple[Path, str]] = set()
_found: dict[tuple[Path, str], tuple[Path, float]] = {}  # and when its checksum was looked at

_off = False  # it failed where the plain way did not


def compile_kernel(source: str, out: Path, flags: Sequence[str]) -> None:
    """A kernel whose source ships with the package; raises as cpp.compile_shared does."""
    include = [sources.KERNELS]
    shorter = not _off and is_gcc()
    if shorter:
        quick = [*flags, *_SHORTER, *_included(flags)]
        try:
            cpp.compile_shared(source, out, include=include, flags=quick, libraries=_LIBRARIES)
            return
        except cpp.CompileError as error:
            error.discard_source()
    cpp.compile_shared(source, out, include=include, flags=flags)
    if shorter:
        _give_up(flags)


def make_ahead() -> None:
    """The header, before there is a kernel that asks for it; nothing where there can be none."""
    if is_gcc():
        with contextlib.suppress(cpp.CompileError, cache.CacheError, OSError):
            _made(cpp.kernel_flags())


def _included(flags: Sequence[str]) -> list[str]:
    """The option that reads the header, where there is one or it is time to make it."""
    here = cache.directory(), _key(flags)
    path, looked = _found.get(here, (None, 0.0))
    if path is None or not path.exists() or time.monotonic() - looked > _CHECKED_AGAIN:
        path = cache.find(here[1], FILE)
        if path is not None:
            _found[here] = path, time.monotonic()
    if path is None:
        _missed[here] += 1
        if _missed[here] >= WORTH and here not in _tried:
            _tried.add(here)
            path = _made(flags)
    # GCC looks for kernels.h.gch where it is told to include kernels.h, which need not exist.
    return [] if path is None else ["-include", str(path.with_suffix(""))]


def _made(flags: Sequence[str]) -> Path | None:
    def build(out: Path) -> None:
        cpp.compile_header(_text(), out, include=[sources.KERNELS], flags=flags)

    try:
        return cache.get(_key(flags), FILE, build)
    except (cpp.CompileError, cache.CacheError, OSError) as error:
        if isinstance(error, cpp.CompileError):
            error.discard_source()
        logger.debug("megafuse: no precompiled header: %s", error)
        return None


def _give_up(flags: Sequence[str]) -> None:
    """The header may be damaged or made by another GCC, or a library not there: no more of that in
    this process, and the next one makes the header anew."""
    global _off
    _off = True
    logger.debug("megafuse: kernels compile without a precompiled header only")
    with contextlib.suppress(cache.CacheError, OSError):
        cache.remove(_key(flags))


def is_gcc() -> bool:
    compiler = cpp.find()
    return compiler is not None and _GCC.match(compiler.version) is not None


def _text() -> str:
    return "".join(f'#include "{name}"\n' for name in HEADERS)


def _key(flags: Sequence[str]) -> str:
    compiler = cpp.find()
    assert compiler is not None
    text = _text()
    return cache.key(
        "precompiled",
        text,
        sources.closure(text),
        *flags,
        *compiler.command,
        compiler.version,
        cpp.cpu_features(),
    )
