"""Clusters never make a cycle."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from graph.test_partition import check
from megafuse.graph.cluster import Cluster
from megafuse.graph.order import Order


def test_a_kernel_that_got_a_member_late() -> None:
    """`z` joins the kernel of `y`, so that this waits for the one of `s`. Then `v` must not join
    that: it reads a product that has been there before, and that waits for `y`."""

    def late(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(a)
        x = y @ w
        s = torch.exp(b)
        z = torch.sin(y) * s
        v = torch.sin(s) + x[0]
        return z, v

    plan = check(late, torch.randn(5, 7), torch.randn(7), torch.randn(7, 7))
    assert len(plan.kernels) == 3


def _reaches(order: Order, start: Cluster, end: Cluster) -> bool:
    return start is end or any(_reaches(order, start, below) for below in order.before(end))


@pytest.mark.parametrize("seed", range(20))
def test_paths_are_known_however_clusters_are_merged(seed: int) -> None:
    chance = random.Random(seed)
    order = Order()
    for place in range(25):
        made = order.new(place)
        for _ in range(chance.randint(0, 3)):
            order.add(chance.choice(order.live()), made)
        one, other = chance.choices(order.live(), k=2)
        if not order.reaches(other, [one]):
            order.add(one, other)
        one, other = chance.choices(order.live(), k=2)
        if one is not other and chance.random() < 0.5:
            around = order.passes_outside(one, other) or order.passes_outside(other, one)
            if not around:
                order.merge(one, other)
        for start in order.live():
            for end in order.live():
                assert order.reaches(start, [end]) == _reaches(order, start, end)
