"""`fused.source` shows what runs: the user's names and lines, what is read and written."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import megafuse as mf
from megafuse.runtime import loader


@mf.fuse
def gated_norm(x: Any, gate: Any, weight: Any) -> Any:
    h = x * torch.sigmoid(gate)
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight


def arguments(grad: bool = False) -> tuple[torch.Tensor, ...]:
    x, gate = torch.randn(6, 8, requires_grad=grad), torch.randn(6, 8)
    return x, gate, torch.randn(8, requires_grad=grad)


def test_before_the_first_call_it_says_what_to_do() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    said = mf.fuse(double).source
    assert "double has not been called yet" in said
    assert "source_for" in said


def test_the_users_names_and_lines_are_in_it() -> None:
    shown = gated_norm.source_for(*arguments())
    assert "struct GatedNorm" in shown
    assert "// h = x * torch.sigmoid(gate)" in shown
    assert "float x, float gate" in shown
    assert "reads  x f32[s0, s1], gate f32[s0, s1], weight f32[s1]" in shown
    assert "writes result f32[s0, s1]\n" in shown
    assert "backward" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_backward_has_the_forwards_names() -> None:
    shown = gated_norm.source_for(*arguments(grad=True))
    backward = shown.partition("---- backward")[2]
    assert "struct GatedNormBackward" in backward
    assert "grad of x" in backward
    assert "grad of weight" in backward
    assert "float gate" in backward
    assert "saved_" not in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.skipif(loader.load() is None, reason="needs a C++ compiler")
def test_every_variant_that_ran_is_shown() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    fused = mf.fuse(double)
    fused(torch.ones(3))
    assert fused.source == fused.source_for(torch.ones(5))
    fused(torch.ones(3, dtype=torch.bfloat16))
    assert "x: float32, 1-d" in fused.source
    assert "x: bfloat16, 1-d" in fused.source


def test_importing_the_package_imports_no_tracer() -> None:
    code = (
        "import sys, megafuse; megafuse.fuse(lambda x: x)\n"
        "print([m for m in ('sympy', 'torch._dynamo') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.slow  # torch is imported anew
def test_a_first_call_imports_no_export() -> None:
    """torch's ShapeEnv imports it to tell the user's line from its own, which nobody reads."""
    code = (
        "import sys, torch, megafuse as mf\n"
        "fused = mf.fuse(lambda x, k: x.sigmoid() * k)\n"
        "assert fused(torch.randn(5, 7), 2.0).shape == (5, 7) and len(fused.variants) == 1\n"
        "slow = 'torch.export._trace', 'torch._inductor.sizevars'\n"
        "print([m for m in slow if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n", ran.stderr


def test_an_ops_reference_shows_its_own_lines() -> None:
    """Of the package, only those who trace are not the user."""
    gate = torch.randn(4, 6)
    shown = mf.fuse(mf.OPS["swiglu"].reference).source_for(gate, gate.clone())
    assert "// return F.silu(gate) * up" in shown
