"""Gradients: gradcheck in fp64, and the error rule in every dtype and broadcasting pattern."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from contract.cases import (
    DIFFERENTIABLE,
    ONE_EACH_DIFFERENTIABLE,
    Args,
    Case,
    full_args,
    leaves,
    listed,
    pointwise,
    shaped,
    wanting_grad,
)
from contract.rules import check_gradients, gradients, stretched, upcast

SHAPES = [(), (1,), (0,), (0, 5), (5, 0), (7,), (33,), (64, 64), (3, 5, 7), (100003,), (515, 517)]


def kinks_avoided(args: Args) -> Args:
    """Numbers at least 0.05 from 0, where relu has no derivative to check."""
    return [
        a.detach() + 0.05 * a.detach().sign() if isinstance(a, Tensor) and a.dim() else a
        for a in args
    ]


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 3, 2)])
@pytest.mark.parametrize("case", pointwise(DIFFERENTIABLE), ids=str)
def test_gradcheck(case: Case, shape: tuple[int, ...], device: str) -> None:
    args = kinks_avoided(case.args(shape, torch.float64, device))
    torch.autograd.gradcheck(case.op.fused, wanting_grad(case, args))


@pytest.mark.parametrize("case", shaped(DIFFERENTIABLE), ids=str)
def test_gradcheck_of_rows(case: Case, device: str) -> None:
    for shape in [(3, 4), (2, 2, 3)]:
        args = wanting_grad(case, case.args(shape, torch.float64, device))
        torch.autograd.gradcheck(case.op.fused, args)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_gradgradcheck(case: Case, device: str) -> None:
    args = case.args((4, 3), torch.float64, device)
    args = kinks_avoided(args) if case.op.pointwise else args
    fast = not case.op.pointwise  # more arguments, more elements in each
    torch.autograd.gradgradcheck(case.op.fused, wanting_grad(case, args), fast_mode=fast)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_a_gradient_to_be_differentiated_is_the_same(case: Case, device: str) -> None:
    """It goes through the reference; gradgradcheck compares that with itself."""
    args = wanting_grad(case, case.args((4, 6), torch.float64, device))
    outs = listed(case.op.fused(*args))
    grads = [torch.randn_like(t) for t in outs]
    once = torch.autograd.grad(outs, leaves(args), grads, retain_graph=True)
    again = torch.autograd.grad(outs, leaves(args), grads, create_graph=True)
    for a, b in zip(once, again, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("case", [c for c in ONE_EACH_DIFFERENTIABLE if c.op.outputs > 1], ids=str)
def test_only_some_outputs_have_a_gradient(case: Case, device: str) -> None:
    args = case.args((4, 6), torch.float64, device)
    for i in range(case.op.outputs):
        found = []
        for function in (case.op.fused, case.op.reference):
            fresh = wanting_grad(case, args)
            out = function(*fresh)[i]
            found.append(
                torch.autograd.grad(out.square().sum(), leaves(fresh), materialize_grads=True)
            )
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in ONE_EACH_DIFFERENTIABLE if c.op.random], ids=str)
def test_gradcheck_of_random_ops(case: Case, device: str) -> None:
    """With the seed set before each call the op is a function, and its backward must redraw."""
    args = kinks_avoided(case.args((5, 6), torch.float64, device))
    args[case.op.position("p")] = 0.4
    if "training" in case.named(args):
        args[case.op.position("training")] = True

    def seeded(*values: Any) -> Any:
        torch.manual_seed(7)
        return case.op.fused(*values)

    fresh = wanting_grad(case, args)
    torch.autograd.gradcheck(seeded, fresh)
    assert not torch.equal(listed(case.op.fused(*fresh))[0], listed(case.op.fused(*fresh))[0])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)) or "scalar")
@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_error(case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    check_gradients(case, case.args(shape, dtype, device))


@pytest.mark.parametrize("shape", [(7,), (0, 6), (33, 17), (3, 5, 65), (2, 3, 4, 12)])
@pytest.mark.parametrize("case", shaped(DIFFERENTIABLE), ids=str)
def test_error_of_rows(case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    check_gradients(case, case.args(shape, dtype, device))


@pytest.mark.parametrize("case", shaped(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_rows_of_one_and_two(case: Case, device: str) -> None:
    """A norm of them hardly depends on them: its gradient is what is left of much larger terms."""
    for columns in (1, 2):
        args = case.args((5, columns), torch.float32, device)
        grad = [torch.randn_like(t) for t in listed(case.op.reference(*args))]
        ours, eager = (gradients(case, f, args, grad) for f in (case.op.fused, case.op.reference))
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", shaped(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_error_of_larger_rows(case: Case, dtype: torch.dtype, device: str) -> None:
    check_gradients(case, case.args((513, 129), dtype, device))
    if case.op.family == "rows":
        check_gradients(case, case.args((3, 40_003), dtype, device))


@pytest.mark.parametrize("case", pointwise(DIFFERENTIABLE), ids=str)
def test_error_of_every_choice(case: Case, dtype: torch.dtype, device: str) -> None:
    check_gradients(case, case.args((1000, 33), dtype, device))


@pytest.mark.parametrize("case", pointwise(DIFFERENTIABLE), ids=str)
def test_far_from_zero(case: Case, device: str) -> None:
    """Arguments up to about 60: tails and saturation."""
    args = case.args((10007,), torch.float32, device)
    check_gradients(case, stretched(args, 16), stretch=16)


# What the smaller operand looks like beside a full one of this shape.
PATTERNS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "row": ((65, 130), (130,)),
    "long row": ((3, 9001), (9001,)),
    "tall row": ((9001, 3), (3,)),
    "column": ((65, 130), (65, 1)),
    "long column": ((9001, 3), (9001, 1)),
    "wide column": ((3, 9001), (3, 1)),
    "zero-dim": ((65, 130), ()),
    "one": ((65, 130), (1, 1)),
    "one of a vector": ((130,), (1,)),
    "zero-dim of a vector": ((130,), ()),
    "NCHW channel": ((4, 6, 9, 11), (6, 1, 1)),
    "last of four": ((4, 6, 9, 11), (11,)),
    "batch of four": ((4, 6, 9, 11), (4, 1, 1, 1)),
    "alternating": ((4, 6, 9, 11), (1, 6, 1, 11)),
    "other alternating": ((4, 6, 9, 11), (4, 1, 9, 1)),
    "middle two": ((4, 6, 9, 11), (6, 9, 1)),
    "five dims": ((2, 3, 4, 3, 2), (3, 1, 3, 1)),
}


def shrunk(
    case: Case, args: Args, full: tuple[int, ...], small: tuple[int, ...], which: int
) -> Args:
    """`args` with the tensors cut to `small`: bit i of `which` says whether the i-th is."""
    made: list[Any] = []
    index = 0
    lead = (0,) * (len(full) - len(small)) + tuple(slice(n) for n in small)
    for a in args:
        if isinstance(a, Tensor):
            made.append(a[lead].contiguous() if which >> index & 1 else a)
            index += 1
        else:
            made.append(a)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_broadcast_operands(case: Case, pattern: str, device: str) -> None:
    """Each tensor in turn is the broadcast one, then all but the first."""
    full, small = PATTERNS[pattern]
    args = full_args(case, full, torch.float32, device)
    count = sum(isinstance(a, Tensor) for a in args)
    for which in {1 << i for i in range(count)} | {(1 << count) - 2}:
        check_gradients(case, shrunk(case, args, full, small, which))


@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_operands_that_broadcast_each_other(case: Case, device: str) -> None:
    """[N, 1] with [1, M]: no tensor has the output's shape."""
    args = full_args(case, (31, 45), torch.float32, device)
    seen = 0
    for i, a in enumerate(args):
        if isinstance(a, Tensor):
            args[i] = (a[:, :1] if seen % 2 == 0 else a[:1, :]).contiguous()
            seen += 1
    check_gradients(case, args)


