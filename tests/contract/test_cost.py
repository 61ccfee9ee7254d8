"""An op's cost is what really happens: launches counted, bytes worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from contract.cases import ALL, ONE_EACH_DIFFERENTIABLE, Case, full_args, leaves, wanting_grad
from megafuse import OPS
from megafuse.runtime import loader


def launched(device: str, work: Callable[[], object]) -> int:
    """Kernels of ours on the CPU; on CUDA every kernel that the profiler saw."""
    work()  # compiles
    if device == "cpu":
        host = loader.load()
        assert host is not None
        before = host.launch_count()
        work()
        return host.launch_count() - before
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    on_gpu = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not e.name.startswith(("Memcpy", "Memset")) for e in on_gpu)


@pytest.mark.parametrize("shape", [(64, 64), (1000, 33)])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_forward_launches(case: Case, shape: tuple[int, ...], device: str) -> None:
    args = case.args(shape, device=device)
    assert launched(device, lambda: case.op.fused(*args)) == case.op.cost(*args).launches == 1


@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_backward_launches(case: Case, device: str) -> None:
    """Gradients of whole tensors: one launch for all of them, or none where they pass through."""
    args = full_args(case, (64, 64), torch.float32, device)
    fresh = wanting_grad(case, args)
    out = case.op.fused(*fresh)
    grad = torch.randn_like(out)
    work = lambda: torch.autograd.grad(out, leaves(fresh), grad, retain_graph=True)  # noqa: E731
    assert launched(device, work) == case.op.backward_cost(*args).launches


def cost_bytes(name: str, *args: object) -> tuple[int, int]:
    op = OPS[name]
    return op.cost(*args).bytes_moved, op.backward_cost(*args).bytes_moved if op.grads else 0


def test_bytes_by_hand() -> None:
    def full(dtype: torch.dtype) -> Tensor:
        return torch.zeros(100, 30, dtype=dtype)

    n, row = 100 * 30, 30
    # x in, out out; backward: grad and x in, x's gradient out.
    assert cost_bytes("gelu_scale", full(torch.float32), 1.7, "tanh") == (8 * n, 12 * n)
    assert cost_bytes("gelu_scale", full(torch.bfloat16), 1.7, "tanh") == (4 * n, 6 * n)
    # The bias is read once; backward: grad, x and bias in, both gradients out.
    bias = torch.zeros(30)
    assert cost_bytes("bias_act", full(torch.float32), bias, "gelu") == (
        8 * n + 4 * row,
        12 * n + 8 * row,
    )
    # float16 in, int8 out.
    assert cost_bytes("quantize_int8", full(torch.float16), 0.1, 3) == (3 * n, 0)
    # Backward: grad, gate and up in, both gradients out.
    assert cost_bytes("swiglu", full(torch.float32), full(torch.float32)) == (12 * n, 20 * n)
    # x, y, z, w in; backward: grad, x, y and z in; x and y share one gradient, z has its own and
    # w's is the incoming one.
    four = [full(torch.float32) for _ in range(4)]
    assert cost_bytes("add_mul_add", *four) == (20 * n, 24 * n)
    # exp saves its output, and x and y share one gradient.
    assert cost_bytes("add_mul_exp", *four[:2]) == (12 * n, 12 * n)


def test_bytes_of_views() -> None:
    """An expanded tensor is read as it is stored; a row and a column are small."""
    x, row = torch.zeros(100, 30), torch.zeros(30)
    expanded = row.expand(100, 30)
    assert OPS["swiglu"].cost(x, expanded).bytes_moved == OPS["swiglu"].cost(x, row).bytes_moved
    assert OPS["swiglu"].cost(x, x[:, :1]).bytes_moved == 4 * (2 * 3000 + 100)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_flops_grow_with_the_output(case: Case) -> None:
    small, large = (case.op.cost(*case.args((n, 8))).flops for n in (10, 1000))
    assert large == 100 * small > 0


@pytest.mark.parametrize("case", ALL, ids=str)
def test_empty_costs_nothing_to_compute(case: Case, device: str) -> None:
    args = case.args((0, 4), device=device)
    assert case.op.cost(*args).flops == 0
    assert launched(device, lambda: case.op.fused(*args)) == 0
