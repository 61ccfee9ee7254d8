"""Sizes that make long formulas become constants, and only those: the batch stays a symbol."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F

import megafuse as mf
from megafuse.compiler import hard_sizes
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]


class Windows(nn.Module):
    """Swin's way: pads to whole windows, cuts the image into them, and joins them again."""

    def __init__(self, channels: int = 4, window: int = 4) -> None:
        super().__init__()
        self.mix, self.window = nn.Linear(channels, channels), window

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        size, (batch, _, channels) = self.window, x.shape
        missing = [(size - length % size) % size for length in (height, width)]
        image = F.pad(x.view(batch, height, width, channels), (0, 0, 0, missing[1], 0, missing[0]))
        _, rows, cols, _ = image.shape
        cut = image.view(batch, rows // size, size, cols // size, size, channels)
        windows = cut.transpose(2, 3).contiguous().view(-1, size * size, channels)
        windows = self.mix(windows).softmax(1)
        joined = windows.view(-1, rows // size, cols // size, size, size, channels)
        image = joined.transpose(2, 3).contiguous().view(-1, rows, cols, channels)
        image = image[:, :height, :width, :].contiguous()
        return x + image.view(batch, height * width, channels)


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 2, stride=2)
        self.layers = nn.ModuleList(Windows() for _ in range(layers))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patches(pixels)
        _, _, height, width = patches.shape
        x = patches.flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, height, width)
        return x.mean(1)


@pytest.mark.slow
def test_an_image_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a question is short; other batches run what is there."""
    asked: list[int] = []
    usual = ShapeEnv._evaluate_expr

    def answer(self: Any, question: Any, *rest: Any, **how: Any) -> Any:
        if not self._suppress_guards_tls():  # else no size may become a constant
            asked.append(terms(self.replace(question)))
        return usual(self, question, *rest, **how)

    monkeypatch.setattr(ShapeEnv, "_evaluate_expr", answer)
    model = mf.optimize(Model(layers=2))
    same(model, torch.randn(2, 3, 20, 20))
    assert 3 < max(asked) <= hard_sizes._MOST_TERMS
    same(model, torch.randn(5, 3, 20, 20))
    assert len(mf.explain(model).graphs) == 1
    same(model, torch.randn(3, 3, 28, 28))  # an image of another size is captured anew
    assert len(mf.explain(model).graphs) == 2


def test_short_formulas_stay() -> None:
    """Images without windows: one capture for all of their sizes."""
    model = mf.optimize(Model(layers=0))
    for batch, length in ((2, 20), (5, 28), (3, 12)):
        same(model, torch.randn(batch, 3, length, length))
    assert len(mf.explain(model).graphs) == 1


def terms(formula: Any) -> int:
    return 1 + sum(terms(part) for part in formula.args)


def same(model: nn.Module, pixels: Tensor) -> None:
    """The optimized model, and the module without it: values and gradients."""
    found = []
    for call in (model, model._call_impl):
        model.zero_grad()
        out = call(pixels)
        out.square().sum().backward()
        found.append([out, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
