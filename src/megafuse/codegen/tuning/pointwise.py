"""The launch of a pointwise CUDA kernel; measured by benchmarks/tune_pointwise.py on an H200."""

from __future__ import annotations

from megafuse.codegen.shape import ONE_SHOT, Shape
from megafuse.codegen.variant import BYTES, Functors, Variant


def shape(functors: Functors, variant: Variant) -> Shape:
    """One group of 16 bytes a thread, and as many blocks as that takes: a grid that stays for the
    whole launch lost 3 to 6 % at every size. More groups a thread pay where it has more to wait
    for: scalar accesses, random numbers, an index to split when elements are narrow. Few elements
    go one a thread: the shortest program is the first to arrive.
    """
    widths = {BYTES[o.dtype] for o in variant.operands if o.walk == "c"}
    if variant.few:
        unroll = 1
    elif variant.vector == 1 or functors.random:
        unroll = 4
    elif len(widths) > 1 or (variant.dims > 1 and max(widths) < 4):
        unroll = 2
    else:
        unroll = 1
    return Shape(block=128, unroll=unroll, blocks_per_processor=ONE_SHOT)
