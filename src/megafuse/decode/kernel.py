"""The kernel of a model: its source, compiled for its types and its batch, and its launch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from megafuse.codegen.activations import ACTIVATIONS
from megafuse.decode.errors import LostWait
from megafuse.decode.reading import Model
from megafuse.decode.words import Struct
from megafuse.runtime import build

STORAGE = {
    torch.float32: "float",
    torch.bfloat16: "mf::bfloat16",
    torch.float16: "mf::half",
    torch.int8: "mf::i8",
}
# Words of the step that a kernel can have as constants: ReadSizes of decode_cuda.h.
SIZES = (
    *("hidden", "heads", "kv_heads", "head_dim", "head_pitch", "rotary", "chunk"),
    *("x_pitch", "qkv_pitch", "part_pitch", "attended_pitch"),
    *("inner_pitch", "own_pitch", "input_floats"),
)
BESIDE = 4  # warps of a block beside the workers: two that send, and two that make four of them
NOT_YET = -(1 << 63)  # kNotYet of decode.h
_TURN = 100_000_000  # nanoseconds of waiting, after which Python sees to Ctrl-C
Words = NDArray[np.int64]
_CPU = """\
#include "decode_cpu.h"

using Region = mf::decode::Region<{kernel}>;
using mf::decode::Pool;
using mf::decode::Step;

extern "C" {{
#pragma GCC visibility push(default)
mf::u64 mf_launch(const Step* step, bool wait) {{ return Region::launch(*step, wait); }}
bool mf_wait(const Step* step, mf::i64 column, mf::u64 nanoseconds) {{
  return Region::wait(*step, column, nanoseconds);
}}
mf::u64 mf_outcome(const Step* step) {{ return Region::outcome(*step); }}
Pool* mf_open_pool() {{ return Pool::open(); }}
void mf_close_pool(Pool* pool) {{ Pool::close(pool); }}
#pragma GCC visibility pop
}}
"""
_CUDA = """\
#include "decode_cuda.h"

{sizes}
using Kernel = {kernel};

extern "C" __global__ void __launch_bounds__({threads}, 1) megafuse_decode(
    const __grid_constant__ mf::decode::Step step) {{
  extern __shared__ uint4 decode_dynamic[];
  __shared__ Kernel::Shared decode_shared;
  Kernel(step, decode_shared, decode_dynamic).run();
}}
"""

_SIZES = """\
struct Sizes {{
{constants}  __device__ explicit Sizes(const mf::decode::Step&) {{}}
}};"""


@dataclass(frozen=True)
class Variant:
    """What is fixed when the kernel is compiled; everything else is in the words."""

    weights: torch.dtype
    cache: torch.dtype
    activation: str
    rms: bool
    gated: bool
    batch: int

    @staticmethod
    def of(model: Model, batch: int) -> Variant:
        return Variant(
            weights=model.head.weight.dtype,
            cache=model.dtype,
            activation=model.activation,
            rms=model.rms,
            gated=model.gated,
            batch=batch,
        )

    @property
    def parameters(self) -> str:
        """Of the kernel's C++ type, in decode_cpu.h and in decode_cuda.h alike."""
        flags = (str(flag).lower() for flag in (self.rms, self.gated))
        parts = (
            STORAGE[self.weights],
            STORAGE[self.cache],
            ACTIVATIONS[self.activation].word,
            *flags,
            str(self.batch),
        )
        return ", ".join(parts)


def cpu_source(variant: Variant) -> str:
    return _CPU.format(kernel=f"mf::decode::Decode<{variant.parameters}>")


def cuda_source(
    variant: Variant, workers: int, slots: int, mine: int, packed: bool, sizes: dict[str, int]
) -> str:
    """For blocks of so many warps, which take `mine` bytes of a row each, and those that send for
    weights, into so many slots. Packed words have two values. With sizes of the model, those words
    of the step, the kernel has them as constants."""
    shape = f"{workers}, {slots}, {mine}, {str(packed).lower()}"
    constants = "".join(f"  static constexpr mf::u32 {name} = {n};\n" for name, n in sizes.items())
    kind = "Sizes" if sizes else "mf::decode::ReadSizes"
    return _CUDA.format(
        kernel=f"mf::decode::DecodeCuda<{variant.parameters}, {shape}, {kind}>",
        threads=32 * (workers + BESIDE),
        sizes=_SIZES.format(constants=constants) if sizes else "",
    )


