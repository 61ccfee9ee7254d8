"""The fused rung through torch's load_inline and nvcc: how most tutorials compile a kernel."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from megafuse.learn.ladder import launch
from megafuse.runtime import cpp, sources

_LAUNCHER = """
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

torch::Tensor classic_gelu_scale(torch::Tensor x, double scale) {
  auto out = torch::empty_like(x);
  const int blocks = 8 * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  gelu_scale<<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), float(scale), x.numel());
  return out;
}
"""


@dataclass(frozen=True)
class Built:
    """The kernel as a Python function, and the seconds that it took to make."""

    function: Callable[[Tensor, float], Tensor]
    took: float


def nvcc() -> str | None:
    """Where load_inline will look for nvcc, in its order."""
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if home:
            return str(Path(home, "bin", "nvcc"))
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.is_file() else None)


def missing() -> str | None:
    """What load_inline needs and this machine lacks."""
    if nvcc() is None:
        return "there is no nvcc (it comes with the CUDA toolkit, which megafuse does not need)"
    if shutil.which("ninja") is None:
        return "there is no ninja on PATH: pip install ninja"
    if cpp.find() is None:
        return "there is no C++ compiler"
    return None


def build() -> Built:
    """Compiles with nvcc, or finds in torch's own cache what it compiled before."""
    from torch.utils import cpp_extension  # brings setuptools, which takes half a second

    start = time.perf_counter()
    module = cpp_extension.load_inline(
        name="megafuse_tutorial_gelu_scale",
        cpp_sources="torch::Tensor classic_gelu_scale(torch::Tensor x, double scale);",
        # One text: with -I, the kernel headers' math.h would stand in for the system's.
        cuda_sources=sources.flatten(launch.source("gelu_scale/4_fused", "cuda")) + _LAUNCHER,
        functions=["classic_gelu_scale"],
    )
    return Built(module.classic_gelu_scale, time.perf_counter() - start)
