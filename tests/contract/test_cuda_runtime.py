"""CUDA graphs, streams and devices: launches go where torch's own would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import megafuse as mf
from contract.cases import (
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Case,
    close,
    full_args,
    leaves,
    listed,
    one_pass,
    pointwise,
    tensors,
    total,
    wanting_grad,
)
from contract.test_bad_input import raises
from contract.test_cost import launched

pytestmark = pytest.mark.cuda
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
each = pytest.mark.parametrize("case", ONE_EACH, ids=str)
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")


def warmed_up(work: Callable[[], object]) -> None:
    """As torch asks before a capture; compiles, too."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)


@each
def test_graph_replays_with_changed_inputs(case: Case) -> None:
    args = case.args((65, 33), device="cuda")
    warmed_up(lambda: case.op.fused(*args))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = listed(case.op.fused(*args))
    for _ in range(3):
        fresh = case.args((65, 33), device="cuda")
        for kept, new in zip(tensors(args), tensors(fresh), strict=True):
            kept.copy_(new)
        for out in outs:
            out.fill_(float("nan") if out.is_floating_point() else -1)
        graph.replay()
        close(case, outs, case.op.reference(*args))


def squares(result: Any) -> Tensor:
    return total([t.square() for t in listed(result)])


@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_graph_of_forward_and_backward(case: Case) -> None:
    args = wanting_grad(case, case.args((65, 33), device="cuda"))
    inputs = leaves(args)

    def step() -> list[Tensor]:
        return list(torch.autograd.grad(squares(case.op.fused(*args)), inputs))

    warmed_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grads = step()
    with torch.no_grad():
        for leaf in inputs:
            leaf.copy_(torch.randn_like(leaf))
    graph.replay()
    expected = torch.autograd.grad(squares(case.op.reference(*args)), inputs)
    for got, wanted in zip(grads, expected, strict=True):
        size = wanted.square().mean().sqrt().item()  # a sum that cancels is no more exact than it
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * max(size, 1))


def test_graph_draws_anew_at_each_replay() -> None:
    x = torch.ones(10007, device="cuda", requires_grad=True)

    def step() -> tuple[Tensor, Tensor]:
        out = mf.dropout_relu(x, 0.5)
        return out, torch.autograd.grad(out.sum(), x)[0]

    warmed_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, grad = step()
    seen = []
    for _ in range(4):
        graph.replay()
        assert torch.equal(out != 0, grad != 0), "the backward drew other numbers"
        assert 0.45 < (out != 0).float().mean().item() < 0.55
        seen.append(out.clone())
    for i, first in enumerate(seen):
        assert not any(torch.equal(first, other) for other in seen[i + 1 :])
    torch.cuda.manual_seed(5)
    graph.replay()
    first = out.clone()
    torch.cuda.manual_seed(5)
    graph.replay()
    assert torch.equal(first, out), "the seed does not govern the replay"


@each
def test_other_stream_waits_its_turn(case: Case) -> None:
    """The inputs become right only after a long sleep on the stream the op is called on."""
    args = case.args((257, 129), device="cuda")
    case.op.fused(*args)
    right = [t.clone() for t in tensors(args)]
    expected = case.op.reference(*args)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for t in tensors(args):
            t.zero_()
        torch.cuda._sleep(200_000_000)
        for t, value in zip(tensors(args), right, strict=True):
            t.copy_(value)
        out = case.op.fused(*args)
    side.synchronize()
    close(case, out, expected)


@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_backward_runs_on_the_stream_of_its_forward(case: Case) -> None:
    args = wanting_grad(case, case.args((257, 129), device="cuda"))
    expected = torch.autograd.grad(total(case.op.reference(*args)), leaves(args))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        out = case.op.fused(*args)
    grads = torch.autograd.grad(total(out), leaves(args))
    torch.cuda.synchronize()
    for got, wanted in zip(grads, expected, strict=True):
        size = wanted.square().mean().sqrt().item()  # a sum that cancels is no more exact than it
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * max(size, 1))


@each
def test_the_call_does_not_wait(case: Case) -> None:
    """No hidden synchronisation: torch says so if there were one."""
    args = case.args((65, 33), device="cuda")
    case.op.fused(*args)
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.op.fused(*args)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@each
def test_current_device_is_left_alone(case: Case) -> None:
    before = torch.cuda.current_device()
    case.op.fused(*case.args((65, 33), device=f"cuda:{torch.cuda.device_count() - 1}"))
    assert torch.cuda.current_device() == before


@two_gpus
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_second_gpu(case: Case) -> None:
    args = wanting_grad(case, case.args((65, 33), device="cuda:1"))
    with torch.cuda.device(0):
        outs = listed(case.op.fused(*args))
        assert all(t.device == torch.device("cuda:1") for t in outs)
        close(case, outs, case.op.reference(*args))
        if case.op.differentiable:
            total(outs).backward()
            assert all(t.grad.device == outs[0].device for t in leaves(args))


@two_gpus
def test_tensors_on_two_gpus_are_refused() -> None:
    a, b = torch.randn(5, device="cuda:0"), torch.randn(5, device="cuda:1")
    with pytest.raises(ValueError, match=r"'gate' is on cuda:0, 'up' is on cuda:1"):
        mf.swiglu(a, b)


@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_zero_dim_cpu_tensors_count_as_numbers(case: Case) -> None:
    """As in PyTorch, in every place but the first; their gradient stays on the CPU."""
    args = case.args((65, 33), device="cuda")
    for position, argument in enumerate(case.op.arguments[1:], start=1):
        if not argument.is_tensor:
            continue
        mixed = list(args)
        mixed[position] = torch.tensor(0.3)
        torch.testing.assert_close(case.op.fused(*mixed), case.op.reference(*mixed))
        if argument.name in case.op.autograd.grads:
            mixed[position] = torch.tensor(0.3, requires_grad=True)
            case.op.fused(*mixed).sum().backward()
            assert mixed[position].grad.device.type == "cpu"


def test_a_new_thread_has_a_context() -> None:
    x = torch.randn(1003, device="cuda")
    got: list[Tensor] = []
    thread = threading.Thread(target=lambda: got.append(mf.gelu_scale(x, 1.7)))
    thread.start()
    thread.join(60)
    torch.testing.assert_close(got[0], mf.reference.gelu_scale(x, 1.7))


@each
def test_tensors_on_cpu_and_gpu_are_refused(case: Case) -> None:
    for position in range(len(case.op.arguments)):
        args = full_args(case, (3,), torch.float32, "cuda")
        if isinstance(args[position], Tensor) and len(tensors(args)) > 1:
            args[position] = args[position].cpu()
            assert "cuda" in raises(case, args, position, "cpu")


@pytest.mark.parametrize("case", one_pass(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_sums_take_one_more_launch(case: Case) -> None:
    """A row's gradient is summed in the same launch, and its partial sums in one more."""
    args = case.args((4096, 512), device="cuda")
    fresh = wanting_grad(case, args)
    outs = listed(case.op.fused(*fresh))
    grads = [torch.randn_like(t) for t in outs]
    work = lambda: torch.autograd.grad(outs, leaves(fresh), grads, retain_graph=True)  # noqa: E731
    assert launched("cuda", work) <= case.op.backward_cost(*args).launches
