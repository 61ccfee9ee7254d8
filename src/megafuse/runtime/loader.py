"""The C++ host runtime: compiled once per torch version, then loaded from the cache."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

from megafuse.runtime import build, cache, cpp, fp32_matmul, progress

HOST = Path(__file__).resolve().parent / "host"


@functools.cache
def load() -> ModuleType | None:
    """The runtime, compiled if need be; None where there is no C++ compiler.

    One warning says so then, and every op runs its PyTorch reference.
    """
    if cpp.find() is None:
        progress.logger.warning(
            "no C++ compiler found, so every op runs its PyTorch reference, unfused. "
            "Install g++ or clang++, or set CXX; `megafuse doctor` tells more."
        )
        return None
    module = _import(cache.get(_key(), _FILE, _compile))
    module.setup(build.kernel, build.available)
    fp32_matmul.tell(module)
    return module


def loaded() -> bool:
    """Whether `load` has run and found a runtime."""
    return load.cache_info().currsize > 0 and load() is not None


def built() -> Path | None:
    """Where the runtime for this torch lies compiled, or None; compiles nothing."""
    if cpp.find() is None:
        return None
    path = cache.directory() / _key()[:2] / _key() / _FILE
    return path if path.is_file() else None


_FILE = "megafuse_host.so"


def _torch() -> Path:
    return Path(torch.__file__).parent


def _flags() -> list[str]:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    include = _torch() / "include"
    return [
        "-std=c++20",
        "-O2",
        "-fvisibility=hidden",
        f"-DMF_TORCH={major * 100 + minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(["-DMF_CUDA"] if torch.version.cuda is not None else []),
        f"-isystem{include}",
        f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-isystem{sysconfig.get_paths()['include']}",
    ]


def _key() -> str:
    compiler = cpp.find()
    assert compiler is not None
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(HOST.iterdir()))
    abi = sysconfig.get_config_var("SOABI") or ""
    return cache.key("host", sources, *_flags(), compiler.version, torch.__version__, abi)


def _compile(out: Path) -> None:
    libraries = [f"-L{_torch() / 'lib'}", "torch_cpu", "torch_python", "c10"]
    if torch.version.cuda is not None:
        libraries.append("torch_cuda")
    what = f"the host runtime for torch {torch.__version__}"
    with progress.compiling(what, expect="once per torch version, about 30 s"):
        cpp.compile_shared(
            '#include "module.cpp"\n', out, include=[HOST], flags=_flags(), libraries=libraries
        )


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("megafuse_host", str(path))
    spec = importlib.util.spec_from_file_location("megafuse_host", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
