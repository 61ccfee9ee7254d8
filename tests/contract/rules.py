"""What "right" means: at most twice eager's error against fp64, plus a stated floor.

Errors are counted in ulps: the distance between neighbours of the output's dtype at the exact
value. Three statistics of them are compared with eager's, because a maximum alone is luck:

    all but 1 in 1000    at most 2× eager's + 2 ulps
    the worst element    at most 4× eager's + 2 ulps
    all but 1 in 20      at most 2× eager's + 2 ulps, relative to the element itself

Near a zero of the function an ulp of the exact value says nothing, so the first two take it at
no less than an eighth of the values' root mean square. The third does not: it is for results far
below the mean, such as the tail of a sigmoid, and leaves out those where eager itself has lost
half of its digits.

Few elements can be lucky in eager, so eager's error is measured on 262,144 elements of the same
distribution too: also drawn `stretch` times as wide where a test's arguments are. Ops that are not
pointwise add up rows, and how much eager errs depends on how long they are. There its errors are
measured on the very shapes of the call: on its arguments, and on arguments near them (each number
times one between 1/2 and 2), up to 16 times or until there are 16,384 results and 32 rows, as a
row's errors have one sum in common.

EXCEPTIONS, below, lists where another rule holds, and why. docs/contract.md shows it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from contract.cases import Args, Case, leaves, listed, wanting_grad
from contract.eager import eagerly
from contract.exact import exactly

MOST, WORST, FLOOR = 2, 4, 2
POOL = (512, 512)
DRAWS, ENOUGH, ENOUGH_ROWS = 16, 1 << 14, 32

# What EXCEPTIONS are about, in its order.
ONCE_MORE = 1
MANY = 10_000
WORST_OF_FEW = 8
FEW, SMALL = 8, 1 / 8
TILED = 2
FLIPS, MOST_OF_FLIPS = 4, 1 / 4  # of 1,248 gradients the farthest was off by 2 of them
BEHIND_RELU = 0.1
NEAR_SPECIAL = 256


@dataclass(frozen=True)
class Departure:
    """For what another rule holds, which, and why."""

    where: str
    instead: str
    why: str


EXCEPTIONS = (
    Departure(
        "float64",
        f"{MOST + ONCE_MORE} and {WORST + ONCE_MORE} times for {MOST} and {WORST}, of eager's "
        "errors in float32 on the same arguments, in ulps of each",
        "there is no wider dtype, so eager would look exact; and what stands for the exact result "
        "has eager's errors itself",
    ),
    Departure(
        f"fewer than {MANY:,} elements",
        "only the worst element is judged",
        "one in a thousand of a few is the worst again",
    ),
    Departure(
        f"fewer than {MANY:,} results of matrix products, or gradients of ops that are not "
        "pointwise",
        f"the worst element at most {WORST_OF_FEW} times eager's",
        "results of one row share their sums, so that all of eager's few can be lucky at once",
    ),
    Departure(
        "matrix products, and gradients that are sums over rows",
        "an ulp is taken at no less than the root mean square of all results, not an eighth of "
        "it; elements far below it are not judged by themselves",
        "terms cancel, and what is left has the errors of what was there",
    ),
    Departure(
        "gradients of broadcast arguments, sums of n terms",
        "an ulp is taken at no less than the root of the sum of the terms' squares, and half an "
        "ulp more is allowed for each doubling of n",
        "the same; and rounding errors grow with the depth of the tree that adds them up",
    ),
    Departure(
        "any result that is a sum",
        "below the root of the dtype's eps, ulps are those of that root",
        "a norm of equal numbers is nothing but rounding",
    ),
    Departure(
        f"values of layers with fewer than {FEW} elements",
        f"ulps are those of {SMALL:g} at least",
        "they may all be small, and an activation's error is not relative to its result: erf-gelu "
        "is within 3e-8, and eager eight times nearer where its argument is 0.1",
    ),
    Departure(
        "elements of which eager itself has lost half of the digits",
        "not judged relative to themselves",
        "far down the tail of a gelu there is nothing to compare with",
    ),
    Departure(
        "gradients of `attention` and `transformer_block` on CUDA",
        f"{TILED} times as much as above, so {TILED * WORST_OF_FEW} times for the worst of a few",
        "softmax's gradient is p·(dp − dout·out), two sums that cancel; eager, at these tests' "
        "sizes, has p whole and forms the second from the terms of the first",
    ),
    Departure(
        "gradients of `transformer_block` with relu in 16 bits",
        f"the errors' root mean square is at most {MOST} times eager's plus what {FLIPS} elements "
        f"on the other side of 0 are worth: {FLIPS} / √(tokens × hidden / 2) of the gradient's, at "
        f"most {MOST_OF_FLIPS:.0%}",
        "behind attention a relu's argument near 0 has either sign, in eager as in ours, and a "
        "token's part of the gradients goes with it",
    ),
    Departure(
        "gradients of `megafuse.nn` modules behind a relu, but in float64",
        f"the errors' root mean square is at most {BEHIND_RELU:.0%} of the gradient's",
        "the same: one of the 14,400 elements of these tests is worth 1/120",
    ),
    Departure(
        "gradients of query and key projections in whole models (BERT, GPT-2, Llama)",
        "not compared",
        "small differences of large sums: ours are as far off as torch's on average over 24 "
        "batches, but both vary several times from batch to batch",
    ),
    Departure(
        "NaN and Inf where eager's own intermediates overflow",
        "as in eager or as in float64",
        "one kernel rounds less often, so it may be finite where eager is not",
    ),
    Departure(
        "arguments as large as the dtype allows, in rows and layers",
        "finite or not is not judged where the result is within a factor of 2 of the largest "
        "number, or where eager's changes for other arguments 3 % off; nor in float64, nor for "
        "`ffn` with gelu_tanh in 16 bits on CUDA",
        "one rounding more or less goes over the edge; cuBLASLt's gelu doubles before it halves",
    ),
    Departure(
        "NaN and Inf in keys that causal attention does not see, and in `transformer_block`",
        "not judged",
        "every kernel multiplies some of them by 0, by its tiles, and so does torch's",
    ),
    Departure(
        "finite results of pointwise ops on NaN, Inf, huge and tiny numbers",
        f"within {NEAR_SPECIAL} eps of float64, where eager is within half of that",
        "which elements there are does not make a distribution to measure eager on",
    ),
)


def exceptions() -> str:
    """The table, as Markdown."""
    rows = [f"| {e.where} | {e.instead} | {e.why} |" for e in EXCEPTIONS]
    return "\n".join(["| for | instead | because |", "|---|---|---|", *rows])


@dataclass(frozen=True)
class Errors:
    """Statistics of one tensor's errors, in ulps, and the size of its exact values."""

    worst: float
    most: float
    relative: float
    rms: float

    @staticmethod
    def of(
        got: Tensor,
        exact: Tensor,
        dtype: torch.dtype,
        least: Tensor | None = None,
        judged: Tensor | None = None,
    ) -> Errors:
        """In ulps of `dtype`, not taken below `least`, which is an eighth of the rms unless told.

        `judged` are the elements that count for `relative`.
        """
        error = _error(got, exact)
        finite = error.isfinite()  # same_class judges the others
        rms = exact[finite].square().mean().sqrt().item()
        if least is None:
            least = exact.new_tensor(rms / 8)
        unit = _ulp(exact.abs().maximum(least), dtype)
        scaled = (error / unit)[finite]
        if got.numel() < MANY:
            return Errors(_at(scaled, 1), math.nan, math.nan, rms)
        counted = finite & (digits_left(got, exact, dtype) if judged is None else judged)
        relative = (error / _ulp(exact, dtype))[counted]
        return Errors(_at(scaled, 1), _at(scaled, 0.999), _at(relative, 0.95), rms)


