"""What a generated kernel computes for one element: an expression over its operands.

graph/partition.py makes a Body for each kernel; functor.py beside this file writes it as a C++
functor, which the drivers of kernels/ run. A Body knows nothing of tensors: operands are numbered,
and how they lie in memory is said when the kernel is launched.

    Loaded(operand)         the element that the operand has at this place
    Scalar(slot)            a number that comes with each call: a word, double or int64
    Written(value)          a number known when the kernel is compiled
    Applied(prim, args)     a primitive of prims.py
    Fetched(slot, at, …)    memory[at]: a load whose place is computed
    Reduced(kind, arg)      arg over the whole row, one number; in row-wise bodies only

Terms are shared where a value is used twice, and compared by identity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from megafuse.codegen.prims import Prim

Reduction = Literal["sum", "prod", "amax", "amin", "argmax", "argmin", "any", "all", "expsum"]


@dataclass(eq=False, kw_only=True)
class Term:
    """`dtype` is a key of STORAGE (Float, BFloat16, Long, Bool, …): what PyTorch would store.

    Arithmetic on 16-bit floats is in float, and rounded by `cast` alone, or after every primitive
    where the body says so. `name` is the user's variable and `line` the user's line, for comments.
    """

    dtype: str
    name: str | None = None
    line: str | None = None


@dataclass(eq=False)
class Loaded(Term):
    """What the operand-th input has here. An operand without memory is an affine function of the
    coordinates (walk 'i'): an index, as Long. `steady`: it is the same all along the row."""

    operand: int
    steady: bool = False


@dataclass(eq=False)
class Scalar(Term):
    """The slot-th number of the call: a double where dtype is Double, else an int64."""

    slot: int


@dataclass(eq=False)
class Written(Term):
    """A number in the source."""

    value: bool | int | float


@dataclass(eq=False)
class Applied(Term):
    """A primitive of other terms."""

    prim: Prim
    args: tuple[Term, ...]


@dataclass(eq=False)
class Fetched(Term):
    """The element of `dtype` at address slot + sum of at[k] * stride slot k, all words of the call.

    Where `inside` (a Bool term) is false nothing is read, and the value is `otherwise`. `run`, in
    row-wise bodies: (place, length), where it is the same all along the row as long as
    place // length is; a group norm's weights are.
    """

    base: int
    at: tuple[Term, ...]
    strides: tuple[int, ...]
    inside: Term | None = None
    otherwise: float = 0.0
    run: tuple[Loaded, Term] | None = None


@dataclass(eq=False)
class Reduced(Term):
    """arg of every element of the row, added up (or the largest, …): the same for all elements.

    argmax and argmin give the column, the first of equals, NaN first of all; as PyTorch. expsum is
    the sum of exp(arg - m), m being the largest arg (one_pass.py).
    """

    kind: Reduction
    arg: Term


@dataclass
class Body:
    """A kernel's arithmetic. `inputs` are the dtypes of its operands as stored, in their order.

    `outputs` are of every element, `row_outputs` of every row (of Reduced, row-wise only);
    each is stored as its term's dtype. `scalars` is how many words come with a call. `by_rows`: it
    goes row by row though nothing is reduced.
    """

    name: str  # a C++ identifier, made from the user's function
    inputs: tuple[str, ...]
    outputs: tuple[Term, ...]
    row_outputs: tuple[Term, ...] = ()
    scalars: int = 0
    rounds: bool = False  # rounding="eager": every primitive's result is rounded to its dtype
    about: list[str] = field(default_factory=list)  # lines of a comment above the functor
    by_rows: bool = False

    @property
    def row_wise(self) -> bool:
        return self.by_rows or bool(self.reductions)

    @property
    def reductions(self) -> list[Reduced]:
        return [term for term in terms(self) if isinstance(term, Reduced)]

    @property
    def draws(self) -> bool:
        """Whether it has random numbers."""
        applied = (term for term in terms(self) if isinstance(term, Applied))
        return any(term.prim.name in ("uniform", "normal") for term in applied)


def terms(body: Body) -> list[Term]:
    """Every term once, each after its arguments, with those that say how long a run is."""
    found: dict[Term, None] = {}
    stack = [(term, False) for term in reversed((*body.outputs, *body.row_outputs))]
    while stack:
        term, done = stack.pop()
        if done:
            found[term] = None
        elif term not in found:
            stack.append((term, True))
            needed = arguments(term)
            if isinstance(term, Fetched) and term.run is not None:
                needed = (*needed, *term.run)
            stack.extend((arg, False) for arg in reversed(needed) if arg not in found)
    return list(found)


def arguments(term: Term) -> tuple[Term, ...]:
    """The terms that this one is made from."""
    if isinstance(term, Applied):
        return term.args
    if isinstance(term, Reduced):
        return (term.arg,)
    if isinstance(term, Fetched):
        return (*term.at, *([term.inside] if term.inside is not None else []))
    return ()
