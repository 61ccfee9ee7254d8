"""A ModelExplanation in words, at 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from megafuse.compiler.explain import Pass, Step
from megafuse.compiler.explain_model import Break, GraphExplanation, Layer, ModelExplanation
from megafuse.compiler.explained import count, listed, size, wrapped


def text(found: ModelExplanation) -> str:
    """The whole of it."""
    if not found.graphs:
        return (
            f"{found.model} has not been called yet: call it, or explain a call with arguments:\n"
            "megafuse.explain(model, x)"
        )
    graphs, breaks = count(len(found.graphs), "graph"), count(len(found.breaks), "break")
    lines = [f"{found.model}: {graphs}, {breaks}, {_steps(found.passes)}"]
    for at, graph in enumerate(found.graphs, 1):
        lines += _graph(at, graph)
    for each in found.given_up:
        lines += ["", *_break("a graph break, before or between graphs", each)]
    return "\n".join(lines)


def _graph(at: int, graph: GraphExplanation) -> list[str]:
    lines: list[str] = []
    for shown in graph.passes:
        lines += ["", f"graph {at}, {shown.name}: {_steps([shown])}, {size(shown.bytes_moved)}"]
        if shown.eager is not None:
            theirs = count(shown.eager.launches, "operation")
            lines.append(f"  (eager: {theirs}, {size(shown.eager.bytes_moved)})")
        if shown.name in graph.replays:
            lines += wrapped(f"CUDA graphs: {graph.replays[shown.name]}", 2)
        lines += _layers(graph.layers(shown))
        lines += _reasons(shown.steps)
    for name, why in graph.not_fused.items():
        lines += ["", *wrapped(f"graph {at}, {name}: PyTorch runs it as it is, because {why}", 0)]
    if graph.ends_in is not None:
        lines += ["", *_break(f"graph {at} ends in a graph break", graph.ends_in)]
    return lines


def _steps(passes: Iterable[Pass]) -> str:
    each = list(passes)
    kernels = count(sum(p.kernels for p in each), "kernel")
    return f"{kernels} + {count(sum(p.library_calls for p in each), 'library call')}"


# ---- layers


def _layers(layers: Sequence[Layer]) -> list[str]:
    """Each once: those whose steps are the same as another's are only named."""
    lines: list[str] = []
    first: dict[tuple[object, ...], str] = {}
    for layer in layers:
        kind = tuple((s.kind, s.name, s.bytes_moved) for s in layer.steps)
        path = layer.path or "the model itself"
        if kind in first and len(kind) > 1:
            lines += wrapped(f"{path}: as {first[kind]}", 2)
            continue
        first.setdefault(kind, path)
        kernels = sum(s.kind != "library" for s in layer.steps)
        calls = len(layer.steps) - kernels
        head = f"{path}: {count(kernels, 'kernel')} + {count(calls, 'library call')}"
        if layer.eager is not None:
            head += f" (eager: {count(layer.eager, 'operation')})"
        lines += wrapped(head, 2)
        for step in layer.steps:
            lines += _step(step, layer.path)
    return lines


def _step(step: Step, layer: str) -> list[str]:
    kind = "library" if step.kind == "library" else "kernel "
    where = listed(_relative(module, layer) for module in step.modules) if step.modules else ""
    return wrapped(f"{kind} {_short(step):<24} {size(step.bytes_moved):>8}  {where}", 4)


def _relative(module: str, layer: str) -> str:
    if module == layer:
        return "itself"
    return module.removeprefix(f"{layer}.") if layer else module


def _short(step: Step) -> str:
    """addmm of aten.addmm.default"""
    name = step.name.removeprefix("aten.").removesuffix(".default")
    return name.removeprefix("_").removeprefix("scaled_dot_product_")


# ---- why


def _reasons(steps: Iterable[Step]) -> list[str]:
    found: dict[str, Counter[str]] = {}
    for step in steps:
        if step.kind == "library":
            found.setdefault(step.reason, Counter())[_short(step)] += 1
    lines = ["  left to the library:"] if found else []
    for reason, names in found.items():
        told = listed(f"{name} ×{times}" if times > 1 else name for name, times in names.items())
        lines += wrapped(f"{told}: {reason}", 4)
    return lines


def _break(what: str, ends: Break) -> list[str]:
    lines = wrapped(f"{what}: {ends.reason}", 0)
    if ends.file:
        lines += wrapped(f'File "{ends.file}", line {ends.line}', 4)
    if ends.text:
        lines += wrapped(ends.text.strip(), 6)
    return lines
