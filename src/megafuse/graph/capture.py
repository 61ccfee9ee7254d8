"""A Python function and its arguments → the ATen graph that it runs, traced by torch.

    captured = capture(function, args, kwargs)
    captured.forward            an fx graph: the tensors and numbers among the arguments → results
    captured.backward           saved values and gradients → gradients; None without autograd
    captured.guards             what must hold of sizes and numbers for the graph to be right

Arguments are the leaves of (args, kwargs), in pytree order, and counted so. Tensors and numbers
(floats and ints) are the graph's placeholders; everything else is fixed: another flag, string,
None or dtype is another capture. In-place operations are functionalised; what was written to an
argument comes back as a further result, and `writes` says which.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sympy
import torch
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from megafuse.graph import draws, origin, torch_versions
from megafuse.graph.errors import CaptureError, Untraceable, clear_errors
from megafuse.graph.functional import (
    Made,
    functional,
    is_written,
    note,
    refuse_kept,
    unwrapped,
    wrapped,
)
from megafuse.graph.guards import guards_of, symbols_of
from megafuse.graph.ir import Origin
from megafuse.graph.multiples import in_multiples
from megafuse.graph.recompute import cut
from megafuse.graph.saved_sizes import save_sizes
from megafuse.graph.tracing import StandIns, Watch, is_number, no_hooks, symbolic_kernels

__all__ = ["Argument", "CaptureError", "Captured", "Returned", "capture"]

Table = Mapping[torch._ops.OpOverload, Callable[..., Any]]


@dataclass(frozen=True)
class Argument:
    """One leaf of the call: a placeholder (with its stand-in), or a value that must be equal."""

    kind: Literal["tensor", "number", "fixed"]
    name: str
    value: Any  # a fake tensor, a SymInt or SymFloat, or the fixed value itself
    anywhere: bool = False  # on whatever device


@dataclass(frozen=True)
class Returned:
    """One leaf of what the function returns: the place-th result of `forward`, or a fixed value."""

    kind: Literal["tensor", "number", "fixed"]
    value: Any  # a place, or the value


@dataclass
class Captured:
    """What capture() found. Results of `forward` are, in this order: the user's tensors and numbers
    (as `returned` numbers them), the new contents of the arguments in `writes`, and what the
    backward graph needs (`saved` of them)."""

    arguments: tuple[Argument, ...]
    spec: pytree.TreeSpec
    forward: torch.fx.GraphModule
    returned: tuple[Returned, ...]
    out_spec: pytree.TreeSpec
    writes: tuple[int, ...] = ()
    backward: torch.fx.GraphModule | None = None
    saved: int = 0
    # The backward graph's placeholders: ("saved", which), or ("gradient", of which result).
    backward_takes: tuple[tuple[Literal["saved", "gradient"], int], ...] = ()
    gradients: tuple[int, ...] = ()  # the arguments whose gradients it returns
    differentiable: tuple[int, ...] = ()  # the results that have a gradient, needed or not
    # Of each, whether its gradient is taken in order; else it lies as the result does.
    in_order: tuple[bool, ...] = ()
    # The graph is right for a call whose arguments have the sizes, strides and numbers that their
    # stand-ins show (a symbol is what it is where it stands alone), and for which these hold.
    guards: tuple[sympy.Basic, ...] = ()
    # The same, but somebody else sees to it: Dynamo, for a graph of its own.
    assumed: tuple[sympy.Basic, ...] = ()
    symbols: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)  # torch's → s0, 2·s1, …

    def placeholders(self) -> list[int]:
        """Which arguments are the forward graph's placeholders, in their order."""
        return [i for i, a in enumerate(self.arguments) if a.kind != "fixed"]


def capture(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    decompositions: Table | None = None,
    dynamic: bool = True,
) -> Captured:
    """Traces function(*args, **kwargs), with its backward pass where autograd would record one.
    Unless `dynamic`, for the sizes of these arguments alone: a fifth of the time where there are
    many of them."""
    failed: Exception | None = None
    for symbolic in _ATTEMPTS if dynamic else _STATIC:
        try:
            return _capture(function, args, kwargs or {}, decompositions or {}, symbolic)
        except (CaptureError, Untraceable):
            raise
        except Exception as error:  # whatever torch's tracer or the function raises
            failed = failed or error
    assert failed is not None
    raise failed


# Some operations take no symbols: then numbers are fixed, and at last sizes as well.
_ATTEMPTS = (("number", "tensor"), ("tensor",), ())
_STATIC = (("number",), ())


