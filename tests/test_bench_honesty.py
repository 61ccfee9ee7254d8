"""Contenders that cheat: each is caught, shows what it did, and gets no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import megafuse as mf
from megafuse.bench import honesty, job
from megafuse.bench.arguments import Arguments
from megafuse.bench.contenders import Contender
from megafuse.bench.job import Work
from megafuse.bench.result import Entry, Roofs

HERE = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=HERE)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)


def honest(x: Tensor) -> Tensor:
    return torch.exp(x) * 2


def judged(cheat: Callable[..., Any], device: str, x: Tensor | None = None, **how: Any) -> Entry:
    """What `mf.bench` says of it, beside an honest contender."""
    x = torch.randn(1000, 100, device=device) if x is None else x
    result = mf.bench(honest, x, against=[cheat, "eager"], budget=0.02, **how)
    (row,) = result.rows
    assert row.entries[0].error is None, "the honest one was refused"
    assert row.entries[0].times
    assert row.entries[2].error is None, "eager was refused"
    entry = row.entries[1]
    if entry.error:
        assert not entry.times
        assert entry.name not in row.speedups
        shown = " ".join(str(result).split())
        assert " ".join(entry.error.split()) in shown, "the table does not show the error"
    return entry


@pytest.mark.slow
def test_honest_work_passes(device: str) -> None:
    entry = judged(lambda x: x.exp().mul_(2), device)
    assert entry.error is None
    assert entry.times["cold"].n >= 12


def test_a_cached_result(device: str) -> None:
    kept: dict[int, Tensor] = {}

    def cheat(x: Tensor) -> Tensor:
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = honest(x)
        return kept[x.data_ptr()]

    assert "cached result" in str(judged(cheat, device).error)


def test_the_same_memory_each_time(device: str) -> None:
    kept: list[Tensor] = []

    def cheat(x: Tensor) -> Tensor:
        if not kept:
            kept.append(torch.empty_like(x))
        return torch.mul(x.exp(), 2, out=kept[0])

    assert "overwrites its earlier result" in str(judged(cheat, device).error)


def test_a_gradient_that_is_the_incoming_one(device: str) -> None:
    """Autograd hands it on as it is: nobody's earlier result is overwritten."""

    def rounded(x: Tensor) -> Tensor:
        return x + (x.round() - x).detach()

    x = torch.randn(64, 64, device=device)
    result = mf.bench(rounded, x, against="fuse", mode="forward+backward", budget=0.02)
    assert [entry.error for entry in result.rows[0].entries] == [None, None]


def test_a_wrong_result(device: str) -> None:
    def cheat(x: Tensor) -> Tensor:
        return torch.exp(x) * 2.0001

    assert "wrong result" in str(judged(cheat, device).error)


def test_a_single_wrong_element(device: str) -> None:
    def cheat(x: Tensor) -> Tensor:
        out = honest(x)
        out[-1, -1] = 0
        return out

    assert "1 of 100,000 elements" in str(judged(cheat, device).error)


def test_a_nan(device: str) -> None:
    def cheat(x: Tensor) -> Tensor:
        out = honest(x)
        out[3, 4] = float("nan")
        return out

    assert "1 of 100,000 elements" in str(judged(cheat, device).error)


def test_the_wrong_dtype(device: str) -> None:
    entry = judged(lambda x: honest(x).to(torch.bfloat16), device)
    assert "wrong dtype: bfloat16, expected float32" in str(entry.error)


def test_the_wrong_shape(device: str) -> None:
    entry = judged(lambda x: honest(x).flatten(), device)
    assert "wrong shape: (100000,), expected (1000, 100)" in str(entry.error)


def test_too_few_results(device: str) -> None:
    assert "returns 0 tensors, expected 1" in str(judged(lambda x: None, device).error)


def test_a_changed_argument(device: str) -> None:
    def cheat(x: Tensor) -> Tensor:
        out = honest(x)
        x.add_(1)
        return out

    assert "changes its argument 1" in str(judged(cheat, device).error)


