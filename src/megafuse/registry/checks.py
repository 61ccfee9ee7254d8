"""What a declaration must be, so that nothing later reads past an end or fails in another op.

Everything here is known when the op is declared: names, kinds of arguments, counts. What only the
functor's C++ type tells (how many elements it takes, how many numbers, how many results) is
checked where its kernel is compiled, by the static_asserts of codegen/render.py.
"""

from __future__ import annotations

import difflib
import inspect
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from megafuse.registry.arguments import Argument
from megafuse.registry.declared import Op, nothing_kept

MAX_OPERANDS = 12  # kMaxOperands of runtime/host/core/space.h
MAX_ARGUMENTS = 24  # kMaxArgs of runtime/host/torch/op.h
MAX_CHOICES = 256  # a choice is one byte in a Call of runtime/host/torch/op.h

FAMILIES = ("pointwise", "rows", "composite")


class DeclarationError(TypeError):
    """An op's declaration contradicts itself, its signature or what the runtime can do."""

    def __init__(self, op: str, problem: str) -> None:
        super().__init__(op, problem)  # as given, so that it pickles
        self.op = op
        self.problem = problem

    def __str__(self) -> str:
        return f"op {self.op}: {self.problem}"


def check_names(
    op: str,
    arguments: list[Argument],
    *,
    choices: Mapping[str, Mapping[str, str]],
    shapes: Iterable[str],
    any_dtype: Iterable[str],
    own_dtype: Iterable[str],
    ranges: Mapping[str, tuple[float, float]],
) -> None:
    """That the options which say something of an argument name one of the right kind."""
    tensors = [a.name for a in arguments if a.is_tensor]
    plain = [a.name for a in arguments if a.kind in ("tensor", "any_tensor")]
    numbers = [a.name for a in arguments if a.kind in ("number", "integer")]
    strings = [a.name for a in arguments if a.kind == "choice"]
    _all_in(op, "choices", choices, strings, "an argument annotated str")
    _all_in(op, "shapes", shapes, tensors, "a tensor argument")
    _all_in(op, "any_dtype", any_dtype, plain, "an argument annotated Tensor")
    _all_in(op, "own_dtype", own_dtype, tensors, "a tensor argument")
    _all_in(op, "ranges", ranges, numbers, "an argument annotated float or int")
    for argument in arguments:
        _check_values(op, argument)


def check(op: Op) -> None:
    """Raises a DeclarationError that names the op, the option and the argument."""
    _check_arguments(op)
    _check_words(op)
    _check_results(op)
    _check_gradients(op)
    _check_family(op)
    _check_operands(op)
    _check_functions(op)


def _check_values(op: str, a: Argument) -> None:
    given = a.default is not inspect.Parameter.empty and a.default is not None
    if a.kind == "choice":
        if not a.choices:
            raise DeclarationError(
                op, f"argument '{a.name}' is a str, so choices={{'{a.name}': …}} lists its values"
            )
        if len(a.choices) > MAX_CHOICES:
            raise DeclarationError(
                op, f"argument '{a.name}' has {len(a.choices)} choices, at most {MAX_CHOICES} fit"
            )
        if given and a.default not in a.choices:
            raise DeclarationError(
                op, f"the default {a.default!r} of '{a.name}' is none of {list(a.choices)}"
            )
    if a.kind in ("number", "integer"):
        if not a.least <= a.most:
            raise DeclarationError(op, f"ranges: '{a.name}' has none in ({a.least}, {a.most})")
        if given and not a.least <= a.default <= a.most:
            raise DeclarationError(
                op, f"the default {a.default!r} of '{a.name}' is outside ({a.least}, {a.most})"
            )