@pytest.mark.parametrize("small", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_broadcast_in_low_precision(case: Case, small: torch.dtype, device: str) -> None:
    args = full_args(case, (2049, 33), small, device)
    check_gradients(case, shrunk(case, args, (2049, 33), (33,), 0b1110))


@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_channels_last(case: Case, device: str) -> None:
    full = (3, 8, 5, 7)
    args = [
        a.contiguous(memory_format=torch.channels_last) if isinstance(a, Tensor) else a
        for a in full_args(case, full, torch.float32, device)
    ]
    check_gradients(case, args)
    check_gradients(case, shrunk(case, args, full, (8, 1, 1), 0b1110))


@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_mixed_dtypes(case: Case, device: str) -> None:
    """A gradient has its argument's dtype."""
    dtypes = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
    args = full_args(case, (33, 65), torch.float32, device)
    seen = 0
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.is_floating_point():
            args[i] = a.to(dtypes[seen % 4])
            seen += 1
    check_gradients(case, args)
    check_gradients(case, shrunk(case, args, (33, 65), (65,), 0b1010))


@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_one_tensor_in_every_place(case: Case, device: str) -> None:
    """swiglu(x, x): the gradients add up."""
    x = torch.randn(33, 65, device=device, dtype=torch.float64)
    args = full_args(case, (33, 65), torch.float64, device)

    def run(function: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        floats = [isinstance(a, Tensor) and a.is_floating_point() for a in args]
        out = function(*(leaf if f else a for a, f in zip(args, floats, strict=True)))
        return torch.autograd.grad(out, leaf, torch.ones_like(out))[0]

    torch.testing.assert_close(run(case.op.fused), run(case.op.reference))


@pytest.mark.parametrize("layout", ["expanded", "transposed", "sliced", "unaligned"])
@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_layout_of_the_incoming_gradient(case: Case, layout: str, device: str) -> None:
    args = case.args((34, 66), torch.float32, device)

    def laid_out(shape: torch.Size) -> Tensor:
        *lead, rows, columns = shape
        return {
            "expanded": lambda: torch.randn((), device=device).expand(shape),
            "transposed": lambda: torch.randn(*lead, columns, rows, device=device).mT,
            "sliced": lambda: torch.randn(*lead, 2 * rows, 3 * columns, device=device)[
                ..., ::2, ::3
            ],
            "unaligned": lambda: torch.randn(shape.numel() + 1, device=device)[1:].view(shape),
        }[layout]()

    check_gradients(case, args, [laid_out(t.shape) for t in listed(case.op.reference(*args))])


@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_second_derivative_in_every_dtype(case: Case, dtype: torch.dtype, device: str) -> None:
    """gradgradcheck has the formula; here, that lower precision passes through it."""
    args = case.args((9, 5), dtype, device)
    # Small enough that the square of an exp fits into float16.
    args = [a * 0.25 if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]

    def twice(function: Any, values: Args) -> list[Tensor]:
        fresh = wanting_grad(case, values)
        inputs = leaves(fresh)
        outs = listed(function(*fresh))
        # Not all the same: a softmax's outputs always add up to 1.
        grads = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape).to(t) for t in outs]
        first = torch.autograd.grad(outs, inputs, grads, create_graph=True)
        squares = sum((g.float() ** 2).sum() for g in first) + 0 * inputs[0].float().sum()
        return list(torch.autograd.grad(squares, inputs, materialize_grads=True))

    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-4)
    if "out" in case.op.autograd.saves:  # it starts from a result that was rounded
        tolerance *= 4
    with sdpa_kernel(SDPBackend.MATH):  # torch's tiled attention has no second derivative
        exact = twice(case.op.reference, upcast(args))
    for ours, wanted in zip(twice(case.op.fused, args), exact, strict=True):
        assert ours.dtype == dtype
        scale = wanted.abs().max().item()
        torch.testing.assert_close(
            ours.cpu().double(), wanted, rtol=tolerance, atol=tolerance * scale
        )
