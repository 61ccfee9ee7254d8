"""C++ source to shared object, with the compiler that the system has: g++ or clang++, on Linux and
macOS. (Only Linux is tested. On Windows torch is built with MSVC, whose C++ neither of them can
link with, so there no compiler is looked for.)"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megafuse.runtime import cache, sources
from megafuse.runtime.progress import logger


@dataclass(frozen=True)
class Compiler:
    """A compiler that ran: its program, the arguments that $CXX gave it, and what it says it is."""

    path: str
    version: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        return [self.path, *self.arguments]


class CompileError(RuntimeError):
    """A compiler refused the source, or there is none. `source` is kept so that it can be read."""

    def __init__(self, command: Sequence[str], stderr: str, source: Path | None = None) -> None:
        super().__init__(command, stderr, source)  # as given, so that it pickles
        self.command = list(command)
        self.stderr = stderr
        self.source = source

    def __str__(self) -> str:
        lines = self.stderr.strip().splitlines()
        shown = lines[:_SHOWN_LINES]
        if len(lines) > len(shown):
            shown.append(f"… {len(lines) - len(shown)} more lines in the error's .stderr")
        if not self.command:
            return "\n".join(shown)
        parts = ["could not compile this source; the compiler said:", *shown]
        parts.append(f"command: {shlex.join(self.command)}")
        if self.source is not None:
            parts.append(f"source kept at: {self.source}")
        return "\n".join(parts)

    def discard_source(self) -> None:
        """Removes the source that was kept, and the folder that was made for it."""
        if self.source is not None and self.source.parent.name.startswith(PREFIX):
            with contextlib.suppress(OSError):  # a folder that holds anything else stays
                self.source.unlink()
                self.source.parent.rmdir()

    @property
    def fix(self) -> str | None:
        """What to do about it, where the compiler's words tell; else None."""
        return next((fix for words, fix in _FIXES if re.search(words, self.stderr)), None)


_SHOWN_LINES = 40
PREFIX = "megafuse-"  # of temporary folders

INSTALL = (
    "apt install g++ (Debian, Ubuntu) | dnf install gcc-c++ (Fedora) | xcode-select --install "
    "(macOS); or set CXX to a compiler"
)
NOT_ON_WINDOWS = "fused kernels are for Linux and macOS, and this is Windows: use WSL"

# What compilers say, and what to do about it; the first that fits counts.
_FIXES = (
    ("No space left|Disk quota", "make room in the temporary folder and in the kernel cache"),
    ("Killed|annot allocate memory|out of memory|memory exhausted", "free some memory"),
    (
        r"Python\.h'?(: No such| file not)",
        "apt install python3-dev (Debian, Ubuntu) | dnf install python3-devel (Fedora)",
    ),
    (r"std=c\+\+|-std=gnu\+\+", "install a newer compiler: g++ 12 and clang++ 14 are tested"),
    (r"cc1plus|cannot find -lstdc\+\+|'?\bc(math|stdint|stddef)'?(: No such| file not)", INSTALL),
    (
        r"cannot find \S*crt\w\.o|\b(stdlib|features|limits)\.h'?(: No such| file not)",
        "apt install libc6-dev (Debian, Ubuntu) | dnf install glibc-devel (Fedora)",
    ),
)

_NONE_FOUND = f"no C++ compiler found: tried $CXX, then c++, g++ and clang++ on PATH; {INSTALL}"


def find() -> Compiler | None:
    """The C++ compiler: $CXX (which may hold arguments), else c++, g++ or clang++ on PATH.

    Only one that answers `--version` counts; None where there is none, and on Windows.
    """
    if sys.platform == "win32":
        return None
    return _find(os.environ.get("CXX", "").strip(), os.environ.get("PATH", ""))


