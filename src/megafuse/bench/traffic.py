"""What a call asks of the machine, as the profiler and the allocator tell: launches and memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from megafuse.runtime import loader

_HEAD_START = 400_000  # cycles: the call is queued before the first marker is done
_MARKER = "spin_kernel"  # what torch.cuda._sleep runs
# Operations that compute nothing: they make a tensor, or another view of one.
_FREE = frozenset(
    f"aten::{name}"
    for names in (
        "empty empty_like empty_strided new_empty new_empty_strided resize_ result_type",
        "alias as_strided broadcast_tensors detach expand expand_as flatten lift_fresh movedim",
        "narrow permute reshape select slice squeeze t transpose unflatten unsqueeze view view_as",
        "resolve_conj resolve_neg _reshape_alias _unsafe_view to _to_copy item _local_scalar_dense",
    )
    for name in names.split()
)
_FILLS = ("aten::fill_", "aten::zero_")  # of a sum, say, before it begins


@dataclass(frozen=True)
class Traffic:
    """Kernels that one call launched, and memory it took beyond arguments and results."""

    kernels: tuple[str, ...]
    peak_extra_bytes: int
    unfinished: str | None  # a kernel that ran outside the window that a stream's events span


def watch(call: Callable[[], Any], device: str) -> Traffic:
    """Profiles one call."""
    # Read at the first profile: else torch 2.13 prints two lines to stderr for each.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own, about its cleared events
        return _on_cuda(call) if device == "cuda" else _on_cpu(call)


def _on_cuda(call: Callable[[], Any]) -> Traffic:
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()  # what is still there afterwards is the result
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - max(torch.cuda.memory_allocated(), before)
    del kept
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        torch.cuda._sleep(_HEAD_START)
        call()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
    events = [e for e in _kineto(seen) if _is_device_work(e)]
    markers = sorted((e for e in events if _MARKER in e.name()), key=lambda e: e.start_ns())
    work = sorted((e for e in events if _MARKER not in e.name()), key=lambda e: e.start_ns())
    unfinished = None
    if len(markers) == 2:
        opened, closed = _end(markers[0]), markers[1].start_ns()
        outside = (e.name() for e in work if e.start_ns() < opened or _end(e) > closed)
        unfinished = next(outside, None)
    return Traffic(tuple(e.name() for e in work), max(peak, 0), unfinished)


def device_work(call: Callable[[], Any]) -> tuple[float, int]:
    """Seconds that the GPU works for one call, each kernel, copy and fill alone, and how many."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, acc_events=True) as seen:
            call()
            torch.cuda.synchronize()
    work = [e for e in _kineto(seen) if _is_device_work(e)]
    return sum(e.duration_ns() for e in work) * 1e-9, len(work)


def _on_cpu(call: Callable[[], Any]) -> Traffic:
    call()
    host = loader.load()
    launched = host.launch_count() if host is not None else 0
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, acc_events=True
    ) as seen:
        kept = call()  # what is still there afterwards is the result
    own = host.launch_count() - launched if host is not None else 0
    now = peak = 0
    for event in sorted(_kineto(seen), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    del kept
    operations = [n for e in seen.events() if e.cpu_parent is None for n in _operations(e)]
    return Traffic((*operations, *["megafuse"] * own), max(peak - max(now, 0), 0), None)


def _operations(event: Any) -> list[str]:
    """The PyTorch operations that did the work of one: itself, or those that it called."""
    called = [name for child in event.cpu_children for name in _operations(child)]
    if any(name not in _FILLS for name in called):
        return called
    return [event.name] if _works(event) else called


def _works(event: Any) -> bool:
    if not event.name.startswith("aten::") or event.name in _FREE:
        return False
    # A number that is made a tensor is copied, or filled in, too.
    return event.name not in (*_FILLS, "aten::copy_") or any(event.input_shapes)


def _kineto(seen: profile) -> list[Any]:
    results = seen.profiler.kineto_results if seen.profiler is not None else None
    return list(results.events()) if results is not None else []


def _is_device_work(event: Any) -> bool:
    """Kernels, copies and fills; not the profiler's echo of a range on the host."""
    if event.device_type() != DeviceType.CUDA:
        return False
    return not event.is_user_annotation()


def _end(event: Any) -> int:
    return int(event.start_ns() + event.duration_ns())
