"""CUDA kernels of real functions compile without a GPU, and hold their values in registers."""

from __future__ import annotations

import pytest
import torch
from graph.functions import SAMPLES, Sample

from megafuse.codegen.generated import source
from megafuse.compiler.compile import compiled
from megafuse.compiler.explain import symbols_of
from megafuse.compiler.machine_code import _merged, compiled_for, cuda_kernel
from megafuse.runtime import nvrtc

# Forty kernels for NVRTC; tests/test_fuse_command.py compiles one.
pytestmark = pytest.mark.slow


@pytest.mark.skipif(nvrtc.problem() is not None, reason="needs NVRTC")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.function.__name__)
def test_every_kernel_compiles_for_the_oldest_architecture(sample: Sample) -> None:
    args = sample.drawn(gradients=sample.gradients)
    made = compiled(sample.function, args, {}, "fused", torch.device("cuda"))
    plans = [made.forward[1], *([made.backward[1]] if made.backward else [])]
    kernels = [kernel for plan in plans for kernel in plan.kernels]
    assert kernels
    for kernel in kernels:
        used = compiled_for(kernel, symbols_of(made, args, {}), "sm_75")
        assert used.spilled == 0
        assert 8 <= used.registers <= 255
        assert used.instructions > 20


def test_aligned_rows_are_read_in_vectors() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for dtype, width in ((torch.float32, 4), (torch.bfloat16, 8)):
        for shape, vector in (((64, 128), width), ((1, 7), 1)):
            x = torch.empty(shape, dtype=dtype)
            made = compiled(double, (x,), {}, "fused", torch.device("cuda"))
            (kernel,) = made.forward[1].kernels
            shown = cuda_kernel(kernel, symbols_of(made, (x,), {}))
            assert (shown.dims, shown.vector) == (1, vector)
            assert f"PointwiseCuda<Kernel, {vector}, " in source(shown)


def test_dimensions_are_merged_where_all_operands_allow_it() -> None:
    assert _merged([2, 3, 4], [[12, 4, 1], [12, 4, 1]], False) == ([24], [[1], [1]])
    assert _merged([2, 3, 4], [[12, 4, 1], [0, 4, 1]], False) == ([2, 12], [[12, 1], [0, 1]])
    assert _merged([2, 1, 4], [[4, 4, 1]], True) == ([2, 4], [[4, 1]])
    assert _merged([4], [[1]], True) == ([1, 4], [[0, 1]])
    assert _merged([], [[]], False) == ([1], [[1]])
