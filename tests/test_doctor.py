"""`megafuse.doctor()`: compiles nothing, never raises, and has a fix for all that is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import megafuse
from megafuse.runtime import cpp, loader, nvrtc

doctor = sys.modules["megafuse.doctor"]  # megafuse.doctor is the function
NO_NVRTC = "cuda-core, which compiles the GPU kernels, is missing: pip install cuda-core"


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("doctor compiled something")

    monkeypatch.setattr(cpp, "compile_shared", refuse)
    monkeypatch.setattr(nvrtc, "compile_cubin", refuse)
    monkeypatch.setenv("COLUMNS", "80")


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


def test_this_machine():
    report = megafuse.doctor()
    text = str(report)
    for part in (torch.__version__, "GPU", "NVRTC", "C++ compiler", "cache", "CPU threads"):
        assert part in text
    assert report.ok == (not fixes(report))
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
    assert "CacheError" in report.cpu


def test_host_runtime_is_the_one_that_is_loaded(monkeypatch, tmp_path):
    if cpp.find() is None:
        pytest.skip("needs a C++ compiler")
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "fresh"))
    assert loader.built() is None
    monkeypatch.undo()
    if loader.load() is not None:
        assert loader.built() == loader.cache.get(loader._key(), loader._FILE, loader._compile)


@pytest.mark.usefixtures("gpu")
def test_fits_the_terminal(monkeypatch, tmp_path):
    monkeypatch.setattr(nvrtc, "problem", lambda: NO_NVRTC)
    monkeypatch.setattr(cpp, "find", lambda: None)
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "c"))
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = str(megafuse.doctor()).splitlines()
        # A path or command that has no space is left whole, so that it can be copied.
        assert all(len(line) <= columns or len(line.split()) <= 2 for line in lines)
