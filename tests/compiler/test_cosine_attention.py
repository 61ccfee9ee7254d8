"""Attention between directions, as SwinV2 has it: the gradient of its scale, over many draws.

A head has one scale, and its gradient is a sum of terms that all but cancel. So of a single draw,
our error over eager's may be anything. Of SwinV2, medians of ten draws lay between 0.5 and 1.9 for
each of its two layers; over all 300 draws they were 0.99 and 1.05, and ours was the larger one in
49 and 52 of 100.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("anew"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]
WINDOWS, HEADS, TOKENS, WIDTH = 64, 2, 16, 8
DRAWS = 100


class CosineAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(HEADS, 1, 1))
        self.bias = nn.Parameter(torch.zeros(HEADS, TOKENS, TOKENS))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = cosines * torch.clamp(self.scale, max=math.log(100)).exp()
        scores = scores + (16 * torch.sigmoid(self.bias)).unsqueeze(0)
        return F.softmax(scores, dim=-1) @ v

    def draw(self) -> None:
        with torch.no_grad():
            self.scale.copy_(math.log(10) + torch.randn_like(self.scale) / 4)
            self.bias.copy_(torch.randn_like(self.bias))


def gradient(model: nn.Module, probe: Tensor, inputs: list[Tensor]) -> Tensor:
    """Of the scale, in float64."""
    model.zero_grad()
    (model(*inputs) * probe).sum().backward()
    found = model.scale.grad
    assert isinstance(found, Tensor)
    return found.double()


def test_the_gradient_of_a_scale() -> None:
    eager = CosineAttention()
    ours = mf.optimize(copy.deepcopy(eager))
    errors = []
    for _ in range(DRAWS):
        eager.draw()
        ours.load_state_dict(eager.state_dict())
        drawn = [torch.randn(WINDOWS, HEADS, TOKENS, WIDTH) for _ in range(4)]
        wide = [t.double() for t in drawn]
        exact = gradient(copy.deepcopy(eager).double(), wide[0], wide[1:])
        found = [gradient(model, drawn[0], drawn[1:]) - exact for model in (ours, eager)]
        errors.append([error.norm() / exact.norm() for error in found])
    mine, theirs = torch.tensor(errors).unbind(1)
    assert mine.median() <= 1.5 * theirs.median()
    assert (mine > theirs).double().mean() <= 0.7
