"""Ops on tensors that are spread over several ranks: DTensor's rules, from what an op declares.

declared.py         `Sharding`: along what a call can be cut into calls on parts
check.py            that it fits the op
labels.py           which dimensions of a call's tensors are cut together
cuts.py             the ways to cut a call, and the one that moves the least data
dtensor.py          the rules themselves: tensors are moved, each rank calls the op on its parts
when_imported.py    registers them, once torch.distributed.tensor is imported
"""

from __future__ import annotations

from megafuse.registry.sharding.declared import Sharding

__all__ = ["Sharding"]
