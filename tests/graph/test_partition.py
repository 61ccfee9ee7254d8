"""Plans compute what the functions do, in as few kernels as one expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from graph.run_plan import run_plan
from megafuse.graph.capture import capture
from megafuse.graph.clean import clean
from megafuse.graph.ir import Graph
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.partition import partition
from megafuse.graph.plan import Call, Plan

Function = Callable[..., Any]


def cut(function: Function, *args: Any) -> tuple[Plan, Graph]:
    with torch.no_grad():
        graph = clean(lower(capture(function, args, decompositions=decompositions())))
    return partition(graph, function.__name__), graph


def check(function: Function, *args: Any) -> Plan:
    """The plan, after its results were compared with eager's: values, dtypes, strides."""
    plan, graph = cut(function, *args)
    compare(function, plan, graph, *args)
    return plan


def compare(function: Function, plan: Plan, graph: Graph, *args: Any) -> None:
    expected = torch.utils._pytree.tree_leaves(function(*args))
    leaves = torch.utils._pytree.tree_leaves(args)
    given = [a for a in leaves if isinstance(a, (torch.Tensor, float, int))]
    found = run_plan(plan, graph, given)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert mine == pytest.approx(theirs)
            continue
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        for size, a, b in zip(theirs.shape, mine.stride(), theirs.stride(), strict=True):
            assert size <= 1 or a == b or theirs.numel() == 0


def kernels(plan: Plan) -> int:
    return len(plan.kernels)


def calls(plan: Plan) -> list[str]:
    return [step.target._schema.name for step in plan.steps if isinstance(step, Call)]


def gated_norm(x, gate, weight):
    h = x * torch.sigmoid(gate)
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def half_rms_norm(x, weight):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def layer_norm_2d(x):
    return F.layer_norm(x, x.shape[-2:])


def softmax(x):
    return torch.softmax(x, -1)


def rope(q, k, cos, sin):
    def turn(x):
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    return q * cos + turn(q) * sin, k * cos + turn(k) * sin


def swiglu(x, y):
    return F.silu(x) * y


def adamw(p, grad, m, v, lr, step):
    m = m.lerp(grad, 0.1)
    v = v * 0.999 + grad * grad * 0.001
    scale = lr / (1 - 0.9**step)
    denominator = (v / (1 - 0.999**step)).sqrt() + 1e-8
    return p * (1 - lr * 0.01) - scale * m / denominator, m, v


def group_norm(x, weight, bias):
    h = x.reshape(x.shape[0], 2, -1)
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True) + 1e-5).sqrt()
    return h.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]


def causal(x):
    n = x.shape[-1]
    keep = torch.arange(n)[:, None] >= torch.arange(n)[None, :]
    return torch.softmax(x.masked_fill(~keep, -torch.inf), -1)


def two_chains(x, y):
    return torch.exp(x) + 1, torch.sin(y) * 2


def several(x, y):
    s = x + y
    return s, s * 2, s.sum(-1), s.amax(-1, keepdim=True)


def transposed(x):
    return torch.tanh(x).t(), torch.exp(x).t().contiguous()


def zero_dim(x, y):
    return x * y + 1, torch.ones(())


def row_and_column(x, y):
    return x[:, None] * y[None, :] + 1


def padded(x):
    return F.pad(torch.exp(x), (1, 2)) + 1


def rolled(x):
    return x.roll(1, -1) * 2


def windows(x):
    return x.reshape(x.shape[0], -1, 2).sum(-1) + 1


def through_mm(x, w):
    h = torch.exp(x)
    return h + torch.mm(h, w).relu()


def argmax_of(x):
    return (x * 2).argmax(-1), x.max(-1).values


def column_sum(x):
    return torch.exp(x).sum(0) * 2


def mse(x, y):
    return ((x - y) ** 2).mean()


def batch_stats(x):
    return (x * 2).sum((0, 2, 3)), torch.relu(x)


def cross_entropy(x, target):
    return F.cross_entropy(x, target)


def log_likelihood(x, weight):
    return -(torch.log_softmax(x, -1) * weight).sum(-1).mean()


def several_dims(x):
    return x.prod(0), x.amax((0, 1)), (x > 0).any(0), x.argmin(0)


def global_norm(x):
    return x / x.norm()


r = torch.randn
ZOO: dict[Function, tuple[tuple[Any, ...], int]] = {
    gated_norm: ((r(6, 8), r(6, 8), r(8)), 1),
    rms_norm: ((r(2, 3, 8), r(8)), 1),
    half_rms_norm: ((r(5, 8, dtype=torch.bfloat16), r(8, dtype=torch.bfloat16)), 1),
    layer_norm: ((r(5, 7), r(7), r(7)), 1),
    layer_norm_2d: ((r(5, 7, 3),), 1),
    softmax: ((r(5, 7),), 1),
    rope: ((r(2, 4, 3, 8), r(2, 2, 3, 8), r(3, 8), r(3, 8)), 2),
    swiglu: ((r(5, 7), r(5, 7)), 1),
    adamw: ((r(9, 4), r(9, 4), r(9, 4), r(9, 4).abs(), 0.5, 3), 1),
    group_norm: ((r(3, 4, 5, 2), r(4), r(4)), 1),
    causal: ((r(2, 5, 5),), 1),
    two_chains: ((r(5), r(7, 2)), 2),
    several: ((r(5, 7), r(5, 7)), 1),
    transposed: ((r(5, 7),), 1),
    zero_dim: ((r(()), r(())), 1),
    row_and_column: ((r(4), r(6)), 1),
    padded: ((r(4, 6),), 1),
    rolled: ((r(4, 6),), 1),
    windows: ((r(4, 6),), 1),
    argmax_of: ((r(4, 6),), 1),
    through_mm: ((r(4, 6), r(6, 6)), 2),
    column_sum: ((r(4, 6),), 2),
    mse: ((r(4, 6), r(4, 6)), 2),
    batch_stats: ((r(4, 6, 3, 5),), 1),
    cross_entropy: ((r(4, 6), torch.tensor([1, 2, 0, 5])), 1),
    log_likelihood: ((r(4, 6), r(4, 6)), 2),
    several_dims: ((r(4, 6, 3),), 1),
    global_norm: ((r(4, 6),), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("function", ZOO, ids=lambda f: f.__name__)
def test_functions(function: Function) -> None:
    args, count = ZOO[function]
    assert kernels(check(function, *args)) == count
