"""The autograd graph: what it holds, when it frees it, and what it refuses, as PyTorch's do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from contract.cases import (
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Case,
    close,
    equal,
    leaves,
    listed,
    total,
    wanting_grad,
)

differentiable = pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)


def called(
    case: Case, device: str, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], list[Tensor]]:
    args = wanting_grad(case, case.args((9, 5), dtype, device))
    return leaves(args), listed(case.op.fused(*args))


def randn(outs: list[Tensor]) -> list[Tensor]:
    return [torch.randn_like(t) for t in outs]


@differentiable
def test_only_some_inputs_want_a_gradient(case: Case, device: str) -> None:
    args = case.args((9, 5), device=device)
    for position, wanted in enumerate(case.op.arguments):
        if wanted.name not in case.op.autograd.grads or not isinstance(args[position], Tensor):
            continue
        alone = [a.detach() if isinstance(a, Tensor) else a for a in args]
        alone[position].requires_grad_()
        expected = torch.autograd.grad(total(case.op.reference(*alone)), alone[position])[0]
        total(case.op.fused(*alone)).backward()
        close(case, alone[position].grad, expected)
        assert all(
            a.grad is None for i, a in enumerate(alone) if isinstance(a, Tensor) and i != position
        )


@differentiable
def test_a_sum_backwards_gives_the_reference(case: Case, device: str) -> None:
    """out.sum().backward() hands down an expanded gradient, with strides of 0."""
    args = case.args((33, 65), device=device)
    ours, theirs = wanting_grad(case, args), wanting_grad(case, args)
    total(case.op.fused(*ours)).backward()
    total(case.op.reference(*theirs)).backward()
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        close(case, a.grad, b.grad)


@differentiable
def test_retained_graph_gives_the_same_twice(case: Case, device: str) -> None:
    inputs, outs = called(case, device)
    grads = randn(outs)
    first = torch.autograd.grad(outs, inputs, grads, retain_graph=True)
    second = torch.autograd.grad(outs, inputs, grads)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@differentiable
def test_freed_graph_says_so(case: Case, device: str) -> None:
    inputs, outs = called(case, device)
    torch.autograd.grad(outs, inputs, randn(outs))
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        torch.autograd.grad(outs, inputs, randn(outs))


@differentiable
def test_a_parameter_collects_its_gradient(case: Case, device: str) -> None:
    args = [
        torch.nn.Parameter(a) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in case.args((9, 5), device=device)
    ]
    for _ in range(2):
        total(case.op.fused(*args)).backward()
    once = torch.autograd.grad(total(case.op.reference(*args)), leaves(args))
    for parameter, grad in zip(leaves(args), once, strict=True):
        close(case, parameter.grad, 2 * grad)


@differentiable
def test_gradients_do_not_share_memory(case: Case, device: str) -> None:
    """Two arguments with one gradient: changing x.grad in place must leave y.grad alone."""
    args = wanting_grad(case, case.args((9, 5), device=device))
    outs = listed(case.op.fused(*args))
    incoming = randn(outs)
    kept = [t.clone() for t in incoming]
    torch.autograd.backward(outs, incoming)
    found = leaves(args)
    before = [t.grad.clone() for t in found]
    for i, t in enumerate(found):
        t.grad.fill_(7.0)
        for j in range(i + 1, len(found)):
            assert torch.equal(found[j].grad, before[j]), "two leaves share one gradient"
    assert equal(incoming, kept), "a leaf's gradient is the incoming gradient itself"


@differentiable
def test_changing_a_saved_tensor_is_noticed(case: Case, device: str) -> None:
    """Exactly what the backward functor reads is guarded, and nothing else."""
    for position, argument in enumerate(case.op.arguments):
        args = wanting_grad(case, case.args((9, 5), device=device))
        if not isinstance(args[position], Tensor):
            continue
        out = case.op.fused(*args)
        with torch.no_grad():
            args[position].add_(1)
        if argument.name in case.op.autograd.saves:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                total(out).backward()
        else:
            total(out).backward()
    for i, name in enumerate(case.op.signature.returns):
        if name in case.op.autograd.saves:
            _, outs = called(case, device)
            outs[i].detach().add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                total(outs).backward()


@differentiable
def test_changing_the_output_is_allowed_when_it_is_not_saved(case: Case, device: str) -> None:
    if {*case.op.signature.returns} & {*case.op.autograd.saves}:
        pytest.skip("saved")
    inputs, outs = called(case, device)
    grads = randn(outs)
    expected = torch.autograd.grad(outs, inputs, grads, retain_graph=True)
    changed = [t.mul_(2) for t in outs]
    got = torch.autograd.grad(changed, inputs, grads)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, 2 * b)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_no_graph_without_need(case: Case, device: str) -> None:
    args = wanting_grad(case, case.args((9, 5), device=device))
    plain = [a.detach() if isinstance(a, Tensor) else a for a in args]
    assert not any(t.requires_grad for t in listed(case.op.fused(*plain)))
    with torch.no_grad():
        assert not any(t.requires_grad for t in listed(case.op.fused(*args)))
    with torch.inference_mode():
        outs = listed(case.op.fused(*args))
        assert all(t.is_inference() and not t.requires_grad for t in outs)
    close(case, [t.clone() for t in outs], case.op.reference(*plain))


@differentiable
def test_tensors_of_inference_mode_beside_one_that_wants_a_gradient(
    case: Case, device: str
) -> None:
    """PyTorch cannot save those for backward; where the reference need not, the op may not fail."""
    with torch.inference_mode():
        args = case.args((9, 5), device=device)
    last = max(
        i
        for i, n in enumerate(case.op.arguments)
        if isinstance(args[i], Tensor) and n.name in case.op.autograd.grads
    )
    args[last] = args[last].clone().requires_grad_()

    def run(function: Callable[..., Tensor]) -> Tensor | type[RuntimeError]:
        try:
            return torch.autograd.grad(total(function(*args)), args[last])[0]
        except RuntimeError:
            return RuntimeError

    expected, got = run(case.op.reference), run(case.op.fused)
    if isinstance(expected, Tensor):
        assert isinstance(got, Tensor), "the fused op raises where the reference does not"
        close(case, got, expected)
    else:
        assert got is RuntimeError


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_results_of_inference_mode_compute_further(case: Case, device: str) -> None:
    with torch.inference_mode():
        args = case.args((9, 5), device=device)
        inside = case.op.fused(*args)
    outside = case.op.fused(*args)
    assert equal(inside, outside)


@differentiable
def test_nothing_outlives_the_graph(case: Case, device: str) -> None:
    inputs, outs = called(case, device)
    watched = [weakref.ref(t) for t in (*inputs, *outs)]
    total(outs).backward()
    del inputs, outs
    gc.collect()
    assert [w() for w in watched] == [None] * len(watched)


@differentiable
def test_hooks_see_the_gradient(case: Case, device: str) -> None:
    inputs, outs = called(case, device)
    seen: list[torch.Size] = []
    outs[0].register_hook(lambda g: seen.append(g.shape))
    inputs[0].register_hook(lambda g: seen.append(g.shape))
    total(outs).backward()
    assert seen == [outs[0].shape, inputs[0].shape]


@differentiable
def test_saved_tensor_hooks_are_used(case: Case, device: str) -> None:
    """Activation checkpointing and offloading live on these."""
    packed: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        inputs, outs = called(case, device)
    total(outs).backward()
    named = case.named(case.args((2, 2), device=device))
    results = (*case.op.signature.returns, *case.op.autograd.keeps)
    saved = [s for s in case.op.autograd.saves if s in results or isinstance(named[s], Tensor)]
    assert len(packed) == len(saved)
    assert all(t.grad is not None for t in inputs)


@differentiable
def test_checkpoint(case: Case, device: str) -> None:
    args = case.args((9, 5), device=device)
    ours, theirs = wanting_grad(case, args), wanting_grad(case, args)
    total(torch.utils.checkpoint.checkpoint(case.op.fused, *ours, use_reentrant=False)).backward()
    total(case.op.fused(*theirs)).backward()
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        assert torch.equal(a.grad, b.grad)
