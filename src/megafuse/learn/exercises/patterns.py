"""A wrong result in words: where it is wrong, and how wrong values lie beside the right ones."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

_MARK = 0x7FC00BAD  # a nan that no arithmetic makes


def blank(*shape: int, device: str = "cpu") -> Tensor:
    """Floats that nobody has written yet."""
    return torch.full(shape, _MARK, dtype=torch.int32, device=device).view(torch.float32)


def told(result: Tensor, exact: Tensor, wrong: Tensor) -> str:
    """`wrong` says of each element whether it is; `exact` is float64. Empty where there is nothing
    to say beyond a single number."""
    if wrong.numel() < 2:
        return ""
    never = _never(result)
    rest = wrong & ~never
    said = [f"Never written: {_places(never)}."] if never.any() else []
    few_right = int(rest.sum()) > 0.9 * rest.numel()  # as the diagonal, where rows became columns
    if few_right:
        said.append("No element is right." if rest.all() else "Hardly any element is right.")
    elif rest.any():
        said.append(f"Wrong: {_places(rest)}.")
    if said and not few_right and not wrong.all():
        said.append("The others are right.")
    if rest.any() and not never.any():
        said += filter(None, [_beside(result.double(), exact, rest)])
    return " ".join(said)


def _never(result: Tensor) -> Tensor:
    if result.dtype != torch.float32:
        return torch.zeros_like(result, dtype=torch.bool)
    return result.contiguous().view(torch.int32) == _MARK


def _places(mask: Tensor) -> str:
    """Rows, columns, a stretch, every n-th; or how many, and the first."""
    if mask.all():
        return "all of it"
    if mask.ndim == 2:
        for name, dim in (("row", 1), ("column", 0)):
            whole = mask.all(dim)
            if whole.any() and int(whole.sum()) * mask.shape[dim] == int(mask.sum()):
                return f"{_listed(name, whole)} of 0 to {len(whole) - 1}"
    if mask.ndim == 1 and _even(mask.nonzero().flatten().tolist()):
        return f"{_listed('element', mask)} of 0 to {len(mask) - 1}"
    first = ", ".join(str(i) for i in mask.nonzero()[0].tolist())
    return f"{int(mask.sum()):,} of {mask.numel():,} elements, the first at [{first}]"


def _even(places: list[int]) -> bool:
    return len(places) < 5 or len({b - a for a, b in itertools.pairwise(places)}) == 1


def _listed(name: str, mask: Tensor) -> str:
    places = mask.nonzero().flatten().tolist()
    if len(places) == 1:
        return f"{name} {places[0]}"
    if len(places) > 4 and _even(places):
        step = places[1] - places[0]
        if step == 1:
            return f"{name}s {places[0]} to {places[-1]}"
        return f"every {_ordinal(step)} {name}, {places[0]}, {places[1]}, …"
    return f"{name}s {', '.join(map(str, places[:4]))}" + (", …" if len(places) > 4 else "")


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number // 10 % 10 != 1 else 0, "th")
    return f"{number}{ending}"


def _beside(result: Tensor, exact: Tensor, wrong: Tensor) -> str:
    """Whether one number leads from the right values to the wrong ones, or another order."""
    values, right = result[wrong], exact[wrong]
    if bool((values == 0).all()):
        return "They are 0."
    if bool(values.isnan().any()):
        return "nan comes out of 0 / 0, inf - inf and inf / inf."
    if bool(values.isinf().any()):
        return "inf comes out of a division by 0, and of exp beyond 88."
    if len(values) < 3:
        return ""
    large = right.abs() > 1e-3
    factor = _one(values[large] / right[large])
    if factor is not None and abs(factor - 1) < 1e-4:
        return "Each is right in its first digits, and not in the last."
    if factor is not None and _near(values, factor * right):
        return f"Each is {factor:.4g} times what it should be."
    away = _one(values - right)
    if away is not None:
        return f"Each is too {'large' if away > 0 else 'small'} by {abs(away):.4g}."
    if result.ndim == 2 and _same(result.flatten(), exact.t().flatten()):
        return "The values are right, but rows and columns have changed places."
    if _same(result.flatten().sort().values, exact.flatten().sort().values):
        return "The values are right, but stand in other places."
    return ""


def _one(values: Tensor) -> float | None:
    """The number that all of them are."""
    if len(values) < 3:
        return None
    middle = float(values.median())
    return middle if bool(((values - middle).abs() <= 1e-3 * abs(middle)).all()) else None


def _near(a: Tensor, b: Tensor) -> bool:
    """Also the small ones, of which a quotient says nothing."""
    return bool(((a - b).abs() <= 1e-3 * (b.abs() + a.abs().max())).all())


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6)
