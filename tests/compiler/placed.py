"""Where a test's tensors are: conftest.py runs tests on the CPU, and once more on a GPU."""

from __future__ import annotations

import torch


def here() -> torch.device:
    return torch.empty(0).device
