"""How far a result is from float64, and whether it may be called right.

A contender is right when each of its results has the dtype, shape and device of eager's, and

- floating point: NaN and ±Inf are where eager or float64 has them, and no element is further from
  float64 than 4 times the worst of eager's errors, or than `torch.testing.assert_close` allows;
- integers: against eager's or those from float64, whichever is nearer, none is off by more than 1,
  and at most one in a thousand is off at all;
- random results (dropout): the mean and the mean square are within 6 standard errors of eager's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from megafuse.bench.result import Accuracy

_TOLERANCE = {  # of torch.testing.assert_close: relative, absolute
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
_PERCENTILES = {"50": 0.5, "99": 0.99, "99.9": 0.999}
_FEW = 30  # random numbers that are too few to tell one distribution from another
_RANKED = 1 << 22  # elements that percentiles are taken from: every n-th of a larger result


def leaves(result: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    return [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]


def in_float64(function: Callable[..., Any], args: Sequence[Any]) -> list[Tensor]:
    """The results of `function` on the same values in float64, also where it casts."""
    with _Wide():  # type: ignore[no-untyped-call]
        return leaves(function(*pytree.tree_map(_widened, list(args))))


class _Wide(TorchDispatchMode):
    """Where an operation is told a dtype of floats, it is float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(
            torch.dtype,
            lambda dtype: torch.float64 if dtype.is_floating_point else dtype,
            (args, kwargs or {}),
        )
        return func(*args, **kwargs)


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """A module with its weights in float64; a function is what it is."""
    return copy.deepcopy(function).double() if isinstance(function, nn.Module) else function


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def measure(got: Sequence[Tensor], exact: Sequence[Tensor]) -> Accuracy | None:
    """Errors over all results; None for results that float64 does not bear on."""
    pairs = [(_real(g), _real(e)) for g, e in zip(got, exact, strict=True) if g.numel()]
    total = sum(g.numel() for g, _ in pairs)
    seen = _Errors(every=math.ceil(total / _RANKED) or 1)
    for mine, known in pairs:
        for piece in _pieces(mine, known):
            seen.add(*piece)
    return seen.accuracy(total) if seen.count else None


class _Errors:
    """Statistics of errors, a piece after the other. Relative ones of every n-th are ranked."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.count = self._relatives = self._equal = 0
        self._max_abs = self._sum_abs = self._max_rel = self._sum_rel = 0.0
        self._ranked: list[Tensor] = []

    def add(self, got: Tensor, exact: Tensor) -> None:
        self._equal += _equal(got, exact.to(got.dtype))
        size = exact.double().abs()
        error = _error(got, exact)
        if not _all_finite(error):
            known = error.isfinite()
            error, size = error[known], size[known]
        if not error.numel():
            return
        self.count += error.numel()
        self._max_abs = max(self._max_abs, float(error.max()))
        self._sum_abs += float(error.sum())
        if not bool((size > 0).all()):
            error, size = error[size > 0], size[size > 0]
        if error.numel():
            relative = error.div_(size)
            self._relatives += relative.numel()
            self._max_rel = max(self._max_rel, float(relative.max()))
            self._sum_rel += float(relative.sum())
            self._ranked.append(relative[:: self._every].clone())

    def accuracy(self, total: int) -> Accuracy:
        ranked = torch.cat(self._ranked).sort().values if self._ranked else torch.empty(0)
        return Accuracy(
            max_abs=self._max_abs,
            mean_abs=self._sum_abs / self.count,
            max_rel=self._max_rel,
            mean_rel=self._sum_rel / self._relatives if self._relatives else 0.0,
            rel_percentiles={name: _at(ranked, q) for name, q in _PERCENTILES.items()},
            exact=self._equal / total,
        )


# torch works on so many elements with one thread. A check is thousands of short operations; with
# two threads each waits for the slower one, and where another program had a processor, that made
# a check of 16 Mi elements 15 times as long.
_ONE_THREAD = 1 << 15


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same elements of each, a piece at a time: on the CPU all that is worked out from a piece
    stays in the cache, which made a check of 64 Mi elements 20 times as fast."""
    flat = [t.detach().reshape(-1) for t in tensors]
    size = _ONE_THREAD if flat[0].device.type == "cpu" else 1 << 26
    for start in range(0, flat[0].numel(), size):
        yield tuple(t[start : start + size] for t in flat)


def _all_finite(t: Tensor) -> bool:
    """In one pass that makes no other tensor: a sum in float64 does not overflow unless it must."""
    return math.isfinite(float(t.sum(dtype=torch.float64))) or bool(t.isfinite().all())


