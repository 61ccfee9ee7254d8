"""Compiles a rung's source and runs it: on the GPU through the driver, on the CPU through ctypes.

A launch says of each tensor whether the kernel reads or writes it, and how many times it goes
through it. Inside `noting()` nothing runs: launches are only noted down, which is how a rung's
bytes are counted before it runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megafuse.learn import driver
from megafuse.runtime import build

KERNELS = Path(__file__).resolve().parent / "kernels"


@dataclass(frozen=True)
class Access:
    """A tensor that a kernel goes through, so many times."""

    tensor: Tensor
    times: int = 1
    between: int = 0  # bytes that go by until the kernel comes to the same float again
    since: int | None = None  # bytes that went by since another kernel wrote it; None: cold

    @property
    def nbytes(self) -> int:
        """What the kernel asks for."""
        return self.times * self.tensor.nbytes

    def from_memory(self, cache: int) -> int:
        """What of it a cache of so many bytes does not hold any more."""
        if not self.times:
            return 0
        first = self.since is None or self.since > cache
        again = self.times - 1 if self.between > cache else 0
        return (first + again) * self.tensor.nbytes


Argument = Access | int | float


def read(tensor: Tensor, times: int = 1, between: int = 0, since: int | None = None) -> Access:
    """The kernel reads this tensor, front to back, so many times."""
    return Access(_checked(tensor), times, between, since)


def write(tensor: Tensor) -> Access:
    """The kernel writes this tensor, once."""
    return Access(_checked(tensor))


def empty(*shape: int, like: Tensor) -> Tensor:
    """Memory for a result, holding anything. Every rung asks here, so that tests can poison it."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


