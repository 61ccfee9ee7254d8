"""Which tests `make test` runs: every op, every promise, every dtype, fewer of their combinations.

Most of the suite's time goes into compiling kernels, and most of its kernels are for combinations
(a choice × a dtype × a layout × a shape). The quick tests of a function are as many as it takes for

    every op,
    every value of every other parameter,
    and in the tests of VALUES every choice of an op's arguments, and every op in every dtype

to be there, on each device. They are taken in an order that depends on nothing but the tests
themselves, default choices and float32 first, so that tests share kernels. Layers come last in
other dtypes: eager's own products take up to a minute there on a CPU without 16-bit instructions.
Tests marked `slow` are not quick. `make test-all` runs everything.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable

import pytest
import torch

VALUES = {"test_value", "test_rows", "test_error_of_every_choice", "test_error_of_rows"}


def chosen(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [item for group in groups.values() for item in _cover(group)]


def _cover(group: list[pytest.Item]) -> list[pytest.Item]:
    seen: set[Hashable] = set()
    found = []
    for item in sorted(group, key=_order):
        new = _facts(item) - seen
        if new:
            seen |= new
            found.append(item)
    return found


def _order(item: pytest.Item) -> tuple[bool, bool, bool, int]:
    given = _parameters(item)
    case, dtype = given.get("case"), given.get("dtype", torch.float32)
    is_default = getattr(case, "is_default", True)
    is_layer = getattr(getattr(case, "op", None), "family", "") == "composite"
    usual = dtype == torch.float32
    return not is_default, not usual, is_layer and not usual, zlib.crc32(item.nodeid.encode())


def _facts(item: pytest.Item) -> set[Hashable]:
    """What would be untested if no test of the function had it."""
    given = _parameters(item)
    device, dtype = given.pop("device", None), given.get("dtype")
    facts: set[Hashable] = {(device, "any")}
    for name, value in given.items():
        op = getattr(value, "name", None) if name in ("case", "op") else None
        facts.add((device, name, str(value) if op is None else op))
        if op is not None and item.originalname in VALUES:
            facts |= {(device, "choice", str(value)), (device, op, dtype)}
    return facts


def _parameters(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else dict(callspec.params)
