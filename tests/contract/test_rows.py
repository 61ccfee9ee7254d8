"""Row-wise ops where the registry's own shapes do not reach: long and odd rows, masks of every
shape, absent weights, gradients that arrive for some outputs only, sums over rows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import megafuse as mf
from contract.exact import exactly
from contract.rules import same_class


def rounding(dtype: torch.dtype) -> float:
    """What a few roundings of values around 1 amount to."""
    return 8 * torch.finfo(dtype).eps


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.float64).to(dtype)


def wide(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) else value


def compare(name: str, *args: Any, grads: tuple[bool, ...] = (True, True)) -> None:
    """Values and gradients against the reference in fp64, relative to the largest.

    `grads` says for which outputs a gradient comes in.
    """
    op = mf.OPS[name]
    fused = [a.detach().requires_grad_() if isinstance(a, Tensor) else a for a in args]
    exact = [wide(a).requires_grad_() if isinstance(a, Tensor) else a for a in args]
    got, want = op.listed(op.fused(*fused)), op.listed(exactly(op.reference)(*exact))
    for ours, theirs in zip(got, want, strict=True):
        near(ours, theirs, ours.dtype)
    incoming = [torch.randn_like(t) if g else None for t, g in zip(got, grads, strict=False)]
    pairs = [(i, g) for i, g in enumerate(incoming) if g is not None]
    inputs = [a for a in fused if isinstance(a, Tensor)]
    found = torch.autograd.grad(
        [got[i] for i, _ in pairs],
        inputs,
        [g for _, g in pairs],
        materialize_grads=True,
    )
    wanted = exactly(torch.autograd.grad)(
        [want[i] for i, _ in pairs],
        [a for a in exact if isinstance(a, Tensor)],
        [wide(g) for _, g in pairs],
        materialize_grads=True,
    )
    for a, ours, theirs in zip(inputs, found, wanted, strict=True):
        assert ours.dtype == a.dtype
        assert ours.shape == a.shape
        # A narrow output's gradient is as good as that output. Sums may cancel, such as that of a
        # number added to a whole row, but they are of numbers around 1: judged by the size that
        # such a sum has, the root of how many they are, not by what is left of it.
        precision = max(ours.dtype, got[0].dtype, key=lambda d: torch.finfo(d).eps)
        terms = got[0].numel() / ours.numel()
        near(ours, theirs, precision, least=1e-3 if terms == 1 else math.sqrt(terms))


def near(ours: Tensor, theirs: Tensor, dtype: torch.dtype, least: float = 1e-3) -> None:
    assert not ours.isnan().any()
    scale = max(theirs.abs().max().item(), least)
    error = (ours.double() - theirs).abs().max().item()
    assert error <= rounding(dtype) * scale, f"off by {error:.2e} of {scale:.2e}"


# ---- lengths

COLS = [1, 2, 3, 7, 8, 16, 31, 32, 33, 48, 63, 64, 127, 256, 1000, 1024, 4097, 65536, 100003]


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_row_lengths(name: str, cols: int, device: str) -> None:
    rows = 3 if cols > 2000 else 19
    x = drawn((rows, cols), torch.float32, device)
    row = drawn((cols,), torch.float32, device)
    mask = drawn((rows, cols), torch.float32, device)
    arguments = {
        "softmax": (x, 0.7, mask, False),
        "layer_norm": (x, row, row.flip(0), 0.5),
        "rms_norm": (x, row, 0.5),
    }
    compare(name, *arguments[name], grads=(True,))


@pytest.mark.slow
@pytest.mark.parametrize("cols", [5, 24, 64, 1000, 8192, 70001])
@pytest.mark.parametrize("name", ["residual_layer_norm", "residual_rms_norm"])
def test_residual_row_lengths(name: str, cols: int, device: str) -> None:
    x, residual = (drawn((5, cols), torch.float32, device) for _ in range(2))
    weights = [drawn((cols,), torch.float32, device) for _ in range(1 + ("layer" in name))]
    compare(name, x, residual, *weights, 0.0, True, 0.5)


def many_rows(cols: int, device: str) -> int:
    """So many that a GPU's blocks go on from row to row, several times around what is ahead."""
    return 5 if device == "cpu" else max(10_000_000 // cols, 400)


@pytest.mark.slow
@pytest.mark.parametrize("cols", [256, 768, 1000, 4096, 8192, 16384, 40000, 65536])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "residual_layer_norm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_many_rows(name: str, cols: int, dtype: torch.dtype, device: str) -> None:
    x, residual = (drawn((many_rows(cols, device), cols), dtype, device) for _ in range(2))
    weight, bias = (drawn((cols,), dtype, device) for _ in range(2))
    if name == "residual_layer_norm":
        compare(name, x, residual, weight, bias, 0.0, True, 0.5)
    else:
        compare(name, x, weight, *([bias] if name == "layer_norm" else []), 0.5, grads=(True,))


@pytest.mark.slow
@pytest.mark.parametrize("cols", [768, 16384])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_many_rows_with_dropout(cols: int, dtype: torch.dtype, device: str) -> None:
    """The gradient finds what was dropped again, wherever its rows went."""
    x = 1 + torch.rand(many_rows(cols, device), cols, device=device).to(dtype)
    x.requires_grad_()
    nothing = torch.zeros_like(x).detach()
    weight = drawn((cols,), dtype, device)
    out, kept = mf.residual_layer_norm(x, nothing, weight, None, 0.25, True, 0.5)
    grads = [torch.randn_like(out), torch.randn_like(kept)]
    (found,) = torch.autograd.grad([out, kept], [x], grads)
    exact = x.detach().double().requires_grad_()
    s = exact * (kept.detach() != 0) / 0.75
    norm = torch.nn.functional.layer_norm(s, (cols,), weight.double(), None, 0.5)
    (wanted,) = torch.autograd.grad([norm, s], [exact], [g.double() for g in grads])
    assert not found[kept == 0].any()
    near(found, wanted, dtype)


@pytest.mark.parametrize("cols", [24, 48, 1000, 20000])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "residual_layer_norm"])
def test_dtypes(name: str, cols: int, dtype: torch.dtype, device: str) -> None:
    x, other = (drawn((7, cols), dtype, device) for _ in range(2))
    row = drawn((cols,), dtype, device)
    arguments = {
        "softmax": (x, 0.7, other, False),
        "layer_norm": (x, row, row.flip(0), 0.5),
        "rms_norm": (x, row, 0.5),
        "residual_layer_norm": (x, other, row, row.flip(0), 0.0, True, 0.5),
    }
    if dtype in (torch.float32, torch.float64):
        compare(name, *arguments[name], grads=(True, True))
        return
    # s is rounded, and the norm is of s as rounded: with the reference's s exact, all else is.
    if name == "residual_layer_norm":
        s = (x.float() + other.float()).to(dtype)
        out, kept = mf.residual_layer_norm(*arguments[name])
        assert torch.equal(kept, s)
        near(out, mf.reference.layer_norm(wide(s), wide(row), wide(row.flip(0)), 0.5), dtype)
    else:
        compare(name, *arguments[name], grads=(True,))


