"""An op's signature: what its reference's type hints say, and what they cannot."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from megafuse.registry.arguments import Argument, is_rule


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What type hints do not say of arguments and results.

    choices         the values of a string argument, each with its C++ word; without the words
                    where no functor's type has them
    shapes          argument → its shape, such as "...K" or "NK" (see runtime/host/torch/op.h);
                    tensors of pointwise ops broadcast instead
    ranges          allowed range of a float or int argument
    any_dtype       tensor arguments that need not be floating point
    own_dtype       tensor arguments that need not have the first one's dtype (not pointwise)
    check           (*args) → what is wrong with them, or None, beyond what the above says; the
                    program throws BadArguments then
    returns         names of the outputs, as many as the reference returns (pointwise: one)
    output_dtype    "int8", or None for the promoted dtype of the tensors (pointwise)
    dtype_like      the first tensor is promoted as if it had this argument's dtype (pointwise)
    laid_out_as     the argument whose order of dimensions in memory the output has, and each
                    gradient that of its argument; else they are contiguous (not pointwise)
    autocast        what torch.autocast does: "float32" (on CUDA, as exp) or "lower" (as matmul;
                    arguments with their own dtype keep it), or None
    """

    choices: Mapping[str, Mapping[str, str] | tuple[str, ...]] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    any_dtype: tuple[str, ...] = ()
    own_dtype: tuple[str, ...] = ()
    check: Callable[..., str | None] | None = None
    returns: tuple[str, ...] = ("out",)
    output_dtype: str | None = None
    dtype_like: str | None = None
    laid_out_as: str | None = None
    autocast: str | None = None


_KINDS: dict[Any, str] = {
    Tensor: "tensor",
    Tensor | float: "tensor_or_number",
    float: "number",
    int: "integer",
    bool: "flag",
    str: "choice",
}
_OPTIONAL: dict[Any, Any] = {Tensor | None: Tensor, float | None: float}


def arguments_of(function: Callable[..., Any], said: Signature) -> list[Argument]:
    """The arguments of a reference function."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return [_argument(function.__name__, p, hints.get(p.name), said) for p in parameters]


def _argument(op: str, parameter: inspect.Parameter, hint: Any, said: Signature) -> Argument:
    name, plain = parameter.name, _OPTIONAL.get(hint, hint)
    if plain not in _KINDS:
        raise TypeError(
            f"{op}: argument '{name}' is annotated {plain}; an op's argument is "
            "a Tensor, Tensor | float, float, int, bool or str, or Tensor | None, float | None"
        )
    kind = _KINDS[plain]
    if kind == "tensor" and name in said.any_dtype:
        kind = "any_tensor"
    widest = 2.0**53 if kind == "integer" else math.inf  # the host runtime holds a double
    least, most = said.ranges.get(name, (-widest, widest))
    shape = said.shapes.get(name, "")
    if not is_rule(shape):
        raise ValueError(f"{op}: shape {shape!r} of '{name}'")
    return Argument(
        name,
        kind,
        parameter.default,
        tuple(said.choices.get(name, ())),
        least,
        most,
        optional=hint in _OPTIONAL,
        own_dtype=name in said.own_dtype,
        shape=shape,
    )


def outputs_of(function: Callable[..., Any]) -> int:
    """How many tensors a reference function returns, from its annotation."""
    hint = get_type_hints(function)["return"]
    return len(get_args(hint)) if get_origin(hint) is tuple else 1
