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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

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
    """The results of `function` on the same values in float64."""
    return leaves(function(*pytree.tree_map(_widened, list(args))))


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
    if not pairs:
        return None
    error = torch.cat([_error(g, e).flatten() for g, e in pairs])
    size = torch.cat([e.detach().double().abs().flatten() for _, e in pairs])
    equal = sum(_equal(g, e.to(g.dtype)) for g, e in pairs)
    known = error.isfinite()
    relative = (error / size)[known & (size > 0)]
    error = error[known]
    if not error.numel():
        return None
    ranked = relative[:: math.ceil(relative.numel() / _RANKED) or 1].sort().values
    return Accuracy(
        max_abs=float(error.max()),
        mean_abs=float(error.mean()),
        max_rel=float(relative.max()) if relative.numel() else 0.0,
        mean_rel=float(relative.mean()) if relative.numel() else 0.0,
        rel_percentiles={name: _at(ranked, q) for name, q in _PERCENTILES.items()},
        exact=equal / sum(g.numel() for g, _ in pairs),
    )


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
    known = exact.double()
    other = (_class(ours) != _class(theirs)) & (_class(ours) != _class(exact.to(ours.dtype)))
    if other.any():
        at = int(other.flatten().nonzero()[0])
        return (
            f"{_of(other)} are {float(ours.flatten()[at])} or the like where eager has "
            f"{float(theirs.flatten()[at]):g}"
        )
    error, eager = _error(ours, exact), _error(theirs, exact)
    finite = error.isfinite()
    worst = float(eager[eager.isfinite()].max()) if eager.isfinite().any() else 0.0
    relative, absolute = _TOLERANCE.get(ours.dtype, (1e-3, 1e-3))
    allowed = (known.abs() * relative + absolute).clamp(min=4 * worst)
    off = finite & (error > allowed)
    if off.any():
        return (
            f"{_of(off)} are further from float64 than 4 times eager's worst error ({worst:.2g}); "
            f"the worst is off by {float(error[finite].max()):.2g}"
        )
    return None


def _other_integers(ours: Tensor, theirs: Tensor, exact: Tensor) -> str | None:
    # What equals float64's is right, too: torch.compile does not round to bfloat16 on the way.
    off = (ours.long() - theirs.long()).abs().minimum((ours.long() - exact.long()).abs())
    if int(off.max()) > 1:
        return f"{_of(off > 1)} are off by up to {int(off.max())}"
    if int((off > 0).sum()) > off.numel() / 1000:
        return f"{_of(off > 0)} are off by 1"
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


def _of(which: Tensor) -> str:
    return f"{int(which.sum()):,} of {which.numel():,} elements"


def _at(ranked: Tensor, q: float) -> float:
    return float(ranked[min(int(q * ranked.numel()), ranked.numel() - 1)]) if len(ranked) else 0.0


def _name(value: Any) -> str:
    return str(tuple(value) if isinstance(value, torch.Size) else value).removeprefix("torch.")