@pytest.mark.slow
@pytest.mark.parametrize("cols", [3, 24])
def test_many_short_rows(cols: int, device: str) -> None:
    x = drawn((100_003, cols), torch.float32, device)
    compare("layer_norm", x, drawn((cols,), torch.float32, device), None, 0.5, grads=(True,))
    compare("softmax", x, 1.0, None, False, grads=(True,))


EQUAL_COLS = [*range(1, 41), 63, 100, 127, 1000, 70_001]  # the last is more than one piece


@pytest.mark.slow
@pytest.mark.parametrize("stored", [torch.float32, torch.float64])
def test_equal_numbers(stored: torch.dtype) -> None:
    """Their mean is that number, so a layer norm gives its bias and no gradient for its weight,
    as PyTorch's does: over a deviation of 0 the last bit of a mean would count a hundredfold."""
    for cols in EQUAL_COLS:
        rows = 3 if cols > 1000 else 500
        x, residual = (
            (drawn((rows, 1), stored, "cpu") * 2 ** (3 * drawn((rows, 1), stored, "cpu")))
            .expand(rows, cols)
            .contiguous()
            for _ in range(2)
        )
        weight, bias = (drawn((cols,), stored, "cpu").requires_grad_() for _ in range(2))
        ours = mf.layer_norm(x, weight, bias)
        assert torch.equal(ours, bias.expand_as(x)), cols
        grad = torch.autograd.grad(ours, weight, drawn((rows, cols), stored, "cpu"))[0]
        assert not grad.any(), cols
        normed, s = mf.residual_layer_norm(x, residual, weight, bias)
        assert torch.equal(normed, bias.expand_as(x)), cols
        assert torch.equal(s, x + residual), cols
        assert torch.equal(mf.softmax(x), torch.ones_like(x) / cols), cols
        near(mf.rms_norm(x, weight), mf.reference.rms_norm(wide(x), wide(weight)), stored)
        rms = mf.residual_rms_norm(x, residual, weight)[0]
        near(rms, mf.reference.rms_norm(wide(s), wide(weight)), stored)


