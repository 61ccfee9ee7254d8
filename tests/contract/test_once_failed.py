"""Seeds that failed once, when tests drew new ones on every run: each is run for ever after.

A failure with MEGAFUSE_TEST_SEED=random that shows a mistake, here or in a rule, gets its line.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from contract import test_special_values, test_threads, test_value
from contract.cases import CASES, Case


class Once(NamedTuple):
    """A test, what it was called with, its seed, and what was wrong."""

    test: Callable[..., None]
    given: dict[str, Any]
    seed: int
    story: str


def case(name: str) -> Case:
    return next(c for c in CASES if str(c) == name)


FAILED = [
    Once(
        test_special_values.test_in_a_row,
        {"case": case("swiglu_ffn"), "dtype": torch.bfloat16},
        238311820,
        "silu(gate)·up was 1.0011 times the largest bfloat16: Inf after one rounding, finite after "
        "another, and the whole row with it",
    ),
    Once(
        test_value.test_rows,
        {"case": case("gelu_linear-none-absent"), "dtype": torch.float32, "shape": (1,)},
        1330225232,
        "a layer of one result, 0.058: 7.9 of its own ulps off, eager 0.6",
    ),
    Once(
        test_threads.test_eight_threads,
        {"seed": 1222651968},
        1222651968,
        "dequantize_int8's gradients, sums of terms around 100 that cancel, against 1e-4",
    ),
]


@pytest.mark.slow
@pytest.mark.usefixtures("torchs_threads")
@pytest.mark.parametrize("once", FAILED, ids=lambda once: f"{once.test.__name__}-{once.seed}")
def test_once_failed(once: Once, device: str) -> None:
    torch.manual_seed(once.seed)
    random.seed(once.seed)
    once.test(**once.given, device=device)
