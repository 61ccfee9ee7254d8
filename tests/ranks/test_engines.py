"""DDP, FSDP2 and tensor parallelism over optimized models: several ranks train as one does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ranks import cases, models
from ranks.launch import needs_gloo, on_ranks

pytestmark = [needs_gloo, pytest.mark.slow]

FOUR = ["optimized_ddp", "optimized_fsdp", "tp_optimized", "tp_sequence_parallel", "fsdp_and_tp"]
TWO = [name for name in cases.CASES if name != "fsdp_and_tp"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All cases of a number of ranks in one set of processes: starting them takes longest."""
    known: dict[int, list[dict[str, Any]]] = {}

    def of(count: int, names: list[str]) -> list[dict[str, Any]]:
        if count not in known:
            folder = tmp_path_factory.mktemp("ranks")
            known[count] = on_ranks(count, cases.run, folder, count, names)
        return known[count]

    return of


@pytest.fixture(scope="module")
def alone() -> dict[str, list[float]]:
    return {"gpt": models.train(models.gpt()), "wide": models.train(models.wide())}


@pytest.mark.parametrize(
    ("count", "name"),
    [
        *((2, name) for name in TWO),
        *(pytest.param(4, name, marks=pytest.mark.seldom) for name in FOUR),
    ],
)
def test_ranks_train_as_one_does(
    count: int, name: str, found: Any, alone: dict[str, list[float]]
) -> None:
    ranks = found(count, TWO if count == 2 else FOUR)
    for rank in ranks:
        assert not isinstance(rank[name], str), rank[name]
    if ranks[0][name] is None:  # the case has compared for itself
        return
    expected = alone["wide" if "ddp" in name else "gpt"]
    for rank in ranks:
        torch.testing.assert_close(rank[name], expected, rtol=1e-4, atol=1e-5)
    assert expected[-1] != expected[0]
