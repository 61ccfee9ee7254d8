"""What "right" means: at most twice eager's error against fp64, plus a stated floor.

Errors are counted in ulps: the distance between neighbours of the output's dtype at the exact
value. Where the exact value is near a zero of the function an ulp says nothing, so it is taken
at no less than an eighth of the values' root mean square. A second rule has no such lower bound,
for results far below the mean (the tail of a gelu): 95 % of the elements obey it.

Few elements can be lucky in eager. So eager's error is measured on 4096 elements of the same
distribution too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contract.cases import Args, Case, leaves, poison, tensors, wanting_grad

# What even the best kernel may be off: half an ulp for rounding, the rest for math functions
# that are right to about an ulp and used twice. Against fp64 nothing wider is at hand, so eager
# looks exact and all of the error (12 ulps measured, in gelu) is on us.
FLOOR = {torch.float32: 2, torch.float16: 2, torch.bfloat16: 2, torch.float64: 24}
POOL = (64, 64)


@dataclass(frozen=True)
class Eager:
    """What eager PyTorch gives for one tensor of the pool."""

    rms: float
    worst: float
    tail: float


# ---- values


def check_value(case: Case, args: Args) -> Tensor:
    """Calls the fused op on poisoned memory and holds the result against the rule."""
    eager = case.op.reference(*args)
    poison(eager)
    fused = case.op.fused(*args)
    check_result("the value", case, fused, eager, lambda: exact_value(case, args), _pool)
    return fused


def exact_value(case: Case, args: Args) -> Tensor:
    """The reference in fp64, on the CPU."""
    with torch.no_grad():
        return case.op.reference(*upcast(args))


def upcast(args: Args) -> Args:
    return [_up(a) if isinstance(a, Tensor) else a for a in args]


def _up(t: Tensor) -> Tensor:
    return t.detach().to("cpu", torch.float64 if t.is_floating_point() else t.dtype)


# ---- gradients


def check_gradients(case: Case, args: Args, grad: Tensor | None = None) -> list[Tensor]:
    """The gradients of all arguments that can have one, against the rule."""
    out = case.op.reference(*args)
    if grad is None:
        grad = torch.randn(out.shape, device=out.device).to(out.dtype)
    eager = gradients(case, case.op.reference, args, grad)
    fused = gradients(case, case.op.fused, args, grad)
    exact = gradients(case, case.op.reference, upcast(args), _up(grad))
    names = [
        n.name
        for n, a in zip(case.op.arguments, args, strict=True)
        if isinstance(a, Tensor) and n.name in case.op.grads
    ]
    for i, name in enumerate(names):
        terms = out.numel() / max(fused[i].numel(), 1)
        check_result(
            f"the gradient of '{name}'",
            case,
            fused[i],
            eager[i],
            functools.partial(exact.__getitem__, i),
            functools.partial(_gradient_pool, name),
            terms,
        )
    return fused


def gradients(
    case: Case, function: Callable[..., Tensor], args: Args, grad: Tensor
) -> list[Tensor]:
    fresh = wanting_grad(case, args)
    out = function(*fresh)
    poison(out, copies=4)
    return list(torch.autograd.grad(out, leaves(fresh), grad))


# ---- the rule


def check_result(
    what: str,
    case: Case,
    fused: Tensor,
    eager: Tensor,
    exact: Callable[[], Tensor],
    pool: Callable[[Case, torch.dtype, str], Eager],
    terms: float = 1,
) -> None:
    """`terms`: how many terms each element is a sum of, more than one for a bias's gradient."""
    assert fused.dtype == eager.dtype, f"{what}: {fused.dtype}, expected {eager.dtype}"
    assert fused.shape == eager.shape, f"{what}: {fused.shape}, expected {eager.shape}"
    assert fused.device == eager.device
    if not fused.is_floating_point():
        assert torch.equal(fused, eager), f"{what}: {_first_difference(fused, eager)}"
        return
    if fused.numel() == 0:
        return
    reference = exact().to(torch.float64)
    same_class(what, fused, eager, reference)
    measured = pool(case, fused.dtype, fused.device.type)
    floor = FLOOR[fused.dtype]
    ours, theirs = (_errors(t, reference) for t in (fused, eager))
    finite = ours.isfinite() & theirs.isfinite()
    unit = _ulp(reference.abs().clamp(min=measured.rms * math.sqrt(terms) / 8), fused.dtype)
    worst = _largest((ours / unit)[finite])
    allowed = 2 * max(_largest((theirs / unit)[finite]), measured.worst) + floor
    assert worst <= allowed, (
        f"{what}: off by {worst:.1f} ulps where {allowed:.1f} are allowed; "
        + _first_difference(fused, eager, ours / unit > allowed)
    )
    if fused.numel() >= 1000 and terms == 1:
        unit = _ulp(reference, fused.dtype)
        tail = _tail((ours / unit)[finite])
        allowed = 2 * max(_tail((theirs / unit)[finite]), measured.tail) + floor
        assert tail <= allowed, f"{what}: 5 % are off by {tail:.1f} ulps or more, not {allowed:.1f}"


