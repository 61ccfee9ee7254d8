"""`torch.compile(model, backend="megafuse")`: Dynamo's graphs as programs of fused kernels.

Dynamo finds the graphs and guards them, AOTAutograd makes forward and backward of each, and every
one of these becomes one C++ program (compile.py), as those of `fuse` do. A graph that cannot be one
runs as it is, and says why once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from megafuse.compiler.attend import with_attention
from megafuse.compiler.compile import Compiled, NotFused, OurMistake, only_device, planned
from megafuse.compiler.known_masks import without_known_masks
from megafuse.compiler.objects import Objects
from megafuse.compiler.recordable import most, role, why_not
from megafuse.compiler.replayed import Replays
from megafuse.compiler.uncollected import uncollected
from megafuse.compiler.whole_backward import with_whole_backwards
from megafuse.graph import torch_versions
from megafuse.graph.capture import Argument, Captured, Returned
from megafuse.graph.clean import clean
from megafuse.graph.guards import equal_sizes, symbols_of
from megafuse.graph.ir import Value
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.recompute import cut
from megafuse.runtime import fallback, loader, progress

Program = Callable[[list[Any]], Sequence[Any]]  # AOTAutograd's boxed convention
# Is told of each graph: its name, and the program that it becomes, or why there is none.
Watch = Callable[[str, Compiled | NotFused], None]


def backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What torch.compile calls for each graph of Dynamo's. Options: {"graphs": True}."""
    unknown = sorted(set(options or {}) - {"graphs"})
    if unknown:
        raise ValueError(f'the option of backend="megafuse" is graphs, not {", ".join(unknown)}')
    allowed = most((options or {}).get("graphs", False))
    replays = Replays(allowed) if allowed else None
    return watched(module, example_inputs, lambda name, made: None, replays=replays)


def watched(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    watch: Watch,
    runs: bool = True,
    replays: Replays | None = None,
) -> Callable[..., Any]:
    """The same, for someone who wants to know. Without `runs` programs are planned, not built:
    PyTorch runs the graphs. With `replays` they are recorded and replayed."""
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(
        fw_compiler=_compiler("forward", watch, runs, replays),
        bw_compiler=_compiler("backward", watch, runs, replays),
        inference_compiler=_compiler("model", watch, runs, replays),
        decompositions=decompositions(),
        partition_fn=_cut,
    )
    with uncollected():
        made: Callable[..., Any] = compiler(_prepared(module), example_inputs)
    return made


