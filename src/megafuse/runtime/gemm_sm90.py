"""The GEMM for Hopper (kernels/gemm_sm90.h): from what a call needs to its source and machine code.

It stands beside render.py, which makes the kernels of the op families: a GEMM has tiles and tensor
maps, not operands and an index space.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from megafuse.runtime import build
from megafuse.runtime.render import STORAGE

ARCH = "sm_90a"  # wgmma and setmaxnreg are in no other
SYMBOL = "megafuse_gemm"
_ACTS = {"none": "Identity", "relu": "Relu", "gelu": "Gelu", "gelu_tanh": "GeluTanh"}
# Shared memory of a block, with both warpgroups at one tile and at one each.
_SHARED = {True: 230464, False: 222288}


@dataclass(frozen=True)
class Gemm:
    """One kernel. `gradient`: (A B) act'(saved), B's rows along N; else act(A B + bias) + residual.

    `together`: both warpgroups of a block at one tile.
    """

    dtype: str
    act: str
    together: bool
    gradient: bool = False
    bias: bool = False
    residual: bool = False
    pre: bool = False
    sums: bool = False

    @property
    def label(self) -> str:
        return f"a GEMM{' gradient' if self.gradient else ''} with {self.act}, {self.dtype.lower()}"

    @property
    def epilogue(self) -> str:
        storage, act = STORAGE[self.dtype], f"mf::{_ACTS[self.act]}"
        if self.gradient:
            return f"mf::ActGradEpilogue<{storage}, {act}, {_word(self.sums)}>"
        flags = ", ".join(map(_word, (self.bias, self.residual, self.pre)))
        return f"mf::LinearEpilogue<{storage}, {act}, {flags}>"

    @property
    def source(self) -> str:
        maps = ", ".join(f"const __grid_constant__ mf::TensorMap {m}" for m in ("a", "b"))
        more = ", ".join(f"const __grid_constant__ mf::TensorMap {m}" for m in ("out", "pre"))
        kind = f"{STORAGE[self.dtype]}, {_word(self.gradient)}, Epilogue, {_word(self.together)}"
        return (
            f'#include "gemm_sm90.h"\n\nusing Epilogue = {self.epilogue};\n'
            f"using Gemm = mf::GemmSm90<{kind}>;\n"
            f"static_assert(Gemm::shared_bytes == {_SHARED[self.together]});\n\n"
            'extern "C" __global__ void __cluster_dims__(Gemm::kCluster, 1, 1)\n'
            f"    __launch_bounds__(Gemm::kThreads, 1) {SYMBOL}(\n"
            f"        {maps},\n        {more},\n"
            "        const __grid_constant__ mf::GemmSize size,\n"
            "        const __grid_constant__ Epilogue epilogue) {\n"
            "  extern __shared__ mf::u8 memory[];\n"
            "  Gemm(a, b, out, pre, size, memory).run(epilogue);\n}\n"
        )


def kernel(
    dtype: str,
    act: str,
    together: bool,
    gradient: bool,
    bias: bool,
    residual: bool,
    pre: bool,
    sums: bool,
) -> tuple[bytes, str, int]:
    """Called by the host runtime on a kernel it has not seen (runtime/host/sm90.h)."""
    gemm = Gemm(dtype, act, together, gradient, bias, residual, pre, sums)
    return build.cuda_binary(gemm.source, ARCH, gemm.label), SYMBOL, _SHARED[together]


def catalog() -> Iterator[Gemm]:
    """What the usual calls ask for."""
    for dtype, together in itertools.product(("Half", "BFloat16"), (True, False)):
        for act in _ACTS if together else ("gelu", "gelu_tanh"):
            yield Gemm(dtype, act, together, bias=True)
            if act != "none":
                yield Gemm(dtype, act, together, residual=True)
            if "gelu" in act:
                yield Gemm(dtype, act, together, bias=True, pre=True)
        yield Gemm(dtype, "relu" if together else "gelu_tanh", together, gradient=True, sums=True)


def _word(flag: bool) -> str:
    return "true" if flag else "false"
