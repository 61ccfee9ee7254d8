"""The CUDA kernel's launch: one cooperative launch of a block a multiprocessor, by the driver.

Compiled for every architecture from sm_80 on, run in tests/cuda_on_cpu, and on an H200.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megafuse.decode.errors import Unsupported
from megafuse.decode.kernel import BESIDE, NOT_YET, SIZES, Variant, Words, cuda_source, lost_wait
from megafuse.decode.words import Struct
from megafuse.runtime import build
from megafuse.runtime.gemm_sm90 import ARCH as HOPPER

OLDEST = 8  # of the GPUs' generations: copies that go on while others compute
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DECLARED = 4096  # bytes that the kernel's own shared variables have, and more
_SAMPLING = 4104  # floats: Sampler::kScratch of decode_sample_cuda.h, rounded up
_LEAST_SLOTS, _MOST_SLOTS = 4, 12  # two are used while others are filled
_CONSTANT_FROM = 1024  # the width of models that get a kernel of their own: others share one
_NAP = 2e-5  # seconds between two looks at the tokens
_FAILED = 16  # the word of the barrier that tells of a lost wait


@dataclass(frozen=True)
class Shared:
    """How a block's shared memory is divided, and how many warps work on that."""

    workers: int
    mine: int  # bytes of a row that a worker takes: kMine of decode_cuda.h
    slots: int  # that weights go through
    stage: int  # bytes of all slots
    floats: int  # for the rest: inputs of products; in attention queries, scores and sums

    @staticmethod
    def of(
        limit: int,
        group: int,
        pitch: int,
        weights: torch.dtype,
        hidden: int,
        batch: int,
        most_workers: int = 8,
    ) -> Shared:
        """Of `limit` bytes, for groups of heads that share one of `pitch` floats, and rows of
        `hidden` weights. Where that leaves no room for weights, there are fewer warps."""
        attention = (group + 2) * pitch
        for workers in (w for w in (8, 4) if w <= most_workers):
            mine = _of_worker(weights, hidden, workers)
            inputs = workers * _scratch(weights, mine, batch)
            spread = 1 << (batch - 1).bit_length()
            sums = 2 * workers // spread * (16 * batch * workers + 8)  # kPartials of decode_cuda.h
            heads = 2 if pitch > 128 else 4  # that attention has at once
            attending = attention + workers * heads * (pitch + 4)
            floats = max(attending, inputs + sums, _SAMPLING)
            floats = -(-floats // 4) * 4
            slot = 16 * (mine * (workers // 2) + 16)  # kSlot of decode_stream_cuda.h
            room = (limit - _DECLARED - 4 * floats) // slot
            slots = min(room // 2 * 2, _MOST_SLOTS)
            if slots >= _LEAST_SLOTS:
                return Shared(workers, mine, slots, slots * slot, floats)
        raise Unsupported(
            "config.num_key_value_heads",
            f"one for {attention} floats of queries and scores",
            f"groups of heads that fit into {limit} bytes of shared memory",
        )


def _of_worker(weights: torch.dtype, hidden: int, workers: int) -> int:
    """Bytes of a row. Rows of three pieces would go to the two groups by turns, and inputs with
    them: those that can be two are."""
    if weights == torch.int8:
        return 256
    needed = hidden * weights.itemsize / workers
    return int(-(-needed // 128) * 128) if 512 < needed <= 768 else 512


def _scratch(weights: torch.dtype, mine: int, batch: int) -> int:
    """Floats of a worker's inputs: kScratch of decode_cuda.h."""
    columns = mine // weights.itemsize
    if weights == torch.bfloat16:
        return 2 * _second(columns // 8)
    if weights == torch.int8 and batch <= 2:
        return 4 * _second(columns // 16)
    return columns * batch


def _second(words: int) -> int:
    """kSecond of decode_cuda.h."""
    return 4 * (words + (24 - words % 16) % 16) + 4


def processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_limit(device: torch.device) -> int:
    """Bytes of shared memory that a block may have if it asks."""
    found: Any = torch.cuda.get_device_properties(device)
    return int(found.shared_memory_per_block_optin)


def chunk_on_gpu(max_length: int) -> int:
    """Positions of a piece of attention: one piece needs nobody to put it together, but keeps one
    block busy."""
    return 128 if max_length <= 1024 else 256


def host_words(device: torch.device, *shape: int) -> Tensor:
    """64-bit words of 0 that host and kernel both see while the kernel runs."""
    return torch.zeros(shape, dtype=torch.int64, pin_memory=device.type == "cuda")


class CudaKernel:
    """As CpuKernel. `fresh` is what must be 0 when a launch begins, first of all the barrier."""

    def __init__(self, variant: Variant, fresh: Tensor, shared: Shared, step: Struct) -> None:
        self._fresh, self._threads = fresh, 32 * (shared.workers + BESIDE)
        self._ended: Any = None  # the event after the last launch
        index = fresh.device.index or 0
        major, minor = torch.cuda.get_device_capability(index)
        if major < OLDEST:
            raise Unsupported("the GPU", f"sm_{major}{minor}", "those from sm_80 on")
        with _on(fresh.device):
            constant = SIZES if step["hidden"] >= _CONSTANT_FROM else ()
            sizes = tuple((name, step[name]) for name in constant)
            arch = HOPPER if (major, minor) == (9, 0) else f"sm_{major}{minor}"
            self._function = _loaded(variant, shared, _packed(variant, step), sizes, index, arch)

    def open(self, step: Struct) -> None:
        """Nothing to prepare: a GPU has its threads."""

    def close(self, step: Struct) -> None:
        if self._ended is not None:
            self._ended.synchronize()

    def begin(self, step: Struct) -> None:
        """Returns at once, as launches do."""
        self._fresh.zero_()
        shared = step["stage_bytes"] + 4 * step["input_floats"]
        arguments = (ctypes.c_void_p * 1)(step.words.data_ptr())
        grid, block = (step["threads"], 1, 1), (self._threads, 1, 1)
        with _on(self._fresh.device):
            stream = ctypes.c_void_p(_stream(self._fresh.device))
            _do("cuFuncSetAttribute", self._function, _MAX_DYNAMIC_SHARED, shared)
            _do(
                "cuLaunchCooperativeKernel",
                self._function,
                *grid,
                *block,
                shared,
                stream,
                arguments,
            )
            self._ended = _event(self._fresh.device)

    launch = begin  # its tokens are there when `wait` says so, of a whole text too

    def wait(self, step: Struct, out: Words, column: int) -> bool:
        """As CpuKernel's: looks at the words in the host's memory that the kernel writes."""
        assert self._ended is not None
        while bool((out[:, column] == NOT_YET).any()):
            if self._ended.query():
                return not bool((out[:, column] == NOT_YET).any())
            time.sleep(_NAP)
        return True

    def finish(self, step: Struct) -> None:
        """As CpuKernel's. The caller's stream may be another one by now, so the event decides."""
        assert self._ended is not None
        self._ended.synchronize()
        if int(self._fresh[_FAILED]):
            raise lost_wait(step, "block")


def _packed(variant: Variant, step: Struct) -> bool:
    """Whether a word has two values: they are neighbours everywhere, and 28 bits are enough."""
    widths = (step[name] for name in ("hidden", "head_dim", "inner"))
    return variant.cache.itemsize == 2 and not any(width % 2 for width in widths)


@functools.cache  # once a process: a driver's module is never unloaded
def _loaded(
    variant: Variant,
    shared: Shared,
    packed: bool,
    sizes: tuple[tuple[str, int], ...],
    index: int,
    arch: str,
) -> ctypes.c_void_p:
    """The kernel on device `index`, which is the current one."""
    label = f"decode step, batch {variant.batch}"
    source = cuda_source(variant, shared.workers, shared.slots, shared.mine, packed, dict(sizes))
    cubin = build.cuda_binary(source, arch, label, False)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _do("cuModuleLoadData", ctypes.byref(module), cubin)
    _do("cuModuleGetFunction", ctypes.byref(function), module, b"megafuse_decode")
    return function


def _do(name: str, *arguments: Any) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    status = getattr(driver, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        said = (text.value or b"").decode(errors="replace")
        raise RuntimeError(f"{name} of the CUDA driver failed with {status}: {said}")


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The driver's calls are about the current device, which may not be the model's."""
    return torch.cuda.device(device)


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def _event(device: torch.device) -> Any:
    """That all work of the stream so far is done."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
