"""Modules over the fused ops, with the parameters, names and initial values of torch's own.

A class that replaces one torch module is a subclass of it: `isinstance` checks, initialisers and
checkpoints go on working. `from_torch` makes one that shares the very Parameters of a torch
module, and `convert` does that for all of a model that it recognises, torch's modules and those of
other libraries.
"""

from __future__ import annotations

from megafuse.nn.attention import Attention
from megafuse.nn.convert import convert
from megafuse.nn.ffn import FFN
from megafuse.nn.gelu_linear import GELULinear
from megafuse.nn.layer_norm import LayerNorm
from megafuse.nn.layernorm_linear import LayerNormLinear
from megafuse.nn.linear_gelu import LinearGELU
from megafuse.nn.linear_relu import LinearReLU
from megafuse.nn.residual_layer_norm import ResidualLayerNorm
from megafuse.nn.residual_rms_norm import ResidualRMSNorm
from megafuse.nn.rms_norm import RMSNorm
from megafuse.nn.sequential import Sequential
from megafuse.nn.swiglu_ffn import SwiGLUFFN
from megafuse.nn.transformer_block import TransformerBlock

__all__ = [
    "FFN",
    "Attention",
    "GELULinear",
    "LayerNorm",
    "LayerNormLinear",
    "LinearGELU",
    "LinearReLU",
    "RMSNorm",
    "ResidualLayerNorm",
    "ResidualRMSNorm",
    "Sequential",
    "SwiGLUFFN",
    "TransformerBlock",
    "convert",
]
