"""Plans of adversarial graphs: cycles, repeated layers, sizes 0, gathers, backward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graph.run_plan import run_plan
from graph.test_partition import calls, check, compare, cut, gated_norm, kernels, softmax
from megafuse.graph.capture import capture
from megafuse.graph.cluster import Cluster
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.order import Order
from megafuse.graph.partition import partition
from megafuse.graph.plan import Address, Plan

r = torch.randn


def test_a_diamond_through_the_library_is_no_cycle() -> None:
    def diamond(x, w):
        h = torch.exp(x)
        return torch.tanh(torch.mm(h, w)) * h + torch.mm(torch.sin(h), w)

    plan = check(diamond, r(4, 4), r(4, 4))
    assert kernels(plan) == 2
    assert calls(plan) == ["aten::mm", "aten::mm"]


def test_a_reduction_between_two_products() -> None:
    def block(x, w, v):
        h = torch.mm(x, w)
        h = h + x
        n = h * torch.rsqrt(h.square().mean(-1, keepdim=True))
        return torch.mm(n, v) + h

    plan = check(block, r(4, 6), r(6, 6), r(6, 6))
    assert kernels(plan) == 2


def test_another_row_length_is_another_kernel() -> None:
    def rows(x):
        h = torch.softmax(x, -1)
        return h / h.sum((-2, -1), keepdim=True)

    plan = check(rows, r(3, 4, 5))
    assert kernels(plan) == 2
    assert "another row length" in [c.reason for c in plan.cuts]


def layers(count: int) -> Any:
    def stack(x, w):
        for _ in range(count):
            h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
            x = x + torch.mm(torch.relu(h), w)
        return x

    return stack


def test_equal_layers_have_one_body() -> None:
    plan = check(layers(6), r(4, 6), r(6, 6))
    assert kernels(plan) == 7
    bodies = {id(k.body) for k in plan.kernels}
    assert len(bodies) == 3  # the first, the middle ones, and the last sum
    assert len({plan.key(k) for k in plan.kernels}) == 3
    assert len({k.body.name for k in plan.kernels}) == 3


def test_gathers_that_are_trusted() -> None:
    def look_up(table, at, x):
        return torch.nn.functional.embedding(at, table) * x + 1

    args = r(9, 5), torch.tensor([1, 3, 0]), r(3, 5)
    captured = capture(look_up, args, decompositions=decompositions())
    graph = lower(captured, trust_indices=True)
    plan = partition(graph, "look_up")
    compare(look_up, plan, graph, *args)
    assert kernels(plan) == 1
    assert not calls(plan)
    assert any(isinstance(word, Address) for word in plan.kernels[0].words)


def test_a_computed_table_is_stored() -> None:
    def look_up(table, at):
        return torch.exp(table)[at] * 2

    args = r(9, 5), torch.tensor([1, 3, 0])
    graph = lower(capture(look_up, args, decompositions=decompositions()), trust_indices=True)
    plan = partition(graph, "look_up")
    compare(look_up, plan, graph, *args)
    assert kernels(plan) == 2


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    def function(x):
        return x * 2 + 1, x.sum(-1) + 1

    check(function, r(shape))


def test_the_plan_holds_for_other_sizes() -> None:
    plan, graph = cut(gated_norm, r(6, 8), r(6, 8), r(8))
    compare(gated_norm, plan, graph, r(3, 5), r(3, 5), r(5))
    plan, graph = cut(softmax, r(6, 8))
    compare(softmax, plan, graph, r(2, 31))


def test_arguments_with_strides() -> None:
    def function(x, y):
        return torch.exp(x) + y, (x * y).sum(-1)

    check(function, r(6, 8).t(), r(8, 12)[:, ::2])


def test_views_of_arguments_are_views() -> None:
    def function(x):
        return x.t(), x[1:], x + 1

    x = r(4, 5)
    plan, graph = cut(function, x)
    assert kernels(plan) == 1
    found = run_plan(plan, graph, [x])
    assert found[0].data_ptr() == x.data_ptr()
    assert found[1].data_ptr() == x[1:].data_ptr()


def test_an_output_that_eager_copied() -> None:
    def function(x):
        return x.clone()

    x = r(4, 5)
    graph = lower(capture(function, (x,), decompositions=decompositions()))
    plan = partition(graph, "function", fresh=(0,))
    (found,) = run_plan(plan, graph, [x])
    assert found.data_ptr() != x.data_ptr()
    assert torch.equal(found, x)


def test_the_same_value_twice() -> None:
    def function(x):
        y = x * 2
        return y, y, y.t()

    assert kernels(check(function, r(3, 4))) == 1


def backward_of(function: Any, *args: Any) -> tuple[Plan, list[Any], list[Any]]:
    """The plan of the backward graph, what it returned, and autograd's gradients."""
    captured = capture(function, args, decompositions=decompositions())
    forward, backward = lower(captured), lower(captured, "backward")
    with torch.no_grad():
        results = run_plan(partition(forward, "forward"), forward, args)
    out = function(*args)
    grad = torch.randn_like(out)
    saved = results[len(results) - captured.saved :]
    taken = [saved[i] if kind == "saved" else grad for kind, i in captured.backward_takes]
    plan = partition(backward, "backward")
    with torch.no_grad():
        found = run_plan(plan, backward, taken)
    wanted = [args[i] for i in captured.gradients]
    return plan, found, list(torch.autograd.grad(out, wanted, grad))


