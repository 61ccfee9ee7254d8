"""What this machine has, what will run where, and the fix for each thing that is missing."""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass

import torch

from megafuse.runtime import build, cache, cpp, fallback, loader, nvrtc

_INSTALL_TORCH = "pip install torch with CUDA: pytorch.org/get-started gives the command"
_REPORT = "none known: please report it, with the text above; the reference runs meanwhile"
_OTHER_CACHE = "set MEGAFUSE_CACHE to a directory that only you can write"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `fix` says what to do where something is missing, else it is None."""

    what: str
    found: str
    fix: str | None = None


@dataclass(frozen=True)
class Report:
    """What `doctor` found. Print it, or ask `.ok`."""

    findings: tuple[Finding, ...]
    cpu: str  # what CPU tensors run
    cuda: str  # what CUDA tensors run

    @property
    def ok(self) -> bool:
        """Nothing is missing: every processor of this machine runs fused kernels."""
        return all(finding.fix is None for finding in self.findings)

    def __str__(self) -> str:
        return _text(self, min(shutil.get_terminal_size().columns, 100))


def doctor() -> Report:
    """Looks at GPU, driver, torch, compilers and cache, and tries a small build of each kind.

    It never raises. The builds take some seconds the first time; what works is kept in the cache.
    Where they work, what failed to compile earlier is forgotten: the next call tries it again.

    >>> print(megafuse.doctor())
    """
    gpu, has_gpu = _gpu()
    compile_cuda = _nvrtc(has_gpu)
    compiler = _compiler()
    place = _cache()
    looked_at = [gpu, *_torch(), compile_cuda, compiler]
    if compiler.fix is None and place.fix is None:
        built = [_kernels(), _host()]
        if all(finding.fix is None for finding in built):
            built += _earlier()
        looked_at += built
    findings = (*looked_at, place, _threads())
    return Report(findings, *_runs(has_gpu, findings))


# ---- what will run where


def _runs(has_gpu: bool, findings: tuple[Finding, ...]) -> tuple[str, str]:
    """What CPU and CUDA tensors run. CUDA launches go through the host runtime, which is C++."""
    missing = {finding.what for finding in findings if finding.fix is not None}
    reasons = {
        "C++ compiler": "there is no C++ compiler",
        "cache": "the kernel cache cannot be used",
        "host runtime": "the host runtime cannot be built",
        "CPU kernels": "C++ cannot be compiled and run",
        "NVRTC": "NVRTC cannot be used",
    }
    if sys.platform == "win32":
        reasons["C++ compiler"] = "fused kernels are for Linux and macOS"

    def runs(fused: str, needs: list[str]) -> str:
        why = [reasons[what] for what in needs if what in missing]
        return f"reference: plain PyTorch, unfused, because {why[0]}" if why else fused

    # What stops a small C++ kernel, such as a disk mounted noexec, stops the host runtime too.
    both = ["C++ compiler", "cache", "host runtime", "CPU kernels"]
    cpu = runs("fused C++ kernels", both)
    if not has_gpu:
        return cpu, "no GPU that torch can use"
    return cpu, runs("fused CUDA kernels", [*both, "NVRTC"])


# ---- each thing


def _gpu() -> tuple[Finding, bool]:
    """The GPUs and their driver, and whether torch can use them."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    driver = _nvidia_smi("driver_version")
    version = f"driver {driver[0]}" if driver else "driver version unknown"
    if usable:
        return Finding("GPU", "\n".join([*_devices(), version])), True
    names = _nvidia_smi("name")
    if not names:
        return Finding("GPU", "none found"), False
    found = f"{', '.join(names)}, {version}; torch cannot use it"
    if torch.version.cuda is None:
        return Finding("GPU", found + ", being built for the CPU", _INSTALL_TORCH), False
    reason = str(said[0].message).splitlines()[0] if said else "torch gives no reason"
    fix = f"update the NVIDIA driver to one for CUDA {torch.version.cuda}, and try nvidia-smi"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        reason, fix = "CUDA_VISIBLE_DEVICES hides it", "unset CUDA_VISIBLE_DEVICES"
    return Finding("GPU", f"{found}: {reason}", fix), False


def _devices() -> list[str]:
    lines = []
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        memory = found.total_memory / 2**30
        lines.append(
            f"{index}: {found.name}, {memory:.0f} GiB, compute {found.major}.{found.minor}"
        )
    return lines


