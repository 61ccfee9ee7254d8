"""Two ranks: where sharded results lie and what travels for it, random numbers, one model.

Every op and layout is in test_sharded_ops.py, every engine in test_engines.py.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from megafuse.registry.sample import Draw
from ranks.launch import needs_gloo, on_ranks

Check = Callable[[int, Any], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def spread(mesh: Any, *tensors: tuple[Tensor, Any]) -> list[Any]:
    from torch.distributed.tensor import distribute_tensor

    return [distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in tensors]


def silently(run: Callable[[], Any]) -> Any:
    """What it returns; raises if anything travelled for it."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as seen:
        found = run()
    assert seen.get_total_counts() == 0, seen.get_comm_counts()
    return found


@check
def pointwise_stays_where_it_is(rank: int, mesh: Any) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    x, bias = spread(mesh, (torch.randn(5, 3), Shard(0)), (torch.randn(3), Replicate()))
    out = silently(lambda: mf.bias_act(x, bias))
    assert out.placements == (Shard(0),)
    assert out.shape == (5, 3)
    grads = silently(lambda: torch.autograd.grad(out, (x, bias), out.detach()))
    assert [g.placements for g in grads] == [(Shard(0),), (Partial(),)]


@check
def a_feed_forward_block_is_cut_along_its_hidden_layer(rank: int, mesh: Any) -> None:
    """One sum at the end, and nothing before."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    x, w1, b1, w2 = spread(
        mesh,
        (torch.randn(2, 3, 6), Replicate()),
        (torch.randn(9, 6), Shard(0)),
        (torch.randn(9), Shard(0)),
        (torch.randn(6, 9), Shard(1)),
    )
    out = silently(lambda: mf.ffn(x, w1, b1, w2, None, "relu"))
    assert out.placements == (Partial(),)
    whole = spread(mesh, (torch.randn(2, 3, 6), Replicate()))[0].detach()
    grads = silently(lambda: torch.autograd.grad(out, (x, w1, b1, w2), whole))
    assert [g.placements[0] for g in grads] == [Partial(), Shard(0), Shard(0), Shard(1)]


@check
def attention_is_cut_along_heads(rank: int, mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    q, k, v = spread(mesh, *((torch.randn(1, h, 5, 8), Shard(1)) for h in (4, 2, 2)))
    assert silently(lambda: mf.attention(q, k, v, True)).placements == (Shard(1),)


@check
def causal_rows_are_not_cut(rank: int, mesh: Any) -> None:
    """Row i of a part is not row i of the whole."""
    from torch.distributed.tensor import Shard

    whole = torch.randn(2, 6, 6)
    dist.broadcast(whole, 0)
    (x,) = spread(mesh, (whole, Shard(1)))
    found = mf.softmax(x, causal=True).full_tensor()
    torch.testing.assert_close(found, mf.softmax(whole, causal=True))


@check
def random_numbers_are_those_of_the_whole(rank: int, mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    whole = torch.ones(6, 32)
    (x,) = spread(mesh, (whole, Shard(0)))
    torch.manual_seed(rank)
    with pytest.raises(RuntimeError, match="with one seed on all"):
        mf.dropout_relu(x, 0.5)
    torch.manual_seed(7)
    found = mf.dropout_relu(x, 0.5)
    (grad,) = torch.autograd.grad(found.full_tensor().sum(), x)
    torch.manual_seed(7)
    expected = mf.dropout_relu(whole, 0.5)
    assert torch.equal(found.full_tensor(), expected)
    assert torch.equal(grad.full_tensor(), expected)
    assert not torch.equal(expected[:3], expected[3:])


@check
def plain_tensors_are_refused_beside_spread_ones(rank: int, mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    (x,) = spread(mesh, (torch.randn(4, 3), Shard(0)))
    with pytest.raises(RuntimeError, match="'bias' is a plain Tensor"):
        mf.bias_act(x, torch.randn(3))


@check
def a_gradient_that_there_is_not_is_an_error(rank: int, mesh: Any) -> None:
    """Of a transformer block's mask. Whole tensors would go to the reference."""
    from torch.distributed.tensor import Replicate

    op = mf.OPS["transformer_block"]
    args = list(op.sample(Draw((2, 3, 8), everything=True)))
    given = [
        spread(mesh, (a, Replicate()))[0].detach() if isinstance(a, Tensor) else a for a in args
    ]
    mf.transformer_block(*given)
    given[op.position("mask")].requires_grad_()
    with pytest.raises(RuntimeError, match="no gradient for 'mask'"):
        mf.transformer_block(*given)


@check
def a_compiled_function_with_collectives(rank: int, mesh: Any) -> None:
    """Forward and backward, functional and in place."""
    import torch.distributed._functional_collectives as functional

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first = functional.all_gather_tensor_autograd(x.exp(), 0, dist.group.WORLD)
        product = w @ w
        second = functional.reduce_scatter_tensor_autograd(
            first * 2 + 1, "sum", 0, dist.group.WORLD
        )
        third = product.detach() * 2
        dist.all_reduce(third)
        return second.sin() @ product, third + second.sum()

    torch.manual_seed(rank)
    given = [torch.randn(4, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()]
    compiled = torch.compile(function, backend="megafuse")
    found, expected = compiled(*given), function(*given)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(
        torch.autograd.grad(found[0].sum(), given),
        torch.autograd.grad(expected[0].sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@check
def an_optimized_model_under_ddp(rank: int, mesh: Any) -> None:
    def trained(model: nn.Module, part: slice) -> Tensor:
        torch.manual_seed(1)
        x = torch.randn(6, 8)[part]
        F.mse_loss(model(x), x.flip(-1)).backward()
        return next(model.parameters()).grad

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    mine = nn.parallel.DistributedDataParallel(mf.optimize(model()))
    found = trained(mine, slice(rank * 3, rank * 3 + 3))
    torch.testing.assert_close(found, trained(model(), slice(None)))


def all_checks(rank: int) -> dict[str, str]:
    """How each failed, if it did."""
    assert "torch.distributed.tensor" not in sys.modules  # the ops get their rules when it is
    mesh = dist.init_device_mesh("cpu", (2,))
    wrong = {}
    for name, run in CHECKS.items():
        try:
            run(rank, mesh)
        except Exception as error:
            wrong[name] = "".join(traceback.format_exception(error))
        dist.barrier()
    return wrong


@pytest.mark.slow
@needs_gloo
def test_two_ranks(tmp_path: Any) -> None:
    """All in one pair of processes: starting them takes longest."""
    for wrong in on_ranks(2, all_checks, tmp_path):
        assert not wrong, "\n".join(f"{name}: {how}" for name, how in wrong.items())
