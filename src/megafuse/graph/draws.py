"""Random numbers while torch traces: operations on a state of two words, drawn once a call.

    state(device)                       a seed and an offset, from torch's generator
    uniform(state, number, …)           in [0, 1)
    normal(state, number, …)            with mean 0 and standard deviation 1
    dropout(x, state, number, p)        x / (1 − p), and 0 with probability p

A random number is a function of the state, of which draw it is in the trace (`number`) and of its
element's place. So a backward pass that needs the forward's numbers draws them again: it is given
the 16 bytes of the state, never a mask. They are not the numbers that PyTorch would draw.
random_calls.py says which calls of torch's become these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from megafuse.graph import philox

_LIBRARY = torch.library.Library("megafuse_graph", "DEF")
_LIBRARY.define("state(Device device) -> Tensor")
for _name in ("uniform", "normal"):
    _LIBRARY.define(
        f"{_name}(Tensor state, int number, SymInt[] size, SymInt[] stride, ScalarType dtype)"
        " -> Tensor"
    )
_LIBRARY.define("dropout(Tensor x, Tensor state, int number, Scalar p) -> Tensor")
ops: Any = torch.ops.megafuse_graph


class _Trace(threading.local):
    """How many draws it has so far; nothing that two threads share. `state` is set where a function
    runs and is not traced."""

    draws = 0
    state: Tensor | None = None


_TRACE = _Trace()


def restart(state: Tensor | None = None) -> None:
    """A trace begins; with a state, a run that has the numbers of this."""
    _TRACE.draws, _TRACE.state = 0, state


def state(device: torch.device) -> Tensor:
    """Of all draws of the call: equal calls of this become one."""
    drawn: Tensor = ops.state(device) if _TRACE.state is None else _TRACE.state
    return drawn


def next_number() -> int:
    """Of the next draw."""
    _TRACE.draws += 1
    return _TRACE.draws - 1


# What the operations are to torch: shapes, gradients, and values by philox.py.


def _fake_state(device: torch.device) -> Tensor:
    return torch.empty(2, dtype=torch.int64, device=device)


def _fake_draw(state: Tensor, number: int, size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=state.device)


def _fake_dropout(x: Tensor, state: Tensor, number: int, p: Any) -> Tensor:
    return torch.empty_like(x)


def _state(device: torch.device) -> Tensor:
    """As the host draws it (runtime/host/graph/draw.h)."""
    return torch.empty(2, dtype=torch.int64, device=device).random_(-(2**63), None)


def _drawn(kind: Callable[..., Tensor], state: Tensor, number: int, like: Tensor) -> Tensor:
    index = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    digits = {torch.bfloat16: 8, torch.float16: 11}.get(like.dtype)
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    made = kind(state[0], state[1] + number, index, wide)
    if digits is not None and kind is philox.uniform:
        made = (made * 2**digits).floor() / 2**digits
    return made.to(like.dtype)


def _draw(kind: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def draw(state: Tensor, number: int, size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        made = torch.empty_strided(size, stride, dtype=dtype, device=state.device)
        return made.copy_(_drawn(kind, state, number, made))

    return draw


def _dropout(x: Tensor, state: Tensor, number: int, p: float) -> Tensor:
    drawn = _drawn(philox.uniform, state, number, torch.empty(x.shape, device=x.device))
    factor = torch.where(drawn < p, 0.0, 1 / (1 - p) if p < 1 else 0.0)
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * factor).to(x.dtype)


for _name, _real, _fake in (
    ("state", _state, _fake_state),
    ("uniform", _draw(philox.uniform), _fake_draw),
    ("normal", _draw(philox.normal), _fake_draw),
    ("dropout", _dropout, _fake_dropout),
):
    _LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"megafuse_graph::{_name}", _fake, lib=_LIBRARY)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, state, ctx.number, ctx.p = inputs
    ctx.save_for_backward(state)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """Dropout of the gradient, with the same numbers."""
    (state,) = ctx.saved_tensors
    return ops.dropout(gradient, state, ctx.number, ctx.p), None, None, None


torch.library.register_autograd(
    "megafuse_graph::dropout", _backward, setup_context=_remember, lib=_LIBRARY
)
