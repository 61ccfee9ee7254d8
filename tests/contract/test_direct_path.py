"""Plain tensors go straight to the kernel; whatever watches a call makes it use the dispatcher."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from contract.cases import ONE_EACH, ONE_EACH_DIFFERENTIABLE, Case, one_pass
from contract.rules import check_gradients, check_value


def events(case: Case, device: str, requires_grad: bool) -> list[str]:
    """What the profiler saw one call do."""
    args = case.args((8, 8), device=device, requires_grad=requires_grad)
    case.op.fused(*args)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        case.op.fused(*args)
    return [event.name for event in found.events()]


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_plain_tensors_skip_the_dispatcher(case: Case, requires_grad: bool, device: str) -> None:
    """And one launch is all that happens: no copy, no fill, no cast beside it.

    A composite may call PyTorch for its matrix products.
    """
    seen = events(case, device, requires_grad)
    assert case.name in seen
    assert f"megafuse::{case.name}" not in seen
    if case not in one_pass(ONE_EACH):
        return
    assert [name for name in seen if name.startswith("aten::") and name != "aten::detach"] == []


class _ThroughDispatcher:
    """A case whose fused call is torch.ops.megafuse.<op>, for the same rules."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __getattr__(self, name: str) -> object:
        return getattr(self.case, name)

    @property
    def op(self) -> object:
        return _Op(self.case.op)


class _Op:
    def __init__(self, op: object) -> None:
        self._op = op
        self.fused = op._namespace["traced"]  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._op, name)


@pytest.mark.parametrize("shape", [(), (0, 5), (64, 64)])
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_the_dispatcher_gives_the_same_value(
    case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str
) -> None:
    check_value(_ThroughDispatcher(case), case.args(shape, dtype, device))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_the_dispatcher_gives_the_same_gradients(
    case: Case, dtype: torch.dtype, device: str
) -> None:
    args = case.args((64, 64), dtype, device)
    check_gradients(_ThroughDispatcher(case), args)  # type: ignore[arg-type]
