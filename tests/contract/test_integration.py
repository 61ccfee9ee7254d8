"""Autocast, torch.func, fake and meta tensors, subclasses and modes: nothing is skipped."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from contract.cases import (
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Case,
    close,
    equal,
    full_args,
    leaves,
    listed,
    pointwise,
    shaped,
    tensors,
    total,
    wanting_grad,
)

each = pytest.mark.parametrize("case", ONE_EACH, ids=str)
differentiable = pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)

# ---- autocast


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16, torch.float16])
@each
def test_autocast(case: Case, inputs: torch.dtype, lower: torch.dtype, device: str) -> None:
    """The dtype and the value that the reference has under the same autocast."""
    args = case.args((9, 5), inputs, device)
    with torch.autocast(device, dtype=lower):
        got, expected = listed(case.op.fused(*args)), listed(case.op.reference(*args))
    coarse = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        # Where the products of a composite were cast, they are only as good as that.
        used = [inputs, lower] if case.op.signature.autocast == "lower" else [inputs]
        tolerance = max(coarse[d] for d in used)
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


@differentiable
def test_autocast_backward(case: Case, device: str) -> None:
    args = wanting_grad(case, case.args((9, 5), torch.float32, device))
    with torch.autocast(device, dtype=torch.bfloat16):
        out = case.op.fused(*args)
    total(out).backward()
    for leaf in leaves(args):
        assert leaf.grad is not None
        assert leaf.grad.dtype == leaf.dtype


# ---- torch.func


def squares(result: Any) -> Tensor:
    return total([t.square() for t in listed(result)])


@differentiable
def test_func_grad(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float64, device)
    position = case.op.position(next(iter(case.op.autograd.grads)))

    def loss(function: Any, value: Tensor) -> Tensor:
        return squares(function(*args[:position], value, *args[position + 1 :]))

    got = torch.func.grad(lambda v: loss(case.op.fused, v))(args[position])
    expected = torch.func.grad(lambda v: loss(case.op.reference, v))(args[position])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_vmap(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float32, device)
    dims = tuple(0 if isinstance(a, Tensor) else None for a in args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fallback says that it is slow
        got = torch.func.vmap(case.op.fused, in_dims=dims)(*args)
    torch.testing.assert_close(got, case.op.reference(*args))


@pytest.mark.parametrize("case", shaped(ONE_EACH), ids=str)
def test_vmap_of_rows(case: Case, device: str) -> None:
    """Over every tensor, and over the first alone."""
    samples = [case.args((9, 6), torch.float32, device) for _ in range(3)]
    columns = zip(*samples, strict=True)
    stacked = [torch.stack(c) if isinstance(c[0], Tensor) else c[0] for c in columns]
    for many in (range(len(stacked)), range(1)):
        dims = [0 if i in many and isinstance(a, Tensor) else None for i, a in enumerate(stacked)]
        args = [a if i in many else samples[0][i] for i, a in enumerate(stacked)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fallback says that it is slow
            got = torch.func.vmap(case.op.fused, in_dims=tuple(dims))(*args)
        each = [
            listed(case.op.reference(*(sample[j] if j in many else a for j, a in enumerate(args))))
            for sample in samples
        ]
        close(case, got, [torch.stack(outs) for outs in zip(*each, strict=True)])


@differentiable
def test_per_sample_gradients(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float64, device)
    position = case.op.position(next(iter(case.op.autograd.grads)))
    others = [a[0] if case.op.pointwise and isinstance(a, Tensor) else a for a in args]
    if not case.op.pointwise:
        args[position] = torch.stack([args[position] * i for i in (1, 2, 3)])

    def loss(function: Any, value: Tensor) -> Tensor:
        return squares(function(*others[:position], value, *others[position + 1 :]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.func.vmap(torch.func.grad(lambda v: loss(case.op.fused, v)))(args[position])
    expected = torch.func.vmap(torch.func.grad(lambda v: loss(case.op.reference, v)))(
        args[position]
    )
    torch.testing.assert_close(got, expected)


@pytest.mark.slow
@differentiable
def test_hessian(case: Case, device: str) -> None:
    """Reverse mode over reverse mode, with a vmap around it."""
    args = full_args(case, (2, 3), torch.float64, device)
    position = case.op.position(next(iter(case.op.autograd.grads)))

    def loss(function: Any, value: Tensor) -> Tensor:
        return squares(function(*args[:position], value, *args[position + 1 :]))

    found = []
    for function in (case.op.fused, case.op.reference):
        gradient = torch.func.grad(lambda v, f=function: loss(f, v))
        found.append(torch.func.jacrev(gradient)(args[position]))
    torch.testing.assert_close(*found)


@differentiable
def test_forward_mode(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float64, device)
    position = case.op.position(next(iter(case.op.autograd.grads)))

    def called(function: Any, value: Tensor) -> Any:
        return function(*args[:position], value, *args[position + 1 :])

    tangent = torch.randn_like(args[position])
    got = torch.func.jvp(lambda v: called(case.op.fused, v), (args[position],), (tangent,))
    expected = torch.func.jvp(lambda v: called(case.op.reference, v), (args[position],), (tangent,))
    torch.testing.assert_close(got, expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(args[position], tangent)
        for i, out in enumerate(listed(called(case.op.fused, dual))):
            pushed = torch.autograd.forward_ad.unpack_dual(out).tangent
            torch.testing.assert_close(pushed, listed(expected[1])[i])


class Layer(torch.nn.Module):
    def __init__(self, case: Case, args: list[Any]) -> None:
        super().__init__()
        self.case = case
        self.kept = torch.nn.ParameterList([a for a in tensors(args) if a.is_floating_point()])
        self.args = args

    def forward(self) -> Any:
        given = iter(self.kept)
        floats = [isinstance(a, Tensor) and a.is_floating_point() for a in self.args]
        pairs = zip(self.args, floats, strict=True)
        return self.case.op.fused(*(next(given) if f else a for a, f in pairs))


@differentiable
def test_functional_call(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float32, device)
    layer = Layer(case, args)
    doubled = {name: 2 * p.detach() for name, p in layer.named_parameters()}
    got = torch.func.functional_call(layer, doubled, ())
    expected = case.op.reference(
        *(2 * a if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    )
    close(case, got, expected)


# ---- tensors without data


@each
def test_fake_tensors(case: Case, dtype: torch.dtype, device: str) -> None:
    for shape in [(9, 5), (), (0, 3)]:
        args = case.args(shape, dtype, device)
        real = case.op.reference(*args)
        with FakeTensorMode() as mode:
            fake = case.op.fused(
                *(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args)
            )
        ours = case.op.fused(*args)
        for a, b, c in zip(*map(listed, (fake, real, ours)), strict=True):
            assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
            assert a.stride() == c.stride()


@each
def test_meta_tensors(case: Case) -> None:
    args = wanting_grad(case, case.args((9, 5), torch.float32, "meta"))
    outs = listed(case.op.fused(*args))
    for out, expected in zip(outs, listed(case.op.reference(*args)), strict=True):
        assert out.is_meta
        assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
    if case.op.differentiable:
        total(outs).backward()
        for leaf in leaves(args):
            assert leaf.grad is not None
            assert leaf.grad.is_meta
            assert leaf.grad.shape == leaf.shape


# ---- those who watch


class Watched(Tensor):
    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, args, kwargs or {})


class FunctionMode(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@each
def test_a_subclass_sees_the_call(case: Case, device: str) -> None:
    args = case.args((9, 5), device=device)
    Watched.seen = []
    out = case.op.fused(*(a.as_subclass(Watched) if isinstance(a, Tensor) else a for a in args))
    assert any(case.name in name for name in Watched.seen)
    assert all(isinstance(t, Watched) for t in listed(out))
    close(case, [t.as_subclass(Tensor) for t in listed(out)], case.op.reference(*args))


@each
def test_a_function_mode_sees_the_call(case: Case, device: str) -> None:
    args = case.args((9, 5), device=device)
    with FunctionMode() as mode:
        out = case.op.fused(*args)
    assert any(case.name in name for name in mode.seen)
    close(case, out, case.op.reference(*args))


@each
def test_a_dispatch_mode_sees_the_call(case: Case, device: str) -> None:
    args = wanting_grad(case, case.args((9, 5), device=device))
    with DispatchMode() as mode:
        out = case.op.fused(*args)
    assert any(f"megafuse.{case.name}" in name for name in mode.seen)
    close(case, out, case.op.reference(*args))
    if case.op.differentiable:
        with DispatchMode() as mode:
            total(out).backward()
        assert any("megafuse.backward" in name for name in mode.seen)
        expected = wanting_grad(case, args)
        total(case.op.reference(*expected)).backward()
        for a, b in zip(leaves(args), leaves(expected), strict=True):
            close(case, a.grad, b.grad)


@each
def test_flop_counter_and_deterministic_mode_do_not_disturb(case: Case, device: str) -> None:
    args = case.args((9, 5), device=device)
    torch.use_deterministic_algorithms(True)
    try:
        out = case.op.fused(*args)
    finally:
        torch.use_deterministic_algorithms(False)
    assert equal(out, case.op.fused(*args))


@each
def test_conjugate_and_negative_views(case: Case, device: str) -> None:
    """A real tensor with the negative bit, as the imaginary part of a conjugate has."""
    args = full_args(case, (9, 5), torch.float32, device)
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point():
            view = torch.complex(a, -a).conj().imag
            assert view.is_neg()
            args[i] = view
    close(case, case.op.fused(*args), case.op.reference(*args))
