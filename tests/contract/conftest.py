"""Outputs start as NaN while the contract is checked, so that an unwritten element shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from megafuse.runtime import loader


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """The host runtime fills what it allocates: NaN in floats, −1 in integers."""
    host = loader.load()
    if host is None:
        yield
        return
    host.poison_outputs(True)
    yield
    host.poison_outputs(False)


@pytest.fixture
def torchs_threads() -> Iterator[None]:
    """`torch.set_num_threads` may be called."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
