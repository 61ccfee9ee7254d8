"""Strides as eager's: where torch's decompositions have others than its kernels.

Operands are laid so that the decomposition's result lies as the kernel's. To generated kernels that
is no work: they read each operand where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from megafuse.graph.lowering.table import RULES, overloads

aten = torch.ops.aten
Apart = Callable[..., Any]


def kept(table: dict[Any, Apart]) -> dict[Any, Apart]:
    """The table of decompositions, with eager's strides."""
    made = {**table, **OWN}
    turned = {each for name in TURNED.split() for each in overloads(getattr(aten, name))}
    for overload in {*made, *RULES} | turned:
        if overload in turned:
            made[overload] = _laid_alike(overload, made.get(overload), _lie_otherwise)
        elif _takes_several(overload):
            made[overload] = _laid_alike(overload, made.get(overload), _lack_dimensions)
    for name in NORMS.split():
        for overload in overloads(getattr(aten, name)):
            if overload in made:
                made[overload] = _as_suggested(made[overload])
    return made


# Elementwise operations that torch takes apart to know their strides, and whose operands come in
# another order then: the first decides.
TURNED = """
    copysign xlogy special_xlog1py heaviside logaddexp logaddexp2
    logical_and logical_or logical_xor
"""


def _takes_several(overload: Any) -> bool:
    """Whether it goes by elements of two tensors or more."""
    if not isinstance(overload, torch._ops.OpOverload) or torch.Tag.pointwise not in overload.tags:
        return False
    tensors = [a for a in overload._schema.arguments if str(a.type) == "Tensor"]
    return len(tensors) > 1 and not overload._schema.is_mutable


def _laid_alike(
    overload: Any, apart: Apart | None, when: Callable[[list[torch.Tensor]], bool]
) -> Apart:
    """Lays all operands as the result will lie in eager: then neither their order matters nor which
    dimensions they lack."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # Tensors without dimensions promote dtypes less than others, and have no strides.
        places = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor) and arg.dim()]
        if not when([args[i] for i in places]):
            return NotImplemented if apart is None else apart(*args, **kwargs)
        whole = torch.broadcast_tensors(*(args[i] for i in places))
        walked = [_walked(args[i], x) for i, x in zip(places, whole, strict=True)]
        strides = torch._prims_common.compute_elementwise_output_strides(*walked)
        laid = list(args)
        for i, operand in zip(places, whole, strict=True):
            laid[i] = aten.copy(operand.new_empty_strided(operand.shape, strides), operand)
        return overload(*laid, **kwargs)

    return call


def _walked(operand: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The strides that eager's kernels walk along: 0 where the operand lacks the dimension. Of size
    1, torch's tracer gives it a stride, and dimensions that nobody orders follow that."""
    lacks = whole.dim() - operand.dim()
    return whole.new_empty_strided(whole.shape, (0,) * lacks + whole.stride()[lacks:])


def _lack_dimensions(tensors: list[torch.Tensor]) -> bool:
    """Whether an operand lacks a dimension of size 1 that others have."""
    rank = max((tensor.dim() for tensor in tensors), default=0)
    sizes = [(tensor.shape, rank - tensor.dim()) for tensor in tensors]
    lacked = range(max((ahead for _, ahead in sizes), default=0))
    return any(
        all(statically_known_true(shape[d - ahead] == 1) for shape, ahead in sizes if d >= ahead)
        for d in lacked
    )


def _lie_otherwise(tensors: list[torch.Tensor]) -> bool:
    """Not if it is known of all sizes and strides that they are equal: to compare them would be to
    note a guard."""
    shown = [(*tensor.shape, *tensor.stride()) for tensor in tensors]
    return not all(
        len(shown[0]) == len(others)
        and all(statically_known_true(a == b) for a, b in zip(shown[0], others, strict=True))
        for others in shown[1:]
    )


# Their CPU kernels give channels-last images for such, and contiguous tensors for all others.
NORMS = """
    _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _batch_norm_with_update_functional
"""


def _as_suggested(apart: Apart) -> Apart:
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.device.type == "cpu":
            x = x.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))
        return apart(x, *args, **kwargs)

    return call


def _log_sigmoid_forward(x: Any) -> Any:
    """Its CPU kernel gives contiguous tensors, whatever x's strides are."""
    if x.device.type == "cpu":
        x = x.contiguous()
    return torch._decomp.decompositions.log_sigmoid_forward(x)


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    """Its CPU kernel is cat of two slices: images with channels last stay so, unless a slice is
    empty since the whole dimension goes around."""
    layout = torch._prims_common.suggest_memory_format(x)
    in_order = layout == torch.contiguous_format or x.device.type != "cpu" or not dims
    if in_order or any(n % x.shape[dim] == 0 for n, dim in zip(shifts, dims, strict=True)):
        return NotImplemented  # there is a rule for it
    return aten.roll(x.contiguous(), shifts, dims).contiguous(memory_format=layout)


def _binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """Its kernels give what lies as x does; torch's own begins with the target."""
    target = aten.copy(torch.empty_like(x), target)
    return torch._decomp.decompositions.binary_cross_entropy(x, target, weight, reduction)


OWN: dict[Any, Apart] = {
    aten.log_sigmoid_forward.default: _log_sigmoid_forward,
    aten.roll.default: _roll,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
}