def _capture(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    decompositions: Table,
    symbolic: Sequence[str],
) -> Captured:
    paths, spec = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    names = _names(function, [path for path, _ in paths])
    stand_ins = StandIns(symbolic_sizes="tensor" in symbolic)
    arguments = tuple(
        _argument(stand_ins, name, leaf, "number" in symbolic)
        for name, (_, leaf) in zip(names, paths, strict=True)
    )
    stand_ins.tie([leaf for _, leaf in paths], [argument.value for argument in arguments])
    with (
        clear_errors(),
        stand_ins.mode,
        symbolic_kernels(),
        no_hooks(),
        traceback.preserve_node_meta(),
    ):
        trace = _Trace(function, arguments, spec, dict(decompositions))
        captured = trace.captured()
        refuse_kept(trace.made, function)
    _refuse_shared_memory(captured, [leaf for _, leaf in paths])
    known = [argument.value for argument in arguments if argument.kind != "fixed"]
    captured.symbols = symbols_of(known)
    _refuse_values(captured)
    parts = [part.graph for part in (captured.forward, captured.backward) if part is not None]
    tensors = [each for each in known if isinstance(each, torch.Tensor)]
    captured.symbols = in_multiples(captured.symbols, stand_ins.shapes, tensors, parts)
    captured.guards = guards_of(stand_ins.shapes, captured.symbols)
    return captured


def _argument(stand_ins: StandIns, name: str, leaf: Any, symbolic: bool) -> Argument:
    if isinstance(leaf, torch.Tensor):
        return Argument("tensor", name, stand_ins.tensor(leaf, name))
    if symbolic and is_number(leaf):
        return Argument("number", name, stand_ins.number(leaf, name))
    return Argument("fixed", name, leaf)


class _Trace:
    """One capture. The function runs once, or twice where a first run says which results have
    gradients, and what these look like."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Argument, ...],
        spec: pytree.TreeSpec,
        decompositions: dict[Any, Callable[..., Any]],
    ) -> None:
        self.function, self.arguments, self.spec = function, arguments, spec
        self.places = [i for i, a in enumerate(arguments) if a.kind != "fixed"]
        self.primals = [arguments[i].value for i in self.places]
        self.make_fx = functools.partial(make_fx, decomposition_table=decompositions)
        # Filled by call():
        self.returned: list[Returned] = []
        self.out_spec: pytree.TreeSpec | None = None
        self.writes: list[int] = []
        self.results: list[Any] = []
        self.differentiable: list[int] = []
        self.made: Made = []

    def captured(self) -> Captured:
        wanted = [
            i
            for i, primal in enumerate(self.primals)
            if isinstance(primal, torch.Tensor) and primal.requires_grad
        ]
        traced = self.make_fx(lambda primals: self.forward(primals))(self.primals)
        if wanted and torch.is_grad_enabled() and self.differentiable:
            # Before the second run: a cache of the function's would give it a tensor of the first.
            refuse_kept(self.made, self.function)
            return self.with_backward(wanted)
        return self.result(_tidy(traced))

    def result(self, forward: torch.fx.GraphModule, **more: Any) -> Captured:
        assert self.out_spec is not None
        return Captured(
            arguments=self.arguments,
            spec=self.spec,
            forward=forward,
            returned=tuple(self.returned),
            out_spec=self.out_spec,
            writes=tuple(self.places[i] for i in self.writes),
            **more,
        )

    def call(self, primals: list[Any]) -> list[Any]:
        """The function's results, then the new contents of the arguments it wrote to."""
        leaves = [argument.value for argument in self.arguments]
        for place, primal in zip(self.places, primals, strict=True):
            leaves[place] = primal
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        draws.restart()
        with Watch():
            returned, self.out_spec = pytree.tree_flatten(self.function(*args, **kwargs))
        self.refuse_changed((args, kwargs), leaves)
        results = [leaf for leaf in returned if _kind(leaf) != "fixed"]
        count = iter(range(len(results)))
        self.returned = [
            Returned(_kind(leaf), leaf if _kind(leaf) == "fixed" else next(count))
            for leaf in returned
        ]
        self.differentiable = [
            i for i, leaf in enumerate(results) if getattr(leaf, "requires_grad", False)
        ]
        self.writes = [i for i, primal in enumerate(primals) if is_written(primal)]
        for i in self.writes:
            if primals[i].requires_grad:
                name = self.arguments[self.places[i]].name
                raise CaptureError(
                    f"The argument {name} requires gradients and is written to.",
                    "Write to a copy of it, or call the function under torch.no_grad().",
                    Origin(),
                )
        return results + [primals[i] for i in self.writes]

    def refuse_changed(self, given: Any, leaves: list[Any]) -> None:
        """Raises where the function has put a tensor into a list or a dict that it was given, or
        taken one out: the caller's is another."""
        if _tensors(pytree.tree_leaves(given)) != _tensors(leaves):
            raise CaptureError(
                "A list or a dict among the arguments is changed.",
                "Return what it is to hold.",
                origin.of_function(self.function),
            )

    def forward(self, primals: list[Any]) -> list[Any]:
        with functional(self.made):
            self.results = list(unwrapped(self.call(self.wrapped(primals))))
            return self.results

    def wrapped(self, nested: Any) -> Any:
        inner = wrapped(nested)
        note(inner, self.made)
        return inner

    def with_backward(self, wanted: list[int]) -> Captured:
        likes = [self.results[i] for i in self.differentiable]
        tangents = [_gradient_like(like) for like in likes]

        counts: list[int] = []

        def joint(primals: list[Any], tangents: list[Any]) -> list[Any]:
            with functional(self.made):
                inner = self.wrapped(primals)
                results = self.call(inner)
                counts.append(len(results))  # a size may be a constant since the first run
                gradients = torch.autograd.grad(
                    [results[i] for i in self.differentiable],
                    [inner[i] for i in wanted],
                    wrapped(tangents),
                    allow_unused=True,
                )
                return list(unwrapped([*results, *gradients]))

        traced = self.make_fx(joint)(self.primals, tangents)
        count = counts[-1]
        forward, backward = _min_cut(_tidy(traced), count)
        save_sizes(forward, backward)
        saved = [node.name for node in _outputs(forward)[count:]]
        gradients = {f"tangents_{i + 1}": i for i in range(len(tangents))}
        takes: list[tuple[Literal["saved", "gradient"], int]] = []
        for node in backward.graph.find_nodes(op="placeholder"):
            if node.target in gradients:
                takes.append(("gradient", self.differentiable[gradients[node.target]]))
            else:
                takes.append(("saved", saved.index(str(node.target))))
        return self.result(
            _without_tangents(forward),
            backward=backward,
            saved=len(saved),
            backward_takes=tuple(takes),
            gradients=tuple(self.places[i] for i in wanted),
            differentiable=tuple(self.differentiable),
            in_order=tuple(map(_has_gaps, likes)),
        )


