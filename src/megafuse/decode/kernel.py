"""The kernel of a model: its source, compiled for its types and its batch, and its launch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import torch

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
THREADS = 512  # of a block
_CPU = """\
#include "decode_cpu.h"

using Kernel = {kernel};

extern "C" __attribute__((visibility("default"))) mf::u64 mf_decode(const mf::decode::Step* step) {{
  return mf::decode::Region<Kernel>::launch(*step);
}}
"""
_CUDA = """\
#include "decode_cuda.h"

using Kernel = {kernel};

extern "C" __global__ void __launch_bounds__({threads}) megafuse_decode(
    const __grid_constant__ mf::decode::Step step) {{
  extern __shared__ uint4 decode_shared[];
  Kernel(step, decode_shared).run();
}}
"""


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


def cuda_source(variant: Variant, threads: int) -> str:
    kernel = f"mf::decode::DecodeCuda<{variant.parameters}, {threads}>"
    return _CUDA.format(kernel=kernel, threads=threads)


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
        yield f"decode step {variant.parameters}", cuda_source(variant, THREADS)


class CpuKernel:
    """`launch` runs the phases for as many tokens as the step says, and returns when it is done."""

    def __init__(self, variant: Variant) -> None:
        path = build.cpu_object(
            cpu_source(variant), f"decode step, batch {variant.batch}", ships=True
        )
        self._call = ctypes.CDLL(str(path)).mf_decode  # lets go of Python's lock meanwhile
        self._call.restype = ctypes.c_uint64
        self._call.argtypes = [ctypes.c_void_p]

    def launch(self, step: Struct) -> None:
        outcome = self._call(step.words.data_ptr())
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
