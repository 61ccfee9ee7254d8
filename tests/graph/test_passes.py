"""The validator finds what is wrong, the passes leave what is right, and graphs print readably."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch.utils._sympy.functions import FloorDiv, Mod

from graph import compare
from megafuse.codegen.prims import PRIMS
from megafuse.graph.clean import clean, dead, simpler, twins
from megafuse.graph.coordinates import reshape, simplified
from megafuse.graph.ir import (
    Constant,
    Coordinate,
    Gather,
    Graph,
    Input,
    Pointwise,
    Reduce,
    Value,
    View,
    axis,
)
from megafuse.graph.lowering import lower
from megafuse.graph.show import show
from megafuse.graph.validate import InvalidGraph, validate

N, M = sympy.symbols("s0 s1", integer=True, positive=True)
F32 = torch.float32


def x_of(*shape: Any, dtype: torch.dtype = F32) -> Input:
    return Input(0, (1,) * len(shape), dtype=dtype, shape=shape, name="x")


def graph_of(x: Input, *values: Value) -> Graph:
    for number, value in enumerate(values):
        value.name = value.name or f"v{number}"
    return Graph([x], [x, *values], [values[-1]])


def wrong_shape() -> Graph:
    x = x_of(N, 4)
    return graph_of(x, Pointwise(PRIMS["neg"], (x,), dtype=F32, shape=(M, 4)))


def wrong_dtype() -> Graph:
    x = x_of(N)
    return graph_of(x, Pointwise(PRIMS["neg"], (x,), dtype=torch.float64, shape=(N,)))


def wrong_kind() -> Graph:
    x = x_of(N, dtype=torch.int64)
    return graph_of(x, Pointwise(PRIMS["exp"], (x,), dtype=torch.int64, shape=(N,)))


def wrong_count() -> Graph:
    x = x_of(N)
    return graph_of(x, Pointwise(PRIMS["add"], (x,), dtype=F32, shape=(N,)))


def mixed() -> Graph:
    x = x_of(N)
    one = Constant(1, dtype=torch.int64, shape=())
    return graph_of(x, one, Pointwise(PRIMS["add"], (x, one), dtype=F32, shape=(N,)))


def too_few_coordinates() -> Graph:
    x = x_of(N, M)
    return graph_of(x, View(x, (axis(0),), dtype=F32, shape=(N,)))


def axis_that_is_not_there() -> Graph:
    x = x_of(N)
    return graph_of(x, View(x, (axis(1),), dtype=F32, shape=(N,)))


def sum_in_half() -> Graph:
    x = x_of(N, dtype=torch.bfloat16)
    return graph_of(x, Reduce("sum", x, (0,), False, dtype=torch.bfloat16, shape=()))


def wrong_dims() -> Graph:
    x = x_of(N)
    return graph_of(x, Reduce("sum", x, (1,), False, dtype=F32, shape=()))


def same_name() -> Graph:
    x = x_of(N)
    neg = Pointwise(PRIMS["neg"], (x,), dtype=F32, shape=(N,), name="x")
    return graph_of(x, neg)


def before_its_operand() -> Graph:
    graph = wrong_order_base()
    graph.values.reverse()
    return graph


def wrong_order_base() -> Graph:
    x = x_of(N)
    return graph_of(x, Pointwise(PRIMS["neg"], (x,), dtype=F32, shape=(N,)))


def index_of_floats() -> Graph:
    x = x_of(N)
    return graph_of(x, Gather(x, (x,), dtype=F32, shape=(N,)))


WRONG = [
    (wrong_shape, "v0 has shape"),
    (wrong_dtype, "v0 is torch.float64"),
    (wrong_kind, "v0 is exp of torch.int64"),
    (wrong_count, "v0 has 1 operands for add"),
    (mixed, "v1 mixes"),
    (too_few_coordinates, "v0 reads x at"),
    (axis_that_is_not_there, "v0 reads at i1"),
    (sum_in_half, "v0 adds in torch.bfloat16"),
    (wrong_dims, "v0 reduces"),
    (same_name, "x has no name of its own"),
    (before_its_operand, "v0 comes before its operand x"),
    (index_of_floats, "v0 reads at x"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_the_validator_names_the_value(make: Any, message: str) -> None:
    with pytest.raises(InvalidGraph, match=re.escape(message)):
        validate(make())


def test_a_right_graph_is_valid() -> None:
    validate(wrong_order_base())


def kinds(graph: Graph) -> list[str]:
    return [v.prim.name if isinstance(v, Pointwise) else type(v).__name__ for v in graph.values]


def test_twins_become_one() -> None:
    graph = lower(compare.captured(lambda x: x.exp() + x.exp() * x.exp(), torch.randn(3)))
    assert kinds(graph).count("exp") == 3
    assert kinds(dead(twins(graph))).count("exp") == 1


def test_random_twins_stay_two() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.randint_like(x, 9) - torch.randint_like(x, 9)

    assert kinds(compare.lowered(function, torch.randn(3))).count("Extern") == 2


def test_draws_stay_two_of_one_state() -> None:
    graph = compare.lowered(lambda x: torch.rand_like(x) - torch.rand_like(x), torch.randn(3))
    assert kinds(graph).count("uniform") == 2
    assert kinds(graph).count("Extern") == 1


def test_minus_zero_is_not_zero() -> None:
    graph = compare.lowered(lambda x: (x + 0.0, x + -0.0), torch.randn(3))
    assert kinds(graph).count("Constant") == 2


def test_the_dead_go_and_inputs_stay() -> None:
    graph = compare.lowered(lambda x, y: (x.exp(), y.sin())[0], torch.randn(3), torch.randn(2))
    assert kinds(graph) == ["Input", "Input", "exp"]


def test_views_of_views_are_one() -> None:
    def function(x: Tensor) -> Tensor:
        return x.permute(1, 0)[1:].reshape(-1, 1, x.shape[0]).transpose(0, 2)[..., 0]

    graph = compare.lowered(function, torch.randn(4, 6))
    assert kinds(graph) == ["Input", "View"]
    compare.check(function, torch.randn(4, 6))


def test_split_and_merge_undo_each_other() -> None:
    graph = compare.lowered(lambda x: x.unflatten(1, (2, 3)).flatten(1) * 2, torch.randn(4, 6))
    assert kinds(graph) == ["Input", "Constant", "mul"]


def test_constants_are_folded() -> None:
    graph = compare.lowered(lambda x: x + torch.tensor(2.0) * 3, torch.randn(4))
    assert [v.value for v in graph.values if isinstance(v, Constant)] == [6.0]


def test_factors_of_one_are_dropped() -> None:
    softplus = compare.lowered(torch.nn.functional.softplus, torch.randn(4))
    assert "mul" not in kinds(softplus)
    assert "div" not in kinds(softplus)
    wider = compare.lowered(lambda x: x * torch.ones(3, 1), torch.randn(4))
    assert len(wider.outputs[0].shape) == 2
    compare.check(lambda x: (1 * x / 1.0, 1 / x, x * 1.5), torch.randn(4))


def test_casts_that_lose_nothing_are_joined() -> None:
    there_and_back = compare.lowered(lambda x: x.float().bfloat16(), torch.randn(4).bfloat16())
    assert kinds(there_and_back) == ["Input"]
    rounded = compare.lowered(lambda x: x.bfloat16().float(), torch.randn(4))
    assert kinds(rounded) == ["Input", "cast", "cast"]


def test_each_pass_is_valid_and_right() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        h = torch.cat([x, y], 1).softmax(-1)
        return h.t().reshape(-1)[2:], h.var(0), h.to(torch.bfloat16).float() @ h.t()

    args = (torch.randn(3, 4), torch.randn(3, 2))
    found = compare.captured(function, *args)
    graph = lower(found)
    for step in (simpler, twins, dead, clean):
        graph = step(graph)
        got = compare.returned(found, compare.interpret(graph, args))
        compare.assert_same(got, function(*args))


def test_coordinates_are_simplified() -> None:
    i0, i1 = axis(0), axis(1)
    assert reshape((N, 6), (N, 2, 3)) == (i0, 3 * i1 + axis(2))
    assert simplified(reshape((N * 6,), (N, 6)), (N, 6)) == (6 * i0 + i1,)
    assert simplified([(i0 * M + i1) * 1], (N, M)) == (i0 * M + i1,)
    assert reshape((N, M), (N, 1, M)) == (i0, axis(2))
    assert reshape((2, 3), (3, 2)) != (i0, i1)
    halves = FloorDiv(2 * i0 + 1, 2 * M), Mod(2 * i0 + 1, 2 * M)
    assert simplified(halves, (N * M,)) == (FloorDiv(i0, M), 2 * Mod(i0, M) + 1)
    assert simplified([FloorDiv(6 * i0 + 11, 9)], (N,)) == (FloorDiv(2 * i0, 3) + 1,)
    assert simplified([FloorDiv(6 * i0 + 11, 9 * M)], (N,)) == (FloorDiv(2 * i0 + 3, 3 * M),)


def test_what_is_simplified_is_equal() -> None:
    i0, i1 = axis(0), axis(1)
    for top in (6 * i0 + 11, 4 * i0 + 6 * i1 + 3, 2 * i0 * M + 5, 3 * i0):
        for by in (2 * M, 9 * M, sympy.Integer(4), 6 * N * M):
            for expr in (FloorDiv(top, by), Mod(top, by)):
                (simple,) = simplified([expr], (N, M))
                for a, b, n, m in itertools.product(range(3), range(3), (3, 7), (3, 4)):
                    known = {i0: a, i1: b, N: n, M: m}
                    assert simple.subs(known) == expr.subs(known), (expr, simple)


def test_a_graph_prints_readably() -> None:
    def function(x: Tensor, gate: Tensor) -> Tensor:
        h = x * torch.sigmoid(gate)
        return h.sum(-1)

    text = show(compare.lowered(function, torch.randn(3, 5), torch.randn(3, 5)))
    assert re.search(r"h: f32\[s0, s1\] = mul\(x, sigmoid\)", text)
    assert re.search(r"sigmoid: .* # line \d+: h = x \* torch.sigmoid\(gate\)", text)
    assert "sum: f32[s0] = sum(h, dims [1])" in text
    assert text.endswith("return sum\n")


def test_coordinates_print() -> None:
    x = x_of(N)
    graph = graph_of(x, Coordinate(0, dtype=torch.int64, shape=(N,), name="i"))
    assert show(graph) == "x: f32[s0] = input 0, strides (1)\ni: i64[s0] = coordinate 0\nreturn i\n"
