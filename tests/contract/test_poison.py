"""The suite's own safety net: an element that no kernel writes is seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import megafuse as mf
from contract.cases import Case
from contract.rules import check_value
from megafuse.codegen import render
from megafuse.codegen.variant import Functors, Variant
from megafuse.runtime import loader


@pytest.fixture
def idle_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU kernels that are compiled and launched but write nothing."""

    def idle(functors: Functors, variant: Variant) -> str:
        return f'extern "C" void {variant.symbol}(const void*, long long, long long) {{}}\n'

    host = loader.load()
    if host is None:
        pytest.skip("no C++ compiler")
    host.forget_kernels()
    monkeypatch.setattr(render, "source", idle)
    yield
    host.forget_kernels()


def test_an_unwritten_float_is_nan(idle_kernels: None) -> None:
    assert mf.gelu_scale(torch.ones(1000), 1.7).isnan().all()


def test_an_unwritten_integer_is_minus_one(idle_kernels: None) -> None:
    assert (mf.quantize_int8(torch.full((1000,), 3.0), 0.1, 0) == -1).all()


def test_an_unwritten_row_is_nan(idle_kernels: None) -> None:
    for out in mf.residual_rms_norm(torch.ones(5, 8), torch.ones(5, 8)):
        assert out.isnan().all()


def test_the_rule_fails_on_it(idle_kernels: None) -> None:
    with pytest.raises(AssertionError, match="the value"):
        check_value(Case("swiglu"), Case("swiglu").args((1000,)))
