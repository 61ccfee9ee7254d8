"""The C++ host runtime: compiled once per torch version, then loaded from the cache."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from types import ModuleType

import torch

from megafuse.runtime import (
    build,
    builders,
    cache,
    cpp,
    fallback,
    fp32_matmul,
    precompiled,
    progress,
)
from megafuse.runtime.cpp import CompileError

HOST = Path(__file__).resolve().parent / "host"
TESTED = ((2, 9), (2, 13))  # the oldest and the newest torch that the tests have run with


@functools.cache
def load() -> ModuleType | None:
    """The runtime, compiled if need be; None where that is not possible.

    One warning says why, and every op runs its PyTorch reference.
    """
    unfused = "every op of megafuse runs its PyTorch reference, unfused"
    if sys.platform == "win32":
        progress.logger.warning("%s: %s.", unfused, cpp.NOT_ON_WINDOWS)
        return None
    if cpp.find() is None:
        progress.logger.warning(
            "%s: no C++ compiler found. Install g++ or clang++, or set CXX; `megafuse doctor` "
            "tells more.",
            unfused,
        )
        return None
    try:
        module = _import(fallback.get(_key(), _FILE, _compile))
    except (*fallback.ERRORS, ImportError) as error:
        fallback.tell(unfused + untested(), explained(error), once="host")
        return None
    module.setup(
        builders.build_kernel, builders.build_kernels, build.available, fallback.Unbuildable
    )
    fp32_matmul.tell(module)
    return module


def loaded() -> bool:
    """Whether `load` has run and found a runtime."""
    return load.cache_info().currsize > 0 and load() is not None


def built() -> Path | None:
    """Where the runtime for this torch lies compiled, or None; compiles nothing."""
    return None if cpp.find() is None else cache.find(_key(), _FILE)


def refused() -> CompileError | None:
    """Why the runtime did not compile for this torch, if it was tried and did not."""
    return None if cpp.find() is None else fallback.refused(_key())


def explained(error: Exception) -> Exception:
    """`error`, with what to do where the system refuses to run code from the cache's disk."""
    if "failed to map segment" in str(error):
        return cache.CacheError(
            f"the system does not run code from the kernel cache ({error}): its disk is probably "
            f"mounted noexec; set MEGAFUSE_CACHE to a directory on another"
        )
    return error


def headers_work() -> None:
    """Compiles nothing but the includes of Python and torch; raises as cpp.compile_shared does.

    What works is remembered in the cache: torch's headers take some seconds.
    """
    source = "#include <Python.h>\n#include <ATen/core/Tensor.h>\nint megafuse_probe = 1;\n"

    def probe(out: Path) -> None:
        cpp.compile_shared(source, out, flags=[*_flags(), *_include()])

    cache.get(cache.key("headers", source, *_identity()), "probe.so", probe)


def untested() -> str:
    """That this torch is none of those the tests have run with, if so."""
    oldest, newest = TESTED
    if oldest <= _version() <= newest:
        return ""
    low, high = (".".join(map(str, version)) for version in TESTED)
    return f" (torch {torch.__version__} is not among the tested ones, {low} to {high})"


_FILE = "megafuse_host.so"


def _torch() -> Path:
    return Path(torch.__file__).parent


def _version() -> tuple[int, int]:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return major, minor


def _flags() -> list[str]:
    """Everything that decides what is compiled, but for places: those differ between environments
    that hold the same torch."""
    major, minor = _version()
    return [
        "-std=c++20",
        "-O2",
        "-fvisibility=hidden",
        f"-DMF_TORCH={major * 100 + minor}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(["-DMF_CUDA"] if torch.version.cuda is not None else []),
    ]


def _include() -> list[str]:
    include = _torch() / "include"
    return [
        f"-isystem{include}",
        f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-isystem{_python_headers()}",
    ]


def _python_headers() -> Path:
    return Path(sysconfig.get_paths()["include"])


def _sources() -> list[Path]:
    return sorted(path for path in HOST.rglob("*") if path.is_file())


def _key() -> str:
    sources = "".join(path.read_text(encoding="utf-8") for path in _sources())
    return cache.key("host", sources, *_identity())


def _identity() -> list[str]:
    """What a build against torch and Python depends on, beside its source.

    Whether Python.h is there counts, so that a failure for the lack of it is forgotten when it is
    installed.
    """
    compiler = cpp.find()
    assert compiler is not None
    return [
        *_flags(),
        *compiler.arguments,
        compiler.version,
        torch.__version__,
        str(torch.version.cuda),
        torch_headers(),
        sysconfig.get_config_var("SOABI") or "",
        str((_python_headers() / "Python.h").is_file()),
    ]


def torch_headers() -> str:
    """A digest of torch's headers, wherever they lie: of pip's list of their checksums."""
    headers = sorted(line for line in _record() if line.startswith("torch/include/"))
    if not headers:  # a torch that was built in place: its folder, and the commit it was built from
        headers = [str(_torch()), str(torch.version.git_version)]
    return hashlib.sha256("\n".join(headers).encode()).hexdigest()


def _record() -> list[str]:
    """The lines of pip's list of torch's files; none where this torch is not the one pip knows."""
    try:
        found = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return []
    listed = found.read_text("RECORD") or ""
    same = Path(str(found.locate_file("torch"))).resolve() == _torch().resolve()
    return listed.splitlines() if same else []


def _compile(out: Path) -> None:
    libraries = [f"-L{_torch() / 'lib'}", "torch_cpu", "torch_python", "c10"]
    if torch.version.cuda is not None:
        libraries.append("torch_cuda")
    flags = [*_flags(), *_include(), *cpp.module_flags()]
    what = f"megafuse's host runtime for torch {torch.__version__}{untested()}"
    with progress.compiling(what, expect="once per torch version, a minute or so"):
        # Not -I: the folder torch/ in it must not hide torch's own headers.
        flags.append(f"-iquote{HOST}")
        cpp.compile_shared('#include "torch/module.cpp"\n', out, flags=flags, libraries=libraries)
        precompiled.make_ahead()  # kernels come next


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("megafuse_host", str(path))
    spec = importlib.util.spec_from_file_location("megafuse_host", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
