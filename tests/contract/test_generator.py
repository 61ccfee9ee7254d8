"""torch's generator moves where eager moves it: a call that drops nothing, or all, leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.cases import ALL, Args, Case, leaves, listed, wanting_grad

RANDOM = {case.name: case for case in ALL if case.op.random}
each_random_op = pytest.mark.parametrize("case", RANDOM.values(), ids=list(RANDOM))

# p, training, and the shape of x.
CALLS = {
    "drops some": (0.5, True, (6, 8)),
    "drops nothing": (0.0, True, (6, 8)),
    "drops everything": (1.0, True, (6, 8)),
    "not training": (0.5, False, (6, 8)),
    "nothing there": (0.5, True, (0, 8)),
}
each_call = pytest.mark.parametrize("call", CALLS)


def arguments(case: Case, call: str, device: str) -> Args:
    p, training, shape = CALLS[call]
    args = case.args(shape, torch.float32, device)
    args[case.op.position("p")] = p
    args[case.op.position("training")] = training
    return wanting_grad(case, args)


def advances(run: Callable[[], Any], device: str) -> bool:
    """Whether this moves the generator of that device; no other may move."""
    get = torch.cuda.get_rng_state if device == "cuda" else torch.get_rng_state
    before, others = get(), torch.get_rng_state()
    run()
    if device == "cuda":
        assert torch.equal(torch.get_rng_state(), others), "the CPU's generator moved"
    return not torch.equal(get(), before)


def check(case: Case, call: str, device: str, fused: Callable[..., Any]) -> None:
    args = arguments(case, call, device)
    fused(*args)  # compiles
    found: list[list[Tensor]] = []
    moved = advances(lambda: found.append(listed(fused(*args))), device)
    assert moved == advances(lambda: case.op.reference(*args), device)
    assert moved == (call == "drops some")
    (outs,) = found
    grads = [torch.ones_like(t) for t in outs]

    def backward() -> None:
        torch.autograd.grad(outs, leaves(args), grads)

    assert not advances(backward, device), "the backward draws the forward's numbers again"


@each_call
@each_random_op
def test_direct(case: Case, call: str, device: str) -> None:
    check(case, call, device, case.op.fused)


@each_call
@each_random_op
def test_through_the_dispatcher(case: Case, call: str, device: str) -> None:
    check(case, call, device, case.op._namespace["traced"])


@each_call
@each_random_op
def test_compiled(case: Case, call: str, device: str) -> None:
    torch._dynamo.reset()
    check(case, call, device, torch.compile(case.op.fused, backend="aot_eager", fullgraph=True))


@each_random_op
def test_values_where_nothing_is_drawn(case: Case, device: str) -> None:
    """The same numbers as the reference's, forward and backward, by either way in."""
    for call in ("drops nothing", "drops everything", "not training"):
        args = arguments(case, call, device)
        expected = listed(case.op.reference(*args))
        grads = [torch.randn_like(t) for t in expected]
        wanted = torch.autograd.grad(expected, leaves(args), grads)
        for fused in (case.op.fused, case.op._namespace["traced"]):
            outs = listed(fused(*args))
            for ours, theirs in zip(outs, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            for ours, theirs in zip(
                torch.autograd.grad(outs, leaves(args), grads), wanted, strict=True
            ):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
