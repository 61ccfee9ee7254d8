"""DDP, FSDP2 and tensor parallelism over optimized models: several ranks train as one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ranks import cases, models
from ranks.launch import needs_gloo, on_ranks

pytestmark = [needs_gloo, pytest.mark.slow]

FOUR = ["optimized_ddp", "optimized_fsdp", "tp_optimized", "tp_sequence_parallel", "fsdp_and_tp"]
OFTEN = [
    *("ddp_of_optimized", "optimized_ddp", "ddp_accumulates", "optimized_fsdp"),
    *("fsdp_mixed_precision", "tp_optimized", "shards_step_as_wholes_do"),
]
SELDOM = [name for name in cases.CASES if name not in (*OFTEN, "fsdp_and_tp")]


# A set of processes runs many cases, since starting it takes longest; so these are one test, which
# workers of pytest cannot share out and start twice.
@pytest.mark.parametrize(
    ("count", "names"),
    [
        (2, OFTEN),
        pytest.param(2, SELDOM, marks=pytest.mark.seldom),
        pytest.param(4, FOUR, marks=pytest.mark.seldom),
    ],
    ids=["2-often", "2-seldom", "4"],
)
def test_ranks_train_as_one_does(count: int, names: list[str], tmp_path: Path) -> None:
    alone = {"gpt": models.train(models.gpt()), "wide": models.train(models.wide())}
    assert all(losses[-1] != losses[0] for losses in alone.values())
    wrong = []
    for number, rank in enumerate(on_ranks(count, cases.run, tmp_path, count, names)):
        for name in names:
            expected = alone["wide" if "ddp" in name else "gpt"]
            try:
                assert not isinstance(rank[name], str), rank[name]
                if rank[name] is not None:  # else the case has compared for itself
                    torch.testing.assert_close(rank[name], expected, rtol=1e-4, atol=1e-5)
            except AssertionError as error:
                wrong.append(f"{name}, rank {number}: {error}")
    assert not wrong, "\n\n".join(wrong)
