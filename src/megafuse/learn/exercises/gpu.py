"""Launches a compiled CUDA kernel on torch tensors, through cuda-core."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import torch
from torch import Tensor


class Kernel:
    """One kernel of a cubin, on torch's current device and stream."""

    def __init__(self, cubin: bytes, name: str) -> None:
        torch.cuda.init()
        core = importlib.import_module("cuda.core")
        if not hasattr(core, "launch"):  # before 0.5
            core = importlib.import_module("cuda.core.experimental")
        self._core = core
        self._device = self._core.Device(torch.cuda.current_device())
        self._device.set_current()
        self._kernel = self._core.ObjectCode.from_cubin(cubin).get_kernel(name)

    def launch(self, blocks: int, threads: int, *arguments: Tensor | float) -> None:
        """Tensors by address, int as 32 bits, float as float32."""
        config = self._core.LaunchConfig(grid=blocks, block=threads)
        stream = self._device.create_stream(_Current())
        self._core.launch(stream, config, self._kernel, *map(_argument, arguments))


class _Current:
    """torch's current stream, as cuda-core takes a stranger's."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, torch.cuda.current_stream().cuda_stream


def _argument(value: Tensor | float) -> Any:
    if isinstance(value, Tensor):
        return value.data_ptr()
    return ctypes.c_int32(value) if isinstance(value, int) else ctypes.c_float(value)
