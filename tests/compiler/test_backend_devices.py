"""torch.compile's graphs with tensors on several devices: the arguments' is where they run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compiler.counted import launches
from megafuse.compiler.backend import backend
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]


def test_a_range_that_is_made_elsewhere_is_made_here() -> None:
    """As masks and tables are made on the CPU, and moved. From "meta" nothing could be moved."""

    def shifted(x: Tensor) -> Tensor:
        return x + torch.arange(5, device="meta").to(x.device)

    x = torch.randn(3, 5)
    call = torch.compile(shifted, backend=backend)
    torch.testing.assert_close(call(x), x + torch.arange(5, device=x.device))
    assert launches(lambda: call(x)) == 1


def test_results_elsewhere_run_unfused() -> None:
    call = torch.compile(lambda x: (x + 1, torch.ones(3, device="meta")), backend=backend)
    near, far = call(torch.ones(3))
    assert near.eq(2).all()
    assert far.device.type == "meta"