def _check_arguments(op: Op) -> None:
    if len(op.arguments) > MAX_ARGUMENTS:
        raise DeclarationError(
            op.name, f"it has {len(op.arguments)} arguments, but a call holds {MAX_ARGUMENTS}"
        )
    first = op.arguments[0] if op.arguments else None
    if first is None or first.kind not in ("tensor", "any_tensor") or first.optional:
        named = "" if first is None else f", and '{first.name}' is not"
        raise DeclarationError(op.name, f"its first argument must be annotated Tensor{named}")
    if op.random:
        kinds = {a.name: a.kind for a in op.arguments}
        if kinds.get("p") != "number" or kinds.get("training") != "flag":
            raise DeclarationError(
                op.name, "random=True needs the arguments 'p: float' and 'training: bool'"
            )
    for option, name in (("dtype_like", op.dtype_like), ("laid_out_as", op.laid_out_as)):
        if name is not None:
            _all_in(op.name, option, [name], op.tensors, "a tensor argument")
    if op.inverted is not None:
        either = [a.name for a in op.arguments if a.kind == "tensor_or_number"]
        what = "an argument annotated Tensor | float"
        _all_in(op.name, "inverted", [op.inverted], either, what)


def _check_words(op: Op) -> None:
    for option, word, allowed in (
        ("family", op.family, FAMILIES),
        ("autocast", op.autocast, (None, "float32", "lower")),
        ("output_dtype", op.output_dtype, (None, "int8")),
    ):
        if word not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise DeclarationError(op.name, f"{option}={word!r} is none of {listed}")
    if op.functors is None or op.functors.words is not None:  # which gives further {…}
        return
    known = {"F", "S", *op.functors.choices}
    for option in ("forward", "backward"):
        template = getattr(op.functors, option) or ""
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        _all_in(op.name, option, sorted(used), sorted(known), "F, S, a choice or a flag")


def _check_results(op: Op) -> None:
    names = [a.name for a in op.arguments] + [*op.returns, *op.keeps]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DeclarationError(
            op.name, f"{', '.join(twice)}: arguments, returns and keeps must have different names"
        )
    if not op.returns:
        raise DeclarationError(op.name, "returns=() names no result")
    saved = [*op.tensors, *op.returns, *op.keeps]
    _all_in(op.name, "saves", op.saves, saved, "a tensor argument, or one of returns or keeps")
    if len(set(op.saves)) != len(op.saves):
        raise DeclarationError(op.name, f"saves={op.saves} names something twice")
    unread = [name for name in op.keeps if name not in op.saves]
    if unread:
        raise DeclarationError(
            op.name, f"keeps: {', '.join(unread)} is not in saves, so no backward would read it"
        )


def _check_gradients(op: Op) -> None:
    _all_in(op.name, "grads", op.grads, op.tensors, "a tensor argument")
    _all_in(op.name, "passthrough", op.passthrough, list(op.grads), "an argument in grads")
    if op.saves and not op.grads:
        raise DeclarationError(op.name, f"saves={op.saves}, but grads names no gradient")
    # The numbers go up to the functor's last result: a gap means a typo.
    computed = {n: r for n, r in op.grads.items() if n not in op.passthrough}
    for results in (computed, op.grads):
        for name, result in results.items():
            if result < 0 or set(range(result)) - {*results.values()}:
                raise DeclarationError(
                    op.name,
                    f"grads={{'{name}': {result}}}: results of the backward are numbered from 0, "
                    f"and no argument has each number below {result}",
                )
    unsaved = set(op.grads) - {*op.saves, *op.passthrough}
    if unsaved and op.vjp is None and {*op.returns, *op.keeps} & {*op.saves}:
        raise DeclarationError(
            op.name, f"save {sorted(unsaved)} too, or give vjp=, for second derivatives"
        )


def _check_family(op: Op) -> None:
    """What a family has no use for would be passed over in silence, or run past an array."""
    _check_only_pointwise(op)
    if op.family == "composite":
        if op.functors is not None:
            raise DeclarationError(
                op.name, f"forward= is for functors, a composite runs its program '{op.program}'"
            )
        return
    if op.functors is None:
        raise DeclarationError(op.name, f"forward= must name the functor of a {op.family} op")
    if op.grads and op.functors.backward is None:
        raise DeclarationError(op.name, f"grads={op.grads} needs backward=, the functor of it")
    if op.family == "rows":
        if op.passthrough:
            raise DeclarationError(
                op.name, "passthrough is not for rows: let the functor return that gradient"
            )
        either = [a.name for a in op.arguments if a.kind == "tensor_or_number"]
        if either:
            raise DeclarationError(
                op.name, f"'{either[0]}' is annotated Tensor | float, and rows take tensors or None"
            )
        return
    _check_pointwise(op)


