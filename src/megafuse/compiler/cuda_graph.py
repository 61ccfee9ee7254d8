"""Recording by CUDA's graphs: the part of replayed.py that needs a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from megafuse.compiler.uncollected import uncollected


class CudaRecorder:
    """Records on a stream of its own, replays on the caller's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._last: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None

    def blocked(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def join(self) -> None:
        now = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != now:
            now.wait_stream(self._last)
        self._last = now

    def settle(self) -> None:
        if not torch.cuda.is_current_stream_capturing():  # the garbage collector comes at any time
            torch.cuda.synchronize(self.device)

    def record(
        self, call: Callable[[list[Any]], Sequence[Any]], given: list[Any]
    ) -> tuple[Callable[[], None], list[Any]]:
        """In a memory pool of its own, so that what it keeps is nobody else's."""
        with torch.cuda.device(self.device), uncollected():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # the memory of calls before: the graph has its own
            if self._side is None:
                self._side = torch.cuda.Stream(self.device)
            with torch.cuda.stream(self._side):
                _open_libraries(self.device)
                graph, results = _captured(call, given)
            torch.cuda.synchronize()
        return graph.replay, results


def _captured(
    call: Callable[[list[Any]], Sequence[Any]], given: list[Any]
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """Other threads may do as they please: a data loader pins memory, say."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        results = list(call(list(given)))
    except BaseException:
        _abandon(graph, pool)
        raise
    try:
        graph.capture_end()
    except BaseException:
        _let_go(pool)
        raise
    return graph, results


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """Ends a capture in which something was raised: by CUDA, and then the capture is invalid and
    cannot end well, or by someone else."""
    try:
        graph.capture_end()
    except Exception:
        _let_go(pool)
    else:
        graph.reset()


def _let_go(pool: Any) -> None:
    """A capture that did not end well leaves torch's allocator in its pool, and torch's generator
    (in 2.11) sure that it is still going on: every random number would be an error. One that ends
    well puts the generator right."""
    device = torch.cuda.current_device()
    with contextlib.suppress(Exception):
        torch._C._cuda_endAllocateToPool(device, pool)
    with contextlib.suppress(Exception):
        torch._C._cuda_releasePool(device, pool)
    with contextlib.suppress(Exception):
        one, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        one.add_(1)
        graph.capture_end()


def _open_libraries(device: torch.device) -> None:
    """cuBLAS has a handle for each thread, and memory for each stream of it. Made while we record,
    that memory would be the graph's and stay as long as the process."""
    one = torch.zeros(16, 16, device=device)
    torch.mm(one, one)
    torch.addmm(one[0], one, one)