@pytest.mark.parametrize("cols", [1, 8, 24, 40, 63, 100])
def test_a_row_does_not_depend_on_its_neighbours(cols: int) -> None:
    """Nor on how many there are: some are equal numbers, some far from zero, some neither."""
    x = drawn((77, cols), torch.float32, "cpu")
    x[::5] = x[::5, :1]
    x[::7] += 1e5
    for name in ("softmax", "layer_norm", "rms_norm"):
        op = mf.OPS[name].fused
        assert torch.equal(op(x), torch.cat([op(row) for row in x.split(1)])), name


@pytest.mark.slow  # some 20 kernels each
@pytest.mark.parametrize("cols", [3, 8, 24, 63])
def test_layouts_of_short_rows(cols: int, dtype: torch.dtype) -> None:
    whole = drawn((6, 13, cols), dtype, "cpu")
    views = {
        "outer swapped": whole.transpose(0, 1).contiguous().transpose(0, 1),
        "transposed": whole.transpose(1, 2).contiguous().transpose(1, 2),
        "padded": torch.cat([whole, whole[..., :2]], dim=-1)[..., :cols],
        "expanded rows": whole[:, :1].expand_as(whole),
        "expanded columns": whole[..., :1].expand_as(whole),
    }
    for x in views.values():
        for name in ("softmax", "layer_norm", "rms_norm"):
            op = mf.OPS[name].fused
            assert torch.equal(op(x), op(x.contiguous())), name
        s = mf.residual_layer_norm(x, whole)
        for ours, theirs in zip(s, mf.residual_layer_norm(x.contiguous(), whole), strict=True):
            assert torch.equal(ours, theirs)


def test_no_rows_and_no_columns(device: str) -> None:
    for shape in ((0, 5), (4, 0), (0, 0)):
        x = torch.ones(shape, device=device, requires_grad=True)
        weight = torch.ones(shape[-1:], device=device, requires_grad=True)
        out = mf.rms_norm(x, weight)
        assert out.shape == shape
        grads = torch.autograd.grad(out.sum(), (x, weight))
        assert grads[0].shape == shape
        assert not grads[1].any()


# ---- masks

