"""Models that the fuzzer found (megafuse.compiler.fuzz --modules), made small, and mended since."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from megafuse.compiler.compile import Compiled
from megafuse.compiler.fuzz import Argument, Network, check
from megafuse.compiler.recorded import Recorder
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]


def planned(model: nn.Module, x: Tensor) -> None:
    """Forward and backward can be fused: nothing is built."""
    recorder = Recorder(model, runs=False)
    out = torch.compile(model, backend=recorder)(x.requires_grad_())
    out.sum().backward()
    for graph in recorder.graphs:
        for name, part in graph.parts.items():
            assert isinstance(part, Compiled), f"{name}: {part}"


def test_two_norms_of_images_with_channels_last() -> None:
    """The kernels of both were put together, and could not write the result as it must lie."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.GroupNorm(1, 6), nn.GroupNorm(1, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = nn.functional.silu(self.one(x))
            out: Tensor = h + self.other(h)
            return out

    x = torch.randn(4, 6, 9, 16)
    planned(Twice(), x.to(memory_format=torch.channels_last))


ATTENTION = """
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.m0 = nn.MultiheadAttention(4, 1, batch_first=True)
        def forward(self, a0):
            v0 = self.m0(a0, a0, a0, need_weights=False)[0]
            return v0,
"""


@pytest.mark.slow
def test_an_attention_layer_of_one_head() -> None:
    """Queries were written over keys and values: to the first, the product had their layout."""
    arguments = [Argument("a0", "float32", ((3, 3, 4), (8, 3, 4)), requires_grad=True)]
    check(Network.of_source(ATTENTION, arguments, training=True))


PRODUCTS = """
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.m0 = nn.Conv2d(5, 8, 3, bias=False)
        def forward(self, a0):
            v0 = self.m0(a0)
            v1 = torch.sigmoid(v0).cumprod(0)
            return v1,
"""


@pytest.mark.slow
def test_running_products_of_a_convolution() -> None:
    """Its backward turns a dimension: a negative stride, but sympy could not tell."""
    arguments = [Argument("a0", "float64", ((5, 5, 5, 9), (4, 5, 4, 5)), requires_grad=True)]
    check(Network.of_source(PRODUCTS, arguments, training=True))


NORM = """
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.m0 = nn.BatchNorm2d(4, affine=False)
        def forward(self, a0):
            v0 = self.m0(a0)
            return v0,
"""


@pytest.mark.slow
def test_a_norm_of_what_lies_transposed() -> None:
    """Its result lay as its input; PyTorch's is contiguous."""
    arguments = [Argument("a0", "float32", ((3, 4, 3, 5), (4, 4, 3, 7)), layout="transposed")]
    check(Network.of_source(NORM, arguments, training=False))
