"""May an op read this module's parameters instead of calling it?"""

from __future__ import annotations

from typing import TypeGuard, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def plain(module: nn.Module, *kinds: type[Kind]) -> TypeGuard[Kind]:
    """Whether a call of `module` does what its class says, one of `kinds`, and nothing else.

    Not so: with hooks (pruning and FSDP work by them), parametrized (that changes the class), with
    an adapter in its place (LoRA), or with another forward on the instance (accelerate). What they
    do would be skipped, so such a module is called.
    """
    return (
        type(module) in kinds
        and not module._forward_pre_hooks
        and not module._forward_hooks
        and not module._backward_pre_hooks
        and not module._backward_hooks
        and "forward" not in module.__dict__
    )
