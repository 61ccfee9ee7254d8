"""Many threads at once, and any number of torch's own: the same results."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from contract.cases import (
    ALL,
    DIFFERENTIABLE,
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Case,
    close,
    equal,
    listed,
    one_pass,
)
from contract.rules import gradients
from megafuse.runtime import loader


def shared_out(work: Callable[[], object]) -> int:
    """How often `work` gave parts of itself to several of torch's threads."""
    host = loader.load()
    assert host is not None
    before = host.shared_out_count()
    work()
    return host.shared_out_count() - before


@pytest.mark.slow
@pytest.mark.usefixtures("torchs_threads")
def test_eight_threads(device: str, seed: int) -> None:
    """Forward and backward of every op, interleaved; kernels are compiled in the midst of it, and
    the largest tensors go to torch's threads, of which each of ours has its own."""
    torch.set_num_threads(2)
    work = []
    for case in DIFFERENTIABLE:
        # A matrix as large as the long shape's would take seconds.
        for shape in [(3,), (65, 33), (7, 11, 13), *([(33001,)] if case.op.pointwise else [])]:
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

    def together() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)

    times = shared_out(together)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert problems == []
    large = sum(case.op.pointwise for case in DIFFERENTIABLE)
    assert times >= 8 * large or device == "cuda", f"{times} calls were shared out"


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


@pytest.mark.usefixtures("torchs_threads")
@pytest.mark.parametrize("case", one_pass(ALL), ids=str)
def test_number_of_threads_does_not_change_the_bits(case: Case) -> None:
    args = [case.args(shape) for shape in [(100003,), (1001, 37), (37, 1001)]]

    def results(threads: int) -> list[object]:
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        return [case.op.fused(*a) for a in args]

    alone = results(1)
    for threads in (2, 3):
        got: list[object] = []
        times = shared_out(lambda n=threads, to=got: to.extend(results(n)))
        # The first of the three is a single row to ops of rows.
        assert times == (3 if case.op.pointwise else 2), f"{times} calls were shared out"
        for a, b in zip(alone, got, strict=True):
            assert equal(a, b)
    assert shared_out(lambda: results(1)) == 0


@pytest.mark.usefixtures("torchs_threads")
@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_sums_are_right_with_any_number_of_threads(case: Case) -> None:
    """Each thread adds into a row of its own; and twice the same call gives the same bits."""
    args = case.args((3001, 37) if case.op.family != "composite" else (301, 36))
    grad = [torch.randn_like(t) for t in listed(case.op.reference(*args))]
    expected = gradients(case, case.op.reference, args, grad)
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        first = gradients(case, case.op.fused, args, grad)
        second: list[torch.Tensor] = []
        times = shared_out(lambda to=second: to.extend(gradients(case, case.op.fused, args, grad)))
        if case.op.family != "composite":
            assert (times > 0) == (threads > 1), f"{times} calls were shared out"
        for a, b, c in zip(first, second, expected, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-3)


def torchs_openmp() -> ctypes.CDLL:
    """GNU's, which comes with torch's packages; the process may hold another one too."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    files = {line.split()[-1] for line in lines if "/libgomp" in line}
    if not files:
        pytest.skip("torch's threads are not those of GNU's OpenMP here")
    return ctypes.CDLL(min(files, key=lambda file: ("torch" not in file, file)))


def in_a_parallel_region(work: Callable[[], object], threads: int) -> list[object]:
    """What `work` returns in each thread of a parallel region of the OpenMP that torch runs on."""
    openmp = torchs_openmp()
    found: list[object] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def body(_: object) -> None:
        try:
            assert openmp.omp_in_parallel()
            found.append(work())
        except BaseException as error:
            found.append(error)

    openmp.GOMP_parallel(body, None, ctypes.c_uint(threads), ctypes.c_uint(0))
    return found


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_inside_a_parallel_region(case: Case) -> None:
    """A call from one of torch's own threads stays on it, however large: regions do not nest."""
    shape = (257, 300) if case.op.family != "composite" else (65, 33)
    args = case.args(shape)
    expected = case.op.fused(*args)
    results: list[object] = []
    times = shared_out(
        lambda: results.extend(in_a_parallel_region(lambda: case.op.fused(*args), threads=2))
    )
    assert len(results) == 2, "there was no second thread"
    for result in results:
        if isinstance(result, BaseException):
            raise result
        if case.op.family == "composite":
            close(case, result, expected)
        else:
            assert equal(result, expected)
    assert times == 0


def test_a_thread_that_exits_leaves_nothing_broken(device: str) -> None:
    case = next(c for c in ONE_EACH if c.name == "swiglu")
    for _ in range(20):
        args = case.args((50001,), device=device)
        box: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda a=args, b=box: b.append(case.op.fused(*a)))
        thread.start()
        thread.join(30)
        torch.testing.assert_close(box[0], case.op.reference(*args))
