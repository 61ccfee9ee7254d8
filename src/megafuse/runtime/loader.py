"""The C++ host runtime: compiled once per torch version, then loaded from the cache."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

from megafuse.runtime import build, cache, cpp, progress

HOST = Path(__file__).resolve().parent / "host"


@functools.cache
def load() -> ModuleType | None:
    """The runtime, or None where there is no C++ compiler and none was cached.

    One warning says so; every op then runs its PyTorch reference.
    """
    if cpp.find() is None:
        progress.logger.warning(
            "no C++ compiler found, so every op runs its PyTorch reference, unfused. "
            "Install g++ or clang++, or set CXX; `megafuse doctor` tells more."
        )
        return None
    module = _import(_shared_object())
    module.setup(build.kernel, build.available)
    return module


def loaded() -> bool:
    """Whether `load` has run and found a runtime."""
    return load.cache_info().currsize > 0 and load() is not None


def _shared_object() -> Path:
    compiler = cpp.find()
    assert compiler is not None
    folder = Path(torch.__file__).parent
    cuda = torch.version.cuda is not None
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    flags = [
        "-std=c++20",
        "-O2",
        "-fvisibility=hidden",
        f"-DMF_TORCH={major * 100 + minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(["-DMF_CUDA"] if cuda else []),
        f"-isystem{folder / 'include'}",
        f"-isystem{folder / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-isystem{sysconfig.get_paths()['include']}",
    ]
    libraries = [f"-L{folder / 'lib'}", "torch_cpu", "torch_python", "c10"]
    if cuda:
        libraries.append("torch_cuda")
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(HOST.iterdir()))
    key = cache.key(
        "host",
        text,
        *flags,
        compiler.version,
        torch.__version__,
        sysconfig.get_config_var("SOABI") or "",
    )

    def compile_host(out: Path) -> None:
        what = f"the host runtime for torch {torch.__version__}"
        with progress.compiling(what, expect="once per torch version, about 30 s"):
            cpp.compile_shared(
                '#include "module.cpp"\n', out, include=[HOST], flags=flags, libraries=libraries
            )

    return cache.get(key, "megafuse_host.so", compile_host)


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("megafuse_host", str(path))
    spec = importlib.util.spec_from_file_location("megafuse_host", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