def _tensors(leaves: Sequence[Any]) -> list[int]:
    return sorted(id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _has_gaps(result: torch.Tensor) -> bool:
    """Whether it has gaps or overlaps, or may have some."""
    return not torch_versions.is_dense(result)


def _gradient_like(result: torch.Tensor) -> torch.Tensor:
    """Laid out as the result is, or in order where that has gaps or overlaps."""
    strides = result.stride()
    if _has_gaps(result):
        strides = torch._prims_common.make_contiguous_strides_for(result.shape)
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _min_cut(
    joint: torch.fx.GraphModule, results: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Cuts the graph where the fewest bytes are saved. To torch's partitioner a float that comes
    with the call cannot be saved, and all is lost; so it sees a tensor of one element."""
    for node in joint.graph.nodes:
        if isinstance(node.meta.get("val"), torch.SymFloat):
            node.meta["number"] = node.meta["val"]
            node.meta["val"] = torch.empty((), dtype=torch.float64)
    parts = cut(joint, (), num_fwd_outputs=results)
    for part in parts:
        for node in part.graph.nodes:
            node.meta["val"] = node.meta.pop("number", node.meta.get("val"))
    return parts


def _tidy(traced: torch.fx.GraphModule) -> torch.fx.GraphModule:
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _outputs(traced: torch.fx.GraphModule) -> list[Any]:
    outputs: Any = traced.graph.output_node().args[0]
    return list(outputs)


def _without_tangents(forward: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in forward.graph.find_nodes(op="placeholder"):
        if str(node.target).startswith("tangents") and not node.users:
            forward.graph.erase_node(node)
    forward.recompile()
    return forward


def _kind(leaf: Any) -> Literal["tensor", "number", "fixed"]:
    if isinstance(leaf, torch.Tensor):
        return "tensor"
    return "number" if isinstance(leaf, (torch.SymInt, torch.SymFloat)) else "fixed"


def _names(function: Callable[..., Any], paths: list[Any]) -> list[str]:
    """A name for each leaf: the parameter's, and how to go on from there: states_0, states_step."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in kinds]
    return [_name(path, positional) for path in paths]


def _name(path: Any, positional: list[str]) -> str:
    keys = [getattr(key, "idx", getattr(key, "key", getattr(key, "name", key))) for key in path]
    first = keys[1]
    if keys[0] == 0:
        first = positional[first] if first < len(positional) else f"arg{first}"
    return "_".join(str(key) for key in (first, *keys[2:]))


def _refuse_values(captured: Captured) -> None:
    """A size that no argument's size explains was read from a tensor's memory."""
    for part in (captured.forward, captured.backward):
        for node in part.graph.nodes if part is not None else ():
            for leaf in pytree.tree_leaves(node.meta.get("val")):
                sizes = leaf.shape if isinstance(leaf, torch.Tensor) else [leaf]
                exprs = [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]
                if not all(expr.free_symbols <= captured.symbols.keys() for expr in exprs):
                    raise CaptureError(
                        "A size is read from a tensor's value, which is not there yet.",
                        "Pass it as a number.",
                        origin.parsed(node.meta.get("stack_trace")),
                    )


def _refuse_shared_memory(captured: Captured, leaves: list[Any]) -> None:
    """An argument that is written to may not lie in the memory of another."""
    tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    for i in captured.writes:
        for j, other in tensors.items():
            if (
                i != j
                and other.untyped_storage().data_ptr() == leaves[i].untyped_storage().data_ptr()
            ):
                names = captured.arguments[i].name, captured.arguments[j].name
                raise CaptureError(
                    f"The argument {names[0]} is written to, and {names[1]} is in the same memory.",
                    "Pass a copy of one of them.",
                    Origin(),
                )