def same_class(what: str, fused: Tensor, eager: Tensor, exact: Tensor | None = None) -> None:
    """NaN, Inf, −Inf or finite: as eager, or (where eager's intermediates overflow) as fp64."""
    ours, theirs = _classes(fused), _classes(eager)
    wrong = ours != theirs
    if exact is not None:
        wrong &= ours != _classes(exact.to(fused.dtype)).to(ours.device)
    assert not wrong.any(), f"{what}: {_first_difference(fused, eager, wrong)}"


def _classes(t: Tensor) -> Tensor:
    """0 finite, 1 Inf, 2 −Inf, 3 NaN."""
    return t.isposinf() * 1 + t.isneginf() * 2 + t.isnan() * 3


def _errors(t: Tensor, exact: Tensor) -> Tensor:
    return (t.detach().to("cpu", torch.float64) - exact).abs()


def _ulp(t: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    exponent = torch.frexp(t.abs().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(t, info.eps), exponent)


def _largest(t: Tensor) -> float:
    return t.max().item() if t.numel() else 0.0


def _tail(t: Tensor) -> float:
    return t.flatten().kthvalue(math.ceil(0.95 * t.numel())).values.item() if t.numel() else 0.0


def _first_difference(fused: Tensor, eager: Tensor, where: Tensor | None = None) -> str:
    wrong = (fused != eager).cpu() if where is None else where.cpu()
    if fused.dim() == 0:
        return f"{fused.item()} where eager has {eager.item()}"
    index = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements, first at {index}: "
        f"{fused[index].item()} where eager has {eager[index].item()}"
    )


# ---- eager's error on the pool, once per process


def _measure(eager: Tensor, exact: Tensor, terms: float = 1) -> Eager:
    exact = exact.to(torch.float64)
    rms = exact.square().mean().sqrt().item()
    errors = _errors(eager, exact)
    unit = _ulp(exact.abs().clamp(min=rms / 8), eager.dtype)
    tail = _tail(errors / _ulp(exact, eager.dtype))
    return Eager(rms / math.sqrt(terms), _largest(errors / unit), tail)


@functools.cache
def _pool(case: Case, dtype: torch.dtype, device: str) -> Eager:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        args = case.args(POOL, dtype, device)
        return _measure(case.op.reference(*args), exact_value(case, args))


@functools.cache
def _gradient_pool(name: str, case: Case, dtype: torch.dtype, device: str) -> Eager:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        args = case.args(POOL, dtype, device)
        position = case.op.position(name)
        if not isinstance(args[position], Tensor):
            args[position] = torch.tensor(float(args[position]), dtype=dtype, device=device)
        out = case.op.reference(*args)
        grad = torch.randn(out.shape, device=device).to(out.dtype)
        eager = gradients(case, case.op.reference, args, grad)
        exact = gradients(case, case.op.reference, upcast(args), _up(grad))
        wanted = [
            n.name
            for n, a in zip(case.op.arguments, args, strict=True)
            if isinstance(a, Tensor) and n.name in case.op.grads
        ]
        i = wanted.index(name)
        return _measure(eager[i], exact[i], out.numel() / eager[i].numel())


def same_gradients(fused: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for ours, theirs in zip(fused, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


__all__ = ["check_gradients", "check_result", "check_value", "same_class", "tensors"]
