"""Who builds which kind of kernel: the one function that the host runtime calls on a kernel that it
has not seen (runtime/host/core/table.h)."""

from __future__ import annotations

from typing import Any

import torch

from megafuse.runtime import attention, build, gemm_sm90, generated
from megafuse.runtime.build import CpuKernel, CudaKernel


def build_kernel(kind: str, device: int, *what: Any) -> CpuKernel | CudaKernel:
    """`what` as the kind's header in runtime/host puts it together; `device` -1 is the CPU."""
    if kind == "functor":
        asked = build.Asked(*what)
        is_generated = generated.knows(asked.name)
        return generated.kernel(device, asked) if is_generated else build.kernel(device, asked)
    if kind == "gemm_sm90":
        return gemm_sm90.kernel(*what)
    if device < 0:
        return attention.cpu_kernel(*what)
    major, minor = torch.cuda.get_device_capability(device)
    arch = f"sm_{major}{minor}"
    return attention.cuda_kernel(arch, *what) if kind == "attention" else build.worker(arch, *what)
