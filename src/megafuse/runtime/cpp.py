"""C++ source to shared object, with the compiler that the system has."""

from __future__ import annotations

import functools
import json
import os
import platform
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


_SHOWN_LINES = 40

_NONE_FOUND = (
    "no C++ compiler found: tried $CXX, then c++, g++ and clang++ on PATH; "
    "install one (Debian/Ubuntu: apt install g++, Fedora: dnf install gcc-c++, "
    "macOS: xcode-select --install, Windows: MinGW-w64 g++ or clang++), or set CXX to its path"
)


def find() -> Compiler | None:
    """The C++ compiler: $CXX (which may hold arguments), else c++, g++ or clang++ on PATH.

    Only one that answers `--version` counts. On Windows only g++ and clang++ are supported:
    MSVC's cl takes other options and is passed over.
    """
    return _find(os.environ.get("CXX", "").strip(), os.environ.get("PATH", ""))


def compile_shared(
    source: str,
    out: Path,
    *,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> None:
    """Compiles C++ `source` to the shared object `out`; raises CompileError.

    A library is a name ("dl" becomes -ldl), or a path or option that is passed as it is.
    """
    compiler = _required()
    folder = Path(tempfile.mkdtemp(prefix="megafuse-"))
    file = folder / "source.cpp"
    file.write_text(source, encoding="utf-8")
    # Windows: DLLs carry their runtime, since Python does not look for it on PATH.
    kind = ["-shared", "-static"] if sys.platform == "win32" else ["-shared", "-fPIC"]
    command = [
        *compiler.command,
        *kind,
        *flags,
        *(_search(path) for path in include),
        str(file),
        "-o",
        str(out),
        *(_link(name) for name in libraries),
    ]
    try:
        ran = _run(command)
    except OSError as error:  # it was there when find() looked
        raise CompileError(command, f"could not start the compiler: {error}", file) from error
    if ran.returncode != 0:
        raise CompileError(command, ran.stderr or f"exit status {ran.returncode}", file)
    shutil.rmtree(folder, ignore_errors=True)


def kernel_flags() -> list[str]:
    """The flags for CPU kernels: this CPU's instructions, and the arithmetic as it is written.

    No fast-math and no contraction: the kernels call fma themselves where they mean it, so the
    result does not hang on the compiler. Which flags the compiler takes is tried once per
    compiler and CPU, and remembered in the cache.
    """
    compiler = _required()
    return list(_kernel_flags(compiler, str(cache.directory())))


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
    candidates = ["g++", "clang++"] if sys.platform == "win32" else ["c++", "g++", "clang++"]
    for name in candidates:
        compiler = _probed([name], path)
        if compiler is not None:
            return compiler
    return None


def _split(cxx: str, path: str) -> list[str]:
    if shutil.which(cxx, path=path):  # one program, perhaps with spaces in its path
        return [cxx]
    try:
        return shlex.split(cxx, posix=sys.platform != "win32")
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

_ARITHMETIC = (
    "-O3",
    "-std=c++17",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fopenmp-simd",
)
_LOOP = "void twice(float* x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2.0f; }\n"
_WITH_AVX512 = "#ifndef __AVX512F__\n#error no AVX-512\n#endif\n" + _LOOP


@functools.cache
def _kernel_flags(compiler: Compiler, directory: str) -> tuple[str, ...]:
    def probe(out: Path) -> None:
        out.write_text(json.dumps(_accepted_flags(compiler)), encoding="utf-8")

    key = cache.key("kernel_flags 2", *compiler.command, compiler.version, cpu_features())
    flags: list[str] = json.loads(cache.get(key, "flags.json", probe).read_text(encoding="utf-8"))
    return tuple(flags)


def _accepted_flags(compiler: Compiler) -> list[str]:
    flags = list(_ARITHMETIC)
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
    with tempfile.TemporaryDirectory(prefix="megafuse-") as folder:
        file = Path(folder, "probe.cpp")
        file.write_text(source, encoding="utf-8")
        out = str(file.with_suffix(".o"))
        command = [*compiler.command, *flags, "-Werror", "-c", str(file), "-o", out]
        return _run(command).returncode == 0


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