def test_gradients() -> None:
    args = [t.requires_grad_() for t in (r(6, 8), r(6, 8), r(8))]
    plan, found, expected = backward_of(gated_norm, *args)
    torch.testing.assert_close(found, expected)
    assert (kernels(plan), calls(plan)) == (1, [])


def test_gradient_of_layer_norm() -> None:
    def norm(x, w, b):
        return torch.nn.functional.layer_norm(x, (8,), w, b)

    args = [t.requires_grad_() for t in (r(6, 8), r(8), r(8))]
    plan, found, expected = backward_of(norm, *args)
    torch.testing.assert_close(found, expected)
    assert kernels(plan) <= 2


def test_channels_stay_last_between_convolutions() -> None:
    def block(x, w):
        h = torch.relu(torch.nn.functional.conv2d(x, w, padding=1) + 1)
        return torch.nn.functional.conv2d(h, w, padding=1) * 2

    images = r(2, 3, 8, 8).to(memory_format=torch.channels_last)
    plan = check(block, images, r(3, 3, 3, 3).to(memory_format=torch.channels_last))
    assert kernels(plan) == 2


def test_rows_of_several_dimensions_that_are_not_dense() -> None:
    def norm(x, w):
        h = x - x.mean((-2, -1), keepdim=True)
        return h / h.square().sum((-2, -1), keepdim=True).sqrt() * w[:, None]

    assert kernels(check(norm, r(3, 8, 5)[:, ::2], r(4))) == 1


def test_a_reduction_turns_the_domain_of_what_it_joins() -> None:
    """The axis of size 1 goes first, for the value that is there and for the reduction's source."""

    def function(x, y):
        return torch.tanh(x), (y * 2).sum()

    check(function, r(2, 3, 1), r(2, 3, 1))

    def columns(x):
        return torch.tanh(x), (x * 2).sum(0), x.amax(0)

    check(columns, torch.empty(4, 3).normal_())


@pytest.mark.slow
def test_operands_are_bounded() -> None:
    def function(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total * 2 + x
        return total

    plan = check(function, *(r(5, 3) for _ in range(50)))
    assert 3 <= kernels(plan) <= 4


@pytest.mark.slow
def test_time_is_linear_in_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """By counting the steps that the search for cycles takes, not by a clock."""
    visits: list[Cluster] = []
    for search in (Order.before, Order.after):

        def counted(order: Order, cluster: Cluster, search: Any = search) -> set[Cluster]:
            visits.append(cluster)
            found: set[Cluster] = search(order, cluster)
            return found

        monkeypatch.setattr(Order, search.__name__, counted)
    counts = []
    for count in (20, 60):
        visits.clear()
        plan, _ = cut(layers(count), r(4, 6), r(6, 6))
        counts.append(len(visits))
        assert kernels(plan) == count + 1
    assert counts[0] <= counts[1] <= 4 * counts[0]
