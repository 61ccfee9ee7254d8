"""Launches a compiled CUDA kernel on torch tensors."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from megafuse.learn import driver


class Kernel:
    """One kernel of a cubin, in the context that torch made for its current device."""

    def __init__(self, cubin: bytes, name: str) -> None:
        torch.cuda.current_stream().synchronize()  # makes sure that there is a context
        self._module = driver.call("cuModuleLoadData", cubin)
        self._function = driver.call("cuModuleGetFunction", self._module, name.encode())

    def launch(
        self, blocks: tuple[int, ...], threads: tuple[int, ...], *arguments: Tensor | float
    ) -> None:
        """On torch's current stream: tensors by address, int as 32 bits, float as float32."""
        values = [_c_value(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = torch.cuda.current_stream().cuda_stream
        grid = (*(*blocks, 1, 1)[:3], *(*threads, 1, 1)[:3])
        where = ctypes.addressof(addresses)
        driver.call("cuLaunchKernel", self._function, *grid, 0, stream, where, 0)


def _c_value(argument: Tensor | float) -> ctypes.c_void_p | ctypes.c_int32 | ctypes.c_float:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int32(argument) if isinstance(argument, int) else ctypes.c_float(argument)
