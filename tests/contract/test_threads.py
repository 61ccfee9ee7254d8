"""Many threads at once, and any number of torch's own: the same results."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from contract.cases import (
    ALL,
    DIFFERENTIABLE,
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Case,
    equal,
    listed,
    one_pass,
)
from contract.rules import gradients


def test_eight_threads(device: str, seed: int) -> None:
    """Forward and backward of every op, interleaved; kernels are compiled in the midst of it."""
    work = []
    for case in DIFFERENTIABLE:
        # A matrix as large as the long shape's would take seconds.
        for shape in [(3,), (65, 33), (7, 11, 13), *([(9001,)] if case.op.pointwise else [])]:
            args = case.args(shape, device=device)
            outs = listed(case.op.reference(*args))
            grad = [torch.randn_like(t) for t in outs]
            expected = [*outs, *gradients(case, case.op.reference, args, grad)]
            work.append((case, args, grad, expected))
    problems: list[str] = []
    start = threading.Barrier(8)

    def run(number: int) -> None:
        order = random.Random(seed + number).sample(work, len(work))
        start.wait()
        try:
            for case, args, grad, expected in order:
                got = [*listed(case.op.fused(*args)), *gradients(case, case.op.fused, args, grad)]
                for a, b in zip(got, expected, strict=True):
                    # Sums of terms around 100, as dequantize_int8's gradients are, may cancel.
                    size = b.abs().max().item()
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 + 1e-6 * size)
        except BaseException as error:
            problems.append(f"thread {number}, {case}: {error!r}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert problems == []


def test_one_kernel_wanted_by_eight_threads_at_once(device: str) -> None:
    """A variant that nothing else in this suite compiles."""
    case = next(c for c in ONE_EACH if c.name == "add_mul_add")
    base = torch.randn(8, 6, 5, 7, device=device)
    kinds = (torch.float64, torch.float32, torch.float16)
    args = [*(base.to(kind) for kind in kinds), base[0, :1, :1, 0].to(torch.bfloat16)]
    args[1] = args[1].permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
    expected = case.op.reference(*args)
    got: list[torch.Tensor | BaseException] = [RuntimeError("never ran")] * 8
    start = threading.Barrier(8)

    def run(number: int) -> None:
        start.wait()
        try:
            got[number] = case.op.fused(*args)
        except BaseException as error:
            got[number] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in got:
        torch.testing.assert_close(result, expected)


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("case", one_pass(ALL), ids=str)
def test_number_of_threads_does_not_change_the_bits(case: Case) -> None:
    for shape in [(100003,), (1001, 37), (37, 1001)]:
        args = case.args(shape)
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(1)
            results.append(case.op.fused(*args))
        assert equal(results[0], results[1])
        assert equal(results[0], results[2])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_sums_are_right_with_any_number_of_threads(case: Case) -> None:
    """Each thread adds into a row of its own; and twice the same call gives the same bits."""
    args = case.args((3001, 37) if case.op.family != "composite" else (301, 36))
    grad = [torch.randn_like(t) for t in listed(case.op.reference(*args))]
    expected = gradients(case, case.op.reference, args, grad)
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        first, second = (gradients(case, case.op.fused, args, grad) for _ in range(2))
        for a, b, c in zip(first, second, expected, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-3)


def test_inside_a_parallel_region() -> None:
    """DataLoader workers and intra-op parallel code call ops from torch's own threads."""
    x = torch.randn(64, 2000)
    future = torch.futures.collect_all([torch.jit.fork(torch.relu, x)])
    case = next(c for c in ONE_EACH if c.name == "gelu_scale")
    torch.testing.assert_close(case.op.fused(x, 1.7), case.op.reference(x, 1.7))
    future.wait()


def test_a_thread_that_exits_leaves_nothing_broken(device: str) -> None:
    case = next(c for c in ONE_EACH if c.name == "swiglu")
    for _ in range(20):
        args = case.args((50001,), device=device)
        box: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda a=args, b=box: b.append(case.op.fused(*a)))
        thread.start()
        thread.join(30)
        torch.testing.assert_close(box[0], case.op.reference(*args))
