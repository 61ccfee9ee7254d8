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
    full_args,
    leaves,
    tensors,
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
        got, expected = case.op.fused(*args), case.op.reference(*args)
    assert got.dtype == expected.dtype
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(inputs, 0)
    torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance)


@differentiable
def test_autocast_backward(case: Case, device: str) -> None:
    args = wanting_grad(case, case.args((9, 5), torch.float32, device))
    with torch.autocast(device, dtype=torch.bfloat16):
        case.op.fused(*args).sum().backward()
    for leaf in leaves(args):
        assert leaf.grad is not None
        assert leaf.grad.dtype == leaf.dtype


# ---- torch.func


@differentiable
def test_func_grad(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float64, device)
    position = case.op.position(next(iter(case.op.grads)))

    def loss(function: Any, value: Tensor) -> Tensor:
        return function(*args[:position], value, *args[position + 1 :]).square().sum()

    got = torch.func.grad(lambda v: loss(case.op.fused, v))(args[position])
    expected = torch.func.grad(lambda v: loss(case.op.reference, v))(args[position])
    torch.testing.assert_close(got, expected)


@each
def test_vmap(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float32, device)
    dims = tuple(0 if isinstance(a, Tensor) else None for a in args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fallback says that it is slow
        got = torch.func.vmap(case.op.fused, in_dims=dims)(*args)
    torch.testing.assert_close(got, case.op.reference(*args))


@differentiable
def test_per_sample_gradients(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float64, device)
    position = case.op.position(next(iter(case.op.grads)))
    others = [a[0] if isinstance(a, Tensor) else a for a in args]

    def loss(function: Any, value: Tensor) -> Tensor:
        return function(*others[:position], value, *others[position + 1 :]).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.func.vmap(torch.func.grad(lambda v: loss(case.op.fused, v)))(args[position])
    expected = torch.func.vmap(torch.func.grad(lambda v: loss(case.op.reference, v)))(
        args[position]
    )
    torch.testing.assert_close(got, expected)


@differentiable
def test_forward_mode(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float64, device)
    position = case.op.position(next(iter(case.op.grads)))

    def called(function: Any, value: Tensor) -> Tensor:
        return function(*args[:position], value, *args[position + 1 :])

    tangent = torch.randn(9, 5, dtype=torch.float64, device=device)
    got = torch.func.jvp(lambda v: called(case.op.fused, v), (args[position],), (tangent,))
    expected = torch.func.jvp(lambda v: called(case.op.reference, v), (args[position],), (tangent,))
    torch.testing.assert_close(got, expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(args[position], tangent)
        pushed = torch.autograd.forward_ad.unpack_dual(called(case.op.fused, dual)).tangent
    torch.testing.assert_close(pushed, expected[1])


class Layer(torch.nn.Module):
    def __init__(self, case: Case, args: list[Any]) -> None:
        super().__init__()
        self.case = case
        self.kept = torch.nn.ParameterList([a for a in tensors(args) if a.is_floating_point()])
        self.others = [None if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]

    def forward(self) -> Tensor:
        given = iter(self.kept)
        return self.case.op.fused(*(next(given) if a is None else a for a in self.others))


@differentiable
def test_functional_call(case: Case, device: str) -> None:
    args = full_args(case, (9, 5), torch.float32, device)
    layer = Layer(case, args)
    doubled = {name: 2 * p.detach() for name, p in layer.named_parameters()}
    got = torch.func.functional_call(layer, doubled, ())
    expected = case.op.reference(
        *(2 * a if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    )
    torch.testing.assert_close(got, expected)


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
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == case.op.fused(*args).stride()


@each
def test_meta_tensors(case: Case) -> None:
    args = wanting_grad(case, case.args((9, 5), torch.float32, "meta"))
    out, expected = case.op.fused(*args), case.op.reference(*args)
    assert out.is_meta
    assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
    if case.op.differentiable:
        out.sum().backward()
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
    assert isinstance(out, Watched)
    torch.testing.assert_close(out.as_subclass(Tensor), case.op.reference(*args))


@each
def test_a_function_mode_sees_the_call(case: Case, device: str) -> None:
    args = case.args((9, 5), device=device)
    with FunctionMode() as mode:
        out = case.op.fused(*args)
    assert any(case.name in name for name in mode.seen)
    torch.testing.assert_close(out, case.op.reference(*args))


@each
def test_a_dispatch_mode_sees_the_call(case: Case, device: str) -> None:
    args = wanting_grad(case, case.args((9, 5), device=device))
    with DispatchMode() as mode:
        out = case.op.fused(*args)
    assert any(f"megafuse.{case.name}" in name for name in mode.seen)
    torch.testing.assert_close(out, case.op.reference(*args))
    if case.op.differentiable:
        with DispatchMode() as mode:
            out.sum().backward()
        assert any("pointwise_backward" in name for name in mode.seen)
        expected = wanting_grad(case, args)
        case.op.reference(*expected).sum().backward()
        for a, b in zip(leaves(args), leaves(expected), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


@each
def test_flop_counter_and_deterministic_mode_do_not_disturb(case: Case, device: str) -> None:
    args = case.args((9, 5), device=device)
    torch.use_deterministic_algorithms(True)
    try:
        out = case.op.fused(*args)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(out, case.op.fused(*args))


@each
def test_conjugate_and_negative_views(case: Case, device: str) -> None:
    """A real tensor with the negative bit, as the imaginary part of a conjugate has."""
    args = full_args(case, (9, 5), torch.float32, device)
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point():
            view = torch.complex(a, -a).conj().imag
            assert view.is_neg()
            args[i] = view
    torch.testing.assert_close(case.op.fused(*args), case.op.reference(*args))
