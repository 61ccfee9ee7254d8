"""A Body as canonical text: equal for bodies that compute the same, whatever things are called."""

from __future__ import annotations

from megafuse.codegen.body import (
    Applied,
    Body,
    Fetched,
    Loaded,
    Reduced,
    Scalar,
    Term,
    Written,
    arguments,
    terms,
)


def body_key(body: Body) -> str:
    """A line for each term, which names its arguments by their lines."""
    numbers: dict[Term, int] = {}
    lines = [f"{' '.join(body.inputs)}; {body.scalars} words; rounds {body.rounds}"]
    if body.by_rows:
        lines.append("by rows")
    for term in terms(body):
        args = " ".join(str(numbers[arg]) for arg in arguments(term))
        numbers[term] = len(numbers)
        lines.append(f"{term.dtype} {_what(term)} {args}")
    for outputs in (body.outputs, body.row_outputs):
        lines.append(" ".join(str(numbers[term]) for term in outputs))
    return "\n".join(lines)


def _what(term: Term) -> str:
    if isinstance(term, Loaded):
        return f"operand {term.operand}" + " steady" * term.steady
    if isinstance(term, Scalar):
        return f"word {term.slot}"
    if isinstance(term, Written):
        return f"number {term.value!r}"
    if isinstance(term, Applied):
        return term.prim.name
    if isinstance(term, Reduced):
        return f"row {term.kind}"
    assert isinstance(term, Fetched)
    masked = f"{term.inside is not None} {term.otherwise!r}"
    return f"fetch {term.base} {term.strides} {masked} {term.run is not None}"