def _prepared(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Dynamo's graph as AOTAutograd is to trace it."""
    return with_whole_backwards(with_attention(module))


def _cut(joint: torch.fx.GraphModule, *rest: Any, **how: Any) -> Any:
    """Forward and backward, from what attention needs of both."""
    without_known_masks(joint, _only_output)
    return cut(joint, *rest, **how)


def _only_output(traced: torch.fx.GraphModule) -> Value:
    (found,) = clean(lower(_captured(traced))).outputs
    assert found is not None
    return found


def _compiler(
    name: str, watch: Watch, runs: bool, replays: Replays | None
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Program]:
    def compile_graph(traced: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Program:
        objects = Objects(traced)
        return _boxed(objects.around(_program(objects.traced, name, watch, runs, replays)))

    return compile_graph


def _program(
    traced: torch.fx.GraphModule, name: str, watch: Watch, runs: bool, replays: Replays | None
) -> Program:
    """One of AOTAutograd's graphs as a C++ program, or as it is where there can be none."""
    if not any(isinstance(node.meta.get("val"), torch.Tensor) for node in traced.graph.nodes):
        return lambda args: traced(*args)  # sizes alone: there is nothing to fuse
    host = loader.load()
    if host is None:  # it has said why
        watch(name, NotFused("there is no C++ compiler that works: see `megafuse doctor`"))
        return lambda args: traced(*args)
    try:
        with _disable_current_modes():  # AOTAutograd's, to which a constant's value is none
            without_known_masks(traced, _only_output)
            captured = _captured(traced)
            device = _device(captured)
            made = planned(captured, name, device, "fused")
    except NotFused as why:
        watch(name, why)
        _tell(why)
        return lambda args: traced(*args)
    watch(name, made)
    if not runs:
        return lambda args: traced(*args)
    _, handle = host.graph_function(_Unexpected(traced), traced)
    host.graph_add(handle, made.description)
    call: Program = host.graph_guarded(handle)
    if replays is not None:
        call = _replayed(call, traced, name, device, made, replays)
    return call


def _replayed(
    call: Program,
    traced: torch.fx.GraphModule,
    name: str,
    device: torch.device,
    made: Compiled,
    replays: Replays,
) -> Program:
    why = why_not(traced, device, len(made.forward[1].steps))
    about = role(traced, name)
    if why or about is None:
        replays.refuse(name, why or "torch does not say which of its outputs are results")
        return call
    return replays.replayed(name, call, device, about)


def _boxed(call: Program) -> Program:
    """AOTAutograd asks for the mark, and a function of C's cannot carry it."""

    def run(args: list[Any]) -> Sequence[Any]:
        return call(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Unexpected:
    """The program was made for the very graph that Dynamo guards: arguments always fit, unless an
    older torch has not seen that a model has another dtype."""

    def __init__(self, traced: torch.fx.GraphModule) -> None:
        self.traced = traced

    def __call__(self, *leaves: Any) -> Any:
        shown = ", ".join(
            f"{leaf.dtype} {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)
            for leaf in leaves
        )
        words = f"it does not take what it was made for: {shown}"
        if torch_versions.GUARDS_LESS:
            _tell(NotFused(words))
        else:
            _tell(OurMistake(f"{words}; please report this"))
        return self.traced(*leaves)


def _tell(why: NotFused) -> None:
    if isinstance(why, OurMistake) and fallback.is_strict():
        raise why
    progress.logger.warning("megafuse: a graph of torch.compile runs unfused: %s", why)


def _device(captured: Captured) -> torch.device:
    """That of the arguments, where there are tensors among them. What is made elsewhere in between
    is the lowering's concern."""
    taken = [a.value for a in captured.arguments if a.kind == "tensor" and not a.anywhere]
    made = (node.meta.get("val") for node in captured.forward.graph.nodes)
    return only_device(taken or made)


def _captured(traced: torch.fx.GraphModule) -> Captured:
    """As capture() would have found it."""
    placeholders = traced.graph.find_nodes(op="placeholder")
    arguments = tuple(_argument(node) for node in placeholders)
    outputs: Any = traced.graph.output_node().args[0]
    stand_ins = [argument.value for argument in arguments]
    symbols = symbols_of(stand_ins)
    return Captured(
        arguments=arguments,
        spec=pytree.tree_structure(tuple(range(len(arguments)))),
        forward=traced,
        returned=tuple(_returned(i, output) for i, output in enumerate(outputs)),
        out_spec=pytree.tree_structure(tuple(range(len(outputs)))),
        assumed=equal_sizes(stand_ins, symbols),
        symbols=symbols,
    )


def _argument(node: torch.fx.Node) -> Argument:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return Argument("tensor", node.name, value.detach(), anywhere=_is_seed(node))
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
        raise NotFused(f"its argument {node.name} is a {type(value).__name__}")
    return Argument("number", node.name, value)


def _is_seed(node: torch.fx.Node) -> bool:
    """What an attention of torch's keeps of the random numbers for its backward: on the GPU or not,
    whatever its stand-in says, and read by that backward alone."""
    readers = {str(user.target) for user in node.users}
    of_attention = all("attention" in name and "backward" in name for name in readers)
    return bool(readers) and of_attention and not node.meta["val"].is_floating_point()


def _returned(place: int, output: Any) -> Returned:
    if output is None:
        return Returned("fixed", None)
    value = output.meta["val"] if isinstance(output, torch.fx.Node) else output
    return Returned("tensor" if isinstance(value, torch.Tensor) else "number", place)
