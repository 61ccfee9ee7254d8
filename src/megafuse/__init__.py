"""Many PyTorch operations, one kernel launch."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from megafuse import reference
from megafuse.doctor import doctor
from megafuse.ops import OPS

if TYPE_CHECKING:  # for editors and type checkers; at run time the names come from the registry
    from megafuse.ops.add_mul_add import add_mul_add as add_mul_add
    from megafuse.ops.add_mul_exp import add_mul_exp as add_mul_exp
    from megafuse.ops.bias_act import bias_act as bias_act
    from megafuse.ops.dequantize_int8 import dequantize_int8 as dequantize_int8
    from megafuse.ops.dropout_relu import dropout_relu as dropout_relu
    from megafuse.ops.gelu_scale import gelu_scale as gelu_scale
    from megafuse.ops.quantize_int8 import quantize_int8 as quantize_int8
    from megafuse.ops.scale_bias_sigmoid import scale_bias_sigmoid as scale_bias_sigmoid
    from megafuse.ops.swiglu import swiglu as swiglu

try:
    __version__ = metadata.version("megafuse")
except metadata.PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+checkout"

# Plain attributes, not a module __getattr__: that would cost each call 0.1 µs.
globals().update({name: op.fused for name, op in OPS.items()})

__all__ = ["OPS", "doctor", "reference", *OPS]
