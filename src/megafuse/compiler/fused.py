"""`fuse`: a function of PyTorch operations, run as one program of fused kernels."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import torch
from torch.utils import _pytree as pytree

from megafuse.runtime import fallback, loader, progress

if TYPE_CHECKING:  # imported at the first call: `import megafuse` should not wait for sympy
    from megafuse.compiler.compile import Compiled, NotFused
    from megafuse.compiler.explain import Explanation

Rounding: TypeAlias = Literal["fused", "eager"]
_TRACING = threading.RLock()  # torch's tracer has flags that all threads share; new after a fork
_MOST_VARIANTS = 32  # of one function: beyond that, captures cost more than fusing saves


def _renew_lock() -> None:
    global _TRACING
    _TRACING = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_renew_lock)


@overload
def fuse(
    function: Callable[..., Any], *, rounding: Rounding = ..., dynamic: bool = ...
) -> Fused: ...
@overload
def fuse(
    *, rounding: Rounding = ..., dynamic: bool = ...
) -> Callable[[Callable[..., Any]], Fused]: ...


def fuse(
    function: Callable[..., Any] | None = None,
    *,
    rounding: Rounding = "fused",
    dynamic: bool = True,
) -> Any:
    """Makes `function` run as fused kernels: same arguments, same results, same gradients.

        @mf.fuse
        def gated_norm(x, gate, weight):
            h = x * torch.sigmoid(gate)
            return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight

    It is traced when it is first called, and again for other dtypes, numbers of dimensions, flags
    or layouts; other sizes and numbers run what is there. Between fused operations values stay in
    float32; rounding="eager" rounds them as PyTorch does, operation by operation. dynamic=False
    traces for the sizes of the call alone, which is quicker, and again for others.
    """
    if rounding not in ("fused", "eager"):
        raise ValueError(f'rounding is "fused" or "eager", not {rounding!r}')
    if function is None:
        return functools.partial(fuse, rounding=rounding, dynamic=dynamic)
    if not callable(function):
        raise TypeError(f"fuse takes a function, not a {type(function).__name__}")
    return Fused(function, rounding, dynamic)


class Fused:
    """A fused function. `function` is what it was made from, unfused."""

    def __init__(
        self, function: Callable[..., Any], rounding: Rounding = "fused", dynamic: bool = True
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.rounding = rounding
        self.dynamic = dynamic
        self.variants: list[Compiled] = []
        self._shapes: dict[pytree.TreeSpec, _Shape] = {}
        self._direct: Callable[..., Any] = self._first_call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.function(*args, **kwargs)
        if kwargs:
            return self._nested(args, kwargs)
        return self._direct(*args)

    def __repr__(self) -> str:
        return f"<fused {getattr(self.function, '__qualname__', self.function)}>"

    def __reduce__(self) -> Any:
        """Copied and pickled as functions are: by name, or anew from its function."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        made_of = (self.function, self.rounding, self.dynamic)
        return name if found is self else (Fused, made_of)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @property
    def source(self) -> str:
        """The functors that run, of every kind of arguments that it was called with."""
        from megafuse.compiler.source import source

        return source(self, self.variants)

    def source_for(self, *args: Any, **kwargs: Any) -> str:
        """The functors that would run for these arguments; nothing is compiled."""
        from megafuse.compiler.compile import compiled
        from megafuse.compiler.source import source

        made = compiled(self.function, args, kwargs, self.rounding, dynamic=self.dynamic)
        return source(self, [made])

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What runs for these arguments: steps, bytes, why it is cut so; `print` shows it."""
        from megafuse.compiler.explain import explain

        return explain(self.function, args, kwargs, self.rounding, dynamic=self.dynamic)

    def _first_call(self, *args: Any) -> Any:
        if loader.load() is None:  # it has said why
            self._direct = self.function
        else:
            self._direct = self._positional
        return self(*args)

    def _positional(self, *args: Any) -> Any:
        """Until there is a variant of arguments that are all leaves: then C++ is called at once."""
        leaves, spec = pytree.tree_flatten((args, {}))
        shape = self._shape(spec)
        if shape.is_flat:
            self._direct = shape.call
        return shape.call(*leaves)

    def _nested(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if loader.load() is None:
            return self.function(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return self._shape(spec).call(*leaves)

    def _shape(self, spec: pytree.TreeSpec) -> _Shape:
        with _TRACING:
            if spec not in self._shapes:
                self._shapes[spec] = _Shape(self, spec)
            return self._shapes[spec]


class _Shape:
    """Calls whose arguments are nested in one way: the host's function for them."""

    def __init__(self, fused: Fused, spec: pytree.TreeSpec) -> None:
        host = loader.load()
        assert host is not None
        self.fused, self.spec = fused, spec
        positional, keywords = spec.children()
        self.is_flat = not keywords.num_leaves and all(
            child.is_leaf() for child in positional.children()
        )
        self.call, self._handle = host.graph_function(self._capture, self._reference)
        self._capturing = threading.local()
        self._captured = 0
        self._told = False  # that there are too many kinds of arguments
        self._unfused: set[tuple[Any, ...]] = set()  # kinds of arguments

    def _arguments(self, leaves: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def _reference(self, *leaves: Any) -> Any:
        args, kwargs = self._arguments(leaves)
        return self.fused.function(*args, **kwargs)

    def _capture(self, *leaves: Any) -> Any:
        """The host knows no variant for these leaves: makes one, and calls again."""
        from megafuse.compiler.compile import NotFused, OurMistake, compiled

        if self.is_flat and not _are_leaves(leaves, self.spec):  # a list where a tensor was
            return self.fused._nested(leaves, {})
        kind = _kind(leaves)
        # Nothing to fuse where there are no elements, and no driver knows rows without any.
        empty = any(isinstance(leaf, torch.Tensor) and leaf.numel() == 0 for leaf in leaves)
        if empty or kind in self._unfused:
            return self._reference(*leaves)
        if getattr(self._capturing, "now", False):
            words = "it was compiled for these arguments, and does not take them"
            return self._runs_unfused(kind, OurMistake(f"{words}; please report this"), leaves)
        if self._captured >= _MOST_VARIANTS:
            self._too_many()
            return self._reference(*leaves)
        before = self._captured
        with _TRACING:
            if self._captured != before:  # by another thread, and perhaps for these arguments
                return self.call(*leaves)
            args, kwargs = self._arguments(leaves)
            try:
                fused = self.fused
                made = compiled(fused.function, args, kwargs, fused.rounding, dynamic=fused.dynamic)
                self._add(made)
            except NotFused as why:
                return self._runs_unfused(kind, why, leaves)
            self.fused.variants.append(made)
            self._captured += 1
        self._capturing.now = True
        try:
            return self.call(*leaves)
        finally:
            self._capturing.now = False

    def _add(self, made: Compiled) -> None:
        from megafuse.compiler.compile import OurMistake

        host = loader.load()
        assert host is not None
        try:
            host.graph_add(self._handle, made.description)
        except Exception as error:  # the host does not take what was described
            raise OurMistake(f"{error}; please report this") from error

    def _runs_unfused(self, kind: tuple[Any, ...], why: NotFused, leaves: tuple[Any, ...]) -> Any:
        """From now on, for arguments of this kind; said once."""
        from megafuse.compiler.compile import OurMistake

        if isinstance(why, OurMistake) and fallback.is_strict():
            raise why
        self._unfused.add(kind)
        progress.logger.warning("megafuse: %r runs unfused: %s", self.fused, why)
        return self._reference(*leaves)

    def _too_many(self) -> None:
        if self._told:
            return
        self._told = True
        from megafuse.compiler.besides import changing

        names = changing([made.description["besides"] for made in self.fused.variants])
        progress.logger.warning(
            "megafuse: %r was compiled for %d kinds of arguments; further ones run unfused.%s",
            self.fused,
            _MOST_VARIANTS,
            f" It reads {', '.join(names)}, which changed from call to call: a number that comes "
            "as an argument compiles nothing."
            if names
            else "",
        )


def _kind(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    """What captures tell arguments apart by, roughly: types, and of tensors all but their sizes."""
    return tuple(
        (leaf.dtype, leaf.device, leaf.dim(), leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else type(leaf)
        for leaf in leaves
    )


def _are_leaves(leaves: tuple[Any, ...], spec: pytree.TreeSpec) -> bool:
    return pytree.tree_structure((leaves, {})) == spec
