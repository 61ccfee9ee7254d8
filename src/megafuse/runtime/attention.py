"""Attention's own kernels (kernels/attention_*.h): from what a call needs to machine code.

They stand beside codegen/, which writes the kernels of the op families: attention has tiles of
queries and keys, not operands and an index space.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from megafuse.codegen.variant import STORAGE
from megafuse.runtime import build


@dataclass(frozen=True)
class CpuAttention:
    """One kernel for the CPU; `mask` is its dtype, or empty."""

    direction: str
    dtype: str
    mask: str

    @property
    def symbol(self) -> str:
        return f"megafuse_attention_{self.direction}"

    @property
    def label(self) -> str:
        return f"attention {self.direction}, {self.dtype.lower()}"

    @property
    def source(self) -> str:
        mask = STORAGE[self.mask] if self.mask else "mf::NoMask"
        compute = "double" if self.dtype == "Double" else "float"
        kernel = f"mf::AttentionCpu<{STORAGE[self.dtype]}, {compute}, {mask}>"
        take = "const mf::u64* words, const mf::i64* task, mf::i64 slot"
        call = {
            "forward": "forward(task[0])",
            "backward": "backward(task[0], task[1], task[2], task[3], task[4])",
        }
        backward = str(self.direction == "backward").lower()
        return (
            '#include "attention_cpu.h"\n\n'
            f'extern "C" void {self.symbol}({take}) {{\n'
            f"  {kernel}(words, slot).{call[self.direction]};\n}}\n"
            f'extern "C" mf::i64 {self.symbol}_scratch(mf::i64 dim, mf::i64 keys, '
            f"mf::i64 together) {{\n"
            f"  return {kernel}::scratch(dim, keys, together, {backward});\n}}\n"
        )


def cpu_kernel(direction: str, dtype: str, mask: str) -> tuple[str, str, str]:
    """What runtime/host/programs/attention_cpu.h asks for: a library and two functions of it."""
    kernel = CpuAttention(direction, dtype, mask)
    path = build.shipped_cpu(kernel.source, kernel.label)
    return str(path), kernel.symbol, f"{kernel.symbol}_scratch"


@dataclass(frozen=True)
class CudaAttention:
    """One kernel for CUDA: a struct of kernels/attention_cuda.h with its template's arguments."""

    name: str
    dtype: str
    mask: str
    dim: int
    keys: int = 0
    query: bool = False
    one_tile: bool = False

    symbol = "megafuse_attention"

    @property
    def label(self) -> str:
        return f"{_spoken(self.name)}, {self.dtype.lower()}"

    @property
    def kernel(self) -> str:
        mask = STORAGE[self.mask] if self.mask else "mf::NoMask"
        listed = [STORAGE[self.dtype], mask, str(self.dim)]
        if self.name == "AttentionForward":
            listed.append(_word(self.one_tile))
        if self.name == "AttentionBackward":
            listed += [str(self.keys), _word(self.query), _word(self.one_tile)]
        return f"mf::{self.name}<{', '.join(listed)}>"

    @property
    def threads(self) -> int:
        return 2 * self.keys if self.keys else 128

    @property
    def shared_bytes(self) -> int:
        row = 2 * (self.dim + 8)
        if self.name == "AttentionForward":
            return 192 * row
        if self.name == "AttentionGradQuery":
            return 256 * row
        return (2 * self.keys + 128) * row + 2 * 64 * 2 * (self.keys + 8) + 2 * 64 * 4

    @property
    def source(self) -> str:
        # Four blocks a multiprocessor: as many as shared memory holds, and nothing spills.
        crowded = self.name == "AttentionBackward" and self.one_tile and self.dim <= 64
        least = ", 4" if crowded and self.keys == 64 else ""
        return (
            '#include "attention_cuda.h"\n\n'
            f"using Kernel = {self.kernel};\n"
            f"static_assert(Kernel::shared_bytes == {self.shared_bytes});\n"
            f"static_assert(Kernel::kThreads == {self.threads});\n\n"
            f'extern "C" __global__ void __launch_bounds__({self.threads}{least}) {self.symbol}(\n'
            "    const __grid_constant__ mf::AttentionProblem problem) {\n"
            "  extern __shared__ mf::u8 memory[];\n"
            f"  Kernel(problem).run(reinterpret_cast<{STORAGE[self.dtype]}*>(memory));\n}}\n"
        )


def cuda_kernel(
    arch: str, name: str, dtype: str, mask: str, dim: int, keys: int, query: bool, one_tile: bool
) -> build.CudaKernel:
    """What runtime/host/programs/attention_cuda.h asks for."""
    kernel = CudaAttention(name, dtype, mask, dim, keys, query, one_tile)
    cubin = build.shipped_cuda(kernel.source, arch, kernel.label)
    return build.cuda_kernel(cubin, kernel.symbol, kernel.threads, shared=kernel.shared_bytes)


def catalog() -> Iterator[CudaAttention]:
    """What the usual calls ask for."""
    dims = [("Half", 64), *(("BFloat16", dim) for dim in (32, 64, 96, 128, 192, 256))]
    for dtype, dim in dims:
        for mask in ("", dtype, "Bool") if dim == 64 else ("",):
            for one_tile in (True, False):
                yield CudaAttention("AttentionForward", dtype, mask, dim, one_tile=one_tile)
            if dim <= 128:
                yield from _backward(dtype, mask, dim)


def _backward(dtype: str, mask: str, dim: int) -> Iterator[CudaAttention]:
    for keys, one_tile in itertools.product((64, 128), (True, False)):
        yield CudaAttention(
            "AttentionBackward", dtype, mask, dim, keys, query=True, one_tile=one_tile
        )
    yield CudaAttention("AttentionBackward", dtype, mask, dim, 64)
    yield CudaAttention("AttentionGradQuery", dtype, mask, dim)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _spoken(name: str) -> str:
    """`attention forward` of AttentionForward."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