def catalog() -> Iterator[tuple[str, str]]:
    """(name, CUDA source) of kernels that models usually need, for compiling without a GPU."""
    usual = (
        (torch.bfloat16, torch.bfloat16, "silu", True, True, 1),
        (torch.float32, torch.float32, "silu", True, True, 2),
        (torch.float16, torch.float16, "gelu_tanh", False, False, 1),
        (torch.int8, torch.bfloat16, "silu", True, True, 1),
        (torch.bfloat16, torch.bfloat16, "silu", True, True, 8),
    )
    for parts in usual:
        variant = Variant(*parts)
        mine = 256 if variant.weights == torch.int8 else 512
        packed = variant.cache.itemsize == 2
        yield f"decode step {variant.parameters}", cuda_source(variant, 8, 4, mine, packed, {})
    # As where a block may have 99 KB of shared memory.
    source = cuda_source(variant, 4, 4, 512, packed, {})
    yield f"decode step {variant.parameters}, 4 workers", source


class CpuKernel:
    """The phases for as many tokens as the step says: `launch` returns when they are done; after
    `begin` they come one by one, which `wait` waits for, and `finish` must be called."""

    def __init__(self, variant: Variant) -> None:
        path = build.cpu_object(
            cpu_source(variant), f"decode step, batch {variant.batch}", ships=True
        )
        library = ctypes.CDLL(str(path))  # its calls let go of Python's lock meanwhile
        self._launch, self._wait = library.mf_launch, library.mf_wait
        self._outcome, self._open = library.mf_outcome, library.mf_open_pool
        self._close = library.mf_close_pool
        address, number = ctypes.c_void_p, ctypes.c_uint64
        self._launch.argtypes, self._launch.restype = [address, ctypes.c_bool], number
        self._wait.argtypes, self._wait.restype = [address, ctypes.c_int64, number], ctypes.c_bool
        self._outcome.argtypes, self._outcome.restype = [address], number
        self._open.argtypes, self._open.restype = [], address
        self._close.argtypes, self._close.restype = [address], None

    def open(self, step: Struct) -> None:
        """Gives the step the threads that it will run on, once there is something to run."""
        step["pool"] = self._open()

    def close(self, step: Struct) -> None:
        """Ends them, after the launch that they may be in. The step can run no more."""
        if step["pool"]:
            self._close(step["pool"])
            step["pool"] = 0

    def launch(self, step: Struct) -> None:
        self._check(self._launch(step.words.data_ptr(), True), step)

    def begin(self, step: Struct) -> None:
        self._check(self._launch(step.words.data_ptr(), False), step)

    def wait(self, step: Struct, out: Words, column: int) -> bool:
        """Whether the tokens of that column are there; False: the launch ended without them."""
        running = True
        while bool((out[:, column] == NOT_YET).any()):
            if not running:
                return False
            running = self._wait(step.words.data_ptr(), column, _TURN)
        return True

    def finish(self, step: Struct) -> None:
        """Waits for the end of the launch; raises what went wrong in it."""
        while self._wait(step.words.data_ptr(), -1, _TURN):
            pass
        self._check(self._outcome(step.words.data_ptr()), step)

    def _check(self, outcome: int, step: Struct) -> None:
        if outcome == 1:
            raise lost_wait(step, "thread")
        if outcome == 2:
            raise RuntimeError(
                f"the system did not start {step['threads']} threads for the decode kernel: "
                "compile(..., threads=) with fewer"
            )


def lost_wait(step: Struct, who: str) -> LostWait:
    return LostWait(
        f"a {who} of the decode kernel waited more than {step['watchdog'] / 1e9:g} s for the "
        "others: the step was given up, and the text since the last call is not to be trusted. "
        f"Are there far more {who}s than the machine runs at once? compile(..., threads=) sets them"
    )