def _nvidia_smi(field: str) -> list[str]:
    """One line per GPU of what the driver's own tool says; none where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return ran.stdout.strip().splitlines()


def _torch() -> list[Finding]:
    cuda = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
    found = [Finding("torch", f"{torch.__version__}, {cuda}{loader.untested()}")]
    if torch.version.hip is not None:
        found.append(Finding("ROCm", "not supported: GPU tensors are not ours", _INSTALL_TORCH))
    return found


def _nvrtc(has_gpu: bool) -> Finding:
    version = nvrtc.version()
    found = "not found" if version is None else ".".join(map(str, version))
    problem = nvrtc.problem()
    if problem is not None and not has_gpu:  # nothing to fix: there is nothing to run them on
        return Finding("NVRTC", f"{found}; not needed without a GPU")
    if problem is not None:
        what, _, fix = problem.rpartition(": ")
        return Finding("NVRTC", f"{found}: {what}", fix)
    for arch in _architectures() if has_gpu else ["sm_90"]:
        try:
            nvrtc.compile_cubin('extern "C" __global__ void probe() {}', arch, [])
        except Exception as error:
            return _refused("NVRTC", f"{found} does not compile for {arch}", error)
    return Finding("NVRTC", f"{found}, compiles CUDA kernels")


def _architectures() -> list[str]:
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return sorted({f"sm_{each.major}{each.minor}" for each in found})


def _compiler() -> Finding:
    what = "C++ compiler"
    if sys.platform == "win32":
        return Finding(what, "not looked for", cpp.NOT_ON_WINDOWS)
    compiler = cpp.find()
    if compiler is None:
        return Finding(what, "none on PATH, and CXX names none", cpp.INSTALL)
    return Finding(what, f"{compiler.version}\n{' '.join(compiler.command)}")


def _kernels() -> Finding:
    """Builds a small kernel, and runs it: a disk may be mounted so that nothing on it runs."""
    what = "CPU kernels"
    try:
        library = build.cpu_object('extern "C" int probe() { return 42; }\n', "a probe")
        ran = ctypes.CDLL(str(library)).probe() == 42
    except OSError as error:
        return _refused(what, "cannot be run", loader.explained(error))
    except Exception as error:
        return _refused(what, "do not compile", error)
    if not ran:
        return Finding(what, "the probe ran and was wrong", _REPORT)
    return Finding(what, "compile and run here")


def _host() -> Finding:
    """It is there, or what it needs is: a compiler for C++20, the headers of Python and torch."""
    what = "host runtime"
    if loader.loaded():
        return Finding(what, "loaded in this process")
    built = loader.built()
    if built is not None:
        key = built.parent.name
        at = f"{key[:2]}/{key[:12]}…/{built.name} in the cache"
        return Finding(what, f"built for this torch ({at})")
    refused = loader.refused()
    try:
        loader.headers_work()
    except Exception as error:
        return _refused(what, "the headers of Python and torch do not compile", error)
    if refused is not None:
        fallback.forget()
        return _refused(what, f"did not compile last time{loader.untested()}", refused)
    return Finding(what, "not built for this torch yet; the first call compiles it, once")


def _refused(what: str, found: str, error: Exception) -> Finding:
    if isinstance(error, cache.CacheError):
        said, _, remedy = str(error).rpartition("; ")
        return Finding(what, f"{found}: {said}", remedy)
    fix = error.fix if isinstance(error, cpp.CompileError) else None
    return Finding(what, f"{found}: {fallback.first_words(error, fix=False)}", fix or _REPORT)


def _earlier() -> list[Finding]:
    """What did not compile earlier, forgotten now that builds work."""
    forgotten = fallback.forget()
    if forgotten == 0:
        return []
    plural = "kernel that did not compile is" if forgotten == 1 else "that did not compile are"
    return [Finding("earlier", f"{forgotten} {plural} forgotten: the next call tries again")]


def _cache() -> Finding:
    try:
        place = cache.directory()
        entries, size = cache.size()
    except cache.CacheError as error:
        what, _, fix = str(error).rpartition("; ")
        return Finding("cache", what, fix)
    except OSError as error:
        return Finding("cache", f"cannot be read: {error}", _OTHER_CACHE)
    if not os.access(place, os.W_OK):
        return Finding("cache", f"{place} cannot be written", f"chmod 700 {place}; {_OTHER_CACHE}")
    free = shutil.disk_usage(place).free
    if free < 20e6:
        found = f"{place}: {free / 1e6:.0f} MB left on its disk"
        return Finding("cache", found, "make room there, or set MEGAFUSE_CACHE to another disk")
    plural = "entry" if entries == 1 else "entries"
    return Finding("cache", f"{place}\n{entries} {plural}, {size / 1e6:.1f} MB")


def _threads() -> Finding:
    return Finding(
        "CPU threads", f"{torch.get_num_threads()} of {os.cpu_count()} (torch.set_num_threads)"
    )


# ---- the text


def _text(report: Report, columns: int) -> str:
    lines = []
    for finding in report.findings:
        lines += _row(finding.what, finding.found, columns)
        if finding.fix is not None:
            lines += _row("", f"fix: {finding.fix}", columns)
    lines += ["", "What will run where"]
    lines += _row("CPU tensors", report.cpu, columns) + _row("CUDA tensors", report.cuda, columns)
    missing = [finding.what for finding in report.findings if finding.fix is not None]
    verdict = f"To fix: {', '.join(missing)}." if missing else "Nothing is missing."
    return "\n".join([*lines, "", verdict])


def _row(label: str, text: str, columns: int) -> list[str]:
    indent = 16
    wrapped = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(
            line, max(columns - indent, 20), break_long_words=False, break_on_hyphens=False
        )
    ]
    first, *rest = wrapped or [""]
    return [f"{label:<{indent}}{first}".rstrip(), *(" " * indent + line for line in rest)]


# ---- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="exit 1 if something is missing")


def run(parsed: argparse.Namespace) -> int:
    report = doctor()
    print(report)
    return 1 if parsed.check and not report.ok else 0