def compile_shared(
    source: str,
    out: Path,
    *,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> None:
    """Compiles C++ `source` to the shared object `out`; raises CompileError, and then keeps the
    source in a folder that the error names.

    A library is a name ("dl" becomes -ldl), or a path or option that is passed as it is.
    """
    _compile(
        source,
        "source.cpp",
        ["-shared", "-fPIC", *flags, *(_search(path) for path in include)],
        ["-o", str(out), *(_link(name) for name in libraries)],
    )


def compile_header(
    source: str, out: Path, *, include: Sequence[Path] = (), flags: Sequence[str] = ()
) -> None:
    """GCC's precompiled header of `source`, for what compile_shared compiles with these flags."""
    searched = (_search(path) for path in include)
    _compile(source, "source.h", ["-fPIC", *flags, *searched, "-x", "c++-header"], ["-o", str(out)])


def _compile(source: str, name: str, before: Sequence[str], after: Sequence[str]) -> None:
    """Runs the compiler on a file of this name, between these arguments."""
    compiler = _required()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    file = folder / name
    command = [*compiler.command, *before, str(file), *after]
    keep = False
    try:
        file.write_text(source, encoding="utf-8")
        ran = _started(command)
        keep = ran.returncode != 0
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        raise CompileError(command, ran.stderr or f"exit status {ran.returncode}", file)


def module_flags() -> list[str]:
    """For linking a Python module: where the linker wants every name found, macOS, it is told that
    the interpreter has Python's."""
    return ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []


def kernel_flags() -> list[str]:
    """The flags for CPU kernels: this CPU's instructions, and the arithmetic as it is written.

    No fast-math and no contraction: the kernels call fma themselves where they mean it, so every
    compiler gives the same result. Which flags the compiler takes is tried once per
    compiler and CPU, and remembered in the cache.
    """
    flags = _kernel_flags(_required(), str(cache.directory()))
    if _hasty:
        return [*(flag for flag in flags if flag not in ("-O3", "-fweb")), HASTY]
    return list(flags)


HASTY = "-Og"  # GCC 12 takes 0.85 of the time of -O1 for it, and 0.4 of that of -O3
_hasty = False


def compile_hastily(hasty: bool) -> None:
    """From now on CPU kernels are compiled in less than half of the time and are slow: for the
    fuzzer, which runs each of them once."""
    global _hasty
    _hasty = hasty


@functools.cache
def cpu_features() -> str:
    """This CPU's model and instruction sets, as one line.

    Part of the cache key of what -march=native made: a home directory may be shared by machines.
    """
    if sys.platform == "linux":
        found = _cpuinfo()
    elif sys.platform == "darwin":
        found = _sysctl()
    else:
        found = ""
    return f"{platform.machine()}; {found or platform.processor() or 'unknown'}"


# ---- finding and running


def _required() -> Compiler:
    compiler = find()
    if compiler is None:
        raise CompileError([], _NONE_FOUND)
    return compiler


@functools.cache
def _find(cxx: str, path: str) -> Compiler | None:
    if cxx:
        compiler = _probed(_split(cxx, path), path)
        if compiler is not None:
            return compiler
        logger.warning("CXX=%r does not run with --version; trying c++, g++ and clang++", cxx)
    for name in ("c++", "g++", "clang++"):
        compiler = _probed([name], path)
        if compiler is not None:
            return compiler
    return None


def _split(cxx: str, path: str) -> list[str]:
    if shutil.which(cxx, path=path):  # one program, perhaps with spaces in its path
        return [cxx]
    try:
        return shlex.split(cxx)
    except ValueError:  # an open quote
        return [cxx]


def _probed(command: list[str], path: str) -> Compiler | None:
    program = shutil.which(command[0], path=path)
    if program is None:
        return None
    try:
        ran = _run([program, *command[1:], "--version"], timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if ran.returncode != 0 or not ran.stdout.strip():
        return None
    return Compiler(program, ran.stdout.strip().splitlines()[0], tuple(command[1:]))


def _started(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return _run(command)
    except OSError as error:  # it was there when find() looked
        raise CompileError(command, f"could not start the compiler: {error}") from error


def _run(command: list[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        timeout=timeout,
        check=False,
    )


def _search(folder: Path) -> str:
    # Kernel headers are found for `#include "math.h"` alone: with -I they would also stand in for
    # the system's <math.h>, which <cmath> includes.
    return f"-iquote{folder}" if folder == sources.KERNELS else f"-I{folder}"


def _link(library: str) -> str:
    is_name = not library.startswith("-") and Path(library).name == library
    return f"-l{library}" if is_name else library


# ---- flags

_USUAL = (
    "-O3",
    "-std=c++17",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fopenmp-simd",
    "-fno-exceptions",  # kernels throw nothing, and have no library that could
)
_LOOP = "void twice(float* x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2.0f; }\n"
_WITH_AVX512 = "#ifndef __AVX512F__\n#error no AVX-512\n#endif\n" + _LOOP


@functools.cache
def _kernel_flags(compiler: Compiler, directory: str) -> tuple[str, ...]:
    def probe(out: Path) -> None:
        out.write_text(json.dumps(_accepted_flags(compiler)), encoding="utf-8")

    key = cache.key("kernel_flags 3", *compiler.command, compiler.version, cpu_features())
    flags: list[str] = json.loads(cache.get(key, "flags.json", probe).read_text(encoding="utf-8"))
    return tuple(flags)


def _accepted_flags(compiler: Compiler) -> list[str]:
    plain = _compiled(compiler, [], _LOOP)
    if plain.returncode != 0:  # it refuses everything, so this says nothing about flags
        raise CompileError(plain.args, plain.stderr or f"exit status {plain.returncode}")
    flags = list(_USUAL)
    if not _accepts(compiler, flags):
        flags = [flag for flag in flags if _accepts(compiler, [flag])]
    x86 = platform.machine().lower() in ("x86_64", "amd64", "i686", "x86")
    # On Arm -march=native names the architecture alone; -mcpu=native also tunes for the core.
    for native in ("-march=native",) if x86 else ("-mcpu=native", "-march=native"):
        if _accepts(compiler, [*flags, native]):
            flags.append(native)
            break
    # Gives each vector of an unrolled loop registers of its own (kernels/pointwise_cpu.h).
    if not x86 and _accepts(compiler, [*flags, "-fweb"]):
        flags.append("-fweb")
    # Compilers stop at 256 bits by default, to spare old cores' clocks.
    wide = "-mprefer-vector-width=512"
    if x86 and _accepts(compiler, [*flags, wide], _WITH_AVX512):
        flags.append(wide)
    return flags


def _accepts(compiler: Compiler, flags: Sequence[str], source: str = _LOOP) -> bool:
    return _compiled(compiler, [*flags, "-Werror"], source).returncode == 0


def _compiled(
    compiler: Compiler, flags: Sequence[str], source: str
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        file = Path(folder, "probe.cpp")
        file.write_text(source, encoding="utf-8")
        out = str(file.with_suffix(".o"))
        return _started([*compiler.command, *flags, "-c", str(file), "-o", out])


# ---- the CPU

_CPUINFO_FIELDS = {
    *("vendor_id", "cpu family", "model", "model name", "flags"),  # x86
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),  # Arm
    *("isa", "uarch", "cpu", "features"),  # RISC-V, POWER, s390x
}


def _cpuinfo() -> str:
    """The fields that name model and features; each distinct value once, for unlike cores."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _CPUINFO_FIELDS:
            found.setdefault(name.strip(), set()).add(_ordered(name.strip(), value))
    return "; ".join(f"{name}={' | '.join(sorted(found[name]))}" for name in sorted(found))


def _ordered(name: str, value: str) -> str:
    words = value.split()
    return " ".join(sorted(words) if name.lower() in ("flags", "features") else words)


def _sysctl() -> str:
    names = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features")
    try:
        ran = _run(["sysctl", *names, "hw.optional"], timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(sorted(ran.stdout.splitlines()))  # a name this CPU lacks prints nothing
