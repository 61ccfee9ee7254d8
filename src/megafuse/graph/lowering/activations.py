"""Activations and their slopes: whole where a primitive is more accurate than its parts."""

from __future__ import annotations

import torch

from megafuse.graph.ir import Value
from megafuse.graph.lowering.builder import Builder, Operand
from megafuse.graph.lowering.table import rule

aten = torch.ops.aten
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}


@rule(aten.relu.default)
def relu(b: Builder, x: Value) -> Value:
    return b.apply("maximum", x, 0)


@rule(aten.gelu.default)
def gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    return b.apply(_GELU[approximate], x)


@rule(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad: Value, x: Value, approximate: str = "none") -> Value:
    return b.apply("mul", grad, b.apply(f"{_GELU[approximate]}_slope", x))


@rule(aten.silu.default)
def silu(b: Builder, x: Value) -> Value:
    return b.apply("silu", x)


@rule(aten.silu_backward.default)
def silu_backward(b: Builder, grad: Value, x: Value) -> Value:
    return b.apply("mul", grad, b.apply("silu_slope", x))


@rule(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, grad: Value, y: Value) -> Value:
    return b.apply("mul", grad, b.apply("mul", y, b.apply("sub", 1, y)))


@rule(aten.tanh_backward.default)
def tanh_backward(b: Builder, grad: Value, y: Value) -> Value:
    return b.apply("mul", grad, b.apply("sub", 1, b.apply("mul", y, y)))


@rule(aten.threshold.default)
def threshold(b: Builder, x: Value, threshold: Operand, value: Operand) -> Value:
    return b.apply("where", b.apply("le", x, threshold), value, x, dtype=x.dtype)


@rule(aten.threshold_backward.default)
def threshold_backward(b: Builder, grad: Value, x: Value, threshold: Operand) -> Value:
    return b.apply("where", b.apply("le", x, threshold), 0, grad, dtype=b.out.dtype)


@rule(aten.leaky_relu.default)
def leaky_relu(b: Builder, x: Value, slope: Operand = 0.01) -> Value:
    return b.apply("where", b.apply("gt", x, 0), x, b.apply("mul", x, slope))


@rule(aten.leaky_relu_backward.default)
def leaky_relu_backward(
    b: Builder, grad: Value, x: Value, slope: Operand, self_is_result: bool
) -> Value:
    return b.apply("where", b.apply("gt", x, 0), grad, b.apply("mul", grad, slope))


@rule(aten.elu.default)
def elu(
    b: Builder, x: Value, alpha: Operand = 1, scale: Operand = 1, input_scale: Operand = 1
) -> Value:
    negative = b.apply("expm1", b.apply("mul", x, input_scale))
    negative = b.apply("mul", b.apply("mul", negative, alpha), scale)
    return b.apply("where", b.apply("gt", x, 0), b.apply("mul", x, scale), negative)


@rule(aten.hardswish.default)
def hardswish(b: Builder, x: Value) -> Value:
    return b.apply("div", b.apply("mul", x, _relu6(b, b.apply("add", x, 3.0))), 6.0)


@rule(aten.hardsigmoid.default)
def hardsigmoid(b: Builder, x: Value) -> Value:
    return b.apply("div", _relu6(b, b.apply("add", x, 3.0)), 6.0)


def _relu6(b: Builder, x: Value) -> Value:
    return b.apply("minimum", b.apply("maximum", x, 0.0), 6.0)


@rule(aten.softplus.default)
def softplus(b: Builder, x: Value, beta: Operand = 1, threshold: Operand = 20) -> Value:
    scaled = b.apply("mul", x, beta)
    soft = b.apply("div", b.apply("log1p", b.apply("exp", scaled)), beta)
    return b.apply("where", b.apply("gt", scaled, threshold), x, soft)


@rule(aten.softplus_backward.default)
def softplus_backward(
    b: Builder, grad: Value, x: Value, beta: Operand, threshold: Operand
) -> Value:
    scaled = b.apply("mul", x, beta)
    slope = b.apply("mul", grad, b.apply("sigmoid", scaled))
    return b.apply("where", b.apply("gt", scaled, threshold), grad, slope)


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: Builder, x: Value) -> tuple[Value, Value]:
    """min(x, 0) − log1p(exp(−|x|)), and the buffer that the backward does not need."""
    far = b.apply("exp", b.apply("neg", b.apply("abs", x)))
    result = b.apply("sub", b.apply("minimum", x, 0), b.apply("log1p", far))
    buffer = far if tuple(b.out[1].shape) == tuple(b.out[0].shape) else b.filled((0,), 0, x.dtype)
    return result, buffer


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(b: Builder, grad: Value, x: Value, buffer: Value) -> Value:
    return b.apply("mul", grad, b.apply("sigmoid", b.apply("neg", x)))


@rule(aten.mish.default)
def mish(b: Builder, x: Value) -> Value:
    return b.apply("mul", x, b.apply("tanh", softplus(b, x)))


@rule(aten.glu.default)
def glu(b: Builder, x: Value, dim: int = -1) -> Value:
    a, gate = b.halves(x, dim)
    return b.apply("mul", a, b.apply("sigmoid", gate))
