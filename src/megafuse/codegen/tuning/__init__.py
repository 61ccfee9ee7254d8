"""Rules for the GPU: how a kernel is launched, and how rows are cut. Measured on an H200.

pointwise.py has the launch shape of a pass over elements, rows.py the cut of rows into vectors,
threads and blocks, rings.py the cuts that keep rows to come in shared memory. The numbers come from
benchmarks/tune_pointwise.py and benchmarks/tune_rows.py, which try other rules in place of
`pointwise.shape` and `rows.shape`: call these through their modules.
"""

from __future__ import annotations

from megafuse.codegen.shape import Shape
from megafuse.codegen.tuning import pointwise, rows
from megafuse.codegen.variant import Functors, Variant

SUMS = Shape(block=256, unroll=1, blocks_per_processor=8)
# A row of partial sums is short, so a block for 32 of its columns has threads for many rows.
PARTS = Shape(block=1024, unroll=1, blocks_per_processor=2)


def shape(functors: Functors, variant: Variant) -> Shape:
    """The launch shape of any CUDA kernel of the families."""
    if variant.is_rows:
        return rows.shape(variant).launch
    if variant.family.startswith("sum_"):
        return PARTS if variant.op == "sum_parts" and variant.family == "sum_columns" else SUMS
    return pointwise.shape(functors, variant)
