"""Gradients against PyTorch's and against differences; operations; what the forward saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn import explain
from megafuse.learn.exercises import roof, tensors
from megafuse.learn.exercises.findings import Finding, Stop
from megafuse.learn.exercises.work import Work
from megafuse.learn.ledger import count
from megafuse.ops import OPS

_SAVED = 8  # bytes an element: gate and up
_OPERATIONS = sum(OPS["swiglu"].flops)  # type: ignore[arg-type]


def separate(gate: Tensor, up: Tensor) -> Tensor:
    """What PyTorch does, and differentiates."""
    return F.silu(gate) * up


def check(work: Work) -> Iterator[Finding]:
    """Result, gradients, gradcheck; then operations, bytes saved, roof."""
    swiglu = work.function("swiglu")
    gate, up = _pair(37, 29, work.device)
    result = swiglu(gate, up)
    exact = separate(gate.double(), up.double()).detach()
    told = "That is silu(up) * gate: the two have changed places in the call."
    known = [(told, separate(up.double(), gate.double()).detach())]
    says = "It is silu(gate) * up."
    finding = tensors.close("result", result, exact, torch.float32, 1e-5, says, known)
    yield finding
    if not finding.ok:
        return
    if not isinstance(result.grad_fn, torch.autograd.function.BackwardCFunction):
        raise Stop("by hand", "the result does not come from your Function", _BY_HAND)
    gradients = list(_gradients(swiglu, work.device))
    yield from gradients
    yield from _cost(swiglu, work.device)
    if all(finding.ok for finding in gradients):  # else it does less than it should
        yield _roof("of the roof", swiglu, work.device, "")
        yield _roof("mf.swiglu", OPS["swiglu"].fused, work.device, _ROOF, kept=False)


def _roof(
    what: str, function: Callable[..., Any], device: str, says: str, kept: bool = True
) -> Finding:
    gate, up = _pair(4096, 1024, device)
    grad = torch.ones_like(gate)

    def step() -> object:
        return torch.autograd.grad(function(gate, up), (gate, up), grad)

    # Forward: 2 read, 1 written; backward: 3 read, 2 written.
    operations = _OPERATIONS * gate.numel() if kept else 0
    moved = count(step).bytes_moved
    least = 8 * gate.nbytes
    return roof.share(
        step, least, device, says, what=what, kept=kept, operations=operations, moved=moved
    )


def _pair(rows: int, cols: int, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = [torch.randn(rows, cols, device=device, dtype=dtype) for _ in range(2)]
    return [t.requires_grad_() for t in made]


def _gradients(swiglu: Callable[..., Any], device: str) -> Iterator[Finding]:
    pair = _pair(11, 13, device, torch.float64)
    grad = torch.randn_like(pair[0])
    exact = torch.autograd.grad(separate(*pair), pair, grad)
    found = _differentiated(swiglu, pair, grad)
    right = True
    for name, ours, theirs in zip(("gate", "up"), exact, found, strict=True):
        if theirs is None:
            yield Finding(f"of {name}", False, f"no gradient for {name}", _SAYS[name])
            right = False
            continue
        known = _known(name, grad, *(t.detach() for t in pair))
        finding = tensors.close(
            f"of {name}", theirs, ours, torch.float64, 1e-10, _SAYS[name], known
        )
        right &= finding.ok is True
        yield finding
    if right:
        small = _pair(3, 4, device, torch.float64)
        agrees = torch.autograd.gradcheck(swiglu, small, raise_exception=False)
        told = "agrees with differences of the result" if agrees else "differs from differences"
        yield Finding("gradcheck", agrees, told)


def _differentiated(
    swiglu: Callable[..., Any], pair: list[Tensor], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Explains what autograd and Python say of a backward that cannot work."""
    try:
        return torch.autograd.grad(swiglu(*pair), pair, grad, allow_unused=True)
    except RuntimeError as error:
        if "number of gradients" in str(error):
            raise Stop("gradients", str(error), _TWO) from None
        if "invalid gradient" in str(error):
            raise Stop("gradients", str(error), _SHAPE) from None
        raise
    except ValueError as error:
        if "to unpack" in str(error):
            raise Stop("gradients", str(error), _SAVED_NONE) from None
        raise


_TWO = (
    "backward() returns as many gradients as forward() has arguments after ctx: two, of gate and "
    "of up, in this order. Without `return` it gives None."
)
_SHAPE = "A gradient has the shape of its argument: nothing is summed where nothing was broadcast."
_SAVED_NONE = (
    "ctx.saved_tensors has what forward() gave to ctx.save_for_backward(…), as many and in that "
    "order: here it has other tensors than the backward takes out of it."
)


