"""Weights as int8, one scale for each output channel: half the bytes of bfloat16.

q = round(w / s) with s = max|w| / 127 over the row; the kernel computes s · Σ q x in float32, with
x as it is. Embeddings and norms stay: of the embedding one row is read a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.decode.reading import Layer, Matrix, Model
from megafuse.ops import OPS


def quantized(matrix: Matrix) -> Matrix:
    weight = matrix.weight.float()
    scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    rounded: Tensor = OPS["quantize_int8"].fused(weight, scale[:, None], 0.0)
    return Matrix(rounded, matrix.bias, scale)


def with_int8(model: Model) -> Model:
    """The same model, its matrices quantized; the original's weights are left as they are."""
    for layer in model.layers:
        _quantize_layer(layer)
    model.head = quantized(model.head)
    return model


def _quantize_layer(layer: Layer) -> None:
    layer.qkv = [quantized(m) for m in layer.qkv]
    layer.project = quantized(layer.project)
    layer.gate_up = [quantized(m) for m in layer.gate_up]
    layer.down = quantized(layer.down)
