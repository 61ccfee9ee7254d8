"""Which dimensions of a call's tensors are the same one: labels, from the op's signature.

A label is a letter of the signature's shapes, or "0", "1", … for leading dimensions (of a pointwise
op: for all, as they broadcast). A dimension without a label is never cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from megafuse.registry.declared import Op

Shape: TypeAlias = Sequence[Any]  # sizes; a tracer's are symbols

_PART = re.compile(r"\.\.\.|\([A-Z]+\)|1|[2-9]?[A-Z]")


@dataclass(frozen=True)
class Label:
    """`flat`: the dimension has others in it, behind this one."""

    name: str
    flat: bool = False


Labels: TypeAlias = list[Label | None]  # one a dimension


@dataclass(frozen=True)
class Labelled:
    """A call's tensors by name, arguments and results, and how large each label's dimension is.
    `complete`: nothing is missing, so that the call may be cut."""

    dims: dict[str, Labels]
    sizes: dict[str, Any]
    complete: bool = True

    def place(self, tensor: str, names: Sequence[str]) -> int | None:
        """The tensor's dimension that has one of these labels."""
        for dim, label in enumerate(self.dims.get(tensor, ())):
            if label is not None and label.name in names:
                return dim
        return None


def labelled(op: Op, arguments: Mapping[str, Shape], results: Mapping[str, Shape]) -> Labelled:
    """Of the tensors that are there. Results without a shape get those that a call gives them."""
    if op.pointwise:
        return _broadcast(op, arguments, results)
    lead = _lead(op, arguments, results)
    dims = {a.name: _read(a.shape, lead) for a in op.arguments if a.is_tensor and a.shape}
    if op.family == "rows":
        leading = _read("...", lead)
        dims |= {name: [*leading, None] for name in _results(op)}
    else:
        dims |= {name: _read(shape, lead) for name, shape in op.sharding.results.items()}
    shapes = {**arguments, **results}
    sizes = {
        label.name: size
        for name, labels in dims.items()
        if name in shapes and len(shapes[name]) == len(labels)
        for label, size in zip(labels, shapes[name], strict=True)
        if label is not None and not label.flat
    }
    for name, whole in op.sharding.spread.items():
        if name in shapes:
            dims[name] = _spread(shapes[name], _read(whole, lead), sizes)
    complete = all(name in dims for name in (*arguments, *_results(op)))
    return Labelled(dims, sizes, complete)


def _results(op: Op) -> list[str]:
    return [*op.signature.returns, *op.autograd.keeps]


def _broadcast(op: Op, arguments: Mapping[str, Shape], results: Mapping[str, Shape]) -> Labelled:
    out = op.signature.returns[0]
    rank = max(map(len, (*arguments.values(), *results.values())))
    labels: Labels = [Label(str(dim)) for dim in range(rank)]
    sizes: dict[str, Any] = {}
    for shape in (*arguments.values(), *results.values()):
        for dim, size in enumerate(shape, rank - len(shape)):
            if str(dim) not in sizes or bool(size != 1):
                sizes[str(dim)] = size
    dims = {name: _spread(shape, labels, sizes) for name, shape in arguments.items()}
    return Labelled(dims | {out: labels}, sizes)


def _spread(shape: Shape, labels: Labels, sizes: Mapping[str, Any]) -> Labels:
    """The labels of a tensor that broadcasts: none where its size is 1 and the whole's is not."""
    mine = labels[len(labels) - len(shape) :]
    return [
        label if label is not None and bool(size == sizes.get(label.name)) else None
        for label, size in zip(mine, shape, strict=True)
    ]


def _lead(op: Op, arguments: Mapping[str, Shape], results: Mapping[str, Shape]) -> int:
    """How many leading dimensions there are."""
    rules = {a.name: a.shape for a in op.arguments} | dict(op.sharding.results)
    if op.family == "rows":
        rules |= dict.fromkeys(_results(op), "...1")
    for name, shape in (*arguments.items(), *results.items()):
        rule = rules.get(name, "")
        if rule.startswith("..."):
            return len(shape) - (len(parts(rule)) - 1)
    return 0


def parts(rule: str) -> list[str]:
    """Of a shape: "...", "(BS)", "1", "3E", "E"."""
    return [found.group() for found in _PART.finditer(rule)]


def _read(rule: str, lead: int) -> Labels:
    made: Labels = []
    for part in parts(rule):
        if part == "...":
            made += [Label(str(dim)) for dim in range(lead)]
        elif part.startswith("("):
            made.append(Label(part[1], flat=True))
        else:  # a size of one, or a multiple as in "3E", has none
            made.append(Label(part) if part.isalpha() else None)
    return made