def _known(name: str, grad: Tensor, gate: Tensor, up: Tensor) -> Iterator[tuple[str, Tensor]]:
    s = torch.sigmoid(gate)
    right = {"gate": grad * up * (s + gate * s * (1 - s)), "up": grad * gate * s}
    other = "up" if name == "gate" else "gate"
    yield f"That is the gradient of {other}: the two have changed places.", right[other]
    yield "The incoming gradient, grad, is left out of the product.", right[name] / grad
    t = torch.sigmoid(up)
    turned = {"gate": grad * gate * (t + up * t * (1 - t)), "up": grad * up * t}
    told = "gate and up have changed places: they come out of saved_tensors as they went in."
    yield told, turned[name]
    told = "The sigmoid is that of up: it is sigmoid(gate)."
    yield told, {"gate": grad * up * (t + gate * t * (1 - t)), "up": grad * gate * t}[name]
    if name == "gate":
        slope = "The slope is that of sigmoid, s * (1 - s), and the function is silu:"
        yield f"{slope} v times sigmoid(v), a product.", grad * up * s * (1 - s)
        yield "The factor up is left out.", right[name] / up
        slope = "The slope of silu is s + v * s * (1 - s):"
        yield f"{slope} its second term is subtracted.", grad * up * (s - gate * s * (1 - s))
        told = f"{slope} the derivative of s is s * (1 - s), and not s * s."
        yield told, grad * up * (s + gate * s * s)
        told = f"{slope} with 1 - s, and not 1 + s."
        yield told, grad * up * (s + gate * s * (1 + s))
        told = "The slope of silu is a sum, and its first term is left out: s + v * s * (1 - s)."
        yield told, grad * up * gate * s * (1 - s)
        told = "The slope of silu is a sum, and its second term is left out: s + v * s * (1 - s)."
        yield told, grad * up * s
        yield (
            "That is grad * up * silu(gate): the slope of silu belongs there.",
            grad * up * gate * s,
        )
    else:
        yield "That is grad * sigmoid(gate): silu is gate times that.", grad * s
        yield "That is grad * gate, without the sigmoid.", grad * gate
        told = (
            "That is grad times the slope of silu, which belongs to gate: here it is silu itself."
        )
        yield told, grad * (s + gate * s * (1 - s))


def _cost(swiglu: Callable[..., Any], device: str) -> Iterator[Finding]:
    gate, up = _pair(256, 512, device)
    ran = count(lambda: swiglu(gate, up)).operations
    one = len(ran) == 1
    found = f"{explain.listed(ran)}; goal: one operation, 12 bytes an element"
    yield Finding("forward", one, found, "" if one else _ONE)
    saved = _saved_bytes(swiglu, gate, up) / gate.numel()
    ok = saved <= _SAVED
    yield Finding(
        "saved", ok, f"{saved:.0f} bytes an element; {_SAVED} will do", "" if ok else _RECOMPUTE
    )


def _saved_bytes(swiglu: Callable[..., Any], gate: Tensor, up: Tensor) -> int:
    """What save_for_backward got, and tensors that were put on ctx past it."""
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.data_ptr()] = t.nbytes
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = swiglu(gate, up)
    for value in vars(result.grad_fn).values():
        if isinstance(value, Tensor):
            saved[value.data_ptr()] = value.nbytes
    return sum(saved.values())


_SAYS = {
    "gate": "The gradient of gate is grad * up * silu'(gate), and silu'(v) = s + v * s * (1 - s) "
    "with s = sigmoid(v). backward() returns it first, for forward's first argument; None means "
    "that gate would never learn.",
    "up": "The gradient of up is grad * silu(gate). backward() returns it second.",
}
_BY_HAND = "The exercise is the Function: swiglu should be Swiglu.apply."
_ONE = (
    "Each operation of the forward reads and writes whole tensors. The fused op does it in one "
    "launch: mf.swiglu(gate, up), after import megafuse as mf."
)
_RECOMPUTE = (
    "Every tensor that is saved stays in memory until the backward has run, in each layer of a "
    "model, and is read from there again. gate and up are the caller's own; the sigmoid and the "
    "product can be computed again from them, which costs arithmetic and no memory."
)
_ROOF = (
    "The roof is a copy of the least bytes of forward and backward together, 12 and 20 an element. "
    "Recomputing saved memory. It saves time too where it happens in registers: your backward is "
    "several PyTorch operations, that of mf.swiglu is the same formula as one kernel "
    "(SwigluBackward in kernels/swiglu.h)."
)
