"""Operators of others whose backward reads values: one graph, and the gradients are eager's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import megafuse as mf
from megafuse.compiler import recordable
from megafuse.compiler.whole_backward import call_whole, with_whole_backwards
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.usefixtures("anew"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]
ops = torch.ops.megafuse_tests_whole


@pytest.fixture(scope="module", autouse=True)
def defined() -> Iterator[None]:
    """`grouped`: rows up to each end times a matrix of its own, and their sum. `twice`: 2·x, with a
    backward that can be traced. Their definitions are not kept: transformers keeps none either."""
    library = torch.library.Library("megafuse_tests_whole", "DEF")
    library.define(
        "grouped(Tensor x, Tensor weight, Tensor ends, float by=1.0) -> (Tensor, Tensor)"
    )
    library.define("twice(Tensor x) -> Tensor")
    torch.library.impl(library, "grouped", "CompositeExplicitAutograd")(_grouped)
    torch.library.impl(library, "twice", "CompositeExplicitAutograd")(lambda x: x * 2)
    names = [f"megafuse_tests_whole::{name}" for name in ("grouped", "twice")]
    torch.library.register_fake(names[0], _grouped_shapes, lib=library)
    torch.library.register_fake(names[1], torch.empty_like, lib=library)
    torch.library.register_autograd(names[0], _grouped_backward, setup_context=_keep, lib=library)
    torch.library.register_autograd(names[1], lambda ctx, grad: grad * 2, lib=library)
    yield
    library._destroy()


CALLS: list[str] = []


def _grouped(x: Tensor, weight: Tensor, ends: Tensor, by: float = 1.0) -> tuple[Tensor, Tensor]:
    CALLS.append("forward")
    out, start = x.new_zeros(len(x), weight.shape[2]), 0
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        out[start:end] = by * (x[start:end] @ matrix)
        start = end
    return out, out.sum(0)


def _grouped_shapes(x: Tensor, weight: Tensor, ends: Tensor, by: float = 1.0) -> Any:
    return x.new_empty(x.shape[0], weight.shape[2]), x.new_empty(weight.shape[2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, ctx.ends, ctx.by = inputs
    ctx.save_for_backward(x, weight)


def _grouped_backward(ctx: Any, grad: Tensor, grad_sum: Tensor) -> Any:
    CALLS.append("backward")
    x, weight = ctx.saved_tensors
    assert ctx.needs_input_grad[1]
    whole, start = ctx.by * (grad + grad_sum), 0
    of_x, of_weight = torch.zeros_like(x), torch.zeros_like(weight)
    for at, end in enumerate(ctx.ends.tolist()):
        of_x[start:end] = whole[start:end] @ weight[at].T
        of_weight[at] = x[start:end].T @ whole[start:end]
        start = end
    return of_x, of_weight, None, None


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 8))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        out, total = ops.grouped(x, self.weight.transpose(1, 2), ends=ends, by=0.5)
        return out.add_(0.25) @ total  # in place, as models do it: the backward needs no result


def run(model: nn.Module, x: Tensor, ends: Tensor) -> list[Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_(x.requires_grad)
    out = model(x, ends)
    out.square().sum().backward()
    found = [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return found if x.grad is None else [*found, x.grad]


def test_the_gradients_are_eagers_from_one_graph() -> None:
    torch.manual_seed(0)
    plain = Experts()
    model = mf.optimize(copy.deepcopy(plain))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, wants in ((7, True), (9, True), (6, False)):
            x, ends = torch.randn(rows, 8, requires_grad=wants), torch.tensor([2, 2, rows])
            expected = run(plain, x, ends)
            torch.testing.assert_close(run(model, x, ends), expected, rtol=1e-4, atol=1e-5)
    found = mf.explain(model)
    assert not found.breaks
    assert not any(graph.not_fused for graph in found.graphs)
    assert [[each.name for each in graph.passes] for graph in found.graphs] == [
        ["forward", "backward"]
    ] * 2  # with a gradient of x, and without


def test_the_forward_is_not_run_again_for_the_backward() -> None:
    model = mf.optimize(Experts())
    run(model, torch.randn(7, 8), torch.tensor([2, 2, 7]))
    CALLS.clear()
    run(model, torch.randn(7, 8), torch.tensor([3, 5, 7]))
    assert CALLS == ["forward", "backward"]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return ops.twice(x * self.weight)


@pytest.mark.parametrize(("model", "whole"), [(Experts, True), (Twice, False)])
def test_a_backward_that_can_be_traced_is_traced(model: type[nn.Module], whole: bool) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(with_whole_backwards(module))
        return module

    torch.compile(model(), backend=keep)(torch.randn(7, 8), torch.tensor([2, 2, 7]))
    (graph,) = graphs
    assert bool(graph.graph.find_nodes(op="call_function", target=call_whole)) == whole


def test_no_cuda_graph_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordable, "DEVICES", ("cpu", "cuda"))
    reasons: list[str] = []
    plain = recordable.why_not

    def told(traced: torch.fx.GraphModule, device: torch.device, steps: int) -> str:
        reasons.append(plain(traced, device, steps + 3))
        return reasons[-1]

    monkeypatch.setattr("megafuse.compiler.backend.why_not", told)
    run(mf.optimize(Experts(), graphs=True), torch.randn(7, 8), torch.tensor([2, 2, 7]))
    assert len(reasons) == 2
    assert all("nobody knows what" in reason for reason in reasons)
    assert "megafuse_whole" in reasons[1]
