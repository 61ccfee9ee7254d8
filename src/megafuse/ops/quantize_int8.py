"""quantize_int8: float to int8 in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.codegen.variant import STORAGE, Operand, Variant
from megafuse.registry import Pointwise, Signature, op

_FLOATS = ("Half", "BFloat16", "Float", "Double")  # from narrow to wide


def _as_pytorch_computes(variant: Variant) -> dict[str, str]:
    """How PyTorch's own kernels divide and add, so that every bit comes out as theirs.

    A number, or a zero-dimensional CPU tensor, divides as it is, on CUDA by way of its
    reciprocal; the CPU's addition rounds it to the tensors' dtype first, CUDA's does not. Tensors
    are converted to the common dtype.
    """
    x, scale, zero = variant.inputs
    exact = STORAGE["Double" if variant.double else "Float"]
    common = STORAGE[variant.common]
    rounding = {"quotient_as": STORAGE[_quotient_dtype(x, scale, variant.common)]}
    if variant.device == "cuda":
        number = scale.walk == "v"
        return rounding | {
            "divide": "mf::Divide::" + ("kReciprocal" if number else "kDirect"),
            "scale_as": exact if number else common,
            "zero_as": exact if zero.walk == "v" else common,
        }
    uniform = scale.walk in "vb"
    # What is stored in the common dtype need not be rounded to it.
    return rounding | {
        # 16-bit rounding keeps GCC 12 from making two loops of kUniform.
        "divide": "mf::Divide::" + ("kUniform" if uniform and common == exact else "kDirect"),
        "scale_as": exact if uniform or scale.dtype == variant.common else common,
        "zero_as": exact if zero.walk != "v" and zero.dtype == variant.common else common,
    }


def _quotient_dtype(x: Operand, scale: Operand, common: str) -> str:
    """What x and scale promote to; x's own where scale has no say: as a number, or of no
    dimensions, which is seen from a common dtype below what they would promote to."""
    together = _promoted(x.dtype, scale.dtype)
    counts = scale.walk != "v" and _promoted(together, common) == common
    return together if counts else x.dtype


def _promoted(one: str, other: str) -> str:
    """PyTorch's type promotion of a float and any other dtype."""
    if {one, other} == {"Half", "BFloat16"}:
        return "Float"
    return max(one, other, key=_FLOATS.index) if other in _FLOATS else one


@op(
    kernel=Pointwise(
        "QuantizeInt8<{F}, {scale_as}, {zero_as}, {quotient_as}, {S}, {divide}>",
        words=_as_pytorch_computes,
        inverted="scale",
    ),
    signature=Signature(output_dtype="int8"),
    flops=(6, 0),
    sample=lambda draw: (draw.full(), 0.05, 3.0),
)
def quantize_int8(x: Tensor, scale: Tensor | float, zero_point: Tensor | float) -> Tensor:
    """clamp(round(x / scale + zero_point), −128, 127) as int8, ties to even, PyTorch's bits

    `scale` and `zero_point` are numbers, or tensors that broadcast against x: one value per
    channel of an NCHW image is `scale.view(-1, 1, 1)`. NaN becomes 0.
    """
    return torch.clamp(torch.round(x / scale + zero_point), -128, 127).to(torch.int8)
