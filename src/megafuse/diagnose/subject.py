"""What is diagnosed: a callable with its arguments, as a call of no arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from megafuse.compiler import Fused
from megafuse.diagnose import frames
from megafuse.diagnose.keep import reachable
from megafuse.diagnose.record import Where

MODES = ("forward", "backward")


class Refused(ValueError):
    """It cannot be diagnosed; the message says why, and what can."""


@dataclass
class Subject:
    """`call()` is one call, with its backward if that was asked for."""

    name: str
    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "forward"
    device: str = "cpu"
    compiled: bool = False
    compiles: bool = False  # its first call may take long
    where: Where = field(default_factory=Where)
    _gradients: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    _leaves: list[Tensor] = field(default_factory=list)

    def call(self) -> Any:
        if self.mode == "forward":
            return self.function(*self.args, **self.kwargs)
        for leaf in self._leaves:
            leaf.grad = None
        out = self.function(*self.args, **self.kwargs)
        wanted = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
        if not wanted:
            raise Refused(
                f"{self.name} returns nothing that has a gradient: with --mode backward its result "
                "must depend on a parameter, or on an argument that requires_grad."
            )
        torch.autograd.backward(wanted, [self._gradient(t) for t in wanted])
        return out

    def _gradient(self, t: Tensor) -> Tensor:
        """Ones, made once: filling them is no part of the call."""
        key = (tuple(t.shape), t.dtype, t.device)
        if key not in self._gradients:
            self._gradients[key] = torch.ones_like(t.detach(), memory_format=torch.preserve_format)
        return self._gradients[key]


def subject(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mode: str = "forward",
    device: str | None = None,
    name: str = "",
) -> Subject:
    """Checks what was given, and finds its device."""
    if isinstance(function, type) and issubclass(function, nn.Module):
        raise Refused(
            f"{function.__name__} is a class: pass a model, such as {function.__name__}()"
        )
    if not callable(function):
        raise Refused(f"a {type(function).__name__} cannot be called: pass a function or a module")
    if mode not in MODES:
        raise Refused(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    if isinstance(function, torch.export.ExportedProgram):
        raise Refused("this is an ExportedProgram: pass program.module()")
    found = list(tensors(function, args, kwargs))
    where = device or ("cuda" if any(t.is_cuda for t in found) else "cpu")
    made = Subject(
        name or _name(function), function, args, kwargs, mode, where, is_compiled(function, args)
    )
    fused = any(isinstance(f, Fused) for f in (function, *reachable(function, args, every=True)))
    made.where = _defined(function)
    made.compiles = made.compiled or fused
    made._leaves = [t for t in found if t.is_leaf and t.requires_grad]
    if device is None and not found and torch.cuda.is_available() and torch.cuda.is_initialized():
        made.device = "cuda" if torch.cuda.memory_allocated() else "cpu"
    return made


def tensors(function: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Arguments, and parameters and buffers of every module within reach."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor):
            yield leaf
    for thing in reachable(function, (args, kwargs)):
        if isinstance(thing, nn.Module):
            yield from thing.parameters()
            yield from thing.buffers()


def is_compiled(function: Any, args: Any) -> bool:
    """Whether torch.compile or `megafuse.optimize` made it, or a part that it calls."""
    seen = [function, *reachable(function, args, every=True)]
    for thing in seen:
        if hasattr(thing, "_torchdynamo_orig_callable"):
            return True
        if isinstance(thing, nn.Module):
            if any(getattr(m, "_compiled_call_impl", None) is not None for m in thing.modules()):
                return True
            if any(hasattr(m, "_orig_mod") for m in thing.modules()):
                return True
    return False


def _defined(function: Any) -> Where:
    """The line of its `def`."""
    plain = function.forward if isinstance(function, nn.Module) else function
    code = getattr(inspect.unwrap(getattr(plain, "__func__", plain)), "__code__", None)
    return frames.of(code.co_filename, code.co_firstlineno) if code is not None else Where()


def _name(function: Any) -> str:
    if isinstance(function, nn.Module):
        return type(function).__name__
    return str(getattr(function, "__name__", type(function).__name__))
