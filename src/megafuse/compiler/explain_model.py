"""`mf.explain(model, …)`: what became of a model's graphs, layer by layer."""

from __future__ import annotations

import copy
import linecache
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from megafuse.compiler.compile import Compiled, NotFused
from megafuse.compiler.eager import Traffic
from megafuse.compiler.eager_graph import unfused
from megafuse.compiler.explain import Pass, Step, pass_of, symbols_in
from megafuse.compiler.given_up import short, told
from megafuse.compiler.labels import forward_labels
from megafuse.compiler.optimize import Optimized, check, optimized
from megafuse.compiler.recorded import Recorded, Recorder

_TITLES = {"model": "inference"}  # what the backend calls a program, and what people call it


@dataclass(frozen=True)
class Layer:
    """What a layer of the model becomes. A step that reaches into the next one is of the first."""

    path: str  # transformer.h.0; "" is the model itself
    steps: tuple[Step, ...]
    eager: int | None = None  # PyTorch's own operations for it, forward


@dataclass(frozen=True)
class Break:
    """Why a graph ends before the model does, and where in the user's code."""

    reason: str
    file: str = ""
    line: int = 0
    text: str = ""


@dataclass(frozen=True)
class GraphExplanation:
    """One graph of Dynamo's: inference, or forward and backward."""

    passes: tuple[Pass, ...]
    not_fused: Mapping[str, str] = field(default_factory=dict)  # pass → why PyTorch runs it
    ends_in: Break | None = None
    modules: Mapping[str, int] = field(default_factory=dict)  # eager's operations in each
    replays: Mapping[str, str] = field(default_factory=dict)  # pass → its CUDA graphs, or why none

    def layers(self, shown: Pass) -> list[Layer]:
        """The steps of a pass by layer, in the order of the first."""
        found: dict[str, list[Step]] = {}
        for step in shown.steps:
            found.setdefault(layer_of(step.modules[0] if step.modules else ""), []).append(step)
        eager: Counter[str] = Counter()
        for path, number in self.modules.items():
            eager[layer_of(path)] += number
        known = bool(self.modules) and shown.name != "backward"
        return [
            Layer(path, tuple(steps), eager[path] if known else None)
            for path, steps in found.items()
        ]


@dataclass(frozen=True)
class ModelExplanation:
    """What `explain` found. `str()` of it is for people, at 80 columns."""

    model: str
    graphs: tuple[GraphExplanation, ...]
    given_up: tuple[Break, ...] = ()  # those at which no graph ends

    @property
    def passes(self) -> tuple[Pass, ...]:
        return tuple(each for graph in self.graphs for each in graph.passes)

    @property
    def kernels(self) -> int:
        return sum(each.kernels for each in self.passes)

    @property
    def library_calls(self) -> int:
        return sum(each.library_calls for each in self.passes)

    @property
    def bytes_moved(self) -> int:
        return sum(each.bytes_moved for each in self.passes)

    @property
    def breaks(self) -> tuple[Break, ...]:
        ends = (graph.ends_in for graph in self.graphs if graph.ends_in is not None)
        return (*ends, *self.given_up)

    def __str__(self) -> str:
        from megafuse.compiler.explained_model import text

        return text(self)


def explain(model: nn.Module, *args: Any, **kwargs: Any) -> ModelExplanation:
    """What the model's graphs became: kernels, library calls and why, bytes, graph breaks.

    Of an optimized model, what was captured so far. With arguments, of any model: it is captured
    once for a call with these, and PyTorch runs it, so that no kernel is built; buffers, arguments
    and random numbers are afterwards as before.
    """
    check(model)
    found = _captured(model, args, kwargs) if args or kwargs else optimized(model)
    if found is None:
        raise ValueError(
            f"This {type(model).__name__} is not optimized. Call megafuse.optimize(model), "
            "or explain a call: megafuse.explain(model, x)."
        )
    graphs = tuple(_graph(graph) for graph in found.recorder.graphs)
    return ModelExplanation(type(model).__name__, graphs, _given_up(found.recorder))


def layer_of(path: str) -> str:
    """transformer.h.0 of transformer.h.0.attn.c_attn: up to the first number, if there is one."""
    parts = path.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else path


def _graph(graph: Recorded) -> GraphExplanation:
    eager = unfused(graph)
    passes, not_fused = [], {}
    for name, made in graph.parts.items():
        title = _TITLES.get(name, name)
        if isinstance(made, NotFused):
            not_fused[title] = str(made)
        else:
            traffic = eager.backward if name == "backward" else eager.forward
            passes.append(_pass(title, made, graph.paths, traffic))
    programs = graph.replays.programs if graph.replays is not None else {}
    replays = {_TITLES.get(name, name): str(program) for name, program in programs.items()}
    return GraphExplanation(
        tuple(passes), not_fused, _break(graph.module), dict(eager.modules), replays
    )


def _pass(name: str, made: Compiled, paths: Mapping[str, str], traffic: Traffic | None) -> Pass:
    graph, plan = made.forward
    symbols = symbols_in(graph, [argument.value for argument in made.captured.arguments])
    found = pass_of(name, plan, forward_labels(plan, made.captured), symbols, traffic)
    steps = (
        replace(step, modules=tuple(dict.fromkeys(paths.get(m, m) for m in step.modules)))
        for step in found.steps
    )
    return replace(found, steps=tuple(steps))


def _break(module: torch.fx.GraphModule) -> Break | None:
    why: Any = getattr(module, "compile_subgraph_reason", None)
    if why is None or not why.graph_break:
        return None
    reason = why.reason.strip().partition("\n")[0]
    if not why.user_stack:
        return Break(reason)
    frame: traceback.FrameSummary = why.user_stack[-1]
    return Break(reason, frame.filename, frame.lineno or 0, frame.line or "")


def _given_up(recorder: Recorder) -> tuple[Break, ...]:
    """Without what a graph says of its end."""
    reasons = (getattr(graph.module, "compile_subgraph_reason", None) for graph in recorder.graphs)
    said = {short(each.reason) for each in reasons if each is not None and each.graph_break}
    return tuple(
        Break(each.reason, each.file, each.line, linecache.getline(each.file, each.line).strip())
        for each in told(recorder.given_up)
        if each.reason not in said
    )


# ---- a call that leaves no traces


def _captured(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optimized:
    found = Optimized(model, runs=False)
    given, named = _copied((tuple(args), dict(kwargs)))
    now = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
    with torch.random.fork_rng(_gpus(model)), _kept_buffers(model), now:
        found(*given, **named)
    return found


def _copied(arguments: Any) -> Any:
    """Copies, which the model may write to; of tensors without their history."""
    tensors = [t for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    memo = {id(t): t.detach().clone().requires_grad_(t.requires_grad) for t in tensors}
    return copy.deepcopy(arguments, memo)


def _gpus(model: nn.Module) -> list[int]:
    devices = {p.device for p in (*model.parameters(), *model.buffers())}
    return [d.index or 0 for d in devices if d.type == "cuda"]


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """BatchNorm's averages and the like are afterwards what they were, and the same objects."""
    places = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    kept = [None if b is None else b.detach().clone() for _, _, b in places]
    try:
        yield
    finally:
        with torch.no_grad():
            for (module, name, buffer), before in zip(places, kept, strict=True):
                module._buffers[name] = buffer
                if buffer is not None and before is not None:
                    buffer.copy_(before)
