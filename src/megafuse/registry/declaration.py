"""`@op`, which declares an op by decorating its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor

from megafuse.codegen.variant import Functors, Variant
from megafuse.registry import arguments, call, checks, dispatcher
from megafuse.registry.checks import DeclarationError
from megafuse.registry.declared import OPS, Op, nothing_kept
from megafuse.registry.sample import Sampler
from megafuse.runtime import build

Function = TypeVar("Function", bound=Callable[..., Any])


def op(
    *,
    family: str = "pointwise",
    program: str | None = None,
    forward: str | None = None,
    backward: str | None = None,
    header: str | None = None,
    sample: Sampler,
    flops: tuple[int, int] | Callable[..., tuple[int, int]],
    launches: tuple[int, int] | Callable[..., tuple[int, int]] | None = None,
    unread: Callable[..., tuple[int, int]] | None = None,
    choices: dict[str, dict[str, str]] | None = None,
    shapes: dict[str, str] | None = None,
    returns: tuple[str, ...] = ("out",),
    keeps: tuple[str, ...] = (),
    kept: Callable[..., Sequence[Tensor]] | None = None,
    saves: tuple[str, ...] = (),
    grads: dict[str, int] | None = None,
    passthrough: tuple[str, ...] = (),
    any_dtype: tuple[str, ...] = (),
    own_dtype: tuple[str, ...] = (),
    ranges: dict[str, tuple[float, float]] | None = None,
    output_dtype: str | None = None,
    dtype_like: str | None = None,
    inverted: str | None = None,
    random: bool = False,
    autocast: str | None = None,
    laid_out_as: str | None = None,
    vjp: Callable[..., Sequence[Tensor | None]] | None = None,
    check: Callable[..., str | None] | None = None,
    words: Callable[[Variant], dict[str, str]] | None = None,
) -> Callable[[Function], Function]:
    """Declares an op; the decorated function is its reference.

    Raises a DeclarationError, and leaves nothing behind, where the declaration is wrong.

    family              "pointwise", "rows" or "composite"
    program             a composite's name in runtime/host/programs/programs.h, unless it is the
                        op's own
    forward, backward   functor types in kernels/<name>.h (see codegen/variant.py for `{…}`)
    header              of the functors, where it is not <name>.h
    sample              makes arguments for tests and benchmarks (see registry/sample.py)
    flops               floating-point operations, forward and backward: so many an element of the
                        first output, or a function of the arguments that gives the totals
    launches            on CUDA, forward and backward, or a function of the arguments; counted for
                        pointwise ops
    unread              (*args) → bytes that forward and backward need not read
    choices             the C++ word for each value of a string argument; flags get true/false
    shapes              argument → its shape, such as "...K" or "NK" (see runtime/host/torch/op.h);
                        tensors of pointwise ops broadcast instead
    returns             names of the outputs, as many as the reference returns (pointwise: one)
    keeps               names of results that only the backward reads
    kept                (*args) → tensors like these, made with new_empty
    saves               what the backward reads after the gradients, in its order: names of
                        arguments, of `returns` and of `keeps`
    grads               argument → which result of the backward is its gradient
    passthrough         arguments whose gradient is the incoming one, as they are merely added: the
                        backward functor need not return it, and where such an argument is
                        broadcast the incoming one is summed (not in rows)
    any_dtype           tensor arguments that need not be floating point
    own_dtype           tensor arguments that need not have the first one's dtype (not pointwise)
    ranges              allowed range of a float or int argument
    output_dtype        "int8", or None for the promoted dtype of the tensors
    dtype_like          the first tensor is promoted as if it had this argument's dtype
    inverted            an argument that a CUDA kernel gets as its reciprocal when it is a number
    random              draws random numbers; such an op has the arguments `p` and `training`, and
                        if it is pointwise one tensor
    autocast            what torch.autocast does: "float32" (on CUDA, as exp) or "lower" (as
                        matmul; arguments with their own dtype keep it), or None
    laid_out_as         the argument whose order of dimensions in memory the output has, and each
                        gradient that of its argument; else they are contiguous (not pointwise)
    vjp                 gradients in the order of `grads`, in plain PyTorch, for second
                        derivatives: (grad, *saves) →, or where the op is not pointwise
                        (*grads, **everything saved, numbers and choices, by name) →. Found from
                        the reference when all arguments that matter are saved
    check               (*args) → what is wrong with them, or None, beyond what the above says;
                        the program throws BadArguments then
    words               further `{…}` of the functor types, from the kernel's operands
    """

    def declare(function: Function) -> Function:
        name = function.__name__
        if dispatcher.is_defined(name):
            raise DeclarationError(name, "an op of this name is declared already")
        parsed = arguments.parse(
            function, choices or {}, any_dtype, own_dtype, ranges or {}, shapes or {}
        )
        if len(returns) != arguments.outputs(function):
            raise DeclarationError(name, f"returns={returns} does not match its return annotation")
        checks.check_names(
            name,
            parsed,
            choices=choices or {},
            shapes=shapes or {},
            any_dtype=any_dtype,
            own_dtype=own_dtype,
            ranges=ranges or {},
        )
        functors = None
        if forward is not None:
            flags = {a.name: {"True": "true", "False": "false"} for a in parsed if a.kind == "flag"}
            shared = {a.name for a in parsed if a.shape == "C"}
            functors = Functors(
                forward,
                backward,
                header=header or f"{name}.h",
                choices={**(choices or {}), **flags},
                random=random,
                late=(len(shared), len(shared & {*saves})),
                words=words,
                numbers=tuple(a.name for a in parsed if a.kind in ("number", "integer")),
            )
        made = Op(
            name=name,
            family=family,
            program=(program or name) if family == "composite" else family,
            reference=function,
            functors=functors,
            arguments=parsed,
            returns=returns,
            keeps=keeps,
            kept=kept or nothing_kept,
            sample=sample,
            flops=flops,
            launches=launches,
            unread=unread,
            saves=saves,
            grads=grads or {},
            passthrough=passthrough,
            output_dtype=output_dtype,
            dtype_like=dtype_like,
            inverted=inverted,
            random=random,
            autocast=autocast,
            laid_out_as=laid_out_as,
            vjp=vjp,
            further_check=check,
        )
        checks.check(made)  # what follows tells others of the op
        dispatcher.define(made)
        made.fused, made._namespace = call.fused(made)
        if functors is not None:
            build.declare(name, functors)
        OPS[name] = made
        return cast(Function, made.fused)

    return declare
