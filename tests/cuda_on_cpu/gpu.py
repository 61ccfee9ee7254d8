"""A GPU that this process thinks it has: CUDA tensors in host memory, kernels run by driver.cpp.

Everything above the driver is real: capture, the cut, CUDA source, the host runtime's plan of each
launch with its words. A Gpu is never taken back, so it is for processes of their own (run.py).
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from pathlib import Path
from typing import Any

import torch

from cuda_on_cpu.source import translate_headers, translated
from megafuse.graph import stages
from megafuse.runtime import build, builders, cache, cpp, fallback, loader, precompiled, sources

HERE = Path(__file__).resolve().parent
SHARES = ("all", "edges", "none")  # edges: the first block and the last
ORDERS = ("forward", "reverse", "random")
MULTIPROCESSORS = 4  # few, so that blocks take several turns
# KiB of shared memory that a block may have, by compute capability.
SHARED = {"70": 96, "75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99}

_CHECKS = [
    "-ftrivial-auto-var-init=pattern",  # a register that nobody set is no 0
    "-fsanitize=alignment,bounds,signed-integer-overflow,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
]


class Gpu:
    """Loaded once a process."""

    def __init__(self, sm: str = "80") -> None:
        self.capability = int(sm[:-1]), int(sm[-1])
        self.sources: list[str] = []  # of kernels, as they were asked for
        self.driver = ctypes.CDLL(str(driver_library()), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(_device()))
        self.driver.emulated_machine(MULTIPROCESSORS, SHARED[sm] * 1024)
        self._pretend()

    def order(self, order: str) -> None:
        """In which the threads of a block take turns from now on."""
        self.driver.emulated_order(ORDERS.index(order))

    def share(self, share: str) -> None:
        """Which blocks of a launch run from now on."""
        self.driver.emulated_share(SHARES.index(share))

    def _binary(self, source: str, *how: Any) -> bytes:
        self.sources.append(source)
        return compiled(source, *how)

    def _pretend(self) -> None:
        stages.PARTS = 8 * MULTIPROCESSORS  # as 1024 are to a GPU's: fewer threads to take turns
        cuda: Any = torch.cuda
        cuda._lazy_init = lambda: None
        cuda.get_device_capability = lambda device=None: self.capability
        cuda.current_device = lambda: 0
        binary: Any = self._binary
        build.cuda_binary = binary
        host = loader.load()
        assert host is not None, "no host runtime"
        host.setup(
            builders.build_kernel,
            builders.build_kernels,
            lambda device: True,
            fallback.Unbuildable,
        )


def compiled(
    source: str, arch: str, label: str, contract: bool = False, get: Any = cache.get
) -> bytes:
    """In place of NVRTC's machine code: the path of a shared object, as driver.cpp takes it."""
    number = int(arch.removeprefix("sm_")) * 10
    flags = [
        "-std=c++17",
        "-O1",
        f"-ffp-contract={'fast' if contract else 'off'}",
        "-fno-math-errno",
        "-w",
        *_CHECKS,
        "-D__CUDACC__",
        f"-D__CUDA_ARCH__={number}",
        f"-iquote{_headers()}",
        f"-iquote{HERE}",
    ]
    text = f'#include "{HERE / "cuda.h"}"\n{translated(source)}'
    shim = "".join((HERE / name).read_text() for name in ("cuda.h", "ptx.h", "emulated.h"))
    stable = [flag for flag in flags if not flag.startswith("-iquote")]
    key = cache.key("emulated", text, shim, sources.closure(source), *stable, *_compiler())

    def build_it(out: Path) -> None:
        if not precompiled.is_gcc():
            cpp.compile_shared(text, out, flags=flags)
            return
        ahead = _parsed_ahead(shim, tuple(stable)).with_suffix("")
        more = ["-include", str(ahead), "-pipe", "-nodefaultlibs"]
        cpp.compile_shared(text, out, flags=[*flags, *more], libraries=("m", "gcc", "c"))

    return str(cache.get(key, "emulated.so", build_it)).encode()


@functools.cache
def _parsed_ahead(shim: str, flags: tuple[str, ...]) -> Path:
    """cuda.h as GCC has parsed it. With no C++ library to link, a kernel takes two thirds of the
    time."""

    def build_it(out: Path) -> None:
        cpp.compile_header(f'#include "{HERE / "cuda.h"}"\n', out, flags=flags)

    key = cache.key("emulated header", str(HERE), shim, *flags, *_compiler())
    return cache.get(key, "cuda.h.gch", build_it)


@functools.cache
def _headers() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="megafuse_emulated_"))
    translate_headers(sources.KERNELS, folder)
    return folder


def _compiler() -> list[str]:
    compiler = cpp.find()
    assert compiler is not None, "no C++ compiler"
    return [*compiler.command, compiler.version]


def driver_library() -> Path:
    text = "".join(path.read_text() for path in sorted(HERE.glob("*.h")))
    text += (HERE / "driver.cpp").read_text()
    # The host runtime opens libcuda.so.1, and gets what is loaded under that name.
    flags = ["-std=c++20", "-O2", "-U_FORTIFY_SOURCE", f"-iquote{HERE}", "-Wl,-soname,libcuda.so.1"]

    def build_it(out: Path) -> None:
        cpp.compile_shared(f'#include "{HERE / "driver.cpp"}"\n', out, flags=flags)

    key = cache.key("emulated driver", text, *flags[:-2], *_compiler())
    return cache.get(key, "driver.so", build_it)


def _device() -> Path:
    source = (HERE / "device.cpp").read_text()
    flags = [*loader._flags(), *loader._include()]
    libraries = [f"-L{loader._torch() / 'lib'}", "torch_cpu", "c10"]

    def build_it(out: Path) -> None:
        cpp.compile_shared(source, out, flags=flags, libraries=libraries)

    return cache.get(
        cache.key("emulated device", source, *loader._identity()), "device.so", build_it
    )
