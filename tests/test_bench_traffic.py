"""megafuse.bench.traffic: kernels and memory of one call, as the profiler counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from megafuse.bench.traffic import Traffic, watch
from megafuse.ops import OPS
from megafuse.registry.sample import Draw

N = 1 << 16


def watched(function: Callable[..., Any], *args: Any, device: str = "cpu") -> Traffic:
    with torch.no_grad():
        return watch(lambda: function(*args), device)


def of_op(name: str, fused: bool, device: str = "cpu") -> Traffic:
    op = OPS[name]
    args = op.sample(Draw((N,), torch.float32, device))
    return watched(op.fused if fused else op.reference, *args, device=device)


# ---- launches


@pytest.mark.parametrize(
    ("op", "launches"), [("gelu_scale", 2), ("quantize_int8", 5), ("add_mul_exp", 3), ("swiglu", 2)]
)
def test_eager_launches_a_kernel_for_each_operation(op, launches):
    found = of_op(op, fused=False)
    assert len(found.kernels) == launches
    assert all(name.startswith("aten::") for name in found.kernels)


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.family != "composite"])
def test_fused_launches_one(op):
    assert of_op(op, fused=True).kernels == ("megafuse",)


def test_names_of_eager_operations():
    assert of_op("gelu_scale", fused=False).kernels == ("aten::gelu", "aten::mul")
    assert of_op("quantize_int8", fused=False).kernels[:3] == (
        "aten::div",
        "aten::add",
        "aten::round",
    )


def test_a_backward_pass_is_counted_too():
    op = OPS["gelu_scale"]
    x = torch.randn(N, requires_grad=True)
    grad = torch.randn(N)

    def both(function: Callable[..., Tensor]) -> Traffic:
        return watch(lambda: torch.autograd.grad(function(x, 1.7, "tanh"), x, grad), "cpu")

    assert both(op.fused).kernels == ("megafuse",) * 2
    assert len(both(op.reference).kernels) == 4


def test_views_and_allocations_are_free():
    def views(x: Tensor) -> Tensor:
        return torch.empty_like(x).view(-1).t().unsqueeze(0)[0].detach()

    assert watched(views, torch.randn(8, 8)).kernels == ()


def test_a_conversion_is_a_launch():
    assert len(watched(lambda x: x.to(torch.float64), torch.randn(N)).kernels) == 1
    assert watched(lambda x: x.to(torch.float32), torch.randn(N)).kernels == ()


def test_a_matrix_product_is_one_launch():
    """aten::linear calls aten::addmm or the like, which does the work."""
    layer = torch.nn.Linear(8, 8)
    assert len(watched(layer, torch.randn(8, 8)).kernels) == 1


def test_a_sum_is_one_launch():
    """aten::sum starts with a fill of its own."""
    assert watched(lambda x: x.sum(0), torch.randn(64, 64)).kernels == ("aten::sum",)


def test_a_list_of_tensors_is_more_than_numbers():
    x = torch.randn(64, 64)
    assert watched(lambda a, b: torch.cat([a, b]), x, x).kernels == ("aten::cat",)


# ---- memory


def test_eager_keeps_an_intermediate():
    """gelu(x) lives until it was multiplied: one tensor beside the result."""
    assert of_op("gelu_scale", fused=False).peak_extra_bytes == pytest.approx(4 * N, rel=0.01)


def test_fused_keeps_none():
    assert of_op("gelu_scale", fused=True).peak_extra_bytes <= 0.01 * 4 * N


def test_two_intermediates_at_once():
    found = watched(lambda x: (x + 1) * (x + 2), torch.randn(N))
    assert found.peak_extra_bytes == pytest.approx(8 * N, rel=0.01)


def test_intermediates_one_after_the_other():
    """The first is gone when the third is made: never more than one beside the newest."""
    found = watched(lambda x: (((x + 1) + 1) + 1) + 1, torch.randn(N))
    assert found.peak_extra_bytes == pytest.approx(4 * N, rel=0.01)


def test_results_do_not_count():
    found = watched(lambda x: (x + 1, [x + 2, {"c": x * 3}]), torch.randn(N))
    assert found.peak_extra_bytes <= 0.01 * 4 * N


def test_a_result_that_is_an_argument_does_not_hide_memory():
    """What is returned was there before: the intermediate still counts."""

    def function(x: Tensor) -> Tensor:
        (x + 1).sum()
        return x

    assert watched(function, torch.randn(N)).peak_extra_bytes >= 0.99 * 4 * N


# ---- CUDA


@pytest.fixture
def cuda() -> str:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return "cuda"


@pytest.mark.cuda
@pytest.mark.parametrize(("fused", "kernels"), [(True, 1), (False, 2)])
def test_kernels_on_cuda(cuda, fused, kernels):
    found = of_op("gelu_scale", fused, cuda)
    assert len(found.kernels) == kernels
    assert found.unfinished is None


@pytest.mark.cuda
def test_memory_on_cuda(cuda):
    assert of_op("gelu_scale", False, cuda).peak_extra_bytes == pytest.approx(4 * N, rel=0.02)
    assert of_op("gelu_scale", True, cuda).peak_extra_bytes <= 0.01 * 4 * N


@pytest.mark.cuda
def test_copies_and_fills_are_work_too(cuda):
    x = torch.randn(N, device=cuda)
    assert len(watched(lambda t: torch.zeros_like(t).copy_(t), x, device=cuda).kernels) == 2


@pytest.mark.cuda
def test_work_that_nobody_waits_for(cuda):
    side = torch.cuda.Stream()
    x = torch.randn(1 << 24, device=cuda)

    def cheat(t: Tensor) -> Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return t.exp().exp().exp()

    assert watched(cheat, x, device=cuda).unfinished is not None
    torch.cuda.synchronize()
