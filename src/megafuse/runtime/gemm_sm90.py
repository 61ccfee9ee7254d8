"""The GEMM for Hopper (kernels/gemm_sm90.h): from what a call needs to its source and machine code.

It stands beside codegen/, which writes the kernels of the op families: a GEMM has tiles and tensor
maps, not operands and an index space.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from megafuse.codegen.activations import AFTER_PRODUCTS, words
from megafuse.codegen.variant import STORAGE
from megafuse.runtime import build

ARCH = "sm_90a"  # wgmma and setmaxnreg are in no other
SYMBOL = "megafuse_gemm"
_ACTS = {"none": "mf::Identity", **words(*AFTER_PRODUCTS)}
# Shared memory of a block, by its tiles' columns.
_SHARED = {256: 230464, 128: 230496}
_THREADS = 384


@dataclass(frozen=True)
class Gemm:
    """One kernel: act(A B + bias) + residual, and A B + bias too where `pre`.

    `columns` are those of a tile: 256 have both warpgroups of a block at work, 128 one. `anywhere`:
    the result's rows are no whole 16 bytes.
    """

    dtype: str
    act: str
    columns: int
    bias: bool = False
    residual: bool = False
    pre: bool = False
    anywhere: bool = False

    @property
    def label(self) -> str:
        return f"a GEMM with {self.act}, {self.dtype.lower()}"

    @property
    def epilogue(self) -> str:
        storage, act = STORAGE[self.dtype], _ACTS[self.act]
        flags = ", ".join(map(_word, (self.bias, self.residual, self.pre)))
        return f"mf::LinearEpilogue<{storage}, {act}, {flags}>"

    @property
    def source(self) -> str:
        maps = ", ".join(f"const __grid_constant__ mf::TensorMap {m}" for m in ("a", "b"))
        more = ", ".join(f"const __grid_constant__ mf::TensorMap {m}" for m in ("out", "pre"))
        kind = f"{STORAGE[self.dtype]}, Epilogue, {self.columns}, {_word(self.anywhere)}"
        return (
            f'#include "gemm_sm90.h"\n\nusing Epilogue = {self.epilogue};\n'
            f"using Gemm = mf::GemmSm90<{kind}>;\n"
            f"static_assert(Gemm::shared_bytes == {_SHARED[self.columns]});\n"
            f"static_assert(Gemm::kThreads == {_THREADS});\n\n"
            'extern "C" __global__ void __cluster_dims__(Gemm::kCluster, 1, 1)\n'
            f"    __launch_bounds__(Gemm::kThreads, 1) {SYMBOL}(\n"
            f"        {maps},\n        {more},\n"
            "        const __grid_constant__ mf::GemmSize size,\n"
            "        const __grid_constant__ Epilogue epilogue) {\n"
            "  extern __shared__ mf::u8 memory[];\n"
            "  Gemm(a, b, out, pre, size, memory).run(epilogue);\n}\n"
        )


def kernel(
    dtype: str, act: str, columns: int, bias: bool, residual: bool, pre: bool, anywhere: bool
) -> build.CudaKernel:
    """What runtime/host/programs/sm90.h asks for."""
    gemm = Gemm(dtype, act, columns, bias, residual, pre, anywhere)
    cubin = build.shipped_cuda(gemm.source, ARCH, gemm.label)
    return build.cuda_kernel(cubin, SYMBOL, _THREADS, shared=_SHARED[columns])


def catalog() -> Iterator[Gemm]:
    """What the usual calls ask for."""
    for dtype, columns in itertools.product(("Half", "BFloat16"), _SHARED):
        for act in _ACTS:
            yield Gemm(dtype, act, columns, bias=True)
            if act != "none":
                yield Gemm(dtype, act, columns, residual=True)
            if "gelu" in act:
                yield Gemm(dtype, act, columns, bias=True, pre=True)
        yield Gemm(dtype, "none", columns, bias=True, anywhere=True)


def _word(flag: bool) -> str:
    return "true" if flag else "false"
