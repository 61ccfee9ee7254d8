"""Views of tensors that lie in order, as capture.py traces them: their sizes, by as few questions
about symbols as it takes. Each question is a guard, and takes sympy tens of milliseconds.

Most sizes cancel: [s0, s1, s2] as [s0, s1·s2], and as [s0, 8, −1] where s1 is known to be a
multiple of 8. What does not is asked about, so that what divides another is known as in torch's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from torch._prims_common import infer_size, make_contiguous_strides_for
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from megafuse.graph import torch_versions


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether it is known to lie in the order of its dimensions, with an element at least."""
    wanted: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not statically_known_true(stride == wanted) or statically_known_true(size == 0):
            return False
        wanted = wanted * size
    return True


def view_of_dense(tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Any view of it is dense. torch puts one together from splits and flattenings, and asks of
    each of them how it lies: for a group norm of images most of the first call. Here only sizes
    matter."""
    sizes = _cancelled(tensor.shape, shape)
    if sizes is None:
        sizes = _asked(tensor, shape)
    return torch.as_strided(tensor, sizes, make_contiguous_strides_for(sizes))


# ---- sizes that cancel


class _Size(NamedTuple):
    """`ratio` is `expr` with what is known to divide exactly as fractions, which sympy cancels."""

    expr: sympy.Expr
    ratio: sympy.Expr
    hint: int


def _cancelled(dims: Sequence[Any], shape: Sequence[Any]) -> list[Any] | None:
    """The view's sizes, or None where some do not cancel, or fit only perhaps. Nothing is asked
    where they cancel without."""
    shapes = _shapes_of([*dims, *shape])
    open_ends = [i for i, size in enumerate(shape) if type(size) is int and size < 1]
    if shapes is None or len(open_ends) > 1 or any(shape[i] != -1 for i in open_ends):
        return None
    at = open_ends[0] if open_ends else None
    found = _split(dims, shape, at, shapes, ask=False)
    if found is None:
        _ask_about_divisions(shape, shapes)
        found = _split(dims, shape, at, shapes, ask=True)
    return found


def _split(
    dims: Sequence[Any], shape: Sequence[Any], at: int | None, shapes: ShapeEnv, ask: bool
) -> list[Any] | None:
    """The view's sizes, of which the one at this place is −1; None where some do not cancel. With
    `ask`, sizes that a number divides are found by a question."""
    exact = _exact(shapes)
    left = deque(_size(dim, exact) for dim in dims)
    before, after = (shape, ()) if at is None else (shape[:at], shape[at + 1 :])
    for size in before:
        if not _take(left, _size(size, exact), shapes, ask):
            return None
    left.reverse()
    for size in reversed(after):
        if not _take(left, _size(size, exact), shapes, ask):
            return None
    rest = _product(left)
    if at is None:
        return list(shape) if rest.ratio == 1 else None
    return [*before, _symbolic(rest, shapes), *after]


def _take(left: deque[_Size], size: _Size, shapes: ShapeEnv, ask: bool) -> bool:
    """Takes a size from the first of those that are left; what remains of these is left."""
    for count in range(len(left) + 1):
        whole = _product(list(left)[:count])
        rest = whole.ratio / size.ratio
        if _is_whole(rest):
            for _ in range(count):
                left.popleft()
            if rest != 1:
                left.appendleft(_Size(rest, rest, whole.hint // size.hint))
            return True
    if not ask or not left or not size.expr.is_Integer:
        return False
    if _symbolic(left[0], shapes) % size.hint != 0:
        return False
    first = left.popleft()
    rest = FloorDiv(first.expr, size.expr)
    left.appendleft(_Size(rest, first.ratio / size.ratio, first.hint // size.hint))
    return True


def _is_whole(ratio: sympy.Expr) -> bool:
    """Whether it is an integer for all sizes, seen without a question: without any fraction in it.
    sympy's is_integer has said yes to products with one."""
    return bool(
        ratio.as_numer_denom()[1] == 1 and all(r.q == 1 for r in ratio.atoms(sympy.Rational))
    )


def _product(sizes: Iterable[_Size]) -> _Size:
    found = _Size(sympy.S.One, sympy.S.One, 1)
    for size in sizes:
        found = _Size(found.expr * size.expr, found.ratio * size.ratio, found.hint * size.hint)
    return found


def _size(size: Any, exact: dict[sympy.Expr, sympy.Expr]) -> _Size:
    if not isinstance(size, torch.SymInt):
        return _Size(sympy.Integer(size), sympy.Integer(size), size)
    expr = size.node.expr
    return _Size(expr, expr.xreplace(exact) if expr.has(FloorDiv) else expr, size.node.hint)


def _symbolic(size: _Size, shapes: ShapeEnv) -> Any:
    if size.expr.is_Integer:
        return int(size.expr)
    return shapes.create_symintnode(size.expr, hint=size.hint)


def _exact(shapes: ShapeEnv) -> dict[sympy.Expr, sympy.Expr]:
    """The divisions that are known to leave nothing over, and what they are then."""
    guards = (shapes.replace(guard.expr) for guard in shapes.guards)
    divided = [
        guard.lhs.args
        for guard in guards
        if isinstance(guard, sympy.Eq)
        and guard.rhs == 0
        and isinstance(guard.lhs, (Mod, PythonMod))
    ]
    return {FloorDiv(top, by): top / by for top, by in divided}


def _ask_about_divisions(sizes: Iterable[Any], shapes: ShapeEnv) -> None:
    """A guard for each division by a number that leaves nothing over for the call's sizes: halves
    of windows."""
    hints = torch_versions.hints(shapes)
    symbolic = [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]
    for division in {division for expr in symbolic for division in expr.atoms(FloorDiv)}:
        top, by = division.args
        hint = top.xreplace(hints)
        if by.is_Integer and hint.is_Integer and hint % by == 0:
            torch._check(_symbolic(_Size(top, top, int(hint)), shapes) % int(by) == 0)


def _shapes_of(sizes: Iterable[Any]) -> ShapeEnv | None:
    """None where all sizes are numbers."""
    found = (size.node.shape_env for size in sizes if isinstance(size, torch.SymInt))
    return next(found, None)


# ---- sizes that do not


def _asked(tensor: torch.Tensor, shape: Sequence[Any]) -> list[Any]:
    count = tensor.numel()
    try:
        sizes = infer_size(list(shape), count)
        torch._check(count == math.prod(sizes))
    except RuntimeError:
        words = f"shape '{_shown(shape)}' is invalid for input of size {_shown([count])[0]}"
        raise RuntimeError(words) from None
    left: list[Any] = list(reversed(tensor.shape))
    for size in sizes:
        whole: Any = left.pop() if left else 1
        if size == whole:
            continue
        while whole % size != 0:
            whole = whole * left.pop()
        if whole != size:
            left.append(whole // size)
    return list(sizes)


def _shown(sizes: Sequence[Any]) -> list[int]:
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]
