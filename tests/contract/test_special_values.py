"""NaN, ±Inf, ±0, subnormals and huge numbers in every place, forward and backward."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.cases import (
    CASES,
    DIFFERENTIABLE,
    Args,
    Case,
    full_args,
    listed,
    pointwise,
    shaped,
    tensor_places,
    tensors,
)
from contract.rules import NEAR_SPECIAL, gradients, same_class, upcast

NAN, INF = float("nan"), float("inf")


def specials(dtype: torch.dtype, places: int) -> list[float]:
    """Fewer values where more places are to be filled: the product has at most 20,000."""
    info = torch.finfo(dtype)
    most = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.5, info.max, info.min]
    rest = [info.tiny, -info.tiny, info.smallest_normal / 4, 0.3, 3.0, -3.0, 100.0, -100.0]
    return (
        (most + rest)
        if places <= 2
        else most
        if places <= 4
        else [*most[:3], 0.0, 1.0, -1.5, info.max]
    )


def filled(case: Case, dtype: torch.dtype, device: str, extra: int) -> tuple[Args, list[Tensor]]:
    """Arguments (and `extra` more tensors) that hold every combination of special values."""
    template = full_args(case, (1,), dtype)
    floats = sum(t.is_floating_point() for t in tensors(template)) + extra
    columns: list[Any] = [specials(dtype, floats)] * floats
    columns += [[-128, 0, 3, 127]] * (len(tensors(template)) + extra - floats)
    table = list(zip(*itertools.product(*columns), strict=True))
    real = [torch.tensor(c, dtype=dtype, device=device) for c in table[:floats]]
    whole = iter([torch.tensor(c, dtype=torch.int8, device=device) for c in table[floats:]])
    more, real = real[:extra], real[extra:]
    found = iter(real)
    made = [
        (next(found) if a.is_floating_point() else next(whole)) if isinstance(a, Tensor) else a
        for a in template
    ]
    return made, more


@pytest.mark.parametrize("case", pointwise(CASES), ids=str)
def test_forward(case: Case, dtype: torch.dtype, device: str) -> None:
    args, _ = filled(case, dtype, device, 0)
    ours, eager = case.op.fused(*args), case.op.reference(*args)
    if not ours.is_floating_point():
        assert torch.equal(ours, eager)
        return
    exact = case.op.reference(*upcast(args))
    same_class("the value", ours, eager, exact)
    check_finite(ours, eager, exact)


@pytest.mark.parametrize("case", pointwise(CASES), ids=str)
def test_a_few_at_a_time(case: Case, dtype: torch.dtype, device: str) -> None:
    """A vector loop and its tail are different code: the same bits come from both."""
    args, _ = filled(case, dtype, device, 0)
    whole = case.op.fused(*args)
    for count in (1, 1, 2, 3, 5, 7, 9, 15, 17, 31, 33, 63, 65):
        picked = torch.randperm(whole.numel(), device=device)[:count]
        few = case.op.fused(*(a[picked] if isinstance(a, Tensor) else a for a in args))
        same = whole[picked]
        wrong = bits(few) != bits(same)
        assert not wrong.any(), (
            f"{few[wrong][0]} in a call of {count}, {same[wrong][0]} in one of {len(whole)}"
        )


def bits(t: Tensor) -> Tensor:
    """As integers, in which −0 is not 0; all NaNs alike, as a processor may choose among them."""
    if not t.is_floating_point():
        return t
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return torch.where(t.isnan(), t.new_tensor(NAN), t).view(kinds[t.element_size()])


@pytest.mark.parametrize("case", pointwise(DIFFERENTIABLE), ids=str)
def test_backward(case: Case, dtype: torch.dtype, device: str) -> None:
    args, (grad,) = filled(case, dtype, device, 1)
    ours = gradients(case, case.op.fused, args, grad)
    eager = gradients(case, case.op.reference, args, grad)
    exact = gradients(case, case.op.reference, upcast(args), grad.cpu().double())
    for i, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
        same_class(f"gradient {i}", a, b, c)
        check_finite(a, b, c)


def with_one_special(case: Case, value: float, dtype: torch.dtype, device: str) -> list[Args]:
    """Arguments with this value somewhere in one tensor: as many as there are tensors."""
    found = []
    for place in tensor_places(case, case.args((5, 8))):
        args = case.args((5, 8), dtype, device)
        if args[place].is_floating_point():
            args[place].view(-1)[torch.randint(args[place].numel(), ())] = value
            found.append(args)
    return found


def alike(cases: list[Case]) -> list[Case]:
    """Without causal attention: of keys that nobody sees, those in a tile with others are still
    multiplied by 0, and each kernel has its own tiles. Nor the block: whether one token's NaN
    reaches the others is up to torch's kernel for the length, and its parts are all here."""
    return [
        c
        for c in shaped(cases)
        if c.name != "transformer_block"
        and not (c.name == "attention" and ("causal", True) in c.choices)
    ]


