"""Who prepares side by side: batches of orders.

A batch prepares together, and is measured when all of it is ready, one after the other: while one
is measured, nobody else compiles or uses the device. So those that take about as long to prepare
go together, and what is quick comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megafuse.bench.models.contenders import CONTENDERS
from megafuse.bench.models.order import REFERENCE, Order

# What a row takes of a float32 train step's memory.
_OF_MODE = {"forward": 0.35, "train": 1.0, "decode": 0.3}
_OF_DTYPE = {"float32": 1.0, "bfloat16": 0.6}
_OF_REFERENCE, _OF_GRAPHS = 2.0, 1.5
_MOST = 0.85  # of the device's memory


def batches(orders: Sequence[Order], jobs: int, memory: float) -> Iterator[list[Order]]:
    """At most so many orders at a time, of one pace, that fit into so many bytes."""
    batch: list[Order] = []
    for order in sorted(orders, key=_pace):
        together = [*batch, order]
        fits = sum(map(_bytes, together)) <= _MOST * memory
        if batch and (len(batch) == jobs or not fits or _pace(order) != _pace(batch[0])):
            yield batch
            together = [order]
        batch = together
    if batch:
        yield batch


def _pace(order: Order) -> int:
    return 0 if order.contender == REFERENCE else CONTENDERS[order.contender].pace


def _bytes(order: Order) -> float:
    case = order.case
    if case.tiny or case.device != "cuda":
        return 0.0  # a CPU's memory is looked at by each process: room.py
    if order.contender == REFERENCE:
        return case.of.gigabytes * 1e9 * _OF_MODE[case.mode] * _OF_REFERENCE
    share = _OF_MODE[case.mode] * _OF_DTYPE[case.dtype]
    graphs = _OF_GRAPHS if CONTENDERS[order.contender].graphs else 1.0
    return case.of.gigabytes * 1e9 * share * graphs
