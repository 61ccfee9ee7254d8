"""Which tests `make test` and `make test-all` run: every op, every promise, every dtype, fewer of
their combinations.

Most of the suite's time goes into compiling kernels, and most of its kernels are for combinations
(a choice × a dtype × a layout × a shape). The quick tests of a function, those of `make test`, are
as many as it takes for

    every kind of op (pointwise, rows or composite), every module,
    every value of every other parameter,
    and in the tests of VALUES every op, every choice of its arguments, and every dtype of each

to be there, on each device. Its thorough ones, which `make test-all` adds, are as many as it takes
for every op with every choice, and every two values of two parameters together, ops by their kind:
what goes wrong does so for a kind of op in a layout, or a dtype in a shape; seldom for one op, in
one dtype, in one layout alone. `make test-every` runs everything.

They are taken in an order that depends on nothing but the tests themselves, default choices and
float32 first, so that tests share kernels; which op stands for its kind differs from test to test.
Layers come last in other dtypes: eager's own products take up to a minute there on a CPU without
16-bit instructions. Tests marked `slow` are thorough, never quick; those marked `seldom` are
neither, nor on a CPU those marked `of_gpu`, about cases that only a GPU's kernels tell apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import combinations
from typing import Any

import pytest
import torch

VALUES = {
    "test_value",
    "test_rows",
    "test_error_of_every_choice",
    "test_error_of_rows",
}
# Of these every choice, in one dtype or another.
CHOICES = {"test_results_and_gradients_are_torchs"}


def quick(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Those of `make test`."""
    return _chosen((item for item in items if not item.get_closest_marker("slow")), _facts)


def thorough(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Those that `make test-all` adds, and most of the quick ones."""
    return _chosen(items, _pairs)


def one_quick(values: Iterable[Any]) -> list[Any]:
    """Parameters of which the first alone is quick: those of a test that compiles seconds for each,
    and of which one shows that the thing works at all."""
    first, *others = values
    return [first, *(pytest.param(value, marks=pytest.mark.slow) for value in others)]


def often(values: Iterable[Any], which: Collection[Any]) -> list[Any]:
    """Parameters of which these are in `make test-all`, and the others in `make test-every` alone:
    they take minutes together, and are like these."""
    return [v if v in which else pytest.param(v, marks=pytest.mark.seldom) for v in values]


Facts = Callable[[pytest.Item], "set[Hashable]"]


def _chosen(items: Iterable[pytest.Item], facts: Facts) -> list[pytest.Item]:
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        of_gpu = item.get_closest_marker("of_gpu") and _parameters(item).get("device") == "cpu"
        if not of_gpu and not item.get_closest_marker("seldom"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [item for group in groups.values() for item in _cover(group, facts)]


def _cover(group: list[pytest.Item], facts: Facts) -> list[pytest.Item]:
    """Those without which a fact would be untested."""
    seen: set[Hashable] = set()
    found = []
    for item in sorted(group, key=_order):
        new = facts(item) - seen
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
        if op is None:
            facts.add((device, name, str(value)))
        elif item.originalname in VALUES:
            facts |= {(device, "choice", str(value)), (device, op, dtype)}
        elif item.originalname in CHOICES:
            facts.add((device, name, str(value)))
        else:
            facts.add((device, name, _kind(value)))
    return facts


def _pairs(item: pytest.Item) -> set[Hashable]:
    """Every parameter's value, and every two of them, ops by their kind."""
    given = _parameters(item)
    device = given.pop("device", None)
    named = [(name, _brief(name, value)) for name, value in sorted(given.items())]
    whole = {(device, name, str(value)) for name, value in given.items()}
    return {(device, "any"), *whole, *((device, *two) for two in combinations(named, 2))}


def _brief(name: str, value: Any) -> Hashable:
    return _kind(value) if name in ("case", "op") and hasattr(value, "name") else str(value)


def _kind(value: Any) -> Hashable:
    """Of an op, or of a case of one; else, of a module, its name without the settings."""
    op = getattr(value, "op", value)
    if hasattr(op, "family"):
        return op.family
    return value.name.partition("-")[0]


def _parameters(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else dict(callspec.params)
