"""Runs the rules over a traced graph: a node becomes values of the IR by its rule, or an Extern."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import sympy
import torch
from torch.utils import _pytree as pytree

from megafuse.graph import guards, origin, torch_versions
from megafuse.graph.capture import Captured
from megafuse.graph.hints import hint
from megafuse.graph.ir import (
    Constant,
    Extern,
    Graph,
    Input,
    Number,
    Origin,
    Result,
    Size,
    Value,
)
from megafuse.graph.lowering import (  # noqa: F401  (their rules enter the table)
    activations,
    creation,
    gathers,
    normalization,
    pointwise,
    products,
    random,
    reductions,
    scalars,
    views,
)
from megafuse.graph.lowering.builder import SUPPORTED, Builder
from megafuse.graph.lowering.sizes import cancelled, decided
from megafuse.graph.lowering.table import RULES, NotLowered
from megafuse.graph.multiples import told
from megafuse.graph.names import Names
from megafuse.graph.storage import base_of, tensor_arguments

Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)


def lower(
    captured: Captured,
    part: Literal["forward", "backward"] = "forward",
    trust_indices: bool = False,
    widens: Collection[torch.dtype] = (),
) -> Graph:
    """The IR of a captured graph. `trust_indices`: see lowering/gathers.py; `widens`: the dtypes
    whose products are taken in float32 (lowering/products.py)."""
    traced = captured.forward if part == "forward" else captured.backward
    assert traced is not None
    names = _input_names(captured, part)
    lowering = _Lowering(traced, captured, names, trust_indices)
    lowering.widens = widens
    return lowering.graph()


def _input_names(captured: Captured, part: str) -> list[str]:
    if part == "forward":
        return [captured.arguments[i].name for i in captured.placeholders()]
    return [f"{kind}_{which}" for kind, which in captured.backward_takes]


def _sizes_of_the_largest(captured: Captured) -> set[sympy.Symbol]:
    """The symbols in the shape of the argument with the most elements."""
    tensors = [a.value for a in captured.arguments if a.kind == "tensor"]
    largest = max(tensors, key=lambda t: hint(t.numel()), default=None)
    sizes = () if largest is None else largest.shape
    symbolic = (size.node.expr for size in sizes if isinstance(size, torch.SymInt))
    return {captured.symbols.get(s, s) for expr in symbolic for s in expr.free_symbols}


class _Lowering:
    """One graph on its way to IR. `env` has what each fx node became: values, or expressions."""

    def __init__(
        self,
        traced: torch.fx.GraphModule,
        captured: Captured,
        names: list[str],
        trust_indices: bool,
    ) -> None:
        self.traced = traced
        self.is_backward = traced is captured.backward
        self.saved = 0 if self.is_backward else captured.saved
        self.symbols = captured.symbols
        keep = _sizes_of_the_largest(captured)
        self.equal = guards.equalities(captured.guards + captured.assumed, keep)
        self.input_names = names
        self.builder = Builder(Names(), self.sizes, trust_indices)
        self.env: dict[torch.fx.Node, Any] = {}
        self.inputs: list[Input | Number] = []
        self.constants: list[torch.Tensor] = []
        self.in_tables: dict[tuple[torch.dtype, str], Input] = {}
        given = [a.value.device for a in captured.arguments if a.kind == "tensor"]
        self.device = given[0] if given else torch.device("cpu")
        self.widens: Collection[torch.dtype] = ()

    def graph(self) -> Graph:
        named = _named(self.traced.graph)
        for node in self.traced.graph.nodes:
            self.builder.origin = replace(named.get(node, Origin()), name=None)
            self.builder.out = node.meta.get("val")
            if node.op == "placeholder":
                self.env[node] = self.input(node)
            elif node.op == "get_attr":
                self.env[node] = self.tensor_constant(node)
            elif node.op == "call_function":
                self.env[node] = self.call(node)
                self.name(self.env[node], named[node])
        outputs: Any = self.traced.graph.output_node().args[0]
        self.refuse_to_return(outputs[: len(outputs) - self.saved])
        values = [self.output(node) for node in outputs]
        strides = [self.strides(node) for node in outputs]
        inputs = sorted(self.inputs, key=lambda value: value.position)
        return Graph(inputs, self.builder.values, values, strides, self.constants)

    def output(self, node: torch.fx.Node | int | None) -> Value | None:
        """A number that tracing has found to be always the same is no node."""
        if node is None:
            return None
        found = self.env[node] if isinstance(node, torch.fx.Node) else node
        if isinstance(found, Value):
            return found
        dtype = torch.int64 if isinstance(found, int) or found.is_integer else torch.float64
        return self.builder.constant(found, dtype)

    def strides(self, node: torch.fx.Node | int | None) -> tuple[Size, ...] | None:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        return self.sizes(value.stride()) if isinstance(value, torch.Tensor) else None

    # Sizes

    def sizes(self, sizes: Sequence[Any]) -> tuple[Size, ...]:
        return tuple(self.size(size) for size in sizes)

    def size(self, size: Any) -> Size:
        if not isinstance(size, Symbolic):
            return int(size)
        known = decided(size.node).xreplace(self.symbols)
        expr = cancelled(guards.simpler(known, self.equal))
        return int(expr) if expr.is_Integer else expr

    # What comes from outside

    def input(self, node: torch.fx.Node) -> Value | sympy.Expr | float:
        position = len(self.inputs)
        name, like = self.input_names[position], node.meta["val"]
        made: Any
        if isinstance(like, torch.Tensor):
            made = Input(
                dtype=like.dtype,
                shape=self.sizes(like.shape),
                position=position,
                strides=self.sizes(like.stride()),
                offset=self.size(like.storage_offset()),
                saved=self.is_backward,
            )
        else:
            expr = self.shown(like)
            floats = isinstance(like, (torch.SymFloat, float))
            worked_out = self.is_backward and floats and told(expr) is None
            made = Number(
                dtype=torch.float64 if floats else torch.int64,
                shape=(),
                position=position,
                symbol=None if worked_out else sympy.sympify(expr),
            )
        self.inputs.append(self.builder.add(made, name))
        if isinstance(made, Input):
            return made
        return self.number(made, like)

    def shown(self, like: Any) -> Any:
        """What a number is: a symbol of the call's, or worked out from such and saved."""
        if not isinstance(like, Symbolic):
            return like
        expr = like.node.expr.xreplace(self.symbols)
        return self.size(like) if told(expr) is None and isinstance(like, torch.SymInt) else expr

    def number(self, made: Number, like: Any) -> Value | sympy.Expr | float:
        """A float is the value itself, an int its expression; either may have become a constant."""
        expr = self.shown(like)
        if isinstance(expr, sympy.Expr) and expr.free_symbols:
            if made.dtype == torch.int64:
                return expr
            self.builder.numbers.add(made)
            return made
        return float(expr) if made.dtype == torch.float64 else int(expr)

    def tensor_constant(self, node: torch.fx.Node) -> Value:
        """A tensor made from Python's numbers: a constant if it is one number, else an input."""
        tensor = getattr(self.traced, str(node.target))
        if isinstance(tensor, torch.Generator):
            raise NotImplementedError("it draws random numbers from a generator of its own")
        if tensor.dim() == 0 and tensor.dtype in SUPPORTED:
            return self.builder.constant(tensor.item(), tensor.dtype)
        return self.table(tensor)

    def table(self, tensor: torch.Tensor) -> Input:
        """An input that is the same in every call."""
        made = Input(
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            position=len(self.input_names) + len(self.constants),
            strides=tuple(tensor.stride()),
        )
        self.constants.append(tensor.to(self.device))
        self.inputs.append(self.builder.add(made, "table"))
        return made

    # Calls

    def call(self, node: torch.fx.Node) -> Any:
        out = node.meta.get("val")
        if node.target is operator.getitem:
            return self.env[node.args[0]][node.args[1]]  # type: ignore[index]
        if isinstance(out, (torch.SymInt, torch.SymBool)) or type(out) in (int, float, bool):
            return self.size(out) if isinstance(out, Symbolic) else out
        args = torch.fx.map_arg(node.args, self.env.__getitem__)
        kwargs = dict(torch.fx.map_arg(node.kwargs, self.env.__getitem__))
        self.refuse_to_leave(node)
        rule = RULES.get(node.target)
        if rule is not None and self.within_reach(node):
            before = len(self.builder.values)
            try:
                return rule(self.builder, *args, **kwargs)
            except NotLowered:
                del self.builder.values[before:]
        # (A constant of one number, such as 1j, is moved here with all that is made of it.)
        tensors = (*_taken(node), *_given(node))
        if any(self.is_elsewhere(t) and t.dim() > 0 for t in tensors):
            raise NotImplementedError(f"{node.target} has a tensor on another device")
        if getattr(out, "dtype", None) in self.widens and products.is_product(node.target, args):
            return products.widened(self.builder, node.target, args, kwargs)
        return self.extern(node, args, kwargs)

    def within_reach(self, node: torch.fx.Node) -> bool:
        """Whether the IR has the dtypes of all tensors here."""
        tensors = (*_taken(node), *_given(node))
        return all(t.dtype in SUPPORTED and t.layout == torch.strided for t in tensors)

    # Devices: a table or a range that is made elsewhere, on the CPU as a rule, and moved here later
    # is made here. But what is computed here stays: kernels read no memory of another device.

    def is_elsewhere(self, like: Any) -> bool:
        return isinstance(like, torch.Tensor) and like.device != self.device

    def refuse_to_leave(self, node: torch.fx.Node) -> None:
        here = [t for t in _taken(node) if not self.is_elsewhere(t)]
        if here and any(map(self.is_elsewhere, _given(node))):
            raise NotImplementedError(f"{node.target} leaves {self.device}")

    def refuse_to_return(self, results: Sequence[torch.fx.Node | None]) -> None:
        """What is saved for the backward may be here: nobody sees where it is."""
        for node in results:
            if isinstance(node, torch.fx.Node) and self.is_elsewhere(node.meta.get("val")):
                raise NotImplementedError(f"a result is on another device than {self.device}")

    def extern(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        op = str(node.target)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NotImplementedError(f"{op} is no operation that the library can be told to run")
        if torch_versions.LOSES_CHECKS and "linalg" in op and "_ex" in op:
            raise NotImplementedError(f"{op} would not check what it is given")
        leaves, spec = pytree.tree_flatten(node.meta.get("val"))  # a check has none
        first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
        args, kwargs = self.in_memory(node.target, args, kwargs)
        made = Extern(
            dtype=torch.float32 if first is None else first.dtype,
            shape=() if first is None else self.sizes(first.shape),
            target=node.target,
            args=tuple(args),
            kwargs=kwargs,
        )
        name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
        self.builder.add(made, name)
        results = [self.result(made, k, leaf) for k, leaf in enumerate(leaves)]
        made.results = tuple(r for r in results if isinstance(r, Result))
        return pytree.tree_unflatten(results, spec)

    def in_memory(self, target: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        """The zeros that a library's operation adds to are there before the call: one number, seen
        as often as it is wanted. Otherwise a kernel would write it, in each call anew."""
        schema = target._schema
        lends = any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))
        if target.namespace != "aten" or lends:  # whoever gets that memory might write to it
            return args, kwargs
        call = Extern(target, tuple(args), kwargs, dtype=torch.float32, shape=())
        tensors = set(tensor_arguments(call))

        def known(value: Value) -> Value:
            base, at = base_of(value)
            if value not in tensors or not isinstance(base, Constant):
                return value
            if isinstance(base.value, sympy.Basic):
                return value
            return self.builder.view(self.number_in_memory(base), value.shape, at)

        return pytree.tree_map_only(Value, known, (args, kwargs))

    def number_in_memory(self, number: Constant) -> Input:
        """Each once."""
        key = (number.dtype, repr(number.value))
        if key not in self.in_tables:
            self.in_tables[key] = self.table(torch.tensor(number.value, dtype=number.dtype))
        return self.in_tables[key]

    def result(self, made: Extern, number: int, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return self.size(leaf) if isinstance(leaf, (torch.SymInt, int)) else leaf
        value = Result(
            dtype=leaf.dtype,
            shape=self.sizes(leaf.shape),
            extern=made,
            number=number,
            strides=self.sizes(leaf.stride()),
        )
        return self.builder.add(value, made.name)

    def name(self, value: Any, origin: Origin) -> None:
        """The value of a line gets the name of the variable that the line assigns."""
        if origin.name is None or not isinstance(value, Value):
            return
        if value.origin == replace(origin, name=None):
            self.builder.rename(value, origin)


def _taken(node: torch.fx.Node) -> list[torch.Tensor]:
    return [tensor for arg in node.all_input_nodes for tensor in _given(arg)]


def _given(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _named(graph: torch.fx.Graph) -> dict[torch.fx.Node, Origin]:
    """Each node's origin; of the nodes of one line in a row, the last has the variable's name."""
    calls = [node for node in graph.nodes if node.op in ("call_function", "get_attr")]
    origins = {node: _origin(node) for node in calls}
    for node, after in itertools.pairwise(calls):
        if origins[after] == origins[node]:
            origins[node] = replace(origins[node], name=None)
    return origins


def _origin(node: torch.fx.Node) -> Origin:
    """Its line, and the module: a gradient's is that of what it is the gradient of."""
    found = origin.parsed(node.meta.get("stack_trace"))
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return replace(found, module=list(stack.values())[-1][0]) if stack else found
