"""Kernels of a program that are not built when it first comes to one of them are built together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.placed import here
from megafuse.compiler import fuse
from megafuse.compiler.backend import backend
from megafuse.runtime import build, builders, cpp, fallback, loader

pytestmark = pytest.mark.usefixtures("poisoned")


class Asked:
    """What the host asked for: several kernels at once, and single ones."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.single = 0
        self.fails: Callable[[], None] | None = None  # of single ones
        self.leaves_out = 0  # of each batch, from its end

    def one(self, *what: Any) -> Any:
        self.single += 1
        if self.fails is not None:
            self.fails()
        return builders.build_kernel(*what)

    def several(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.batches.append(len(asked))
        built = builders.build_kernels(asked)
        return [*built[: len(built) - self.leaves_out], *[None] * self.leaves_out]


@pytest.fixture
def asked() -> Iterator[Asked]:
    host = loader.load()
    assert host is not None
    made = Asked()
    rest = (build.available, fallback.Unbuildable)
    host.setup(made.one, made.several, *rest)
    host.forget_kernels()  # those of functions that other tests have left
    yield made
    host.setup(builders.build_kernel, builders.build_kernels, *rest)


def three_kernels(x: Tensor, w: Tensor) -> Tensor:
    """Each of them behind a product, so that they stay apart."""
    a = torch.softmax(x @ w, -1)
    b = torch.sin(a @ w) * 0.5
    return torch.nn.functional.layer_norm(b @ w + x, w.shape[-1:])


def arguments(rows: int = 33, cols: int = 70) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, cols), torch.randn(cols, cols)


def test_all_at_once(asked: Asked) -> None:
    fused, given = fuse(three_kernels), arguments()
    torch.testing.assert_close(fused(*given), three_kernels(*given))
    assert (asked.batches, asked.single) == ([3], 0)


def test_other_sizes_ask_for_what_they_need(asked: Asked) -> None:
    """Rows of 30 have a kernel of their own, and those of 70 are there already."""
    fused = fuse(three_kernels)
    for given in (arguments(), arguments(5, 30), arguments(8, 71), arguments(9, 31)):
        torch.testing.assert_close(fused(*given), three_kernels(*given))
    if here().type == "cpu":  # on CUDA rows of odd length have kernels of their own, too
        assert (asked.batches, asked.single) == ([3, 2], 0)
    assert asked.single == 0


def test_backward_too(asked: Asked) -> None:
    x, w = (t.double().requires_grad_() for t in arguments())
    made, expected = (
        torch.autograd.grad(f(x, w).square().sum(), (x, w))
        for f in (fuse(three_kernels), three_kernels)
    )
    torch.testing.assert_close(made, expected)
    assert (len(asked.batches), asked.single) == (2, 0)


def test_a_graph_of_torch_compile(asked: Asked, anew: None) -> None:
    given = arguments()
    model = torch.compile(three_kernels, backend=backend)
    torch.testing.assert_close(model(*given), three_kernels(*given))
    assert (asked.batches, asked.single) == ([3], 0)


def test_what_is_left_out_is_built_alone(asked: Asked) -> None:
    asked.leaves_out = 1
    fused, given = fuse(three_kernels), arguments()
    torch.testing.assert_close(fused(*given), three_kernels(*given))
    assert (asked.batches, asked.single) == ([3], 1)


def test_errors_are_those_of_a_single_build(asked: Asked) -> None:
    def wrong() -> None:
        raise ZeroDivisionError("no such kernel")

    asked.leaves_out, asked.fails = 1, wrong
    fused, given = fuse(three_kernels), arguments()
    with pytest.raises(ZeroDivisionError, match="no such kernel"):
        fused(*given)


def test_unbuildable_runs_the_function_itself(asked: Asked) -> None:
    def refused() -> None:
        raise fallback.Unbuildable("not here")

    asked.leaves_out, asked.fails = 1, refused
    fused, given = fuse(three_kernels), arguments()
    torch.testing.assert_close(fused(*given), three_kernels(*given))
    assert asked.single == 1


def test_the_cache_is_whole(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was built side by side is on disk: nothing is compiled again."""
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))
    given = arguments()
    fuse(three_kernels)(*given)
    assert asked.batches == [3]
    host = loader.load()
    assert host is not None
    host.forget_kernels()

    def compiles(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(cpp, "compile_shared", compiles)
    torch.testing.assert_close(fuse(three_kernels)(*given), three_kernels(*given))


def test_one_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(kind: str, device: int, number: int) -> Any:
        if number == 2:
            raise OSError("disk full")
        return str(number), "symbol"

    monkeypatch.setattr(builders, "build_kernel", kernel)
    found = builders.build_kernels([("functor", -1, n) for n in (1, 2, 3)])
    assert found == [("1", "symbol"), None, ("3", "symbol")]