MASKS = [
    (3, 4, 5, 70),
    (5, 70),
    (70,),
    (1, 70),
    (5, 1),
    (3, 1, 1, 70),
    (1, 4, 5, 70),
    (4, 1, 1),
    (1,),
    (),
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_mask_shapes(shape: tuple[int, ...], causal: bool, device: str) -> None:
    x = drawn((3, 4, 5, 70), torch.float32, device)
    compare("softmax", x, 0.3, drawn(shape, torch.float32, device), causal, grads=(True,))


def test_mask_of_another_dtype_promotes(device: str) -> None:
    x, mask = drawn((6, 40), torch.bfloat16, device), drawn((40,), torch.float32, device)
    out = mf.softmax(x, 0.5, mask)
    assert out.dtype == mf.reference.softmax(x, 0.5, mask).dtype == torch.float32
    near(out, mf.reference.softmax(wide(x), 0.5, wide(mask)), torch.float32)


@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9), (2, 3, 40, 40), (300, 300), (1, 7)])
def test_causal(shape: tuple[int, ...], device: str) -> None:
    """Also where there are more rows than columns, and fewer; what is left out is exactly 0."""
    x = drawn(shape, torch.float32, device)
    compare("softmax", x, 1.3, None, True, grads=(True,))
    left_out = ~torch.ones(shape[-2:], dtype=torch.bool, device=device).tril()
    assert not mf.softmax(x, 1.3, None, True)[..., left_out].any()


def test_causal_does_not_read_what_is_left_out(device: str) -> None:
    x = drawn((64, 64), torch.float32, device)
    left_out = ~torch.ones(64, 64, dtype=torch.bool, device=device).tril()
    poisoned = x.masked_fill(left_out, float("nan"))
    assert torch.equal(mf.softmax(poisoned, causal=True), mf.softmax(x, causal=True))


def test_bad_masks(device: str) -> None:
    x = drawn((3, 4, 5), torch.float32, device)
    with pytest.raises(ValueError, match="'mask' must broadcast to the shape of 'x'"):
        mf.softmax(x, 1.0, torch.zeros(4, device=device))
    with pytest.raises(ValueError, match="'mask' must broadcast to the shape of 'x'"):
        mf.softmax(x, 1.0, torch.zeros(2, 3, 4, 5, device=device))
    with pytest.raises(ValueError, match="needs rows and columns"):
        mf.softmax(x[0, 0], causal=True)


# ---- special values


@pytest.mark.parametrize("cols", [5, 200, 9000])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_special_values(value: str, cols: int, dtype: torch.dtype, device: str) -> None:
    """In one place, and in all: NaN and Inf come out where PyTorch puts them.

    Beside an Inf, rms_norm's formula has 0. So do PyTorch's kernels for whole vectors; the one for
    other sizes and for float64 on CUDA has NaN, by the way it sums.
    """
    x = drawn((4, cols), dtype, device)
    x[0, cols // 2] = float(value)
    x[2] = float(value)
    row = drawn((cols,), dtype, device)
    for name, args in {"softmax": (x,), "layer_norm": (x, row, row)}.items():
        op = mf.OPS[name]
        same_class(name, op.fused(*args), op.reference(*args))
    wide = x.to(torch.float64 if dtype == torch.float64 else torch.float32)
    normed = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * row
    same_class("rms_norm", mf.rms_norm(x, row, 1e-6), normed.to(dtype))
    s = mf.reference.residual_layer_norm(x, x.flip(1), row, row)
    for ours, theirs in zip(mf.residual_layer_norm(x, x.flip(1), row, row), s, strict=True):
        same_class("residual_layer_norm", ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_pieces_of_a_long_softmax(dtype: torch.dtype, device: str) -> None:
    """The CPU finds a row's exponentials piece by piece, 65,536 elements each, and keeps them: a
    piece may have nothing to add, or all there is."""
    x = drawn((4, 150_000), dtype, device)
    x[0, :70_000] = -torch.inf
    x[1, 70_000:] = -torch.inf
    x[2, :70_000] -= 300
    x[3, 149_999] = 300
    compare("softmax", x, 1.0, None, False)
    for value in (torch.nan, torch.inf):
        x[:, 140_000] = value
        assert mf.softmax(x).isnan().all()


def test_rows_far_from_zero(device: str) -> None:
    """A mean 10,000 standard deviations away: a sum of squares would have lost the variance."""
    for cols in (1000, 100_003):
        x = drawn((3, cols), torch.float32, device) + 1e4
        ours, exact = mf.layer_norm(x), mf.reference.layer_norm(x.double())
        assert (ours.double() - exact).abs().max() < 2e-3  # x itself is rounded to 1e-3


# ---- layouts


@pytest.mark.slow  # some 20 kernels each
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "residual_rms_norm"])
def test_layouts(name: str, device: str) -> None:
    whole = drawn((6, 10, 4, 64), torch.float32, device)
    views = {
        "contiguous": whole,
        "outer swapped": whole.transpose(0, 1).contiguous().transpose(0, 1),
        "transposed": whole.transpose(2, 3).contiguous().transpose(2, 3),
        "sliced": torch.stack([whole, whole], dim=-1)[..., 0],
        "padded": torch.cat([whole, whole[..., :3]], dim=-1)[..., :64],
        "unaligned": torch.cat([whole.flatten()[:1], whole.flatten()])[1:].view_as(whole),
        "expanded rows": whole[:, :1].expand_as(whole),
        "expanded columns": whole[..., :1].expand_as(whole),
    }
    row = drawn((128,), torch.float32, device)[::2]
    for x in views.values():
        args = {
            "softmax": (x, 0.5, whole[0, 0], True),
            "layer_norm": (x, row, row.flip(0), 0.5),
            "residual_rms_norm": (x, whole, row, 0.0, True, 0.5),
        }[name]
        out = mf.OPS[name].listed(mf.OPS[name].fused(*args))[0]
        assert out.is_contiguous()
        compare(name, *args, grads=(True, True))


