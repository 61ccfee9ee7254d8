"""A row's largest number and the sum of exp(x - largest) in one pass over it.

    sum(exp(x - amax(x)))       → expsum(x)

As two steps they are two passes, and a row that is as long as a vocabulary is in registers for the
second only where several blocks share it. So this is for kernels that need nothing else of each
element: those that write one number a row.
"""

from __future__ import annotations

from megafuse.codegen.body import Applied, Body, Reduced, Term, terms


def in_one_pass(body: Body) -> None:
    """Changes the sums of a row-wise body, where that leaves one step."""
    if body.outputs or body.rounds:
        return
    for term in terms(body):
        x = _softmax_argument(term)
        if x is not None:
            assert isinstance(term, Reduced)
            term.kind, term.arg = "expsum", x


def _softmax_argument(term: Term) -> Term | None:
    """x, where the term is sum(exp(x - amax(x))) in float32."""
    if not isinstance(term, Reduced) or term.kind != "sum" or term.dtype != "Float":
        return None
    power = term.arg
    if not isinstance(power, Applied) or power.prim.name != "exp":
        return None
    shifted = _wide(power.args[0])
    if not isinstance(shifted, Applied) or shifted.prim.name != "sub":
        return None
    x, most = map(_wide, shifted.args)
    if not isinstance(most, Reduced) or most.kind != "amax" or _wide(most.arg) is not x:
        return None
    return shifted.args[0]


def _wide(term: Term) -> Term:
    """Below a cast to float32, which loses nothing."""
    while isinstance(term, Applied) and term.prim.name == "cast" and term.dtype == "Float":
        (before,) = term.args
        if before.dtype not in ("Float", "Half", "BFloat16"):
            break
        term = before
    return term
