"""Which tests `make test` runs: every op, every promise, every dtype, fewer of their combinations.

Most of the suite's time goes into compiling kernels, and most of its kernels are for combinations
(a choice × a dtype × a layout × a shape). The quick tests of a function are as many as it takes for

    every op, and in the tests of EVERY_CHOICE every choice of its arguments,
    every op in every dtype,
    every value of every other parameter

to be there, on each device. They are taken in an order that only depends on their names, with an
op's default choices first, so that tests share kernels. Tests marked `slow` are not quick.
`make test-all` runs everything.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable

import pytest

# Values and gradients: a choice is another formula there.
EVERY_CHOICE = {"test_value", "test_rows", "test_error_of_every_choice", "test_error_of_rows"}


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


def _order(item: pytest.Item) -> tuple[bool, int]:
    case = _parameters(item).get("case")
    return getattr(case, "is_default", True) is False, zlib.crc32(item.nodeid.encode())


def _facts(item: pytest.Item) -> set[Hashable]:
    """What would be untested if no test of the function had it."""
    given = _parameters(item)
    device, dtype = given.pop("device", None), given.get("dtype")
    facts: set[Hashable] = {(device, "always")}
    for name, value in given.items():
        if name == "dtype":
            continue
        op = getattr(value, "name", None) if name in ("case", "op") else None
        whole = op is None or item.originalname in EVERY_CHOICE
        facts.add((device, name, str(value) if whole else op))
        if op is not None:
            facts.add((device, op, dtype))
    facts.add((device, "dtype", dtype))
    return facts


def _parameters(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else dict(callspec.params)
