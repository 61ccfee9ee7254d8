"""Any stride, any alignment, any dtype beside another: PyTorch's values, strides and dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from contract.cases import (
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Args,
    Case,
    equal,
    full_args,
    listed,
    pointwise,
    shaped,
    tensor_places,
)
from contract.rules import check_gradients, check_value
from contract.views import VIEWS

SHAPE = (6, 10, 4, 8)


def _like(t: Tensor, made: Tensor) -> Tensor:
    assert made.shape == t.shape
    return made.copy_(t)


def _empty(t: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=t.dtype, device=t.device)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: _like(t, _empty(t, 8, 4, 10, 6).permute(3, 2, 1, 0)),
    "inner two swapped": lambda t: _like(t, _empty(t, 6, 10, 8, 4).transpose(2, 3)),
    "outer two swapped": lambda t: _like(t, _empty(t, 10, 6, 4, 8).transpose(0, 1)),
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "every other": lambda t: _like(t, _empty(t, 6, 10, 4, 16)[..., ::2]),
    "every third row": lambda t: _like(t, _empty(t, 6, 30, 4, 8)[:, 1::3]),
    "cut out": lambda t: _like(t, _empty(t, 8, 12, 6, 11)[1:7, 2:, 1:5, 3:]),
    "padded rows": lambda t: _like(t, _empty(t, 6, 10, 4, 9)[..., :8]),
    "flipped": lambda t: t.flip(0, 3),
    "unaligned by 1": lambda t: _like(t, _empty(t, t.numel() + 1)[1:].view(SHAPE)),
    "unaligned by 3": lambda t: _like(t, _empty(t, t.numel() + 3)[3:].view(SHAPE)),
    "expanded": lambda t: t[:1, :, :1].expand(SHAPE),
    "expanded inside": lambda t: t[..., :1].expand(SHAPE),
    "one number": lambda t: t[0, 0, 0, 0].expand(SHAPE),
}
# Dense and not broadcast: PyTorch keeps their strides. For the rest it computes its own.
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def laid_out(args: Args, layout: str, which: int) -> Args:
    """`args` with this layout for the tensors whose bit in `which` is set."""
    made, index = [], 0
    for a in args:
        if isinstance(a, Tensor):
            a, index = (LAYOUTS[layout](a) if which >> index & 1 else a), index + 1
        made.append(a)
    return made


@layouts
@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_all_alike(case: Case, layout: str, device: str) -> None:
    args = laid_out(full_args(case, SHAPE, torch.float32, device), layout, -1)
    out = check_value(case, args)
    assert out.stride() == case.op.reference(*args).stride()


@layouts
@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_one_unlike_the_rest(case: Case, layout: str, device: str) -> None:
    args = full_args(case, SHAPE, torch.float16, device)
    for which in range(sum(isinstance(a, Tensor) for a in args)):
        check_value(case, laid_out(args, layout, 1 << which))


@layouts
@pytest.mark.parametrize("case", pointwise(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_gradients(case: Case, layout: str, device: str) -> None:
    args = full_args(case, SHAPE, torch.float32, device)
    check_gradients(case, laid_out(args, layout, -1))
    check_gradients(case, laid_out(args, layout, 1))


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_unaligned_in_every_dtype(case: Case, dtype: torch.dtype, offset: int, device: str) -> None:
    args = full_args(case, (1027,), dtype, device)
    check_value(case, [a[offset:] if isinstance(a, Tensor) else a for a in args])


@pytest.mark.slow  # a dozen kernels each
@pytest.mark.parametrize("shape", [(127, 257), (129, 257)], ids=["few", "many"])
@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_odd_rows(case: Case, shape: tuple[int, int], device: str) -> None:
    """On a GPU vectors are cut across such rows, or where elements are few these go one by one."""
    for args in (
        case.args(shape, torch.bfloat16, device),
        full_args(case, shape, torch.float16, device),
    ):
        places = tensor_places(case, args)
        for odd in ([], places[:1], places):
            laid = viewed(args, "unaligned", odd)
            check_value(case, laid)
            if case in ONE_EACH_DIFFERENTIABLE:
                check_gradients(case, laid)


@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_many_dimensions(case: Case, device: str) -> None:
    """A layout in which no two neighbouring dimensions merge, and more than any kernel has."""
    for dims in (8, 12, 20):
        shape = (2,) * dims
        args = full_args(case, (2,) * dims, torch.float32, device) if dims < 16 else None
        if args is None:
            args = full_args(case, (2,) * 12, torch.float32, device)
            args = [a[(...,) + (None,) * 8] if isinstance(a, Tensor) else a for a in args]
            shape = (2,) * 12 + (1,) * 8
        mixed = [
            a.transpose(0, 2).contiguous().transpose(0, 2) if isinstance(a, Tensor) and i % 2 else a
            for i, a in enumerate(args)
        ]
        # Eager's gelu refuses 20 dimensions where oneDNN computes it.
        with torch.backends.mkldnn.flags(enabled=False):
            assert check_value(case, mixed).shape == shape


@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_overlapping_windows(case: Case, device: str) -> None:
    """A tensor whose elements share memory, as unfold makes them."""
    args = full_args(case, (40,), torch.float32, device)
    check_value(case, [a.unfold(0, 8, 2) if isinstance(a, Tensor) else a for a in args])


# ---- ops that are not pointwise: their tensors have shapes of their own


def viewed(args: Args, view: str, places: list[int]) -> Args:
    return [VIEWS[view](a) if i in places else a for i, a in enumerate(args)]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", shaped(ONE_EACH), ids=str)
def test_each_argument_in_turn(case: Case, view: str, device: str) -> None:
    args = case.args((6, 10, 16), torch.float32, device)
    for place in tensor_places(case, args):
        out = check_value(case, viewed(args, view, [place]))
        if case.op.signature.laid_out_as is None:
            assert all(t.is_contiguous() for t in listed(out))


@pytest.mark.parametrize("view", ["every other", "unaligned"])
@pytest.mark.parametrize("case", shaped(ONE_EACH), ids=str)
def test_every_dtype(case: Case, view: str, dtype: torch.dtype, device: str) -> None:
    """All arguments at once; one by one would compile as many kernels."""
    args = case.args((6, 10, 16), dtype, device)
    check_value(case, viewed(args, view, tensor_places(case, args)))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", shaped(ONE_EACH_DIFFERENTIABLE), ids=str)
def test_gradients_of_rows(case: Case, view: str, device: str) -> None:
    """All arguments at once; and each in turn where it is transposed."""
    args = case.args((6, 10, 16), torch.float32, device)
    places = tensor_places(case, args)
    check_gradients(case, viewed(args, view, places))
    for place in places if view == "transposed" else []:
        check_gradients(case, viewed(args, view, [place]))


@pytest.mark.slow  # up to 20 kernels each
@pytest.mark.parametrize("case", shaped(ONE_EACH), ids=str)
def test_arguments_with_a_dtype_of_their_own(case: Case, device: str) -> None:
    """Weights of a norm may stay float32 beside bfloat16."""
    for small in (torch.bfloat16, torch.float16):
        args = [
            a.float() if n.own_dtype and isinstance(a, Tensor) and a.is_floating_point() else a
            for n, a in zip(case.op.arguments, case.args((9, 16), small, device), strict=True)
        ]
        check_value(case, args)
        if case.op.differentiable:
            check_gradients(case, args)


# ---- type promotion

KINDS = [
    (torch.float16, 2),
    (torch.bfloat16, 2),
    (torch.float32, 2),
    (torch.float64, 2),
    (torch.float32, 0),
    (torch.float64, 0),
]


@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_promotion(case: Case, device: str) -> None:
    """All pairs for the first two tensors; the others follow the second.

    Of no elements: promotion is decided before anything is compiled.
    """
    base = full_args(case, (0, 7), torch.float32, device)
    for first, second in itertools.product(KINDS, KINDS):
        args, seen = [], 0
        for a in base:
            if isinstance(a, Tensor) and a.is_floating_point():
                kind, dims = first if seen == 0 else second
                a, seen = (a if dims else torch.ones((), device=device)).to(kind), seen + 1
            args.append(a)
        if all(a.dim() == 0 for a in args if isinstance(a, Tensor)):
            continue  # below
        assert case.op.fused(*args).dtype == case.op.reference(*args).dtype, (first, second)


@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_values_of_mixed_dtypes(case: Case, device: str) -> None:
    dtypes = itertools.cycle([torch.float16, torch.float32, torch.bfloat16])
    args = [
        a.to(next(dtypes)) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in full_args(case, (33, 65), torch.float32, device)
    ]
    check_value(case, args)


@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_promotion_of_zero_dim_tensors(case: Case, device: str) -> None:
    for kinds in itertools.product([torch.float16, torch.float32, torch.float64], repeat=2):
        args, seen = [], 0
        for a in full_args(case, (), torch.float32, device):
            if isinstance(a, Tensor) and a.is_floating_point():
                a, seen = a.to(kinds[min(seen, 1)]), seen + 1
            args.append(a)
        assert case.op.fused(*args).dtype == case.op.reference(*args).dtype, kinds
        assert case.op._namespace["traced"](*args).dtype == case.op.reference(*args).dtype, kinds


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_default_dtype_does_not_matter(case: Case, device: str) -> None:
    args = case.args((9, 5), torch.float32, device)
    expected = case.op.fused(*args)
    torch.set_default_dtype(torch.float64)
    try:
        got, reference = case.op.fused(*args), case.op.reference(*args)
        through = case.op._namespace["traced"](*args)
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b, c in zip(*map(listed, (got, through, reference)), strict=True):
        assert a.dtype == b.dtype == c.dtype
    assert equal(got, expected)
