"""Which kernel, as data: an op's functors, and one of them over certain operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# torch's dtype names as the kernel headers spell them.
STORAGE = {
    "Float": "float",
    "Double": "double",
    "Half": "mf::half",
    "BFloat16": "mf::bfloat16",
    "Bool": "bool",
    "Byte": "mf::u8",
    "Char": "mf::i8",
    "Short": "mf::i16",
    "Int": "mf::i32",
    "Long": "mf::i64",
}

BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}
BYTES |= {"Bool": 1, "Byte": 1, "Char": 1}

SUMMED = ("r", "g")  # walks of sums over all rows (or as a family says), and over those of segments


# Walks of pairs, the first ones' and the second ones': kPairs of kernels/pointwise.h.
FIRSTS, SECONDS = "ABCDEFGHIJKL", "MNOPQRSTUVWX"


def pitch(walk: str) -> int:
    """Elements of memory from one element to the next, of operands that are moved in vectors: pairs
    have one vector for both. 0: others."""
    return 1 if walk == "c" else 2 if walk in FIRSTS or walk in SECONDS else 0


@dataclass(frozen=True)
class Operand:
    """How one tensor is stored and walks along the innermost dimension (kernels/pointwise.h)."""

    dtype: str
    walk: str
    result: int = 0


@dataclass(frozen=True)
class Functors:
    """An op's arithmetic: types of functors, and the header that has them or the text of one.

    In a functor's type `{F}` stands for the type arithmetic is done in, `{S}` for the dtype
    PyTorch would compute in, `{name}` for the C++ word of the choice or flag `name`.
    """

    forward: str
    backward: str | None = None
    header: str = ""  # in kernels/, or a path
    text: str = ""  # what a header would have, without `#pragma once`: for generated functors
    choices: dict[str, dict[str, str]] = field(default_factory=dict)
    random: bool = False  # draws random numbers, unless it has a choice `training` that is off
    late: tuple[int, int] = (0, 0)  # row-wise: inputs that all rows share, forward and backward
    words: Callable[[Variant], dict[str, str]] | None = None  # further `{…}`, by variant
    numbers: tuple[str, ...] = ()  # names of the numbers that come with each call

    def __post_init__(self) -> None:
        if bool(self.header) == bool(self.text):
            raise ValueError(f"functors {self.forward}: give header= or text=, and not both")

    @property
    def definition(self) -> str:
        """What a translation unit begins with: all of it is in the cache's key."""
        return f"{self.text.strip()}\n" if self.text else f'#include "{self.header}"\n'

    def draws(self, choices: dict[str, str | bool]) -> bool:
        return self.random and choices.get("training") is not False

    def late_of(self, family: str) -> int:
        return self.late[family == "rows_backward"]


@dataclass(frozen=True)
class Variant:
    """One kernel: which functor, on which processor, over which operands."""

    op: str
    family: str  # as in runtime/host/core/request.h: forward, sum_columns, rows_backward, …
    choices: dict[str, str | bool]
    device: str
    common: str
    double: bool
    dims: int
    vector: int
    wide_index: bool
    outputs: int
    operands: tuple[Operand, ...]
    row_vectors: int = 0  # row-wise on CUDA: vectors in a row, rounded up
    few: bool = False  # few rows, or elements: a thread should have little of them
    across: bool = False  # vectors are cut across rows, wherever these start
    draws: bool = False  # random numbers, in this one
    late: int = 0  # row-wise: how many of the last inputs are the same for all rows
    clusters: bool = False  # whether the GPU has clusters of blocks (sm_90)
    roomy: bool = False  # whether a block may have 227 KB of shared memory (sm_90, sm_100)
    short_rows: bool = False  # row-wise on the CPU: so short that many are done side by side

    @property
    def is_forward(self) -> bool:
        return self.family in ("forward", "rows_forward")

    @property
    def is_rows(self) -> bool:
        return self.family.startswith("rows_")

    @property
    def contracts(self) -> bool:
        """Whether a*b+c is rounded once. Rows are summed, and a sum has no bits of PyTorch's to
        keep; in 16 bits rows are bound by instructions: 7 % fewer (layer_norm's backward)."""
        return self.is_rows

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.operands[self.outputs :]

    @property
    def row_sums(self) -> int:
        """How many results are summed over rows."""
        return sum(o.walk == "r" for o in self.operands)

    @property
    def symbol(self) -> str:
        suffix = "" if self.is_forward else f"_{self.family.removeprefix('rows_')}"
        return f"megafuse_{self.op}{suffix}"

    @property
    def label(self) -> str:
        """For people: `bias_act backward, float32 (gelu)`."""
        family = self.family.removeprefix("rows_").replace("_", " ")
        words = [self.op] + ([] if self.is_forward else [family])
        chosen = ", ".join(str(v) for v in self.choices.values() if isinstance(v, str))
        names = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
        inputs = [o.dtype for o in self.inputs if o.walk != "v"]
        dtype = names.get(inputs[0], inputs[0].lower()) if inputs else "number"
        return f"{' '.join(words)}, {dtype}" + (f" ({chosen})" if chosen else "")