@dataclass(frozen=True)
class Grid:
    """How a GPU launch is spread: blocks, and threads in each."""

    blocks: tuple[int, int]
    threads: tuple[int, int]

    @staticmethod
    def one() -> Grid:
        """A single thread, on the CPU too."""
        return Grid((1, 1), (1, 1))

    @staticmethod
    def cover(items: int, threads: int = 256) -> Grid:
        """One thread an item."""
        return Grid((-(-items // threads), 1), (threads, 1))

    @staticmethod
    def fill(tensor: Tensor, threads: int = 256) -> Grid:
        """As many blocks as run at the same time on this GPU, whatever there is to do."""
        return Grid((8 * processors(tensor.device), 1), (threads, 1))


def launch(file: str, entry: str, grid: Grid, *arguments: Argument, above: str = "") -> None:
    """Runs function `entry` of kernels/<file>.cu or .cpp, on the device that the tensors are on.

    CUDA: on torch's current stream, without waiting. CPU: on as many threads as torch uses; each
    is told which part of how many it is. Floats become C floats, ints `long long`. What stands in
    `above` is compiled in, above the source: a `#define` of what the kernel is to know.
    """
    tensors = [a for a in arguments if isinstance(a, Access)]
    if _NOTES:
        _NOTES[-1].append((entry, tensors))
    elif tensors[0].tensor.is_cuda:
        _launch_cuda(file, entry, grid, arguments, above)
    else:
        _launch_cpu(file, entry, grid, arguments, above)


Notes = list[tuple[str, list[Access]]]
_NOTES: list[Notes] = []


@contextlib.contextmanager
def noting() -> Iterator[Notes]:
    """Collects (entry, tensors) of every launch inside the block, and runs none of them."""
    _NOTES.append([])
    try:
        yield _NOTES[-1]
    finally:
        _NOTES.pop()


def source(file: str, device: str) -> str:
    """The text that a learner reads and that is compiled."""
    suffix = ".cu" if device == "cuda" else ".cpp"
    return (KERNELS / f"{file}{suffix}").read_text(encoding="utf-8")


# ---- arguments


def _checked(tensor: Tensor) -> Tensor:
    """A kernel takes an address and trusts it: what lies there must be what it expects."""
    if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
        raise ValueError(
            f"the ladder's kernels take contiguous float32 tensors, not {tensor.dtype} with "
            f"strides {tensor.stride()}: call .float().contiguous() first"
        )
    if tensor.data_ptr() % 16:
        raise ValueError(
            "the ladder's kernels take tensors that begin at a multiple of 16 bytes, as PyTorch "
            "allocates them, not a view into the middle of one: call .clone() first"
        )
    return tensor


def _c_value(argument: Argument) -> Any:
    if isinstance(argument, Access):
        return ctypes.c_void_p(argument.tensor.data_ptr())
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_longlong(argument)


# ---- the CPU


class _OpenMp(ctypes.Structure):
    """struct OpenMp of team.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("parallel", "thread", "threads"))


def _launch_cpu(
    file: str, entry: str, grid: Grid, arguments: Sequence[Argument], above: str
) -> None:
    library = cpu_library(file, above)
    part = getattr(library, f"part_of_{entry}")
    values = [_c_value(argument) for argument in arguments]
    words = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    parts = 1 if grid == Grid.one() else torch.get_num_threads()
    if parts == 1:
        part(words, _integer(0), _integer(1))
    elif (openmp := _openmp()) is not None:
        library.run_on_team(ctypes.byref(openmp), part, words, _integer(parts))
    else:
        # ctypes lets go of Python's lock during a call, so the parts run side by side.
        numbers = [(_integer(i), _integer(parts)) for i in range(parts)]
        for other in [_pool().submit(part, words, *number) for number in numbers]:
            other.result()


_integer = ctypes.c_longlong


@functools.cache
def _openmp() -> _OpenMp | None:
    """Torch's own threads, where they are OpenMP's (Linux).

    They spin for some milliseconds after each of torch's operations. On a machine of few cores
    threads of ours would have to wait for that: measured, two of them were as slow as one.
    """
    if sys.platform != "linux":
        return None
    process = ctypes.CDLL(None)
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    if not all(hasattr(process, name) for name in names):
        return None
    return _OpenMp(*(ctypes.cast(getattr(process, n), ctypes.c_void_p).value for n in names))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(torch.get_num_threads(), 64), thread_name_prefix="ladder")


@functools.cache
def cpu_library(file: str, above: str = "") -> ctypes.CDLL:
    """The compiled source, with a `part_of_<entry>` for each function in it."""
    text = above + source(file, "cpu")
    team = Path(__file__).with_name("team.h").read_text(encoding="utf-8")
    entries = re.findall(r'^extern "C" void (\w+)\(', text, re.M)
    runs = "".join(f"PART_OF({entry})\n" for entry in entries)
    return ctypes.CDLL(str(build.cpu_object(f"{text}\n{team}\n{runs}", file)))


# ---- the GPU


def _launch_cuda(
    file: str, entry: str, grid: Grid, arguments: Sequence[Argument], above: str
) -> None:
    if 0 in grid.blocks:  # nothing to do, and the driver refuses an empty grid
        return
    index = next(a.tensor.get_device() for a in arguments if isinstance(a, Access))
    values = [_c_value(argument) for argument in arguments]
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    with torch.cuda.device(index):
        driver.call(
            "cuLaunchKernel",
            _cuda_function(file, entry, index, above),
            *(*grid.blocks, 1),
            *(*grid.threads, 1),
            0,  # bytes of shared memory beyond what the kernel declares
            torch.cuda.current_stream().cuda_stream,
            ctypes.addressof(addresses),
            0,
        )


@functools.cache
def _cuda_function(file: str, entry: str, index: int, above: str) -> Any:
    return driver.call("cuModuleGetFunction", _cuda_module(file, index, above), entry.encode())


@functools.cache
def _cuda_module(file: str, index: int, above: str) -> Any:
    """Loaded into the context that torch made for this GPU, which is current here."""
    torch.cuda.current_stream(index).synchronize()  # makes sure that there is one
    major, minor = torch.cuda.get_device_capability(index)
    cubin = build.cuda_binary(above + source(file, "cuda"), f"sm_{major}{minor}", file)
    return driver.call("cuModuleLoadData", cubin)


@functools.cache
def processors(device: torch.device) -> int:
    """Of a GPU; a CPU counts as one."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
