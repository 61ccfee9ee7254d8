"""May an op read this module's parameters instead of calling it?"""

from __future__ import annotations

from typing import TypeGuard, TypeVar

from torch import nn
from torch.nn.modules import module as torch_module

Kind = TypeVar("Kind", bound=nn.Module)


def plain(module: nn.Module, *kinds: type[Kind]) -> TypeGuard[Kind]:
    """Whether a call of `module` does what its class says, one of `kinds`, and nothing else.

    Not so: with hooks (pruning, old-style weight_norm and FSDP use them), parametrized (that
    changes the class), with an adapter in its place (LoRA), or with another forward on the
    instance (accelerate). Reading the parameters would skip what those do, so such a module is
    called.
    """
    return type(module) in kinds and not hooked(module) and "forward" not in module.__dict__


def hooked(module: nn.Module) -> bool:
    """Whether a call of `module` runs a hook: one of its own, or one for every module there is."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_backward_pre_hooks
        or torch_module._global_backward_hooks
    )