@pytest.mark.parametrize("size", [10, 1000, 20_000, 100_000, 1_000_000])
def test_nothing_is_done(size: int, device: str) -> None:
    """Memory that eager's result was in a moment ago must not pass for a result."""
    x = torch.randn(size // 10, 10, device=device)
    assert "wrong result" in str(judged(torch.empty_like, device, x).error)


def test_a_result_that_is_not_a_tensor_yet(device: str) -> None:
    class Later(Tensor):
        pass

    entry = judged(lambda x: honest(x).as_subclass(Later), device)
    assert "returns a Later" in str(entry.error)


@pytest.mark.parametrize("size", [10, 1000, 20_000, 100_000, 1_000_000])
def test_right_only_while_it_is_checked(size: int, device: str) -> None:
    """Of every size: small memory is handed out again in another order than large."""
    calls = 0

    def cheat(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return honest(x) if calls <= 6 else torch.empty_like(x)

    x = torch.randn(size // 10, 10, device=device)
    assert "after it was timed: wrong result" in str(judged(cheat, device, x).error)


def test_an_exception(device: str) -> None:
    def cheat(x: Tensor) -> Tensor:
        raise RuntimeError("no such kernel\nand more")

    assert judged(cheat, device).error == "RuntimeError: no such kernel"


def test_a_wrong_gradient(device: str) -> None:
    def cheat(x: Tensor) -> Tensor:
        return honest(x) + (x - x.detach()) * 0.1

    entry = judged(cheat, device, mode="forward+backward")
    assert "result 2: wrong result" in str(entry.error)


def test_work_on_another_thread() -> None:
    def cheat(x: Tensor) -> Tensor:
        out = torch.empty_like(x)

        def work() -> None:
            time.sleep(0.2)  # far longer than a busy machine takes to read the result
            out.copy_(honest(x))

        threading.Thread(target=work).start()
        return out

    assert "wrong result" in str(judged(cheat, "cpu").error)


def test_a_result_that_changes_later() -> None:
    def cheat(x: Tensor) -> Tensor:
        out = honest(x)

        def work() -> None:
            time.sleep(0.005)
            out.fill_(0)

        threading.Thread(target=work).start()
        return out

    # Seen right after the call or, where the machine is busy, after the next one.
    error = str(judged(cheat, "cpu").error)
    assert "goes on writing its result" in error or "overwrites its earlier result" in error


@pytest.mark.cuda
@pytest.mark.parametrize("waits", [True, False], ids=["waits for its input", "waits for nothing"])
def test_work_on_another_stream(waits: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    side = torch.cuda.Stream()
    heavy = torch.randn(4096, 4096, device="cuda")

    def cheat(x: Tensor) -> Tensor:
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            heavy.mm(heavy)  # half of it would be enough: what counts is that nobody waits
            return honest(x)

    error = str(judged(cheat, "cuda").error)
    assert "outside its stream" in error or "wrong result" in error


@pytest.mark.cuda
def test_another_stream_that_is_waited_for() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    side = torch.cuda.Stream()

    def fair(x: Tensor) -> Tensor:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            out = honest(x)
        here.wait_stream(side)
        out.record_stream(here)
        return out

    assert judged(fair, "cuda").error is None


def test_a_time_that_cannot_be() -> None:
    """100 MB in 1 ms need 100 GB/s."""
    work = Job(100_000_000)
    roofs = Roofs(copy=20e9, read=25e9, gemm={"float32": 1e11})
    assert "broken measurement" in str(honesty.below_floor(work, 1e-3, roofs))
    assert honesty.below_floor(work, 4e-3, roofs) is None
    # A copy beside it that is faster than the kept roof raises the roof.
    assert honesty.below_floor(work, 1e-3, roofs, copied=100e9) is None


def test_arithmetic_that_cannot_be() -> None:
    work = Job(0, flops=10**12)
    roofs = Roofs(copy=20e9, read=25e9, gemm={"float32": 1e11, "bfloat16": 1e12})
    assert "broken measurement" in str(honesty.below_floor(work, 0.1, roofs))
    assert "for the arithmetic" in str(honesty.below_floor(work, 0.1, roofs))
    assert honesty.below_floor(work, 1.0, roofs) is None


def Job(moved: int, flops: int = 0) -> job.Job:
    contender = Contender("honest", "", lambda: honest)
    made = job.of_function(honest, [torch.ones(4)], "forward", [contender])
    made.work = Work(moved, moved, flops)
    return made


def test_arguments_of_the_user_are_left_alone(device: str) -> None:
    x = torch.randn(100, device=device)
    before = x.clone()
    judged(lambda t: honest(t), device, x)
    assert torch.equal(x, before)
    assert not x.requires_grad


def test_each_round_has_other_values_at_the_same_place() -> None:
    made = job.of_function(honest, [torch.randn(64, 8)], "forward", [])
    arguments = Arguments(made)
    x = arguments[0][0]
    seen = set()
    for _ in range(5):
        arguments.refresh(0)
        assert arguments[0][0] is x
        seen.add(tuple(x.flatten().tolist()))
    assert len(seen) == 5
    assert arguments[1][0].data_ptr() != x.data_ptr()


def test_ten_elements_have_many_values() -> None:
    """As many as turns: rolled, they had ten, and one turn in ten was right in old memory."""
    arguments = Arguments(job.of_function(honest, [torch.randn(1, 10)], "forward", []))
    seen = set()
    for _ in range(200):
        arguments.refresh(0)
        seen.add(tuple(arguments[0][0].flatten().tolist()))
    assert len(seen) == 200


def test_small_results_are_checked_on_values_of_their_own() -> None:
    """What the contender before left in freed memory is never the next one's right result."""
    kept: list[Tensor] = []

    def keeps(x: Tensor) -> Tensor:
        kept.append(honest(x))
        return kept[-1]

    def copies(x: Tensor) -> Tensor:
        """Takes old memory, as an allocator may hand it out."""
        return honest(x) if len(kept) < 6 else kept[-1].clone()

    x = torch.randn(1, 10)
    (row,) = mf.bench(honest, x, against=[keeps, copies, "eager"], budget=0.02).rows
    assert row.entries[1].error is None
    assert "wrong result" in str(row.entries[2].error)


def test_an_exception_while_it_is_timed(device: str) -> None:
    calls = 0

    def cheat(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise RuntimeError("out of memory")
        return honest(x)

    assert judged(cheat, device).error == "while it was timed: RuntimeError: out of memory"
