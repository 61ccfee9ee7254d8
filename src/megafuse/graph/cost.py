"""What the cut is decided by: bytes, launches and arithmetic, as seconds on each kind of device.

    gain of a merge = bytes saved / bandwidth + launches saved · launch
                      − recomputed elements · multiplications each / rate

Sizes are symbols when the cut is made, so the rules below are the inequality for large tensors,
where launches vanish: a value is computed again where that takes less time than to write and read
it. With both sides per element that is a number of multiplications per byte, which a device either
has to spare while it waits for memory or not. For small tensors the launches decide, and there a
merge always gains; so nothing here asks for sizes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import sympy
import torch

from megafuse.codegen.prims import Prim
from megafuse.graph.ir import Size

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Machine:
    """A device as the cut sees it. `spare` is rate / bandwidth: multiplications per byte moved that
    a kernel which waits for memory has for nothing."""

    bandwidth: float  # bytes a second, one way
    rate: float  # multiplications a second, all cores, as prims count them
    launch: float  # seconds for one more kernel: the launch, and its tail

    @property
    def spare(self) -> float:
        return self.rate / self.bandwidth


# Estimates, not measurements: of a CPU with two cores of 4 float lanes, two multiplications a
# cycle, and of an H200, 4.0e12 bytes a second as a copy gets them and half of 67e12 operations.
MACHINES: dict[Device, Machine] = {
    "cpu": Machine(bandwidth=2.0e10, rate=4.0e10, launch=2e-6),
    "cuda": Machine(bandwidth=4.0e12, rate=3.0e13, launch=3e-6),
}

# Bounds of one kernel. Operands: what the host's launch takes. Values: with more, what a thread
# keeps of one element no longer fits its registers (on the GPU a vector of 4 floats and 255
# registers: 40 values alive at once, and a chain keeps about a third of its values alive), and
# compilers slow down.
MAX_OPERANDS = 20
# What a cluster reads of memory, a value that is read at two places counted twice, as these are two
# operands; and what it writes for certain. Results that turn out to be read by another kernel come
# on top: where these are too many, it becomes several kernels.
MAX_PLACES = MAX_OPERANDS - 2
MAX_VALUES = 120
# Numbers a thread holds between its loads and its stores: one register for each of an operand's
# vector of four, and as many again for addresses and what is in work. 255 are there.
MAX_REGISTERS = 200


def registers(operands: int, kept: int) -> int:
    """The estimate: a vector of 4 for each operand, of 4 for each value that waits for a reduction,
    2 for each address, 24 for what is in work."""
    return 4 * (operands + kept) + 2 * operands + 24


def prim_cost(prim: Prim, dtype: torch.dtype) -> int:
    """In multiplications of float32; of float64 they take twice the time on a CPU."""
    return prim.cost * (2 if dtype == torch.float64 else 1)


def is_light(cost: int, leaf_bytes: int, own_bytes: int) -> bool:
    """Whether a value is computed anew by everyone who reads it, as a cast of an argument: reading
    what it is made from moves no more bytes than reading itself would, and the arithmetic is less
    than what any device has to spare for these bytes."""
    return leaf_bytes <= own_bytes and cost <= 2 * max(own_bytes, 4)


def recomputes(device: Device, cost: int, leaf_bytes: int, own_bytes: int, readers: int) -> bool:
    """Whether `readers` other kernels compute a value again, rather than one writes it for them.

    Stored: one write and a read each. Computed again: its leaves read by each, and its arithmetic,
    of which a kernel has `spare` per byte that it moves anyway.
    """
    stored = own_bytes * (1 + readers)
    moved = leaf_bytes * readers
    spare = MACHINES[device].spare * own_bytes
    return moved < stored and cost <= spare


# A value with one reader is not computed again but elsewhere, unless the reader has more elements
# (a piece of a cat, a pad: all pieces are computed for each element, and one is chosen).
MOVED_COST = 64


def moves(cost: int, leaf_bytes: int, own_bytes: int) -> bool:
    """Whether a value that only one other kernel reads, once for each element, is computed there:
    the write and the read are saved, and for several leaves no more is read than before."""
    return cost <= MOVED_COST and leaf_bytes <= 4 * own_bytes


@functools.lru_cache(maxsize=4096)
def is_as_large(shape: tuple[Size, ...], other: tuple[Size, ...]) -> bool:
    """Whether it has as many elements as the other, as far as symbols tell: the rank says nothing,
    since a product's result is a matrix where what follows has batches of them."""
    mine, others = numel(shape), numel(other)
    if isinstance(mine, int) and isinstance(others, int):
        return mine >= others
    return bool(sympy.sympify(others).free_symbols <= sympy.sympify(mine).free_symbols)


def numel(shape: tuple[Size, ...]) -> Size:
    """How many elements."""
    size = sympy.sympify(sympy.prod(shape))
    return int(size) if size.is_Integer else size
