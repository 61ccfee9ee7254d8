"""Events of a profiler to operations: names in order, kernels to who launched them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._autograd import DeviceType

from megafuse.diagnose import join, timeline
from megafuse.diagnose.record import Operation, Where
from megafuse.diagnose.timeline import Event, Run


def host(name: str, start: float, end: float, id: int = 0, thread: int = 1) -> Any:
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(
        name=name, time_range=span, id=id, thread=thread, device_type=DeviceType.CPU,
        input_shapes=[], input_dtypes=[], linked_correlation_id=0,
    )  # fmt: skip


def kernel(name: str, start: float, end: float, id: int, linked: int = 0) -> Any:
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(
        name=name, time_range=span, id=id, thread=0, device_type=DeviceType.CUDA,
        device_resource_id=7, linked_correlation_id=linked,
    )  # fmt: skip


MARK = timeline._MARK
# Two calls, in µs. The second's kernel runs when the host has long gone on; one has no record of
# its launch, and one was launched by no operation.
EVENTS = [
    host(MARK, 0, 100),
    kernel(MARK, 10, 90, 0),  # a record_function is there on the device as well
    host("aten::linear", 5, 40, id=1),
    host("aten::addmm", 10, 38, id=2),
    host("cudaLaunchKernel", 20, 24, id=900),
    kernel("gemm", 30, 60, 900),
    host("aten::_local_scalar_dense", 50, 80, id=3),
    host("cudaStreamSynchronize", 55, 79, id=901),
    host(MARK, 200, 300),
    host("aten::addmm", 210, 238, id=4),
    host("cuLaunchKernelEx", 220, 224, id=902),
    kernel("gemm", 280, 310, 902),
    kernel("mine", 311, 331, 903, linked=4),
    kernel("stray", 332, 342, 904),
]


def test_calls_are_told_apart() -> None:
    first, second = timeline._runs(EVENTS)
    assert first.seconds == pytest.approx(100e-6)
    assert [e.name for e in first.events] == [
        "aten::linear", "aten::addmm", "aten::_local_scalar_dense",
    ]  # fmt: skip
    (launch,) = first.launches
    assert launch.kernel.name == "gemm"
    assert launch.kernel.start == pytest.approx(30e-6)
    assert launch.launched == pytest.approx(20e-6)
    assert first.waits == [(pytest.approx(55e-6), pytest.approx(24e-6))]
    gemm, mine, stray = second.launches
    assert gemm.kernel.start == pytest.approx(80e-6)
    assert mine.launched == pytest.approx(10e-6)  # the operation that it is linked to
    assert stray.launched is None
    assert second.busy == pytest.approx(60e-6)


def operation(name: str) -> Operation:
    return Operation(0, name, "product", "forward", Where(), 0.0, 1e-6)


def test_kernels_go_to_their_operations() -> None:
    run = timeline._runs(EVENTS)[1]
    operations = [operation("aten.addmm.default")]
    events = timeline.matched(["aten::addmm"], [False], run)
    join._retime(operations, [(run, events)])
    join._launches(operations, [(run, events)])
    (addmm,) = operations
    assert [k.name for k in addmm.kernels] == ["gemm", "mine"]
    assert addmm.device_seconds == pytest.approx(50e-6)
    assert addmm.host_seconds == pytest.approx(28e-6)
    everything = join._with_unseen(operations, run, events)
    assert [op.name for op in everything] == ["aten.addmm.default", "stray"]
    assert everything[1].kind == "extension"
    assert everything[1].seconds == pytest.approx(10e-6)


def test_an_operation_that_waits() -> None:
    run = timeline._runs(EVENTS)[0]
    names = ["aten::addmm", "aten::_local_scalar_dense"]
    operations = [operation(name) for name in names]
    events = timeline.matched(names, [False, False], run)
    join._launches(operations, [(run, events)])
    assert [op.waits for op in operations] == [False, True]


def run(*names: str) -> Run:
    return Run(1.0, [Event(name, i, i + 0.5, 1) for i, name in enumerate(names)])


def found(names: list[str], views: list[bool], profiled: Run) -> list[str | None]:
    events = timeline.matched(names, views, profiled)
    return [e.name if e is not None else None for e in events]


def test_composites_and_parts_are_passed_over() -> None:
    outer = Event("aten::sum", 0.0, 5.0, 1)
    part = Event("aten::fill_", 1.0, 2.0, 1)
    after = Event("aten::fill_", 6.0, 7.0, 1)
    events = timeline.matched(
        ["aten::sum", "aten::fill_"], [False, False], Run(8.0, [outer, part, after])
    )
    assert events == [outer, after]


def test_what_is_missing_is_passed_over() -> None:
    profiled = run("aten::linear", "aten::mm", "aten::add_", "aten::relu")
    names = ["aten::t", "aten::mm", "aten::alias", "aten::add", "aten::relu"]
    views = [True, False, True, False, False]
    assert found(names, views, profiled) == [None, "aten::mm", None, "aten::add_", "aten::relu"]
