"""attention beyond the registry-driven suite: head sizes, groups, masks, memory, layouts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import megafuse as mf
from megafuse.runtime import loader

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Of the largest entry, for results of size 1 or so: a few roundings of the dtype. 16-bit kernels
# of torch round probabilities too.
TOLERANCE = {
    torch.float64: 1e-13,
    torch.float32: 4e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: Any, mask: Any) -> Tensor:
    """softmax(q kᵀ scale + mask) v, written out; rows that see nothing are 0."""
    repeat = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(repeat, dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.to(scores.dtype)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    blind = (scores == -math.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0).softmax(dim=-1).masked_fill(blind, 0) @ v


def packed(
    batch: int, queries: int, heads: int, dim: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as views of one projection's result, [batch, tokens, 3, heads, dim]."""
    x = torch.randn(batch, queries, 3, heads, dim, device=device).to(dtype)
    q, k, v = x.permute(2, 0, 3, 1, 4)
    return q, k, v


def check(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, mask: Any = None) -> None:
    """Values and gradients against float64."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = mf.attention(q, k, v, causal, mask=mask)
    seen = torch.randn(out.shape, device=out.device).to(out.dtype)
    gradients = torch.autograd.grad(out, (q, k, v), seen)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = exact(*wide, causal, None, mask)
    expected = torch.autograd.grad(wanted, wide, seen.double())
    # A gradient may be 0 by cancellation, but what cancelled had the size of the others.
    size = max(1.0, *(t.abs().max().item() for t in (wanted, *expected)))
    limit = TOLERANCE[q.dtype] * size
    names = ("out", "dq", "dk", "dv")
    for name, got, want in zip(names, (out, *gradients), (wanted, *expected), strict=True):
        error = (got.double() - want).abs().max().item()
        assert error <= limit, f"{name}: {error:.2e} > {limit:.2e}"


def random(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [1, 17, 32, 40, 64, 80, 96, 128, 192, 256])
def test_head_sizes(dim: int, dtype: torch.dtype, device: str) -> None:
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("float64 is the CPU's")
    check(*packed(2, 70, 2, dim, dtype, device), causal=dim % 3 == 0)


def _masks(batch: int, heads: int, queries: int, keys: int, device: str) -> dict[str, Tensor]:
    some = torch.rand(batch, heads, queries, keys, device=device) > 0.4
    some[:, :, 1] = False  # a query that sees nothing
    return {
        "keys": random(batch, 1, 1, keys, device=device),
        "heads": random(1, heads, 1, keys, device=device),
        "square": random(queries, keys, device=device),
        "whole": random(batch, heads, queries, keys, device=device),
        "queries": random(batch, 1, queries, 1, device=device),
        "bool": some,
        "padding": torch.rand(batch, 1, 1, keys, device=device) > 0.3,
        "infinite": torch.zeros(queries, keys, device=device).masked_fill(
            torch.rand(queries, keys, device=device) > 0.5, -math.inf
        ),
        "backwards": random(batch, heads, keys, queries, device=device).transpose(2, 3),
    }


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", _masks(1, 1, 2, 1, "cpu"))
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_masks(kind: str, causal: bool, dtype: torch.dtype, device: str) -> None:
    batch, heads, queries, keys = 2, 4, 75, 130
    mask = _masks(batch, heads, queries, keys, device)[kind]
    if mask.is_floating_point():
        mask = mask.to(dtype)
    q = random(batch, heads, queries, 32, dtype=dtype, device=device)
    k, v = (random(batch, heads // 2, keys, 32, dtype=dtype, device=device) for _ in "kv")
    check(q, k, v, causal, mask)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "groups", "queries", "keys"),
    [
        (4, 1, 1, 200),
        (6, 2, 100, 33),
        (3, 3, 5, 70),
        (8, 2, 130, 130),
        (2, 2, 300, 1),
        (6, 2, 90, 1),
    ],
)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_groups_and_lengths(
    heads: int, groups: int, queries: int, keys: int, causal: bool, dtype: torch.dtype, device: str
) -> None:
    q = random(2, queries, heads, 64, dtype=dtype, device=device).transpose(1, 2)
    k, v = (random(2, groups, keys, 64, dtype=dtype, device=device) for _ in "kv")
    check(q, k, v, causal)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["whole", "bool", "infinite"])
def test_one_key(kind: str, dtype: torch.dtype, device: str) -> None:
    """Its weight is 1, or 0 for a query that it is hidden from."""
    mask = _masks(2, 4, 30, 1, device)[kind]
    q = random(2, 4, 30, 32, dtype=dtype, device=device)
    k, v = (random(2, 2, 1, 32, dtype=dtype, device=device) for _ in "kv")
    check(q, k, v, mask=mask.to(dtype) if mask.is_floating_point() else mask)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long(dtype: torch.dtype, device: str) -> None:
    """Many blocks of keys, on every path: the running maxima and sums meet large scores late."""
    q, k, v = packed(1, 1100, 1, 64, dtype, device)
    k = k * torch.linspace(0.1, 3, 1100, device=device).to(dtype)[:, None]
    check(q, k, v)
    check(q, k, v, causal=True)
    check(q, k, v, mask=random(1, 1, 1, 1100, dtype=dtype, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("batch", "queries", "keys"),
    [(0, 3, 4), (2, 0, 4), (2, 3, 0)],
    ids=["batch", "queries", "keys"],
)
def test_nothing(batch: int, queries: int, keys: int, device: str) -> None:
    q = random(batch, 2, queries, 8, device=device).requires_grad_()
    k, v = (random(batch, 2, keys, 8, device=device).requires_grad_() for _ in "kv")
    out = mf.attention(q, k, v)
    assert out.shape == q.shape
    assert not out.any()
    for gradient, of in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v), strict=True):
        assert gradient.shape == of.shape
        assert not gradient.any()


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_are_followed_without_copies(device: str) -> None:
    """The result lies in memory as q does, so that a projection's view needs no copy."""
    q, k, v = (t.requires_grad_() for t in packed(2, 64, 4, 32, torch.float32, device))
    out = mf.attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.transpose(1, 2).is_contiguous()
    whole = [t.contiguous() for t in (q, k, v)]
    assert mf.attention(*whole).is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("kind", ["none", "keys", "bool"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_no_matrix_of_queries_by_keys(dtype: torch.dtype, kind: str, backward: bool) -> None:
    """Whatever is allocated on the CPU is far less than scores of [heads, queries, keys]."""
    queries = 2048
    q, k, v = (t.requires_grad_() for t in packed(1, queries, 2, 8, dtype, "cpu"))
    mask = {
        "none": None,
        "keys": random(1, 1, 1, queries, dtype=dtype),
        "bool": torch.rand(1, 1, 1, queries) > 0.1,
    }[kind]
    mf.attention(q[:, :, :8], k, v, mask=mask).sum().backward()  # compiles

    def run() -> None:
        out = mf.attention(q, k, v, mask=mask)
        if backward:
            out.sum().backward()

    assert _peak_allocation(run) < 2 * queries * queries * q.element_size() / 4


def _peak_allocation(run: Any) -> int:
    """The largest total that was allocated at one time, in bytes, by the CPU allocator."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profile:
        run()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "keys", "bool"])
def test_no_matrix_of_queries_by_keys_on_cuda(dtype: torch.dtype, kind: str) -> None:
    queries = 8192
    q, k, v = (t.requires_grad_() for t in packed(1, queries, 4, 64, dtype, "cuda"))
    mask = {
        "keys": random(1, 1, 1, queries, dtype=dtype, device="cuda"),
        "bool": torch.rand(1, 1, 1, queries, device="cuda") > 0.1,
    }.get(kind)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    mf.attention(q, k, v, kind == "causal", mask=mask).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 4 * queries * queries * q.element_size() / 4


def test_mask_gradient() -> None:
    q, k, v = packed(2, 9, 4, 16, torch.float64, "cpu")
    mask = torch.randn(2, 1, 9, 9, dtype=torch.float64)
    given = [t.detach().requires_grad_() for t in (q, k, v, mask)]
    fused = torch.autograd.grad(mf.attention(*given[:3], mask=given[3]).sin().sum(), given)
    wanted = torch.autograd.grad(exact(*given[:3], False, None, given[3]).sin().sum(), given)
    for got, want in zip(fused, wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_only_some_gradients() -> None:
    """Each subset of q, k and v gives the gradients that all together give."""
    base = [t.contiguous() for t in packed(2, 70, 2, 16, torch.float32, "cpu")]

    def gradients(wanted: tuple[bool, ...]) -> list[Tensor | None]:
        given = [t.detach().requires_grad_(w) for t, w in zip(base, wanted, strict=True)]
        mf.attention(*given, True).square().sum().backward()
        return [t.grad for t in given]

    everything = gradients((True, True, True))
    for wanted in itertools.product((False, True), repeat=3):
        if not any(wanted):
            continue
        for got, want, is_wanted in zip(gradients(wanted), everything, wanted, strict=True):
            assert (got is not None) == is_wanted
            if got is not None:
                torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_as_many_threads_as_there_are() -> None:
    """One head and several threads: queries and keys are shared out separately."""
    q, k, v = packed(1, 400, 1, 64, torch.float32, "cpu")
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            check(q, k, v)
            check(q, k, v, causal=True)
    finally:
        torch.set_num_threads(threads)


def test_the_same_every_time() -> None:
    q, k, v = (t.requires_grad_() for t in packed(2, 200, 3, 40, torch.float32, "cpu"))

    def run() -> list[Tensor]:
        out = mf.attention(q, k, v, True)
        return [out, *torch.autograd.grad(out.sum(), (q, k, v))]

    for first, second in zip(run(), run(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_nan_and_infinity() -> None:
    """A NaN spoils the queries that see it, as does an infinite score."""
    q, k, v = (t.contiguous() for t in packed(1, 40, 2, 16, torch.float32, "cpu"))
    k[0, 0, 20] = math.nan
    k[0, 1, 30, 0] = math.inf
    out = mf.attention(q, k, v, True)
    assert out[0, 0, :20].isfinite().all()
    assert out[0, 0, 20:].isnan().all()
    assert out[0, 1, :30].isfinite().all()
    ahead = q[0, 1, 30:, 0] > 0  # an infinite score; a score of -inf is merely not looked at
    assert torch.equal(out[0, 1, 30:].isnan().all(dim=-1), ahead)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_masks_of_the_lowest_number(dtype: torch.dtype) -> None:
    """What many models use for minus infinity: a query that sees only such keys averages them."""
    q, k, v = packed(1, 9, 2, 16, dtype, "cpu")
    mask = torch.zeros(1, 1, 9, 9, dtype=dtype)
    mask[..., 5:] = torch.finfo(dtype).min
    mask[:, :, 3] = torch.finfo(dtype).min
    out = mf.attention(q, k, v, mask=mask)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, mask), **close)
    if dtype != torch.float16:  # whose lowest number is not that low
        torch.testing.assert_close(out[:, :, 3], v.mean(dim=2), **close)


@pytest.mark.parametrize("scale", [-0.7, 0.0, 0.3, 5.0])
@pytest.mark.parametrize("masked", [False, True], ids=["bare", "masked"])
def test_scales(scale: float, masked: bool) -> None:
    q, k, v = (t.requires_grad_() for t in packed(2, 50, 2, 16, torch.float32, "cpu"))
    mask = random(50, 50) if masked else None
    out = mf.attention(q, k, v, True, scale, mask)
    want = exact(q.double(), k.double(), v.double(), True, scale, mask)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    pairs = (torch.autograd.grad(t.square().sum(), (q, k, v)) for t in (out, want))
    for got, wanted in zip(*pairs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a | {"k": torch.randn(2, 3, 5, 8), "v": torch.randn(2, 3, 5, 8)}, "multiple of"),
        (lambda a: a | {"mask": torch.randn(2, 4, 5, 6)}, "must broadcast to"),
        (lambda a: a | {"mask": torch.ones(5, 5, dtype=torch.int64)}, "floating point or bool"),
        (lambda a: a | {"mask": torch.randn(1, 1, 1, 1, 5)}, "must broadcast to"),
        (lambda a: a | {"v": torch.randn(2, 4, 5, 9)}, "'v' must be"),
    ],
)
def test_bad_arguments(change: Any, words: str) -> None:
    arguments = {name: torch.randn(2, 4, 5, 8) for name in "qkv"}
    with pytest.raises(ValueError, match=words):
        mf.attention(**change(arguments))


def test_compiled_with_packed_views() -> None:
    """torch.compile sees the strides that the kernels give."""
    if loader.load() is None:
        pytest.skip("no C++ compiler")
    x = torch.randn(2, 33, 3, 4, 16, requires_grad=True)

    def block(x: Tensor) -> Tensor:
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind()
        return mf.attention(q, k, v, True).transpose(1, 2).reshape(2, 33, 64)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), block(x))
    (got,) = torch.autograd.grad(compiled(x).sin().sum(), x)
    (want,) = torch.autograd.grad(block(x).sin().sum(), x)
    torch.testing.assert_close(got, want)
