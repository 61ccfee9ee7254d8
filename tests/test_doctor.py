"""`megafuse.doctor()`: tries every kind of build, never raises, has a fix for what is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import megafuse
from megafuse.runtime import build, cache, cpp, fallback, loader, nvrtc
from megafuse.runtime.cpp import CompileError

doctor = sys.modules["megafuse.doctor"]  # megafuse.doctor is the function
NO_NVRTC = "cuda-core, which compiles the GPU kernels, is missing: pip install cuda-core"


@pytest.fixture(autouse=True)
def _builds_work(tmp_path, monkeypatch, request):
    """All builds work, at no cost, but in tests named `really`, which try them."""
    monkeypatch.setenv("COLUMNS", "80")
    if request.node.name.endswith("really"):
        return
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fallback, "_here", {})
    monkeypatch.setattr(loader, "loaded", lambda: False)
    monkeypatch.setattr(loader, "headers_work", lambda: None)
    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda path: SimpleNamespace(probe=lambda: 42))
    monkeypatch.setattr(build, "cpu_object", lambda source, label: Path("probe.so"))
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, arch, include: b"")


def refusing(error):
    def refuse(*args, **kwargs):
        raise error

    return refuse


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setattr(cpp, "find", lambda: cpp.Compiler("g++", "g++ 12.2.0"))


@pytest.fixture
def gpu(monkeypatch):
    found = SimpleNamespace(name="NVIDIA X", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    answers = {"driver_version": ["580.65"], "name": ["NVIDIA X"]}
    monkeypatch.setattr(doctor, "_nvidia_smi", answers.__getitem__)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda field: [])


def fixes(report) -> dict[str, str]:
    return {finding.what: finding.fix for finding in report.findings if finding.fix is not None}


def test_this_machine_really():
    """With its own compiler and cache: every build is tried."""
    report = megafuse.doctor()
    text = str(report)
    for part in (torch.__version__, "GPU", "NVRTC", "C++ compiler", "cache", "CPU threads"):
        assert part in text
    assert report.ok == (not fixes(report))
    if cpp.find() is not None:
        assert "CPU kernels     compile and run here" in text
        assert "host runtime" in text


@pytest.mark.usefixtures("compiler", "no_gpu")
def test_no_gpu_is_nothing_to_fix(monkeypatch):
    monkeypatch.setattr(nvrtc, "problem", lambda: NO_NVRTC)
    report = megafuse.doctor()
    assert report.ok
    assert report.cpu == "fused C++ kernels"
    assert "no GPU" in report.cuda
    assert "Nothing is missing." in str(report)


@pytest.mark.usefixtures("compiler", "gpu")
def test_gpu_with_nvrtc(monkeypatch):
    monkeypatch.setattr(nvrtc, "problem", lambda: None)
    report = megafuse.doctor()
    assert report.ok
    assert report.cuda == "fused CUDA kernels"
    assert "0: NVIDIA X, 80 GiB, compute 9.0" in str(report)
    assert "driver 580.65" in str(report)


@pytest.mark.usefixtures("compiler", "gpu")
def test_gpu_without_nvrtc(monkeypatch):
    monkeypatch.setattr(nvrtc, "problem", lambda: NO_NVRTC)
    report = megafuse.doctor()
    assert fixes(report) == {"NVRTC": "pip install cuda-core"}
    assert report.cpu == "fused C++ kernels"
    assert report.cuda.startswith("reference")


@pytest.mark.usefixtures("gpu")
def test_no_compiler_means_reference_everywhere(monkeypatch):
    monkeypatch.setattr(nvrtc, "problem", lambda: None)
    monkeypatch.setattr(cpp, "find", lambda: None)
    report = megafuse.doctor()
    assert set(fixes(report)) == {"C++ compiler"}
    assert "apt install g++" in fixes(report)["C++ compiler"]
    assert report.cpu.startswith("reference")
    assert report.cuda.startswith("reference")


@pytest.mark.usefixtures("compiler")
def test_gpu_that_torch_was_not_built_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(doctor, "_nvidia_smi", {"driver_version": ["580"], "name": ["X"]}.get)
    report = megafuse.doctor()
    assert set(fixes(report)) == {"GPU"}
    assert "pytorch.org" in fixes(report)["GPU"]


@pytest.mark.usefixtures("compiler", "no_gpu")
def test_bad_cache_is_a_finding(monkeypatch, tmp_path):
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.setenv("MEGAFUSE_CACHE", str(place))
    report = megafuse.doctor()
    assert not report.ok
    assert set(fixes(report)) == {"cache"}
    assert f"chmod 700 {place}" in fixes(report)["cache"]
    assert report.cpu.startswith("reference")
    assert "cache" in report.cpu


def test_host_runtime_is_the_one_that_is_loaded_really(monkeypatch, tmp_path):
    if cpp.find() is None:
        pytest.skip("needs a C++ compiler")
    with monkeypatch.context() as fresh:
        fresh.setenv("MEGAFUSE_CACHE", str(tmp_path / "fresh"))
        assert loader.built() is None
    if loader.load() is not None:
        assert loader.built() == cache.get(loader._key(), loader._FILE, loader._compile)


@pytest.mark.usefixtures("compiler", "no_gpu")
def test_a_full_disk_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: SimpleNamespace(free=1_000_000))
    report = megafuse.doctor()
    assert "make room" in fixes(report)["cache"]
    assert report.cpu.startswith("reference")


# ---- builds that fail

NO_PYTHON = CompileError(["g++"], "p.cpp:1: fatal error: Python.h: No such file or directory")


@pytest.mark.usefixtures("compiler", "gpu")
def test_headers_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(nvrtc, "problem", lambda: None)
    monkeypatch.setattr(loader, "headers_work", refusing(NO_PYTHON))
    report = megafuse.doctor()
    assert "apt install python3-dev" in fixes(report)["host runtime"]
    assert "Python.h: No such file" in " ".join(str(report).split())
    assert report.cpu == report.cuda
    assert "host runtime cannot be built" in report.cpu


@pytest.mark.usefixtures("compiler", "no_gpu")
@pytest.mark.parametrize(
    ("what", "error", "fix"),
    [
        ("cpu_object", CompileError(["g++"], "x: cannot execute 'cc1plus'"), "apt install g++"),
        ("cpu_object", CompileError(["g++"], "x: error: never heard of"), "report"),
        ("CDLL", OSError("kernel.so: failed to map segment from shared object"), "MEGAFUSE_CACHE"),
        ("cpu_object", OSError(28, "No space left on device"), "report"),
    ],
)
def test_kernels_that_cannot_be_built_or_run(monkeypatch, what, error, fix):
    monkeypatch.setattr(build if what == "cpu_object" else doctor.ctypes, what, refusing(error))
    report = megafuse.doctor()
    assert fix in fixes(report)["CPU kernels"]
    assert report.cpu.startswith("reference")
    assert "noexec" in str(report) or what != "CDLL"


@pytest.mark.usefixtures("compiler", "gpu")
def test_a_gpu_that_nvrtc_does_not_know(monkeypatch):
    monkeypatch.setattr(nvrtc, "problem", lambda: None)
    error = CompileError(["nvrtc"], "error: invalid value for --gpu-architecture")
    monkeypatch.setattr(nvrtc, "compile_cubin", refusing(error))
    report = megafuse.doctor()
    assert set(fixes(report)) == {"NVRTC"}
    assert "does not compile for sm_90" in str(report)
    assert report.cuda.startswith("reference")
    assert report.cpu == "fused C++ kernels"


@pytest.mark.usefixtures("compiler", "no_gpu")
def test_what_failed_earlier_is_shown_and_forgotten(monkeypatch):
    """A runtime that does not compile for this torch: its words once more, then another try."""
    error = CompileError(["g++"], "autograd.h:9: error: 'Edge' has no member named 'function'")
    with pytest.raises(CompileError):
        fallback.get(loader._key(), loader._FILE, refusing(error))
    with pytest.raises(CompileError):
        fallback.get(cache.key("a kernel"), "kernel.so", refusing(error))
    report = megafuse.doctor()
    assert "'Edge' has no member" in " ".join(str(report).split())
    assert set(fixes(report)) == {"host runtime"}
    again = megafuse.doctor()
    assert again.ok
    assert "not built for this torch yet" in str(again)


@pytest.mark.usefixtures("compiler", "no_gpu")
def test_kernels_that_failed_earlier_are_forgotten():
    with pytest.raises(CompileError):
        fallback.get(cache.key("a kernel"), "kernel.so", refusing(NO_PYTHON))
    report = megafuse.doctor()
    assert report.ok
    assert "1 kernel that did not compile is forgotten" in " ".join(str(report).split())
    assert "forgotten" not in str(megafuse.doctor())


@pytest.mark.usefixtures("no_gpu")
def test_on_windows(monkeypatch):
    monkeypatch.setattr(nvrtc, "problem", lambda: NO_NVRTC)
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(platform="win32"))
    report = megafuse.doctor()
    assert "Linux and macOS" in fixes(report)["C++ compiler"]
    assert "Linux and macOS" in report.cpu


@pytest.mark.usefixtures("compiler", "no_gpu")
def test_a_torch_that_was_not_tested_is_named(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert "2.99.0 is not among the tested ones, 2.9 to 2.13" in " ".join(
        str(megafuse.doctor()).split()
    )


@pytest.mark.usefixtures("gpu")
def test_fits_the_terminal(monkeypatch, tmp_path):
    monkeypatch.setattr(nvrtc, "problem", lambda: NO_NVRTC)
    monkeypatch.setattr(cpp, "find", lambda: None)
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "c"))
    long = CompileError(["g++"], "error: " + "very " * 60 + "\n" + "note: so it is\n" * 50)
    for columns, found in ((80, None), (60, None), (80, cpp.Compiler("g++", "g++ 12"))):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(cpp, "find", lambda found=found: found)
        monkeypatch.setattr(loader, "headers_work", refusing(long))
        lines = str(megafuse.doctor()).splitlines()
        # A path or command that has no space is left whole, so that it can be copied.
        assert all(len(line) <= columns or len(line.split()) <= 2 for line in lines)
