"""Which kernels without a reduction go row by row all the same, on a GPU.

Elements are taken in vectors of 16 bytes, and what is the same all along a row is read for each of
these. Where rows are no whole number of vectors, one may lie in two rows: then that is read for
each element, and rows that lie apart are written one element at a time. Row by row it is read once,
and vectors begin where the row's memory allows it (kernels/row_share_cuda.h).
"""

from __future__ import annotations

from collections.abc import Sequence

from megafuse.codegen.body import Body, Fetched, terms
from megafuse.graph.coordinates import is_known
from megafuse.graph.ir import Size
from megafuse.graph.plan import Operand

_VECTOR = 8  # elements of 16 bits in 16 bytes
_LEAST = 2048  # columns: a block has enough of them
_STEADY = 2  # operands that are the same along a row
_STEADY_OF_WHOLE = 4  # and where rows are whole vectors


def goes_by_rows(
    body: Body, shape: Sequence[Size], outputs: Sequence[Operand], inputs: Sequence[Operand]
) -> bool:
    """Whether a kernel over elements is better off so."""
    if body.row_wise or body.draws or len(shape) < 2 or not outputs:
        return False
    columns = shape[-1]
    if not is_known(columns) or columns < _LEAST:
        return False
    if any(isinstance(term, Fetched) for term in terms(body)):
        return False
    if any(o.strides[-1] != 1 for o in outputs):
        return False
    steady = [o for o in inputs if o.buffer is not None and o.strides[-1] == 0]
    return len(steady) >= (_STEADY if columns % _VECTOR else _STEADY_OF_WHOLE)
