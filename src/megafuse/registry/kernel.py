"""What computes an op: functors that a generic kernel runs (Pointwise, Rows), or a C++ Program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from megafuse.codegen.variant import Functors, Variant
from megafuse.registry.arguments import Argument
from megafuse.registry.autograd import Autograd
from megafuse.registry.signature import Signature

_FLAG = {"True": "true", "False": "false"}


@dataclass(frozen=True)
class OfFunctors:
    """What pointwise and row-wise ops have in common.

    forward, backward   functor types (see codegen/variant.py for `{…}`)
    header              that has them, where it is not kernels/<op>.h
    text                of a header, in place of one
    words               further `{…}` of the types, from the kernel's operands
    random              whether it draws random numbers; such an op has the arguments `p` and
                        `training`, and if it is pointwise one tensor
    """

    forward: str
    backward: str | None = None
    header: str = ""
    text: str = ""
    words: Callable[[Variant], dict[str, str]] | None = None
    random: bool = False

    def functors(
        self, op: str, arguments: Sequence[Argument], signature: Signature, autograd: Autograd
    ) -> Functors:
        """As codegen wants them, for the op of this name."""
        spelled = {n: dict(c) for n, c in signature.choices.items() if isinstance(c, Mapping)}
        flags = {a.name: _FLAG for a in arguments if a.kind == "flag"}
        shared = {a.name for a in arguments if a.shape == "C"}
        return Functors(
            self.forward,
            self.backward,
            header=self.header or ("" if self.text else f"{op}.h"),
            text=self.text,
            choices={**spelled, **flags},
            random=self.random,
            late=(len(shared), len(shared & {*autograd.saves})),
            words=self.words,
            numbers=tuple(a.name for a in arguments if a.kind in ("number", "integer")),
        )


@dataclass(frozen=True)
class Pointwise(OfFunctors):
    """An element of the result from an element of each tensor; these broadcast.

    inverted            an argument that a CUDA kernel gets as its reciprocal where it is a number
    """

    family: ClassVar[str] = "pointwise"
    inverted: str | None = None


@dataclass(frozen=True)
class Rows(OfFunctors):
    """A row of the result from a row of each tensor: kernels/rows.h says what the functor has."""

    family: ClassVar[str] = "rows"


@dataclass(frozen=True)
class Program:
    """Several kernels, launched by a C++ program.

    name                in runtime/host/programs/programs.h, where it is not the op's
    random              whether it draws random numbers, as above
    """

    family: ClassVar[str] = "composite"
    name: str = ""
    random: bool = False


Kernel = Pointwise | Rows | Program
