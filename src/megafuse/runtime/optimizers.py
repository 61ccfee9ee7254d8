"""Optimizers' kernels (kernels/optimizer_*.h): from what a step needs to machine code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from megafuse.codegen.variant import STORAGE
from megafuse.runtime import build

# A rule's name → its struct of kernels/optimizer.h.
RULES = {
    "adam": "Adam<{F}, false, false>",
    "adam_maxima": "Adam<{F}, false, true>",
    "adamw": "Adam<{F}, true, false>",
    "adamw_maxima": "Adam<{F}, true, true>",
    "sgd": "Sgd<{F}, false>",
    "sgd_momentum": "Sgd<{F}, true>",
    "lion": "Lion<{F}>",
}
THREADS = 256
BLOCKS = 8  # to a multiprocessor, as many as its threads are


@dataclass(frozen=True)
class Optimizer:
    """One kernel: a rule of RULES, and the dtype of all its tensors."""

    rule: str
    dtype: str

    symbol = "megafuse_optimizer"

    @property
    def label(self) -> str:
        return f"{self.rule.replace('_', ' with ')} step, {self.dtype.lower()}"

    def kernel(self, device: str) -> str:
        compute = "double" if self.dtype == "Double" else "float"
        rule = f"mf::optimizer::{RULES[self.rule].format(F=compute)}"
        return f"mf::optimizer::{device}<{rule}, {STORAGE[self.dtype]}, {compute}>"

    @property
    def cpu_source(self) -> str:
        return (
            '#include "optimizer_cpu.h"\n\n'
            f'extern "C" void {self.symbol}(const mf::u64* table, mf::i64 rows, mf::i64 begin, '
            "mf::i64 end) {\n"
            f"  {self.kernel('Cpu')}::run(table, rows, begin, end);\n}}\n"
        )

    @property
    def cuda_source(self) -> str:
        return (
            '#include "optimizer_cuda.h"\n\n'
            f"using Kernel = {self.kernel('Cuda')};\n"
            f"static_assert(Kernel::kThreads == {THREADS});\n\n"
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {self.symbol}(\n'
            "    const __grid_constant__ Kernel kernel) {\n  kernel.run();\n}\n"
        )


def cpu_kernel(rule: str, dtype: str) -> build.CpuKernel:
    """What runtime/host/programs/optimizer.h asks for."""
    kernel = Optimizer(rule, dtype)
    return str(build.shipped_cpu(kernel.cpu_source, kernel.label)), kernel.symbol


def cuda_kernel(arch: str, rule: str, dtype: str) -> build.CudaKernel:
    kernel = Optimizer(rule, dtype)
    cubin = build.shipped_cuda(kernel.cuda_source, arch, kernel.label)
    return cubin, kernel.symbol, THREADS, 1, BLOCKS, 1, 0


def catalog() -> Iterator[Optimizer]:
    """Every one there is."""
    for rule, dtype in itertools.product(RULES, ("Float", "BFloat16", "Half", "Double")):
        yield Optimizer(rule, dtype)
