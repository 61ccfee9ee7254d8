"""The user's operations in place as new values: torch's functionalisation, with eager's strides."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from megafuse.graph import origin
from megafuse.graph.errors import CaptureError
from megafuse.graph.ir import Origin

_torch: Any = torch  # for what has no annotations


Made = list["weakref.ref[torch.Tensor]"]


@contextmanager
def functional(made: Made) -> Iterator[None]:
    """Operations in place on functional tensors become new values. What they make is noted."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
    with torch._C._ExcludeDispatchKeyGuard(key), _Mode(made):
        yield


class _Mode(FunctionalTensorMode):
    """What is written to stays where it lies. torch puts the result of the functional variant in
    its place, and that may lie otherwise: masked_fill makes a contiguous one of a transposed x."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.made = made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in _written(func, args, kwargs or {}):
            _lay_as_before(tensor)
        note(made, self.made)
        return made


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[FunctionalTensor]:
    """The arguments that the operation writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = {a.name: arg for a, arg in zip(schema.arguments, args, strict=False)} | kwargs
    written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    leaves = pytree.tree_leaves([given.get(name) for name in written])
    return [leaf for leaf in leaves if isinstance(leaf, FunctionalTensor)]


def _lay_as_before(tensor: FunctionalTensor) -> None:
    """The tensor itself still has the strides that eager's has; its value may have others."""
    value = _newest(tensor)
    if tensor.shape != value.shape or _lies_as(value, tensor.stride()):
        return
    there = value.new_empty_strided(value.shape, tensor.stride())
    _torch._functionalize_replace(tensor.elem, torch.ops.aten.copy(there, value))
    _torch._functionalize_commit_update(tensor.elem)
    _torch._sync(tensor)


def _lies_as(value: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether this is known of all sizes: to compare them would be to note a guard."""
    return all(statically_known_true(a == b) for a, b in zip(value.stride(), strides, strict=True))


def wrapped(nested: Any) -> Any:
    """Every tensor as a functional one."""
    wrap: Callable[[torch.Tensor], torch.Tensor] = FunctionalTensor.to_functional
    return pytree.tree_map_only(torch.Tensor, wrap, nested)


def note(nested: Any, made: Made) -> None:
    leaves = pytree.tree_leaves(nested)
    made += [weakref.ref(leaf) for leaf in leaves if isinstance(leaf, FunctionalTensor)]


def refuse_kept(made: Made, function: Callable[..., Any]) -> None:
    """Raises where something outside of the function still has one of its tensors: that is none,
    and the next call would put nothing there."""
    if not any(each() is not None for each in made):
        return
    gc.collect()  # graphs of autograd may be circular
    kept = next((tensor for each in made if (tensor := each()) is not None), None)
    if kept is None:
        return
    raise CaptureError(
        f"A tensor of this function is still there when it has returned{_place(kept)}.",
        "Return it: a program has results, and puts nothing elsewhere.",
        origin.of_function(function),
    )


def _place(tensor: torch.Tensor) -> str:
    """What has it, where that has a name."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, (list, set)):
            return f", in a {type(holder).__name__}"
        names = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        for name, value in names.items():
            if value is tensor and isinstance(name, str):
                return f", as {name}"
    return ""


def unwrapped(nested: Any) -> Any:
    """Back again: the newest value of each."""
    return pytree.tree_map_only(FunctionalTensor, _newest, nested)


def _newest(tensor: FunctionalTensor) -> torch.Tensor:
    _torch._sync(tensor)
    return torch._from_functional_tensor(tensor.elem)


def is_written(tensor: torch.Tensor) -> bool:
    """Whether a functional tensor was written to. Raises where its shape or storage changed."""
    if not isinstance(tensor, FunctionalTensor):
        return False
    _torch._sync(tensor)
    if _torch._functionalize_has_metadata_mutation(tensor.elem):
        raise CaptureError(
            "An argument's shape or strides are changed in place.",
            "Take a view of it in a new variable instead.",
            Origin(),
        )
    return bool(_torch._functionalize_has_data_mutation(tensor.elem))
