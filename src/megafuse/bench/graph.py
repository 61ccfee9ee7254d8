"""A contender's call as a CUDA graph, whose replay costs the host next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from megafuse.bench import timing
from megafuse.bench.contenders import Function


def captured(step: Function, args: Sequence[Any]) -> timing.Contender:
    """A call that replays what `step(*args)` does: captured once, on the same memory."""
    # Other tensors on the same memory: what autograd keeps of a leaf belongs to one stream.
    fresh = pytree.tree_map(_alias, list(args))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*fresh)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        kept = step(*fresh)

    def replay(i: int) -> object:
        graph.replay()
        return kept

    return replay


def _alias(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value