def wrong(
    got: Sequence[Tensor],
    eager: Sequence[Tensor],
    exact: Sequence[Tensor] | None,
    random: bool = False,
) -> str | None:
    """What is wrong with a result, in words; None if nothing is."""
    if len(got) != len(eager):
        return f"returns {len(got)} tensors, expected {len(eager)}"
    for i, (ours, theirs) in enumerate(zip(got, eager, strict=True)):
        which = f"result {i + 1}: " if len(eager) > 1 else ""
        for what in ("dtype", "shape", "device"):
            mine, expected = getattr(ours, what), getattr(theirs, what)
            if mine != expected:
                return f"{which}wrong {what}: {_name(mine)}, expected {_name(expected)}"
        if not ours.numel():
            continue
        ours, theirs = _real(ours), _real(theirs)
        if random:
            problem = _another_distribution(ours, theirs)
        elif ours.is_floating_point():
            problem = _too_far(ours, theirs, theirs if exact is None else _real(exact[i]))
        else:
            problem = _other_integers(ours, theirs, theirs if exact is None else exact[i])
        if problem:
            return f"{which}wrong result: {problem}"
    return None


def _too_far(ours: Tensor, theirs: Tensor, exact: Tensor) -> str | None:
    worst = 0.0  # of eager's errors
    other, shown = 0, ""
    for mine, eager, known in _pieces(ours, theirs, exact):
        error = _error(eager, known)
        plain = _all_finite(mine) and _all_finite(eager)
        if not plain:
            wrong = _of_another_class(mine, eager, known)
            if bool(wrong.any()) and not shown:
                at = int(wrong.nonzero()[0])
                shown = f"{float(mine[at])} or the like where eager has {float(eager[at]):g}"
            other += int(wrong.sum())
            error = error[error.isfinite()]
        worst = max(worst, float(error.max())) if error.numel() else worst
    if other:
        return f"{_count_of(other, ours)} are {shown}"
    relative, absolute = _TOLERANCE.get(ours.dtype, (1e-3, 1e-3))
    off, furthest = 0, 0.0
    for mine, known in _pieces(ours, exact):
        error = _error(mine, known)
        allowed = known.double().abs().mul_(relative).add_(absolute).clamp_(min=4 * worst)
        far = error > allowed
        if bool(far.any()):
            far &= error.isfinite()
            off += int(far.sum())
            furthest = max(furthest, float(error[far].max())) if bool(far.any()) else furthest
    if off:
        return (
            f"{_count_of(off, ours)} are further from float64 than 4 times eager's worst error "
            f"({worst:.2g}); the worst is off by {furthest:.2g}"
        )
    return None


def _of_another_class(ours: Tensor, theirs: Tensor, exact: Tensor) -> Tensor:
    mine = _class(ours)
    return (mine != _class(theirs)) & (mine != _class(exact.to(ours.dtype)))


def _other_integers(ours: Tensor, theirs: Tensor, exact: Tensor) -> str | None:
    most = off_by_one = off_by_more = 0
    for mine, eager, known in _pieces(ours, theirs, exact):
        if torch.equal(mine, eager):
            continue
        # What equals float64's is right, too: torch.compile does not round to bfloat16 on the way.
        here, there = (mine.long() - eager.long()).abs(), (mine.long() - known.long()).abs()
        off = here.minimum(there)
        most = max(most, int(off.max()))
        off_by_one += int((off == 1).sum())
        off_by_more += int((off > 1).sum())
    if off_by_more:
        return f"{_count_of(off_by_more, ours)} are off by up to {most}"
    if off_by_one > ours.numel() / 1000:
        return f"{_count_of(off_by_one, ours)} are off by 1"
    return None


def _another_distribution(ours: Tensor, theirs: Tensor) -> str | None:
    if ours.numel() < _FEW:
        return None
    for power, what in ((1, "mean"), (2, "mean square")):
        a, b = ours.double() ** power, theirs.double() ** power
        error = math.sqrt((float(a.var()) + float(b.var())) / a.numel())
        far = abs(float(a.mean()) - float(b.mean()))
        if not far <= 6 * error + 1e-12:
            return f"its {what} is {float(a.mean()):.4g}, eager's {float(b.mean()):.4g}"
    return None


def _real(t: Tensor) -> Tensor:
    """Of complex numbers the parts, each an element of its own."""
    return torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t


def _equal(got: Tensor, expected: Tensor) -> int:
    return int(((got == expected) | (got.isnan() & expected.isnan())).sum())


def _error(got: Tensor, exact: Tensor) -> Tensor:
    return (got.detach().double() - exact.detach().double()).abs()


def _class(t: Tensor) -> Tensor:
    """0 finite, 1 Inf, 2 −Inf, 3 NaN."""
    return t.isposinf() * 1 + t.isneginf() * 2 + t.isnan() * 3


def _count_of(count: int, of: Tensor) -> str:
    return f"{count:,} of {of.numel():,} elements"


def _at(ranked: Tensor, q: float) -> float:
    return float(ranked[min(int(q * ranked.numel()), ranked.numel() - 1)]) if len(ranked) else 0.0


def _name(value: Any) -> str:
    return str(tuple(value) if isinstance(value, torch.Size) else value).removeprefix("torch.")