@pytest.mark.parametrize("case", alike(CASES), ids=str)
def test_in_a_row(case: Case, dtype: torch.dtype, device: str) -> None:
    """A NaN spreads as far as it does in eager, and no further; so does Inf."""
    for value in specials(dtype, 3):
        for args in with_one_special(case, value, dtype, device):
            found = (case.op.fused(*args), case.op.reference(*args))
            exact = case.op.reference(*upcast(args))
            huge = abs(value) == torch.finfo(dtype).max
            if huge and (dtype == torch.float64 or doubles(case, dtype, device)):
                continue
            nudges = (0.97, 1.03) if huge else ()
            around = [case.op.reference(*nudged(args, value, by)) for by in nudges]
            for a, b, c, *d in zip(*map(listed, (*found, exact, *around)), strict=True):
                if huge:
                    same_finite(f"the value, with {value}", a, b, c, *d)
                else:
                    same_class(f"the value, with {value}", a, b, c)


def nudged(args: Args, value: float, by: float) -> Args:
    """The arguments with all but `value` a little smaller or larger."""
    return [
        torch.where(a == value, a, a * by) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    ]


def doubles(case: Case, dtype: torch.dtype, device: str) -> bool:
    """cuBLASLt's GELU doubles before it halves, so that half of the largest number overflows; what
    the next layer makes of that is anything."""
    tanh = case.name == "ffn" and ("act", "gelu_tanh") in case.choices
    return tanh and device == "cuda" and dtype in (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("case", alike(DIFFERENTIABLE), ids=str)
def test_in_a_row_backward(case: Case, device: str) -> None:
    for value in (NAN, INF, -INF, 0.0):
        for args in with_one_special(case, value, torch.float32, device):
            grad = [torch.randn_like(t) for t in listed(case.op.reference(*args))]
            ours, eager = (
                gradients(case, f, args, grad) for f in (case.op.fused, case.op.reference)
            )
            exact = gradients(case, case.op.reference, upcast(args), upcast(grad))
            for i, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
                same_finite(f"gradient {i}, with {value}", a, b, c)


def same_finite(what: str, ours: Tensor, eager: Tensor, exact: Tensor, *around: Tensor) -> None:
    """Finite where eager or fp64 is. What sums of Inf and −Inf give depends on their order, and in
    fp64 nothing wider tells what does not overflow. Within a factor of 2 of the largest number
    either will do: cuBLASLt's GELU doubles before it halves. Nor is judged what eager itself gives
    otherwise for arguments a little off, `around`: there something on the way is at the largest
    number, which one rounding takes to Inf and another does not."""
    mine, theirs, wanted = (t.cpu().isfinite() for t in (ours, eager, exact.to(ours.dtype)))
    largest = torch.finfo(ours.dtype).max
    near = exact.cpu().abs().double().sub(0.75 * largest).abs() <= 0.25 * largest
    for t in around:
        near |= t.cpu().isfinite() != theirs
    wrong = (mine != theirs) & (mine != wanted) & ~near
    assert not wrong.any(), (
        f"{what}: {ours.cpu()[wrong][0]} where eager has {eager.cpu()[wrong][0]}"
    )


def check_finite(ours: Tensor, eager: Tensor, exact: Tensor) -> None:
    """Where eager is finite and near fp64, so are we; test_value.py has the exact rule.

    Not judged: what eager loses itself, such as a subnormal intermediate times a huge number.
    """
    got, theirs, wanted = (t.cpu().double() for t in (ours, eager, exact))
    allowed = NEAR_SPECIAL * torch.finfo(ours.dtype).eps * wanted.abs().clamp(min=0.01)
    judged = ((theirs - wanted).abs() <= allowed / 2) & got.isfinite()
    wrong = judged & ((got - wanted).abs() > allowed)
    assert not wrong.any(), f"{got[wrong][0].item()} where fp64 has {wanted[wrong][0].item()}"