# ---- weights and gradients


@pytest.mark.slow
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_absent_weights(weight: bool, bias: bool, device: str) -> None:
    x = drawn((9, 130), torch.float32, device)
    rows = [drawn((130,), torch.float32, device) if given else None for given in (weight, bias)]
    compare("layer_norm", x, *rows, 0.5, grads=(True,))
    compare("rms_norm", x, rows[0], 0.5, grads=(True,))
    compare("residual_layer_norm", x, x.flip(0), *rows, 0.0, True, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_of_another_dtype(stored: torch.dtype, device: str) -> None:
    x = drawn((40, 256), torch.bfloat16, device)
    rows = [drawn((256,), stored, device) for _ in range(2)]
    compare("layer_norm", x, *rows, 0.5, grads=(True,))


@pytest.mark.parametrize("grads", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", ["residual_layer_norm", "residual_rms_norm"])
def test_either_gradient_may_be_absent(name: str, grads: tuple[bool, bool], device: str) -> None:
    x, residual = (drawn((9, 130), torch.float32, device) for _ in range(2))
    weights = [drawn((130,), torch.float32, device) for _ in range(1 + ("layer" in name))]
    compare(name, x, residual, *weights, 0.0, True, 0.5, grads=grads)


def test_residual_of_another_dtype_promotes(device: str) -> None:
    x, residual = drawn((9, 64), torch.bfloat16, device), drawn((9, 64), torch.float32, device)
    out, s = mf.residual_layer_norm(x, residual)
    assert out.dtype == s.dtype == torch.float32
    near(s, wide(x) + wide(residual), torch.float32)


@pytest.mark.slow
def test_only_what_is_wanted(device: str) -> None:
    """Every subset of the gradients: the others neither disturb nor appear."""
    tensors = [drawn((33, 70), torch.float32, device) for _ in range(2)]
    tensors += [drawn((70,), torch.float32, device) for _ in range(2)]
    whole = [t.clone().requires_grad_() for t in tensors]
    out, s = mf.residual_layer_norm(*whole)
    incoming = [torch.randn_like(out), torch.randn_like(s)]
    expected = torch.autograd.grad((out, s), whole, incoming)
    for wanted in itertools.product([False, True], repeat=4):
        if not any(wanted):
            continue
        some = [t.clone().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
        outs = mf.residual_layer_norm(*some)
        found = torch.autograd.grad(outs, [t for t in some if t.requires_grad], incoming)
        for got, want in zip(found, itertools.compress(expected, wanted), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cols", [5, 1000])
def test_sums_over_rows_are_deterministic(cols: int, device: str) -> None:
    x = drawn((5000, cols), torch.float32, device)
    weight = drawn((cols,), torch.float32, device).requires_grad_()
    bias = drawn((cols,), torch.float32, device).requires_grad_()
    grad = drawn((5000, cols), torch.float32, device)
    out = mf.layer_norm(x, weight, bias)
    first = torch.autograd.grad(out, (weight, bias), grad, retain_graph=True)
    for _ in range(3):
        again = torch.autograd.grad(out, (weight, bias), grad, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    exact = grad.double().sum(0)
    assert (first[1].double() - exact).abs().max() < 5e-5  # sums of 5,000 numbers, each about 70


# ---- dropout


@pytest.mark.slow
def test_dropout_is_the_same_in_both_passes(dtype: torch.dtype, device: str) -> None:
    for cols in (8, 33, 516, 9000):
        x = torch.ones(37, cols, device=device, dtype=dtype, requires_grad=True)
        residual = torch.zeros_like(x, requires_grad=True)
        out, s = mf.residual_layer_norm(x, residual, None, None, 0.25)
        kept = s != 0
        assert 0.6 < kept.float().mean().item() < 0.9 or cols < 100
        grads = torch.autograd.grad(s, (x, residual), torch.ones_like(s), retain_graph=True)
        assert torch.equal(grads[0] != 0, kept)
        assert torch.equal(grads[1], torch.ones_like(s))
        both = torch.autograd.grad(out, (x, residual), torch.randn_like(out))
        scaled = both[1].double() * kept / 0.75
        near(both[0], scaled, dtype)


def test_dropout_goes_by_the_place_of_an_element(device: str) -> None:
    """Not by the layout, the dtype or the number of columns that a thread takes."""
    x = torch.ones(64, 96, device=device)
    masks = []
    for view in (x, x.t().contiguous().t(), torch.ones(64, 99, device=device)[:, :96], x.double()):
        torch.manual_seed(5)
        masks.append(mf.residual_rms_norm(view, torch.zeros_like(view), None, 0.5)[1] != 0)
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    torch.manual_seed(5)
    assert torch.equal(mf.dropout_relu(x, 0.5) != 0, masks[0])


def test_nothing_is_drawn_without_dropout(device: str) -> None:
    x, residual = (drawn((9, 64), torch.float32, device) for _ in range(2))
    expected = mf.reference.residual_rms_norm(x, residual)
    for p, training in ((0.0, True), (0.5, False)):
        outputs = mf.residual_rms_norm(x, residual, None, p, training)
        for got, want in zip(outputs, expected, strict=True):
            torch.testing.assert_close(got, want)


# ---- second derivatives


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["softmax", "layer_norm", "residual_layer_norm", "residual_rms_norm"]
)
def test_gradgradcheck(name: str, device: str) -> None:
    x, residual = (drawn((3, 6), torch.float64, device).requires_grad_() for _ in range(2))
    row, other = (drawn((6,), torch.float64, device).requires_grad_() for _ in range(2))
    arguments = {
        "softmax": (x, 0.7, row, False),
        "layer_norm": (x, row, other, 0.5),
        "residual_layer_norm": (x, residual, row, other, 0.0, True, 0.5),
        "residual_rms_norm": (x, residual, row, 0.0, True, 0.5),
    }[name]
    assert torch.autograd.gradcheck(mf.OPS[name].fused, arguments)
    assert torch.autograd.gradgradcheck(mf.OPS[name].fused, arguments)
