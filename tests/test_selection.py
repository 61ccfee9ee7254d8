"""tests/selection.py and the seeds: what `make test` and `make test-all` run, which numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import selection
import torch
from conftest import CHOSEN, FLOATS, dtype_name, seed_of

import megafuse

HERE = Path(__file__).parent


def pytest_says(*arguments: str, **environment: str) -> str:
    """What pytest prints, in a process of its own."""
    package = str(Path(megafuse.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *arguments],
        env={**os.environ, "PYTHONPATH": package, **environment},
        cwd=HERE.parent,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


# ---- what is quick


class Item:
    """A test as far as `selection` looks at it."""

    def __init__(self, function: str, mark: str = "", **parameters: object) -> None:
        self.originalname = function
        self.nodeid = f"tests/test_x.py::{function}[{'-'.join(map(str, parameters.values()))}]"
        self.callspec = type("Callspec", (), {"params": parameters})
        self.mark = mark

    def get_closest_marker(self, name: str) -> bool | None:
        return True if name == self.mark else None


class Case:
    def __init__(self, name: str, choice: str) -> None:
        self.name, self.choice, self.is_default = name, choice, choice == "a"

    def __str__(self) -> str:
        return f"{self.name}-{self.choice}"


CASES = [Case(op, choice) for op in ("one", "two") for choice in "abc"]


def combined(function: str) -> list[Item]:
    return [
        Item(function, case=case, dtype=dtype, shape=shape, device=device)
        for case in CASES
        for dtype in FLOATS
        for shape in range(3)
        for device in ("cpu", "cuda")
    ]


def values(items: list[Item], *names: str) -> set[tuple[object, ...]]:
    return {tuple(str(item.callspec.params[name]) for name in names) for item in items}


DEVICES = ("cpu", "cuda")


def on(items: list[Item], device: str) -> list[Item]:
    return [item for item in items if item.callspec.params["device"] == device]


def test_every_op_and_every_value_of_every_parameter_is_there_on_each_device():
    everything = combined("test_layout")
    found = selection.quick(everything)
    for device in DEVICES:
        here = on(found, device)
        assert {item.callspec.params["case"].name for item in here} == {"one", "two"}
        for name in ("dtype", "shape"):
            assert values(here, name) == values(everything, name)
        assert len(here) <= 2 + len(FLOATS) + 3
    assert {item.callspec.params["case"].choice for item in found} == {"a"}, "the default is enough"


def test_values_have_every_choice_and_every_op_in_every_dtype():
    everything = combined(min(selection.VALUES))
    for device in DEVICES:
        here = on(selection.quick(everything), device)
        assert values(here, "case") == values(everything, "case")
        pairs = {(i.callspec.params["case"].name, i.callspec.params["dtype"]) for i in here}
        assert pairs == {(op, dtype) for op in ("one", "two") for dtype in FLOATS}


def test_the_order_of_collection_does_not_matter():
    everything = combined("test_layout")
    names = [{item.nodeid for item in selection.quick(o)} for o in (everything, everything[::-1])]
    assert names[0] == names[1]


def test_slow_tests_are_not_quick():
    plain, slow = Item("test_plain"), Item("test_long", "slow")
    assert selection.quick([plain, slow]) == [plain]


def test_what_only_a_gpu_tells_apart_is_quick_there_alone():
    here, there = (Item("test_tails", "of_gpu", device=device) for device in DEVICES)
    assert selection.quick([here, there]) == [there]


def test_thorough_tests_have_every_two_values_together_and_every_choice():
    everything = combined("test_layout")
    found = selection.thorough([*everything, Item("test_long", "slow")])
    assert found[-1].originalname == "test_long", "slow ones too"
    for device in DEVICES:
        here = on(found[:-1], device)
        for two in (("dtype", "shape"), ("case", "device")):
            assert values(here, *two) == values(on(everything, device), *two)
        for other in ("dtype", "shape"):
            pairs = {(i.callspec.params["case"].name, i.callspec.params[other]) for i in here}
            assert len(pairs) == 2 * len(values(everything, other))
        assert len(here) < len(on(everything, device)) / 2
    assert selection.thorough([Item("test_long", "seldom")]) == []


def test_one_setting_of_a_module_will_do_but_for_its_values():
    cases = [Case(name, "a") for name in ("Linear", "Linear-no-bias", "Norm")]
    for function, count in (("test_pickle", 2), ("test_results_and_gradients_are_torchs", 3)):
        items = [Item(function, case=case, device="cpu") for case in cases]
        assert len(selection.quick(items)) == count


@pytest.mark.slow
def test_every_op_has_quick_tests_of_value_and_gradient_in_every_dtype():
    files = [str(HERE / "contract" / f"test_{name}.py") for name in ("value", "gradient")]
    said = pytest_says("--collect-only", "-m", "quick", *files)
    for file, ops in (
        ("value", megafuse.OPS),
        ("gradient", {n: op for n, op in megafuse.OPS.items() if op.differentiable}),
    ):
        ids = re.findall(rf"test_{file}\.py::test_(?:value|rows|error\w*)\[(.*)\]", said)
        found = {(op, dtype) for i in ids for op in ops for dtype in FLOATS if named(i, op, dtype)}
        # Ops whose every case draws have tests of their own.
        drawn = {name for name in ops if not any(named(i, name, torch.float32) for i in ids)}
        assert drawn <= {name for name, op in ops.items() if op.random}
        assert found == {(op, dtype) for op in set(ops) - drawn for dtype in FLOATS}


def named(test: str, op: str, dtype: torch.dtype) -> bool:
    return op in test.split("-") and dtype_name(dtype) in test.split("-")


# ---- seeds


def test_the_seed_comes_from_the_tests_id(seed: int, request: pytest.FixtureRequest):
    assert torch.initial_seed() == seed
    if not CHOSEN:
        assert seed == seed_of(request.node.nodeid)
    assert len({seed_of(f"tests/test_x.py::test[{i}]") for i in range(10_000)}) > 9990


def test_it_does_not_depend_on_the_process():
    assert seed_of("tests/test_x.py::test_a") == 0x74B34558, "as on every machine"


@pytest.mark.slow
def test_a_seed_can_be_given_or_drawn():
    this = f"{HERE / 'test_selection.py'}::test_the_seed_comes_from_the_tests_id"

    def printed(chosen: str) -> int:
        said = pytest_says("-s", this, MEGAFUSE_TEST_SEED=chosen)
        return int(re.search(r"MEGAFUSE_TEST_SEED=(\d+)", said)[1])

    assert printed("238311820") == 238311820
    assert printed("random") != printed("random")
