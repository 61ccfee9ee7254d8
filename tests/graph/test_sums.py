"""Sums over rows and over everything: which kernel has them, and what is left to the library."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graph.test_partition import calls, check, kernels
from graph.test_partition_shapes import backward_of
from graph.test_pieces import planned
from megafuse.graph.interpret import interpret
from megafuse.graph.ir import Graph, Input, Reduce
from megafuse.graph.plan import Plan
from megafuse.graph.validate import InvalidGraph, validate

r = torch.randn


def sums(plan: Plan) -> list[int]:
    """How many each kernel has."""
    return [len(kernel.sums) for kernel in plan.kernels]


@pytest.mark.parametrize("dims", [0, 1, (0, 1), (0, 1, 2), (0, 2), (1, 2), (0, 1, 2, 3), None])
def test_no_term_is_written(dims: Any) -> None:
    x = r(3, 5, 4) if dims != (0, 1, 2, 3) else r(3, 5, 4, 2)
    plan = check(
        lambda x, y: (x * y).sum() if dims is None else (x * y).sum(dims), x, r(x.shape[-1])
    )
    if dims == (1, 2):
        assert (kernels(plan), calls(plan), sums(plan)) == (1, [], [0])  # a row
    else:
        assert (kernels(plan), calls(plan), sums(plan)) == (1, [], [1])


def test_between_others() -> None:
    plan = check(lambda x: (x * x).sum((1, 2)), r(3, 5, 4, 2))
    assert (kernels(plan), calls(plan), sums(plan)) == (1, [], [1])
    # Of the same shape, but as memory has it the middle is first.
    plan = check(lambda x: (x * x).sum(1), r(5, 3, 4).transpose(0, 1))
    assert (kernels(plan), calls(plan)) == (1, [])


def test_on_both_sides_of_what_stays_it_is_the_librarys() -> None:
    plan = check(lambda x: (x * x).sum((1, 3)), r(3, 5, 4, 6, 2))
    assert (kernels(plan), calls(plan)) == (1, ["aten::sum"])


def test_beside_whole_results() -> None:
    def both(x: Any, y: Any) -> Any:
        h = x * y
        return torch.sin(h), h.sum(0), (h * h).sum(0)

    plan = check(both, r(6, 4), r(6, 4))
    assert (kernels(plan), sums(plan)) == (1, [2])


def test_sums_over_other_dimensions_are_kernels_of_their_own() -> None:
    plan = check(lambda x, y: ((x * y).sum(0), (x * y).sum()), r(6, 4), r(6, 4))
    assert (kernels(plan), sums(plan), calls(plan)) == (2, [1, 1], [])


def test_what_reads_a_sum_comes_after_it() -> None:
    plan = check(lambda x: x - x.mean(0), r(6, 4))
    assert (kernels(plan), sums(plan)) == (2, [1, 0])
    assert [cut.reason for cut in plan.cuts] == ["a sum is known when its kernel is done"]


def test_a_chain_of_sums() -> None:
    plan = check(lambda x: x.var(0), r(6, 4))
    assert (kernels(plan), calls(plan)) == (3, [])


def test_unrelated_work_of_the_same_shape_stays_apart() -> None:
    plan = check(lambda x, y: (x.exp().sum(0), torch.sin(y)), r(6, 4), r(6, 4))
    assert sorted(sums(plan)) == [0, 1]


def test_gradients_of_weights_are_in_the_kernel_of_the_rows() -> None:
    def norm(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (8,), w, b)

    args = [t.requires_grad_() for t in (r(2, 3, 8), r(8), r(8))]
    plan, found, expected = backward_of(norm, *args)
    torch.testing.assert_close(found, expected)
    assert (kernels(plan), sums(plan), calls(plan)) == (1, [2], [])


def modulated(x: Any, shift: Any, scale: Any) -> Any:
    h = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return h * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_what_a_samples_rows_share_are_in_their_kernel(dtype: torch.dtype) -> None:
    args = [t.to(dtype).requires_grad_() for t in (r(2, 3, 8), r(2, 8), r(2, 8))]
    plan, found, expected = backward_of(modulated, *args)
    torch.testing.assert_close(found, expected)
    assert (kernels(plan), sums(plan), calls(plan)) == (1, [2], [])
    for out in plan.kernels[0].sums:
        assert out.buffer is not None
        assert out.buffer.dtype == dtype


def test_segments_beside_sums_over_all_rows() -> None:
    def norm(x: Any, w: Any, b: Any, scale: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (8,), w, b) * scale.unsqueeze(1)

    args = [t.requires_grad_() for t in (r(2, 3, 8), r(8), r(8), r(2, 8))]
    plan, found, expected = backward_of(norm, *args)
    torch.testing.assert_close(found, expected)
    assert (kernels(plan), sums(plan), calls(plan)) == (1, [3], [])


def test_rows_are_cut_into_segments_one_way() -> None:
    """Over heads and tokens, and over tokens: the second is a kernel of its own."""

    def both(x: Any, y: Any) -> Any:
        h = torch.softmax(x, -1) * y
        return h.sum((1, 2)), h.sum(2)

    plan = check(both, r(2, 3, 4, 5), r(5))
    assert (kernels(plan), sums(plan), calls(plan)) == (2, [1, 1], [])


def test_what_is_kept_between_summed_rows_is_no_segment() -> None:
    plan = check(lambda x: torch.softmax(x, -1).sum(1), r(2, 3, 4, 5))
    assert (kernels(plan), sums(plan), calls(plan)) == (2, [0, 1], [])


def test_rows_that_lie_beside_no_sum() -> None:
    """Row by row along the last dimension, and summed along it as well: that is no column."""

    def mixed(x: Any) -> Any:
        p = torch.softmax(x, -1)
        return p, p.sum(0), p.sum((0, 2))

    plan = check(mixed, r(3, 4, 5))
    assert sums(plan)[0] == 0
    assert sum(sums(plan)) == 2


def test_sixteen_bits_are_rounded_once() -> None:
    x = r(64, 8).bfloat16()
    plan = check(lambda x: (x * x).sum(0), x)
    assert (kernels(plan), sums(plan)) == (1, [1])
    (kernel,) = plan.kernels
    (out,) = kernel.sums
    assert out.buffer is not None
    assert out.buffer.dtype == torch.bfloat16
    assert [term.dtype for term in kernel.body.outputs] == ["Float"]


def test_rows_of_memory_are_rows() -> None:
    """Channels-last: the second dimension is the last in memory."""

    def channel_norm(x: Any) -> Any:
        centred = x - x.mean(1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-6)

    images = r(2, 6, 4, 5).to(memory_format=torch.channels_last)
    plan = check(channel_norm, images)
    assert (kernels(plan), calls(plan), sums(plan)) == (1, [], [0])
    plan = check(lambda x: torch.softmax(x, 0), r(5, 6).t())
    assert (kernels(plan), calls(plan)) == (1, [])


def test_a_part_of_the_domain_as_one_dimension_is_its_row() -> None:
    """H and W of an image, reduced as one dimension."""

    def pooled(x: Any) -> Any:
        h = torch.sigmoid(x)
        return h, h.flatten(2).sum(-1)

    plan = check(pooled, r(2, 3, 4, 5))
    assert (kernels(plan), calls(plan)) == (1, [])


def masked_mean(x: Any, mask: Any) -> Any:
    return (x * mask).sum() / mask.sum().clamp_min(1)


def hinge(x: Any, y: Any) -> Any:
    return torch.relu(1 - x).mean() + torch.relu(1 + y).mean()


def root_mean_square(x: Any, y: Any) -> Any:
    return (x - y).square().mean((0, 1), keepdim=True).sqrt() * x.shape[0]


def column(x: Any, y: Any) -> Any:
    """Of which nothing is left but a dimension of size 1."""
    return (x * y).reshape(-1, 1).sum(0) / len(x)


@pytest.mark.parametrize(
    ("function", "others"), [(masked_mean, 1), (hinge, 2), (root_mean_square, 1), (column, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_what_follows_a_sum_of_everything_is_in_the_kernel_that_adds_its_parts(
    function: Any, others: int, dtype: torch.dtype
) -> None:
    args = [(r(*(70, 300)).abs() + 1).to(dtype) for _ in range(2)]
    plan = planned(function, *args, device="cuda")
    assert [kernel.body.row_wise for kernel in plan.kernels] == [False] * others + [True]
    assert not calls(plan)
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    for kernel in plan.kernels[:-1]:
        for out in kernel.sums:
            assert out.buffer is not None
            assert (out.buffer.dtype, out.buffer.shape[-1]) == (wanted, out.parts)
    # A CPU's parts are added up in a loop: there the sum itself is written.
    assert all(not out.parts for k in planned(function, *args).kernels for out in k.sums)


def test_parts_of_several_dtypes_are_kernels_of_their_own() -> None:
    def both(x: Any) -> Any:
        return x.exp().sum() + x.exp().double().sum()

    plan = planned(both, r(70, 300), device="cuda")
    assert sorted(sums(plan)) == [0, 1, 1]


def test_a_graph_says_of_what_a_sum_in_parts_may_be() -> None:
    source = Input(position=0, dtype=torch.float32, shape=(3, 4), strides=(4, 1), name="x")

    def graph_of(dims: tuple[int, ...], kind: Any = "sum") -> Graph:
        made = Reduce(
            kind=kind,
            source=source,
            dims=dims,
            keep=False,
            parts=8,
            shape=(8,),
            dtype=source.dtype,
            name="parts",
        )
        return Graph([source], [source, made], [made], [(1,)])

    x = r(3, 4)
    (parts,) = interpret(graph_of((0, 1)), [x])
    assert parts.shape == (8,)
    torch.testing.assert_close(parts.sum(), x.sum())
    validate(graph_of((0, 1)))
    for wrong in (graph_of((0,)), graph_of((0, 1), "amax")):
        with pytest.raises(InvalidGraph, match="8 parts of what is no sum of everything"):
            validate(wrong)
