"""Sums of generated kernels against float64, on the CPU; and that their CUDA sources compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compiler.counted import launches
from megafuse.compiler import fuse
from megafuse.compiler.compile import compiled
from megafuse.compiler.explain import symbols_of
from megafuse.compiler.machine_code import compiled_for
from megafuse.runtime import generated, nvrtc

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned")]


def products(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(0)


def squared_error(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().mean()


def images(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x * y).sum((0, 2, 3)), x - y


def softmax_and_columns(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(x, -1)
    return p, (p * y).sum(0)


def judge(made: Any, function: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    """No further from float64 than twice eager, and a few roundings of the sum of magnitudes."""
    eager = function(*args)
    exact = function(*(t.double() for t in args))
    if isinstance(made, Tensor):
        made, eager, exact = (made,), (eager,), (exact,)
    for mine, theirs, true in zip(made, eager, exact, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert mine.stride() == theirs.stride()
        if mine.numel() == 0:
            continue
        room = 4 * torch.finfo(mine.dtype).eps * max(1.0, float(true.abs().max()))
        worst = 2 * float((theirs.double() - true).abs().max()) + room
        assert float((mine.double() - true).abs().max()) <= worst


def both(function: Callable[..., Any], x: Tensor, y: Tensor) -> None:
    fused = fuse(function)
    judge(fused(x, y), function, (x, y))
    assert not fused.explain(x, y).not_fused


@pytest.mark.parametrize(("rows", "cols"), [(1, 7), (33, 1), (513, 384), (7, 2880), (3, 50257)])
def test_columns(rows: int, cols: int) -> None:
    both(products, torch.randn(rows, cols), torch.randn(rows, cols))


def test_everything() -> None:
    both(squared_error, torch.randn(129, 1001), torch.randn(129, 1001))
    both(lambda x, y: (x * y).sum(), torch.randn(100_003), torch.randn(100_003))


@pytest.mark.parametrize("function", [products, squared_error, softmax_and_columns])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cols", [1, 7, 384, 2880])
def test_dtypes(function: Callable[..., Any], dtype: torch.dtype, cols: int) -> None:
    x, y = torch.randn(65, cols).to(dtype), torch.randn(65, cols).to(dtype)
    if dtype == torch.float64:
        torch.testing.assert_close(fuse(function)(x, y), function(x, y), rtol=1e-12, atol=1e-12)
    else:
        both(function, x, y)


@pytest.mark.parametrize("shape", [(1, 5), (70, 7), (300, 63), (40, 1024), (2, 50257)])
def test_rows_and_columns(shape: tuple[int, int]) -> None:
    both(softmax_and_columns, torch.randn(shape), torch.randn(shape))


@pytest.mark.parametrize("last", [False, True])
def test_images(last: bool) -> None:
    x, y = torch.randn(3, 6, 9, 11), torch.randn(3, 6, 9, 11)
    form = torch.channels_last if last else torch.contiguous_format
    both(images, x.to(memory_format=form), y.to(memory_format=form))
    both(images, x.to(memory_format=form)[:, ::2], y[:, ::2])


def test_layouts_that_no_driver_walks_are_right_all_the_same() -> None:
    x = torch.randn(8, 9, 100)
    both(lambda x, m: (x * m).sum((0, 1)), x, torch.randn(8, 1, 1))
    both(lambda x, m: (x * m).sum(0), x, torch.randn(100))
    both(products, torch.randn(64, 100).t(), torch.randn(100, 64))
    both(products, torch.randn(64, 100)[::3, ::2], torch.randn(22, 50))


def test_an_index_in_the_terms() -> None:
    def weighted(x: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.arange(x.shape[1])
        return (x * place).sum(0), (x * place).sum()

    for shape in ((40, 33), (3, 700)):
        x = torch.randn(shape)
        judge(fuse(weighted)(x), weighted, (x,))


def test_no_rows_are_zeros() -> None:
    fused = fuse(products)
    for rows in (5, 0, 3):
        x, y = torch.randn(rows, 6), torch.randn(rows, 6)
        torch.testing.assert_close(fused(x, y), products(x, y))


def test_nan_and_infinity_stay_in_their_columns() -> None:
    x, y = torch.randn(70, 9), torch.rand(70, 9) + 0.5
    x[3, 1], x[5, 4], x[6, 7] = float("nan"), float("inf"), float("-inf")
    torch.testing.assert_close(fuse(products)(x, y), products(x, y), equal_nan=True)


def test_two_threads_find_what_one_finds() -> None:
    x, y = torch.randn(700, 130), torch.randn(700, 130)
    fused, before = fuse(products), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            found.append(fused(x, y))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[1], found[2])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@pytest.mark.parametrize("shape", [(65, 48), (2, 9, 200)])
def test_gradients_of_a_norm(shape: tuple[int, ...]) -> None:
    cols = shape[-1]
    args = [t.requires_grad_() for t in (torch.randn(shape), torch.randn(cols), torch.randn(cols))]
    fused, grad = fuse(norm), torch.randn(shape)
    made = torch.autograd.grad(fused(*args), args, grad)
    exact = [t.detach().double().requires_grad_() for t in args]
    true = torch.autograd.grad(norm(*exact), exact, grad.double())
    for mine, right in zip(made, true, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-5)
    backward = fused.explain(*args).backward
    assert backward is not None
    (step,) = backward.steps
    assert step.sums == ("grad of weight", "grad of bias")


# ---- over the rows of each segment


def of_samples(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (x * y).sum(1), x - y, (x + y).square().sum(1)


@pytest.mark.parametrize("shape", [(3, 50, 65), (2, 3000, 3), (300, 2, 9), (1, 40, 8), (3, 1, 7)])
def test_between_others(shape: tuple[int, int, int]) -> None:
    both(of_samples, torch.randn(shape), torch.randn(shape))


@pytest.mark.parametrize("shape", [(3, 50, 65), (300, 2, 9), (9, 20, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_of_what_lies_in_memory(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Also where the library adds it up: many short segments, layouts that no driver walks."""
    x = torch.randn(shape).to(dtype)
    fused = fuse(lambda x: x.sum(1))
    for given in (x, x.clone().requires_grad_(), x[:, :, ::2], x.transpose(1, 2)):
        judge(fused(given).detach(), lambda x: x.sum(1), (given.detach(),))
    flipped = fuse(lambda x: x.flip(1).sum(1))
    judge(flipped(x), lambda x: x.sum(1), (x,))
    counted = fuse(lambda x: x.sum(1, dtype=torch.float32))
    whole = torch.randint(-9, 9, shape)
    assert torch.equal(counted(whole), whole.sum(1).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_between_others_in_other_dtypes_and_layouts(dtype: torch.dtype) -> None:
    x, y = torch.randn(3, 50, 65).to(dtype), torch.randn(3, 50, 65).to(dtype)
    both(of_samples, x, y)
    both(of_samples, x[:, ::2], y[:, 1::2])
    both(of_samples, x.transpose(0, 1), y.transpose(0, 1))
    both(of_samples, x, y[:1, :, :1].expand_as(x))
    both(lambda x, y: (x * y).sum((1, 2)), x.unflatten(1, (5, 10)), y.unflatten(1, (5, 10)))
    both(lambda x, y: (x * y).sum(2), x.unflatten(1, (5, 10)), y.unflatten(1, (5, 10)))


def modulated(x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
    h = F.layer_norm(x, (x.shape[-1],))
    h = h * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    return x + gate.unsqueeze(1) * h


def modulated_norm(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias) * scale.unsqueeze(1)


def of_heads(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return torch.softmax(x * y[:, None, None], -1) * scale[:, :, None]


def gradients(function: Callable[..., Tensor], args: list[Tensor], grad: Tensor) -> list[Tensor]:
    given = [t.detach().requires_grad_() for t in args]
    out = function(*given)
    return [out.detach(), *torch.autograd.grad(out, given, grad.to(out.dtype))]


def judge_gradients(fused: Any, function: Callable[..., Tensor], *args: Tensor) -> None:
    """No further from float64 than twice eager, and a few roundings of the largest."""
    grad = torch.randn(args[0].shape).to(args[0].dtype)
    made, eager = (gradients(f, [*args], grad) for f in (fused, function))
    exact = gradients(function, [t.double() for t in args], grad.double())
    for mine, theirs, true in zip(made, eager, exact, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if true.numel() == 0:
            continue
        room = 8 * torch.finfo(mine.dtype).eps * max(1.0, float(true.abs().max()))
        worst = 2 * float((theirs.double() - true).abs().max()) + room
        assert float((mine.double() - true).abs().max()) <= worst


def samples(batch: int, tokens: int, cols: int) -> list[Tensor]:
    shares = [torch.randn(batch, cols) for _ in range(3)]
    return [torch.randn(batch, tokens, cols), *shares]


def test_gradients_of_what_a_samples_tokens_share() -> None:
    """One function, other sizes: odd ones, one sample, one token, none, rows so short that many are
    summed side by side, segments so short that the library adds up their terms."""
    fused = fuse(modulated)
    sizes = [(3, 50, 65), (2, 40, 384), (1, 9, 64), (4, 1, 80), (5, 700, 8), (2, 3, 4)]
    for size in [*sizes, (3, 0, 8), (0, 3, 8), (16, 64, 65)]:
        judge_gradients(fused, modulated, *samples(*size))
    backward = fused.explain(*(t.requires_grad_() for t in samples(3, 50, 65))).backward
    assert backward is not None
    (step,) = backward.steps
    assert set(step.sums) == {"grad of shift", "grad of scale", "grad of gate"}


def test_other_numbers_of_samples_and_tokens_need_no_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shifted(x: Tensor, shift: Tensor) -> Tensor:  # kernels of its own: others have theirs built
        return F.layer_norm(torch.sinh(x), (x.shape[-1],)) * torch.cosh(shift).unsqueeze(1)

    asked, built = [], generated.kernel

    def counted(*given: Any) -> Any:
        asked.append(given)
        return built(*given)

    monkeypatch.setattr(generated, "kernel", counted)
    fused, counts = fuse(shifted), []
    for size in ((3, 50, 64), (5, 70, 64), (2, 900, 64), (40, 33, 64)):
        judge_gradients(fused, shifted, *samples(*size)[:2])
        counts.append(len(asked))
    assert counts[0] > 0
    assert set(counts) == {counts[0]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_what_is_shared_in_other_dtypes(dtype: torch.dtype) -> None:
    fused = fuse(modulated)
    for size in ((3, 50, 65), (5, 300, 8)):
        judge_gradients(fused, modulated, *(t.to(dtype) for t in samples(*size)))


@pytest.mark.parametrize("size", [(3, 50, 65), (2, 600, 5), (7, 2, 9)])
def test_segments_beside_sums_over_all_rows(size: tuple[int, int, int]) -> None:
    x, scale, _, _ = samples(*size)
    weight, bias = torch.randn(size[-1]), torch.randn(size[-1])
    judge_gradients(fuse(modulated_norm), modulated_norm, x, weight, bias, scale)


def test_segments_of_heads_and_of_layouts() -> None:
    """Gradients over heads and tokens and over tokens alone, of rows that lie apart."""
    x, y, scale = torch.randn(2, 3, 40, 70), torch.randn(2, 70), torch.randn(2, 3, 70)
    judge_gradients(fuse(of_heads), of_heads, x, y, scale)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    judge_gradients(fuse(of_heads), of_heads, turned, y, scale)
    x, shift, scale, gate = samples(6, 50, 130)
    apart = (x[::2, ::2, ::2], shift[::2, ::2], scale[::2, ::2], gate[:3, 65:])
    judge_gradients(fuse(modulated), modulated, *apart)


def test_segments_find_the_same_every_time() -> None:
    args, grad = samples(3, 200, 130), torch.randn(3, 200, 130)
    fused, before = fuse(modulated), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            found.append(gradients(fused, args, grad))
    finally:
        torch.set_num_threads(before)
    for one, two, again in zip(*found, strict=True):
        assert torch.equal(two, again)
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_explain_tells_the_sums() -> None:
    x = torch.randn(6, 4)
    text = str(fuse(products).explain(x, x))
    assert "adds up, without storing the terms: result" in text
    text = str(fuse(lambda x: (x * x).sum((1, 3))).explain(torch.randn(3, 4, 5, 6, 7)))
    assert "it sums dimensions that lie on both sides of others" in " ".join(text.split())
    text = str(fuse(lambda x: x.amax(0)).explain(x))
    assert "reduces dimensions that are not the last, and is no sum" in " ".join(text.split())


@pytest.mark.skipif(nvrtc.problem() is not None, reason="needs NVRTC")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "function", [products, squared_error, images, norm, of_samples, modulated, modulated_norm]
)
def test_cuda_sources_compile(function: Callable[..., Any], dtype: torch.dtype) -> None:
    shapes: dict[Callable[..., Any], list[tuple[int, ...]]] = {
        images: [(2, 6, 8, 8)] * 2,
        norm: [(64, 384), (384,), (384,)],
        of_samples: [(4, 64, 384)] * 2,
        modulated: [(4, 64, 384), *[(4, 384)] * 3],
        modulated_norm: [(4, 64, 384), (384,), (384,), (4, 384)],
    }
    args = [torch.randn(s, dtype=dtype) for s in shapes.get(function, [(64, 384)] * 2)]
    if function in (norm, modulated, modulated_norm):
        args = [t.requires_grad_() for t in args]
    made = compiled(function, args, {}, "fused", torch.device("cuda"))
    plans = [made.forward[1], *([made.backward[1]] if made.backward else [])]
    summing = [kernel for plan in plans for kernel in plan.kernels if kernel.sums]
    assert summing
    for kernel in summing:
        used = compiled_for(kernel, symbols_of(made, args, {}), "sm_75")
        assert used.spilled == 0
        assert used.instructions > 20


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_sums_of_a_kernel_are_added_up_in_one_launch() -> None:
    """A norm's weight and bias, and the bias before it: partial sums, then one kernel for all."""

    def normed(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x + before, (768,), weight, bias)

    given = [torch.randn(512, 768), *(torch.randn(768) for _ in range(3))]
    args = [t.cuda().bfloat16().requires_grad_() for t in given]
    out = fuse(normed)(*args)
    grad = torch.randn_like(out)
    call = partial(torch.autograd.grad, out, args, grad, retain_graph=True)
    call()
    assert launches(call) == 2
    exact = [t.detach().double().requires_grad_() for t in args]
    true_ones = torch.autograd.grad(normed(*exact), exact, grad.double())
    for made, true in zip(call(), true_ones, strict=True):
        assert float((made - true).abs().max()) <= 2**-7 * float(true.abs().max())
