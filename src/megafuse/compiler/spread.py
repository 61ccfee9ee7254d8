"""Models whose parameters are spread over several ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn


def has_dtensors(model: nn.Module) -> bool:
    """Whether its forward computes with DTensors, as under tensor parallelism. FSDP's parameters
    are such only outside of the forward, unless they are both."""
    library: Any = sys.modules.get("torch.distributed.tensor")
    if library is None:
        return False
    managed = dict(_of_fsdp(model))
    kept = (p for p in model.parameters() if p not in managed)
    return any(managed.values()) or any(isinstance(p, library.DTensor) for p in kept)


def _of_fsdp(model: nn.Module) -> Iterator[tuple[nn.Parameter, bool]]:
    """Each parameter that FSDP2 shards, and whether it is a DTensor in the forward, too."""
    library: Any = sys.modules.get("torch.distributed.fsdp")
    if library is None or not hasattr(library, "FSDPModule"):
        return
    for module in model.modules():
        if not isinstance(module, library.FSDPModule):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        for group in groups:
            for each in group.fsdp_params if group is not None else ():
                yield each.sharded_param, each.is_dtensor
