"""What a declaration says of sharding must fit the op."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from megafuse.registry.declared import Op
from megafuse.registry.sharding.labels import parts


def problems(op: Op) -> Iterator[str]:
    """What is wrong with it, in words."""
    said, shapes = op.sharding, {a.name: parts(a.shape) for a in op.arguments if a.is_tensor}
    results = [*op.signature.returns, *op.autograd.keeps]
    flags = [a.name for a in op.arguments if a.kind == "flag"]
    yield from _unknown("results", said.results, results, "one of returns or keeps")
    shapeless = [name for name, shape in shapes.items() if not shape]
    yield from _unknown("spread", said.spread, shapeless, "a tensor argument without a shape")
    yield from _unknown("whole", said.whole, flags, "a flag")
    if op.family != "composite" and said.results:
        yield "results are for programs: a row-wise or pointwise op has those of its family"
    if op.pointwise and (said.cuts or said.spread):
        yield "cuts and spread are not for pointwise ops, whose tensors broadcast"
    for letters, added in said.cuts.items():
        known = {part for shape in shapes.values() for part in shape}
        yield from _unknown("cuts", letters, known, "a dimension of its own in shapes")
        yield from _unknown(f"cuts of {letters}", added, shapes, "a tensor argument")
        for name in added:
            if {*letters} & {*shapes.get(name, ())}:
                yield f"cuts: '{name}' is cut along {letters}, and is not added to a sum over it"


def _unknown(
    option: str, names: Iterable[str], allowed: Collection[str], what: str
) -> Iterator[str]:
    for name in names:
        if name not in allowed:
            yield f"{option}: '{name}' is not {what} ({', '.join(allowed) or 'none'})"
