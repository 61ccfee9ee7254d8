"""float32 products on CUDA: as accurate as cuBLAS's own, and Inf and NaN where it has them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import megafuse as mf
from megafuse.runtime import loader

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SHAPES = [(2048, 768, 2304), (4096, 3072, 768), (1000, 4096, 1160), (32768, 256, 1024)]
SHAPES += [(7985, 444, 2665), (1999, 1777, 445), (16385, 255, 2049)]  # no whole 16 bytes of halves


@pytest.fixture(autouse=True)
def split() -> Iterator[None]:
    mf.set_fp32_matmul("split")
    yield
    mf.set_fp32_matmul(None)


def error(got: Tensor, exact: Tensor) -> float:
    return ((got.double() - exact).square().mean() / exact.square().mean()).sqrt().item()


def launched(call: object) -> int:
    host = loader.load()
    assert host is not None
    assert callable(call)
    before = host.launch_count()
    call()
    return host.launch_count() - before


@pytest.mark.parametrize("shape", SHAPES)
def test_error_is_at_most_twice_that_of_strict_float32(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda") * k**-0.5
    exact = torch.relu(x.double() @ w.double().t())
    fused, eager = mf.linear_relu(x, w), torch.relu(x @ w.t())
    assert launched(lambda: mf.linear_relu(x, w)) > 1, "it was not split"
    assert error(fused, exact) <= 2 * error(eager, exact)
    worst = [(t.double() - exact).abs().max().item() for t in (fused, eager)]
    assert worst[0] <= 2 * worst[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape: tuple[int, int, int]) -> None:
    m, k, n = shape

    def run(function: object, dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.to(dtype).requires_grad_() for t in (x, w, b)]
        assert callable(function)
        out = function(*leaves)
        return list(torch.autograd.grad(out, leaves, grad.to(dtype)))

    x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda") * k**-0.5
    b, grad = torch.randn(n, device="cuda"), torch.randn(m, n, device="cuda") * 1e-5
    exact = run(mf.reference.linear_gelu, torch.float64)
    ours, eager = run(mf.linear_gelu, torch.float32), run(mf.reference.linear_gelu, torch.float32)
    for name, a, e, wide in zip(("x", "weight", "bias"), ours, eager, exact, strict=True):
        assert error(a, wide) <= 2 * error(e, wide) + 1e-7, name


def test_rows_of_any_magnitude() -> None:
    """Each row and each column has a scale of its own."""
    x, w = torch.randn(2048, 768, device="cuda"), torch.randn(1024, 768, device="cuda")
    x *= torch.logspace(-30, 30, 2048, device="cuda")[:, None]
    w *= torch.logspace(-6, 6, 1024, device="cuda")[:, None]
    exact = x.double() @ w.double().t()
    unit = x.double().norm(dim=1)[:, None] * w.double().norm(dim=1)
    fused, eager = (((f(x, w) - f(x.double(), w.double())).abs() / unit).amax(1)
                    for f in (mf.gelu_linear, mf.reference.gelu_linear))  # fmt: skip
    assert exact.isfinite().all()
    assert fused.max() <= 4 * eager.max() + 2.0**-24


@pytest.mark.parametrize("odd", [0, 1], ids=["whole", "odd"])
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
def test_inf_and_nan(special: float, odd: int) -> None:
    x = torch.randn(2048, 768 + odd, device="cuda")
    w = torch.randn(1024 + odd, 768 + odd, device="cuda")
    x[3, 5], x[2047, 767], w[11, 6] = special, special, special
    w[100, 5] = 0  # Inf times 0
    x[9] = 0
    x[20], w[7] = 3e38, 3e38  # overflows
    fused, eager = mf.linear_relu(x, w), mf.reference.linear_relu(x, w)
    # Where a sum overflows on its way eager has Inf; the exact result may be finite.
    exact = mf.reference.linear_relu(x.double(), w.double()).float()
    for of in (torch.isnan, torch.isposinf):
        assert not ((of(fused) != of(eager)) & (of(fused) != of(exact))).any()


def test_subnormal_rows() -> None:
    x, w = torch.randn(2048, 768, device="cuda") * 1e-40, torch.randn(1024, 768, device="cuda")
    w *= 1e20
    exact = torch.relu(x.double() @ w.double().t())
    assert error(mf.linear_relu(x, w), exact) <= 2 * error(mf.reference.linear_relu(x, w), exact)


def test_modes_differ_and_follow_the_switch() -> None:
    x, w = torch.randn(2048, 768, device="cuda"), torch.randn(1024, 768, device="cuda")
    exact = torch.relu(x.double() @ w.double().t())
    found = {}
    for mode in ("split", "ieee", "tf32"):
        mf.set_fp32_matmul(mode)
        found[mode] = error(mf.linear_relu(x, w), exact)
    assert found["tf32"] > 50 * max(found["split"], found["ieee"])
    mf.set_fp32_matmul("ieee")
    assert launched(lambda: mf.linear_relu(x, w)) <= 1


def test_follows_torch_where_not_set() -> None:
    x, w = torch.randn(2048, 768, device="cuda"), torch.randn(1024, 768, device="cuda")
    exact = torch.relu(x.double() @ w.double().t())
    mf.set_fp32_matmul(None)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert error(mf.linear_relu(x, w), exact) > 1e-5
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert error(mf.linear_relu(x, w), exact) < 1e-5


def test_captured_in_a_graph() -> None:
    x, w = torch.randn(2048, 768, device="cuda"), torch.randn(1024, 768, device="cuda")
    expected = mf.linear_relu(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mf.linear_relu(x, w)
    x.copy_(x.flip(0))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected.flip(0))


def test_same_bits_every_time() -> None:
    x, w = torch.randn(2048, 3072, device="cuda"), torch.randn(1024, 3072, device="cuda")
    assert torch.equal(mf.linear_relu(x, w), mf.linear_relu(x, w))
