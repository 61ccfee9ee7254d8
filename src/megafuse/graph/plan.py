"""A graph cut into steps over memory: what partition.py makes, and program.py hands to the host.

    Buffer          memory: an argument's, or what a step writes
    Tensor          a buffer seen with sizes, strides and an offset: a view costs nothing
    Kernel          one launch of a generated functor over an index space
    Call            one ATen operation, left to the library

Sizes, strides and offsets are expressions of the graph's symbols; strides and offsets count
elements. Steps run in their order, and each buffer is written by one step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from megafuse.codegen.body import Body
from megafuse.graph.body_key import body_key
from megafuse.graph.ir import Size, Value


@dataclass(eq=False)
class Buffer:
    """Memory of so many elements, laid out with these sizes and strides by whoever allocates it.

    `argument` is the place of the argument that brings it; None: a step allocates it.
    """

    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    argument: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Tensor:
    """A buffer as someone sees it."""

    buffer: Buffer
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0


@dataclass(frozen=True)
class Operand:
    """How a kernel walks a buffer: a stride for each dimension of its index space.

    Without a buffer it is an index: offset + sum of coordinate · stride, an int64. A sum may be
    left in `parts`, which lie one after the other.
    """

    buffer: Buffer | None
    strides: tuple[Size, ...]
    offset: Size = 0
    parts: int = 0


@dataclass(frozen=True)
class Address:
    """A word of a kernel: where a buffer's element lies."""

    buffer: Buffer
    offset: Size = 0


@dataclass
class Kernel:
    """One launch. Row-wise: the last dimension of `shape` is the row, and `row_outputs` have a
    stride of 0 along it. `sums` are the last of the body's outputs, each added up along the
    dimensions where its stride is 0. `words` are the body's scalars: numbers (expressions) or
    addresses."""

    body: Body
    shape: tuple[Size, ...]
    outputs: list[Operand]
    inputs: list[Operand]
    row_outputs: list[Operand] = field(default_factory=list)
    sums: list[Operand] = field(default_factory=list)
    words: list[Size | float | Address] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)  # what it computes, for explain
    bytes_read: Size = 0
    bytes_written: Size = 0

    @property
    def writes(self) -> list[Buffer]:
        """Each once: pieces of one are outputs of their own."""
        outputs = (*self.outputs, *self.sums, *self.row_outputs)
        return list(dict.fromkeys(o.buffer for o in outputs if o.buffer is not None))


@dataclass
class Call:
    """target(*args, **kwargs), with Tensors for tensors and expressions for numbers.

    `writes` has a buffer for each result, None for one that nobody reads.
    """

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: list[Buffer | None]
    value: Value | None = None


@dataclass(frozen=True)
class Cut:
    """Why a value goes through memory: its reader is not in the step that makes it."""

    value: Value
    reader: Value
    reason: str  # "mm.default is the library's", "another row length", "would make a cycle", …


@dataclass
class Plan:
    """Steps in order; `outputs` are Tensors, expressions (numbers) or None.

    Kernels with equal keys have one Body between them: it is compiled once.
    """

    arguments: list[Buffer | None]  # None: a number
    steps: list[Kernel | Call]
    outputs: list[Tensor | Size | float | None]
    cuts: list[Cut] = field(default_factory=list)

    @property
    def kernels(self) -> list[Kernel]:
        return [step for step in self.steps if isinstance(step, Kernel)]

    @staticmethod
    def key(kernel: Kernel) -> str:
        """What the kernel's source depends on, but for names: equal for equal layers."""
        return body_key(kernel.body)
