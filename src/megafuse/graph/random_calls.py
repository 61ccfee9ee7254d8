"""What random operations of torch's become while it traces: draws of our own (draws.py).

With a generator that the user gives, and for dtypes that are no real floats, they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from megafuse.graph import draws

aten = torch.ops.aten


def _uniform_like(x: Tensor) -> Any:
    return draws.ops.uniform(
        draws.state(x.device), draws.next_number(), x.shape, x.stride(), x.dtype
    )


def _normal_like(x: Tensor) -> Any:
    return draws.ops.normal(
        draws.state(x.device), draws.next_number(), x.shape, x.stride(), x.dtype
    )


def _in_place_of(draw: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(*args: Any, generator: Any = None, **how: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        dtype = how.get("dtype") or (tensors[0].dtype if tensors else torch.get_default_dtype())
        if generator is not None or not _is_real(dtype):
            return NotImplemented
        return draw(*args, **how)

    return replaced


def _rand_like(x: Tensor, **how: Any) -> Any:
    return _uniform_like(torch.empty_like(x, **how))


def _randn_like(x: Tensor, **how: Any) -> Any:
    return _normal_like(torch.empty_like(x, **how))


def _rand(size: Any, **how: Any) -> Any:
    return _uniform_like(torch.empty(size, **how))


def _randn(size: Any, **how: Any) -> Any:
    return _normal_like(torch.empty(size, **how))


def _uniform(x: Tensor, low: Any = 0.0, high: Any = 1.0) -> Any:
    return _rand_like(x) * (high - low) + low


def _normal(x: Tensor, mean: Any = 0.0, std: Any = 1.0) -> Any:
    return _randn_like(x) * std + mean


def _bernoulli(p: Tensor) -> Any:
    return (_chances(p) < p).to(p.dtype)


def _bernoulli_p(x: Tensor, p: Any = 0.5) -> Any:
    return (_chances(x) < p).to(x.dtype)


def _chances(x: Tensor) -> Any:
    """In float32 at least, so that small probabilities are not lost."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return _uniform_like(torch.empty_like(x, dtype=dtype))


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = _chances(x) >= p
    return x * kept * (1 / (1 - p) if p < 1 else 0.0), kept


_DRAWS: dict[Any, Callable[..., Any]] = {
    aten.rand_like.default: _rand_like,
    aten.randn_like.default: _randn_like,
    aten.rand.default: _rand,
    aten.randn.default: _randn,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli_p,
    aten.native_dropout.default: _native_dropout,
}
# For make_fx's table of decompositions.
APART = {overload: _in_place_of(draw) for overload, draw in _DRAWS.items()}

# torch would fix p while it traces; with these it comes anew with each call.


def _functional_dropout(
    input: Tensor, p: Any = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if p < 0 or p > 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training:
        return input
    state = draws.state(input.device)
    made: Tensor = draws.ops.dropout(input, state, draws.next_number(), p)
    return input.copy_(made) if inplace else made


def _torch_dropout(input: Tensor, p: Any, train: bool) -> Tensor:
    return _functional_dropout(input, p, train)


_CALLED: dict[Any, Callable[..., Any]] = {
    F.dropout: _functional_dropout,
    torch.dropout: _torch_dropout,
}


def replaced(function: Any, args: Any) -> Any:
    """What is called in place of a function of torch's that the user calls: mostly itself."""
    ours = _CALLED.get(function) if args else None
    return ours if ours is not None and _is_real(args[0].dtype) else function


class AsFused(TorchFunctionMode):
    """Functions run unfused in it have the dropout masks that they have fused, for one call: what
    fused results are compared with. `state` is draws.ops.state's of this call."""

    def __init__(self, state: Tensor) -> None:
        super().__init__()
        draws.restart(state)

    def __exit__(self, *what: Any) -> None:
        super().__exit__(*what)  # type: ignore[no-untyped-call]
        draws.restart()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return replaced(func, args)(*args, **(kwargs or {}))


def _is_real(dtype: torch.dtype) -> bool:
    """A float of 16 bits or more."""
    return dtype.is_floating_point and dtype.itemsize > 1
