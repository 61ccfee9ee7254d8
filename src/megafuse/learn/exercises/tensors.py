"""Is this the tensor that was asked for? Kind, shape, dtype, then values against float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from megafuse.learn.exercises import patterns
from megafuse.learn.exercises.findings import Finding, Stop

_NEAR = 1e-4  # a known result is met this closely, also where the tolerance is wider

# What typical mistakes compute: the sentence that names one, and its result in float64.
Known = Iterable[tuple[str, Tensor]]


def close(
    what: str,
    result: Any,
    exact: Tensor,
    dtype: torch.dtype,
    tolerance: float,
    says: str = "",
    known: Known = (),
) -> Finding:
    """`exact` is the float64 result; an element may err by `tolerance` times 1 + its size.

    What is no tensor, or has another shape or dtype, raises Stop. A wrong result that is one of
    the `known` is called by its name; of another it is told where and how it is wrong.
    """
    if not isinstance(result, Tensor):
        raise Stop(
            what,
            f"a {type(result).__name__} came back, not a tensor",
            "A function that ends without `return` gives None." if result is None else "",
        )
    if result.shape != exact.shape:
        raise Stop(
            what,
            f"shape {list(result.shape)}, expected {list(exact.shape)}",
            "Every element of the input has one in the result, at the same place.",
        )
    if result.dtype != dtype:
        raise Stop(
            what,
            f"dtype {_name(result.dtype)}, expected {_name(dtype)}",
            "The result has the dtype of the arguments. A wider one would also be twice the bytes.",
        )
    values = result.detach().double().to(exact.device)
    finding = _values(what, values, exact, tolerance, says)
    if finding.ok:
        return finding
    named = _named(values, known, tolerance) or patterns.told(
        result.detach().to(exact.device), exact, _errors(values, exact) > tolerance
    )
    return replace(finding, says="\n\n".join(filter(None, (named, says))))


def _named(result: Tensor, known: Known, tolerance: float) -> str:
    for sentence, wrong in known:
        near = min(tolerance, _NEAR)
        if result.shape == wrong.shape and _values("", result, wrong, near, "").ok:
            return sentence
    return ""


def _errors(result: Tensor, exact: Tensor) -> Tensor:
    error = (result - exact).abs() / (1 + exact.abs())
    error = error.where(result != exact, 0.0)  # Inf where Inf belongs
    return error.where(~(result.isnan() & exact.isnan()), 0.0).nan_to_num(torch.inf)


def _values(what: str, result: Tensor, exact: Tensor, tolerance: float, says: str) -> Finding:
    error = _errors(result, exact)
    worst = int(error.argmax())
    largest = float(error.flatten()[worst])
    if largest <= tolerance:
        return Finding(what, True, f"largest error {largest:.1e}, at most {tolerance:.0e}")
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(worst), error.shape))
    found, expected = float(result.flatten()[worst]), float(exact.flatten()[worst])
    return Finding(what, False, f"[{place}] is {found:.6g}, expected {expected:.6g}", says)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