def digits_left(eager: Tensor, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Where eager still has half of its digits: far down a gelu's tail it has none."""
    info = torch.finfo(dtype)
    kept = _error(eager, exact) <= _ulp(exact, dtype) / math.sqrt(info.eps)
    return kept & (exact.abs() >= info.tiny)


def _error(got: Tensor, exact: Tensor) -> Tensor:
    return (got.detach().to("cpu", torch.float64) - exact).abs()


# ---- values


def check_value(case: Case, args: Args, stretch: float = 1) -> Any:
    """Calls the fused op on poisoned memory and holds the result against the rule."""
    reference = eagerly(case.op.reference)
    result = case.op.fused(*args)
    args = readable(case, args)
    fused, eager = listed(result), listed(reference(*args))
    exact = listed(exactly(reference)(*upcast(args)))
    yardstick = (eager, exact)
    if any(t.dtype == torch.float64 for t in fused):
        narrow = downcast(args)
        yardstick = (listed(reference(*narrow)), listed(exactly(reference)(*upcast(narrow))))
    share = 1 if case.op.family == "composite" else 1 / 8
    pools = pools_near(case, args, lambda a: listed(reference(*a)), yardstick, [share] * len(eager))
    for i, (name, mine) in enumerate(zip(case.op.signature.returns, fused, strict=True)):
        what = f"the value of '{name}'" if len(fused) > 1 else "the value"
        check_shape(what, mine, eager[i])
        if not mine.is_floating_point():
            assert torch.equal(mine, eager[i]), (
                f"{what}: {_where(mine, eager[i], mine != eager[i])}"
            )
        elif mine.numel():
            same_class(what, mine, eager[i], exact[i])
            measured = (yardstick[0][i], yardstick[1][i])
            pool = pools[i] or value_pool(case, measured[0].dtype, mine.device.type, stretch)
            whole = case.op.family != "composite"
            if not whole and mine.numel() < FEW:
                pool = replace(pool, rms=max(pool.rms, SMALL))
            check_errors(
                what, mine, exact[i], measured, pool, mine.dtype, share=share, relative=whole
            )
    return result


def readable(case: Case, args: Args) -> Args:
    """For eager: torch's attention on CUDA reads misaligned addresses of views, and dies."""
    if case.name not in ("attention", "transformer_block"):
        return args
    return [
        a.clone(memory_format=torch.contiguous_format) if isinstance(a, Tensor) and a.is_cuda else a
        for a in args
    ]


def pools_near(
    case: Case,
    args: Args,
    run: Callable[[Args], list[Tensor]],
    measured: tuple[list[Tensor], list[Tensor]],
    shares: list[float],
) -> list[Errors | None]:
    """Eager's errors on these arguments and on others near them; None for pointwise ops.

    `run` gives eager's results, `measured` has them and the exact ones for the arguments
    themselves.
    """
    if case.op.pointwise:
        return [None] * len(shares)
    narrow = downcast(args)
    found = [(measured[0], measured[1])]
    fewest = min((t.numel() for t in measured[0] if t.numel()), default=ENOUGH)
    rows = math.prod(args[0].shape[:-1]) or 1
    for _ in range(min(DRAWS, math.ceil(max(ENOUGH / fewest, ENOUGH_ROWS / rows)))):
        other = [_near(a) if isinstance(a, Tensor) else a for a in narrow]
        found.append((run(other), exactly(run)(upcast(other))))
    pools: list[Errors | None] = []
    for i, share in enumerate(shares):
        got = torch.cat([eager[i].detach().flatten() for eager, _ in found])
        exact = torch.cat([known[i].detach().flatten() for _, known in found]).double()
        rms = exact[exact.isfinite()].square().mean().sqrt()
        pools.append(Errors.of(got, exact, got.dtype, share * rms))
    return pools


def _near(t: Tensor) -> Tensor:
    if not t.is_floating_point():
        return t
    return t * torch.exp2(2 * torch.rand(t.shape, device=t.device) - 1).to(t.dtype)


@functools.cache
def value_pool(case: Case, dtype: torch.dtype, device: str, stretch: float = 1) -> Errors:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        args = stretched(case.args(POOL, dtype, device), stretch)
        exact = exactly(case.op.reference)(*upcast(args))
        pool = Errors.of(case.op.reference(*args), exact, dtype)
    return pool if stretch == 1 else _bounded(pool, value_pool(case, dtype, device), stretch)


def _bounded(pool: Errors, plain: Errors, stretch: float) -> Errors:
    """A product grows with the square of its arguments. An exponential grows without bound, and a
    mean made of its few largest values would excuse all others."""
    return replace(pool, rms=min(pool.rms, stretch**2 * plain.rms))


def stretched(args: Args, stretch: float) -> Args:
    return [a * stretch if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]


# ---- gradients


def check_gradients(
    case: Case, args: Args, grad: Tensor | list[Tensor] | None = None, stretch: float = 1
) -> list[Tensor]:
    """The gradients of all arguments that can have one, against the rule."""
    reference, given = eagerly(case.op.reference), args
    args = readable(case, args)
    outs = listed(reference(*args))
    out = outs[0]
    if grad is None:
        grad = [torch.randn(t.shape, device=t.device).to(t.dtype) for t in outs]
    grads = listed(grad)
    eager = eagerly(gradients)(case, reference, args, grads)
    fused = gradients(case, case.op.fused, given, grads)
    exact = exactly(gradients)(case, reference, upcast(args), upcast(grads))
    double = any(t.dtype == torch.float64 for t in fused)
    if double:
        narrow, narrow_grads = downcast(args), downcast(grads)
        eager32 = gradients(case, reference, narrow, narrow_grads)
        exact32 = exactly(gradients)(case, reference, upcast(narrow), upcast(narrow_grads))

    @functools.cache
    def whole() -> list[Tensor]:
        """The gradients before they are summed: those of arguments that are not broadcast."""
        spread = [a.expand(out.shape) if isinstance(a, Tensor) else a for a in upcast(args)]
        return exactly(gradients)(case, reference, spread, upcast(grads))

    names = differentiated(case, args)
    yardsticks = (eager32, exact32) if double else (eager, exact)
    shares = [1 / 8 if case.op.family != "composite" and t.shape == out.shape else 1 for t in fused]

    def run(values: Args) -> list[Tensor]:
        return eagerly(gradients)(case, reference, values[: len(args)], values[len(args) :])

    pools = pools_near(case, [*args, *grads], run, yardsticks, shares) if out.numel() else []
    for i, name in enumerate(names):
        what = f"the gradient of '{name}'"
        check_shape(what, fused[i], eager[i])
        if not fused[i].numel():
            continue
        if not out.numel():
            assert not fused[i].any(), f"{what}: a sum of nothing is {fused[i]}"
            continue
        same_class(what, fused[i], eager[i], exact[i])
        # A float32 gradient of a bfloat16 result is only as good as that result.
        dtype = max(fused[i].dtype, out.dtype, key=lambda d: torch.finfo(d).eps)
        if _flips(case, dtype):
            check_mean(what, fused[i], eager[i], exact[i], _flip(case, args))
            continue
        wide = dtype == torch.float64
        yardstick = (eager32[i], exact32[i]) if wide else (eager[i], exact[i])
        if (near := pools[i]) is not None:
            check_errors(
                what,
                fused[i],
                exact[i],
                yardstick,
                near,
                dtype,
                share=shares[i],
                relative=False,
                slack=TILED if _tiled_attention(case, out) else 1,
            )
            continue
        narrowed = torch.float32 if wide else dtype
        pool = gradient_pool(case, name, narrowed, out.device.type, stretch)
        terms = out.numel() / fused[i].numel()
        size = None
        if terms > 1:
            size = whole()[i].square().sum_to_size(fused[i].shape).sqrt()
        check_errors(what, fused[i], exact[i], yardstick, pool, dtype, size, terms)
    return fused


def _tiled_attention(case: Case, out: Tensor) -> bool:
    return case.name in ("attention", "transformer_block") and out.is_cuda


def _flips(case: Case, dtype: torch.dtype) -> bool:
    """Whether single elements tell nothing: a relu's argument near 0 has either sign."""
    relu = case.name == "transformer_block" and ("act", "relu") in case.choices
    return relu and dtype in (torch.float16, torch.bfloat16)


def _flip(case: Case, args: Args) -> float:
    """What one such element is worth: half of tokens × hidden ones make up the gradient."""
    given = case.named(args)
    elements = given["x"].numel() / given["x"].shape[-1] * given["w1"].shape[0]
    return math.sqrt(2 / elements)


def check_mean(what: str, fused: Tensor, eager: Tensor, exact: Tensor, flip: float) -> None:
    ours, theirs, size = (
        t.square().mean().sqrt().item() for t in (_error(fused, exact), _error(eager, exact), exact)
    )
    allowed = MOST * theirs + min(FLIPS * flip, MOST_OF_FLIPS) * size
    assert ours <= allowed, f"{what}: off by {ours} of {size}, eager by {theirs}"


@functools.cache
def gradient_pool(
    case: Case, name: str, dtype: torch.dtype, device: str, stretch: float = 1
) -> Errors:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        args = stretched(case.args(POOL, dtype, device), stretch)
        position = case.op.position(name)
        value = args[position]
        if not isinstance(value, Tensor):
            value = torch.tensor(float(value), dtype=dtype, device=device)
        args[position] = value.expand(POOL).contiguous()
        grad = torch.randn(POOL, device=device).to(dtype)
        i = differentiated(case, args).index(name)
        eager = gradients(case, case.op.reference, args, grad)[i]
        exact = exactly(gradients)(case, case.op.reference, upcast(args), _wide(grad))[i]
    pool = Errors.of(eager, exact, dtype)
    if stretch == 1:
        return pool
    return _bounded(pool, gradient_pool(case, name, dtype, device), stretch)


def gradients(
    case: Case, function: Callable[..., Any], args: Args, grad: Tensor | list[Tensor]
) -> list[Tensor]:
    fresh = wanting_grad(case, args)
    outs = listed(function(*fresh))
    grads = [g.to(out.dtype) for g, out in zip(listed(grad), outs, strict=True)]
    return list(torch.autograd.grad(outs, leaves(fresh), grads, materialize_grads=True))


def differentiated(case: Case, args: Args) -> list[str]:
    """The arguments of this call that have a gradient, in order."""
    pairs = zip(case.op.arguments, args, strict=True)
    return [n.name for n, a in pairs if isinstance(a, Tensor) and n.name in case.op.autograd.grads]


# ---- the rule


def check_errors(
    what: str,
    fused: Tensor,
    exact: Tensor,
    yardstick: tuple[Tensor, Tensor],
    pool: Errors,
    dtype: torch.dtype,
    size: Tensor | None = None,
    terms: float = 1,
    share: float = 1 / 8,
    relative: bool = True,
    slack: float = 1,
) -> None:
    """`yardstick` is eager's result and the exact one, where eager's errors are measured.

    Errors are counted in ulps of `dtype`, eager's in fp64 in ulps of fp32. `size` is how large
    a sum of so many `terms` would be if it did not cancel. No ulp is taken at less than this
    `share` of the root mean square. `relative`: whether elements far below it are judged by
    themselves; results that are sums over a row or of products may cancel, and are not.
    `slack`: how many times the usual errors are allowed.
    """
    exact, known = (t.to(torch.float64) for t in (exact, yardstick[1]))
    summed = terms > 1
    least = exact.new_tensor(pool.rms * (math.sqrt(terms) if summed else share))
    if size is not None:
        least = least.maximum(size)
    if not relative:  # below, sums over a row (of constants, say) are nothing but rounding
        least = least.clamp(min=math.sqrt(torch.finfo(dtype).eps))
    double = dtype == torch.float64
    narrow = torch.float32 if double else dtype
    judged = digits_left(yardstick[0], known, narrow)
    ours = Errors.of(fused, exact, dtype, least, judged)
    theirs = Errors.of(yardstick[0], known, narrow, least, judged)
    floor = FLOOR + (math.log2(terms) / 2 if summed else 0)
    limits = [("worst", WORST if fused.numel() >= MANY or relative else WORST_OF_FEW)]
    if fused.numel() >= MANY:
        limits.append(("most", MOST))
        if relative and not summed:
            limits.append(("relative", MOST))
    for statistic, factor in limits:
        got = getattr(ours, statistic)
        eager = max(getattr(theirs, statistic), getattr(pool, statistic))
        allowed = slack * (factor + ONCE_MORE * double) * eager + floor
        assert got <= allowed, (
            f"{what}: off by {got:.1f} ulps ({statistic}), eager by {eager:.1f}, so "
            f"{allowed:.1f} are allowed; {ours} against {theirs} and {pool}"
        )


def check_shape(what: str, fused: Tensor, eager: Tensor) -> None:
    assert fused.dtype == eager.dtype, f"{what}: {fused.dtype}, expected {eager.dtype}"
    assert fused.shape == eager.shape, f"{what}: {fused.shape}, expected {eager.shape}"
    assert fused.device == eager.device, f"{what}: on {fused.device}, expected {eager.device}"


def same_class(what: str, fused: Tensor, eager: Tensor, exact: Tensor | None = None) -> None:
    """NaN, Inf, −Inf or finite: as eager, or (where eager's intermediates overflow) as fp64."""
    ours, theirs = _classes(fused), _classes(eager)
    wrong = ours != theirs
    if exact is not None:
        wrong &= ours != _classes(exact.to(fused.dtype)).to(ours.device)
    assert not wrong.any(), f"{what}: {_where(fused, eager, wrong)}"


def _classes(t: Tensor) -> Tensor:
    """0 finite, 1 Inf, 2 −Inf, 3 NaN."""
    return t.isposinf() * 1 + t.isneginf() * 2 + t.isnan() * 3


def _ulp(t: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    exponent = torch.frexp(t.abs().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(t, info.eps), exponent)


def _at(t: Tensor, quantile: float) -> float:
    if not t.numel():
        return 0.0
    if quantile == 1:
        return t.max().item()
    return t.flatten().kthvalue(max(1, math.ceil(quantile * t.numel()))).values.item()


def _where(fused: Tensor, eager: Tensor, wrong: Tensor) -> str:
    if fused.dim() == 0:
        return f"{fused.item()} where eager has {eager.item()}"
    index = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements, first at {index}: "
        f"{fused[index].item()} where eager has {eager[index].item()}"
    )


# ---- other precisions


def upcast(args: Args) -> Args:
    """The same numbers in fp64, on the CPU."""
    return [_wide(a) if isinstance(a, Tensor) else a for a in args]


def downcast(args: Args) -> Args:
    """fp64 tensors rounded to fp32; the others as they are."""
    return [_narrow(a) if isinstance(a, Tensor) else a for a in args]


def _wide(t: Tensor) -> Tensor:
    return t.detach().to("cpu", torch.float64 if t.is_floating_point() else t.dtype)


def _narrow(t: Tensor) -> Tensor:
    return t.detach().to(torch.float32 if t.dtype == torch.float64 else t.dtype)


if __name__ == "__main__":
    print(exceptions())