def _check_only_pointwise(op: Op) -> None:
    for option in ("output_dtype", "dtype_like", "inverted"):
        if not op.pointwise and getattr(op, option) is not None:
            raise DeclarationError(op.name, f"{option} is for pointwise ops, not for {op.family}")


def _check_pointwise(op: Op) -> None:
    refused = {
        f"returns={op.returns}": len(op.returns) > 1,
        f"keeps={op.keeps}": bool(op.keeps),
        f"laid_out_as={op.laid_out_as!r}": op.laid_out_as is not None,
        "shapes": any(a.shape for a in op.arguments),
        "own_dtype": any(a.own_dtype for a in op.arguments),
    }
    for option, given in refused.items():
        if given:
            raise DeclarationError(
                op.name,
                f"{option} is not for pointwise ops, which return one tensor of the broadcast "
                'shape; make it family="rows" or family="composite"',
            )
    for argument in op.arguments:
        if argument.is_tensor and argument.optional:
            raise DeclarationError(
                op.name, f"'{argument.name}' may be None, which pointwise ops have no kernel for"
            )
    if op.random and len(op.tensors) > 1:  # a summing kernel draws no random numbers
        raise DeclarationError(
            op.name,
            f"random=True with {len(op.tensors)} tensors: a pointwise op that draws has one, since "
            "gradients of broadcast arguments are summed without the random numbers",
        )


def _check_operands(op: Op) -> None:
    """An operand is a tensor that one kernel reads or writes; composites have several kernels."""
    if op.family == "composite":
        return
    written = op.outputs + len(op.keeps)
    gradients = len(op.grads), op.outputs, len(op.saves)
    for what, count, parts in (
        ("forward", written + len(op.tensors), f"{len(op.tensors)} read, {written} written"),
        ("backward", sum(gradients), "{} gradients, {} incoming, {} saved".format(*gradients)),
    ):
        if op.grads or what == "forward":
            _at_most_operands(op.name, what, count, parts)


def _at_most_operands(op: str, what: str, count: int, parts: str) -> None:
    if count > MAX_OPERANDS:
        raise DeclarationError(
            op,
            f"its {what} kernel would have {count} tensors ({parts}), and a kernel has at most "
            f"{MAX_OPERANDS}; make it several ops",
        )


def _check_functions(op: Op) -> None:
    """That what is given as a function takes the arguments that it will get."""
    every = len(op.arguments)
    if bool(op.keeps) != (op.kept is not nothing_kept):
        raise DeclarationError(op.name, f"keeps={op.keeps} and kept= go together")
    for option, function in (
        ("kept", op.kept),
        ("flops", op.flops),
        ("launches", op.launches),
        ("unread", op.unread),
        ("check", op.further_check),
    ):
        if callable(function):
            _takes(op.name, option, function, every, "one for each argument")
    if op.vjp is not None and op.pointwise:
        _takes(op.name, "vjp", op.vjp, 1 + len(op.saves), "the gradient, then what is saved")
    elif op.vjp is not None:
        named = [*op.saves, *(a.name for a in op.arguments if not a.is_tensor)]
        what = f"the gradients, and by name {', '.join(named) or 'nothing'}"
        _takes(op.name, "vjp", op.vjp, op.outputs, what, named)


def _takes(
    op: str,
    option: str,
    function: Callable[..., Any],
    count: int,
    what: str,
    named: Iterable[str] = (),
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin
        return
    try:
        signature.bind(*[None] * count, **dict.fromkeys(named))
    except TypeError as error:
        raise DeclarationError(op, f"{option} gets {count} arguments, {what}; {error}") from None


def _all_in(
    op: str, option: str, names: Iterable[str], allowed: Collection[str], what: str
) -> None:
    for name in names:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            listed = ", ".join(allowed) or "none"
            raise DeclarationError(op, f"{option}: '{name}' is not {what} ({listed}){hint}")
