"""What memory is called in `source` and `explain`: arguments, results, gradients, what is saved."""

from __future__ import annotations

from megafuse.graph.capture import Captured
from megafuse.graph.ir import Graph, Value, View
from megafuse.graph.plan import Buffer, Plan, Tensor

SAVED = " (saved)"  # after the name of what is kept for the backward


def name_inputs(backward: Graph, forward: Graph, captured: Captured) -> None:
    """The backward's inputs get the names of what the forward saved for it, and of gradients."""
    taken = {value.name for value in backward.values} - {v.name for v in backward.inputs}
    several = len({which for kind, which in captured.backward_takes if kind == "gradient"}) > 1
    kept = saved(forward, captured)
    for value, (kind, which) in zip(backward.inputs, captured.backward_takes, strict=False):
        if kind == "saved":
            found = kept[which]
            while isinstance(found, View):
                found = found.source
            name = found.name if found is not None else value.name
        else:
            name = f"grad_{which}" if several else "grad"
        while name in taken:
            name += "_saved" if kind == "saved" else "_"
        taken.add(name)
        value.name = name


def saved(forward: Graph, captured: Captured) -> list[Value | None]:
    """What the forward keeps for the backward: its last outputs."""
    return forward.outputs[len(forward.outputs) - captured.saved :] if captured.saved else []


def saved_beside_arguments(plan: Plan, captured: Captured) -> list[Buffer]:
    """Of these what takes memory of its own: no view of an argument or of a result."""
    tensors = [o.buffer if isinstance(o, Tensor) else None for o in plan.outputs]
    split = len(tensors) - captured.saved
    kept = dict.fromkeys(b for b in tensors[split:] if b is not None and b.argument is None)
    return [buffer for buffer in kept if buffer not in tensors[:split]]


def forward_labels(plan: Plan, captured: Captured) -> dict[Buffer, str]:
    """Results, and what is written to arguments or saved for the backward."""
    results = sum(returned.kind != "fixed" for returned in captured.returned)
    names = [captured.arguments[leaf].name for leaf in captured.writes]
    given = ["result" if results == 1 else f"result {i}" for i in range(results)]
    given += [f"new {name}" for name in names]
    return _labels(plan, given, SAVED)


def backward_labels(plan: Plan, captured: Captured) -> dict[Buffer, str]:
    """Gradients, by the argument that they are of."""
    return _labels(plan, [f"grad of {captured.arguments[i].name}" for i in captured.gradients], "")


def _labels(plan: Plan, given: list[str], rest: str) -> dict[Buffer, str]:
    labels: dict[Buffer, str] = {}
    for at, output in enumerate(plan.outputs):
        if isinstance(output, Tensor) and output.buffer.argument is None:
            buffer = output.buffer
            label = given[at] if at < len(given) else f"{buffer.name or 'a number'}{rest}"
            labels.setdefault(buffer, label)
    return labels
