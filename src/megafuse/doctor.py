"""What this machine has, what will run where, and the fix for each thing that is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
import warnings
from dataclasses import dataclass

import torch

from megafuse.runtime import cache, cpp, loader, nvrtc

_INSTALL_TORCH = "pip install torch with CUDA: pytorch.org/get-started gives the command"
_INSTALL_COMPILER = (
    "apt install g++ (Debian, Ubuntu) | dnf install gcc-c++ (Fedora) | xcode-select --install "
    "(macOS) | MinGW-w64 g++ or clang++ (Windows); or set CXX to a compiler"
)
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
    """Looks at GPU, driver, torch, compilers and cache. Compiles nothing, and never raises.

    >>> print(megafuse.doctor())
    """
    gpu, has_gpu = _gpu()
    compiler = _compiler()
    compile_cuda = _nvrtc(has_gpu)
    place = _cache()
    findings = (gpu, *_torch(), compile_cuda, compiler, _host(place), place, _threads())
    cpu, cuda = _runs(has_gpu, compiler, compile_cuda, place)
    return Report(findings, cpu, cuda)


# ---- what will run where


def _runs(
    has_gpu: bool, compiler: Finding, compile_cuda: Finding, place: Finding
) -> tuple[str, str]:
    """What CPU and CUDA tensors run. CUDA launches go through the host runtime, which is C++."""
    reference = "reference: plain PyTorch, unfused, because "
    if compiler.fix is not None:
        cpu = reference + "there is no C++ compiler"
    elif place.fix is not None:
        cpu = "nothing: calls raise CacheError until the cache is repaired"
    else:
        cpu = "fused C++ kernels"
    if not has_gpu:
        return cpu, "no GPU that torch can use"
    if cpu != "fused C++ kernels":
        return cpu, cpu
    if compile_cuda.fix is not None:
        return cpu, reference + "NVRTC cannot be used"
    return cpu, "fused CUDA kernels"


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
    found = [Finding("torch", f"{torch.__version__}, {cuda}")]
    if torch.version.hip is not None:
        found.append(Finding("ROCm", "not supported: GPU tensors are not ours", _INSTALL_TORCH))
    return found


def _nvrtc(has_gpu: bool) -> Finding:
    version = nvrtc.version()
    found = "not found" if version is None else ".".join(map(str, version))
    problem = nvrtc.problem()
    if problem is None:
        return Finding("NVRTC", f"{found}, compiles CUDA kernels")
    if not has_gpu:  # nothing to fix: there is nothing to run them on
        return Finding("NVRTC", f"{found}; not needed without a GPU")
    what, _, fix = problem.rpartition(": ")
    return Finding("NVRTC", f"{found}: {what}", fix)


def _compiler() -> Finding:
    compiler = cpp.find()
    if compiler is None:
        return Finding("C++ compiler", "none on PATH, and CXX names none", _INSTALL_COMPILER)
    return Finding("C++ compiler", f"{compiler.version}\n{' '.join(compiler.command)}")


def _host(place: Finding) -> Finding:
    what = "host runtime"
    if loader.loaded():
        return Finding(what, "loaded in this process")
    if cpp.find() is None or place.fix is not None:
        return Finding(what, "cannot be looked for yet (see below)" if place.fix else "not built")
    built = loader.built()
    if built is None:
        return Finding(what, "not built for this torch yet; the first call compiles it, once")
    key = built.parent.name
    return Finding(what, f"built for this torch ({key[:2]}/{key[:12]}…/{built.name} in the cache)")


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
