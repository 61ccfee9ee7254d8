"""Who builds which kind of kernel: what the host runtime calls on kernels that it has not seen
(runtime/host/core/table.h)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from megafuse.runtime import attention, build, gemm_sm90, generated, nvrtc, optimizers
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
        return _ON_CPU[kind](*what)
    major, minor = torch.cuda.get_device_capability(device)
    return _ON_CUDA[kind](f"sm_{major}{minor}", *what)


_ON_CPU: dict[str, Callable[..., CpuKernel]] = {
    "attention": attention.cpu_kernel,
    "optimizer": optimizers.cpu_kernel,
}
_ON_CUDA: dict[str, Callable[..., CudaKernel]] = {
    "attention": attention.cuda_kernel,
    "optimizer": optimizers.cuda_kernel,
    "worker": build.worker,
}


def build_kernels(asked: Sequence[tuple[Any, ...]]) -> list[CpuKernel | CudaKernel | None]:
    """Several of them side by side, each as build_kernel takes it; None for one that fails.

    Threads do: g++ is a process of its own, and NVRTC compiles without the GIL.
    """
    if any(device >= 0 for _, device, *_ in asked):
        nvrtc.problem()  # imports cuda-core: threads that do so at once find half of a module
    try:
        with ThreadPoolExecutor(min(len(asked), os.cpu_count() or 1)) as pool:
            return list(pool.map(_or_none, asked))
    except RuntimeError:  # no thread can be started, as at the interpreter's end
        return [None] * len(asked)


def _or_none(asked: tuple[Any, ...]) -> CpuKernel | CudaKernel | None:
    try:
        return build_kernel(*asked)
    except Exception:  # told when the host asks for this one alone
        return None
