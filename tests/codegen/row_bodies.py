"""Row-wise bodies as people write them, with what PyTorch makes of the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from codegen.bodies import cast, load, number, op, over_row, written
from megafuse.codegen.body import Body, Term


@dataclass(frozen=True)
class Case:
    """A body for a dtype, its inputs as rows ('r') or one row for all ('w'), and eager's results.

    The first number of a call is the length of a row.
    """

    body: Callable[[str], Body]
    inputs: str
    eager: Callable[..., tuple[Tensor, ...]]


def floats(dtype: str) -> str:
    """What is computed in."""
    return "Double" if dtype == "Double" else "Float"


def mean(x: Term, wide: str, name: str | None = None) -> Term:
    return op("div", over_row("sum", x), cast(number(0, name="n"), wide), name=name)


def result(term: Term, dtype: str) -> Term:
    return term if term.dtype == dtype else cast(term, dtype)


def softmax(dtype: str) -> Body:
    x = cast(load(0, dtype, "x"), floats(dtype))
    e = op("exp", op("sub", x, over_row("amax", x)), name="e")
    return Body("softmax", (dtype,), (result(op("div", e, over_row("sum", e)), dtype),), scalars=1)


def logsumexp(dtype: str) -> Body:
    x = cast(load(0, dtype, "x"), floats(dtype))
    most = over_row("amax", x)
    finite = op("where", op("isinf", most), written(0.0, x.dtype), most, name="finite")
    total = over_row("sum", op("exp", op("sub", x, finite)), name="total")
    found = op("add", op("log", total), finite)
    return Body("logsumexp", (dtype,), (), (result(found, dtype),), scalars=1)


def layer_norm(dtype: str) -> Body:
    wide = floats(dtype)
    x, weight, bias = (cast(load(i, dtype), wide) for i in range(3))
    centre = mean(x, wide, "mean")
    d = op("sub", x, centre, name="d")
    scale = op("rsqrt", op("add", mean(op("mul", d, d), wide), written(1e-5, wide)), name="scale")
    out = op("add", op("mul", op("mul", d, scale), weight), bias)
    return Body("layer_norm", (dtype,) * 3, (result(out, dtype),), (centre, scale), scalars=1)


def eager_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    wide = x if x.dtype == torch.float64 else x.float()
    variance, centre = torch.var_mean(wide, -1, correction=0, keepdim=True)
    out = F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
    # Of a row with Inf PyTorch's var_mean has no mean; that of the body is Inf.
    centre = torch.where(centre.isnan(), wide.mean(-1, keepdim=True), centre)
    return out, centre, torch.rsqrt(variance + 1e-5)


def rms_norm(dtype: str) -> Body:
    wide = floats(dtype)
    x, weight = (cast(load(i, dtype), wide) for i in range(2))
    scale = op("rsqrt", op("add", mean(op("mul", x, x), wide), written(1e-6, wide)), name="scale")
    return Body(
        "rms_norm",
        (dtype,) * 2,
        (result(op("mul", op("mul", x, scale), weight), dtype),),
        scalars=1,
    )


def eager_rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (F.rms_norm(x, x.shape[-1:], weight, 1e-6),)


def chain(dtype: str) -> Body:
    """Three reductions, each of what the one before gave; results of two dtypes."""
    wide = floats(dtype)
    x = cast(load(0, dtype, "x"), wide)
    h = op("tanh", op("sub", x, mean(x, wide, "centre")), name="h")
    top = over_row("amax", op("abs", h), name="top")
    share = op("div", h, op("add", top, written(0.5, wide)), name="share")
    power = over_row("sum", op("mul", share, share), name="power")
    above = op("gt", share, op("div", power, cast(number(0, name="n"), wide)))
    return Body("chain", (dtype,), (result(share, dtype), above), (power, top), scalars=1)


def eager_chain(x: Tensor) -> tuple[Tensor, ...]:
    wide = x if x.dtype == torch.float64 else x.float()
    h = torch.tanh(wide - wide.mean(-1, keepdim=True))
    top = h.abs().amax(-1, keepdim=True)
    share = h / (top + 0.5)
    power = share.square().sum(-1, keepdim=True)
    return share.to(x.dtype), share > power / x.shape[-1], power, top


CASES = {
    "softmax": Case(softmax, "r", lambda x: (x.softmax(-1),)),
    "logsumexp": Case(logsumexp, "r", lambda x: (x.logsumexp(-1, keepdim=True),)),
    "layer_norm": Case(layer_norm, "rww", eager_layer_norm),
    "rms_norm": Case(rms_norm, "rw", eager_rms_norm),
    "chain": Case(chain, "r", eager_chain),
}
