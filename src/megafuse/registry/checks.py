"""What a declaration must be, so that nothing later reads past an end or fails in another op.

Everything here is known when the op is declared: names, kinds of arguments, counts. What only the
functor's C++ type tells (how many elements it takes, how many numbers, how many results) is
checked where its kernel is compiled, by the static_asserts of codegen/render.py.
"""

from __future__ import annotations

import difflib
import inspect
import string
from collections.abc import Callable, Collection, Iterable
from typing import Any

from megafuse.registry.arguments import Argument
from megafuse.registry.autograd import nothing_kept
from megafuse.registry.declared import Op
from megafuse.registry.kernel import Kernel, Program
from megafuse.registry.sharding.check import problems as sharding_problems
from megafuse.registry.signature import Signature

MAX_OPERANDS = 24  # kMaxOperands of runtime/host/core/space.h
MAX_ARGUMENTS = 24  # kMaxArgs of runtime/host/torch/op.h
MAX_CHOICES = 256  # a choice is one byte in a Call of runtime/host/torch/op.h


class DeclarationError(TypeError):
    """An op's declaration contradicts itself, its signature or what the runtime can do."""

    def __init__(self, op: str, problem: str) -> None:
        super().__init__(op, problem)  # as given, so that it pickles
        self.op = op
        self.problem = problem

    def __str__(self) -> str:
        return f"op {self.op}: {self.problem}"


def check_kernel(op: str, kernel: Kernel) -> None:
    """That there is a kernel, and that its functors are somewhere."""
    if not isinstance(kernel, Kernel):
        raise DeclarationError(op, f"kernel={kernel!r} is no Pointwise, Rows or Program")
    if isinstance(kernel, Program):
        return
    if not kernel.forward:
        raise DeclarationError(op, f"forward= must name the functor of a {kernel.family} op")
    if kernel.header and kernel.text:
        raise DeclarationError(op, "its functors come from header= or from text=, not from both")


def check_names(op: str, arguments: list[Argument], said: Signature) -> None:
    """That what the signature says of an argument names one of the right kind."""
    tensors = [a.name for a in arguments if a.is_tensor]
    plain = [a.name for a in arguments if a.kind in ("tensor", "any_tensor")]
    numbers = [a.name for a in arguments if a.kind in ("number", "integer")]
    strings = [a.name for a in arguments if a.kind == "choice"]
    _all_in(op, "choices", said.choices, strings, "an argument annotated str")
    _all_in(op, "shapes", said.shapes, tensors, "a tensor argument")
    _all_in(op, "any_dtype", said.any_dtype, plain, "an argument annotated Tensor")
    _all_in(op, "own_dtype", said.own_dtype, tensors, "a tensor argument")
    _all_in(op, "ranges", said.ranges, numbers, "an argument annotated float or int")
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
    for problem in sharding_problems(op):
        raise DeclarationError(op.name, f"sharding: {problem}")


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
    for option in ("dtype_like", "laid_out_as"):
        name = getattr(op.signature, option)
        if name is not None:
            _all_in(op.name, option, [name], op.tensors, "a tensor argument")
    if op.inverted is not None:
        either = [a.name for a in op.arguments if a.kind == "tensor_or_number"]
        what = "an argument annotated Tensor | float"
        _all_in(op.name, "inverted", [op.inverted], either, what)


def _check_words(op: Op) -> None:
    for option, allowed in (
        ("autocast", (None, "float32", "lower")),
        ("output_dtype", (None, "int8")),
    ):
        word = getattr(op.signature, option)
        if word not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise DeclarationError(op.name, f"{option}={word!r} is none of {listed}")
    if op.functors is None:
        return
    for name in op.signature.choices:
        if name not in op.functors.choices:
            raise DeclarationError(
                op.name, f"choices: each value of '{name}' needs its C++ word, for the functor"
            )
    if op.functors.words is not None:  # which gives further {…}
        return
    known = {"F", "S", *op.functors.choices}
    for option in ("forward", "backward"):
        template = getattr(op.functors, option) or ""
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        _all_in(op.name, option, sorted(used), sorted(known), "F, S, a choice or a flag")


def _check_results(op: Op) -> None:
    rule, returns = op.autograd, op.signature.returns
    names = [a.name for a in op.arguments] + [*returns, *rule.keeps]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DeclarationError(
            op.name, f"{', '.join(twice)}: arguments, returns and keeps must have different names"
        )
    if not returns:
        raise DeclarationError(op.name, "returns=() names no result")
    saved = [*op.tensors, *returns, *rule.keeps]
    _all_in(op.name, "saves", rule.saves, saved, "a tensor argument, or one of returns or keeps")
    if len(set(rule.saves)) != len(rule.saves):
        raise DeclarationError(op.name, f"saves={rule.saves} names something twice")
    unread = [name for name in rule.keeps if name not in rule.saves]
    if unread:
        raise DeclarationError(
            op.name, f"keeps: {', '.join(unread)} is not in saves, so no backward would read it"
        )


def _check_gradients(op: Op) -> None:
    rule = op.autograd
    _all_in(op.name, "grads", rule.grads, op.tensors, "a tensor argument")
    _all_in(op.name, "passthrough", rule.passthrough, list(rule.grads), "an argument in grads")
    if rule.saves and not rule.grads:
        raise DeclarationError(op.name, f"saves={rule.saves}, but grads names no gradient")
    # The numbers go up to the functor's last result: a gap means a typo.
    computed = {n: r for n, r in rule.grads.items() if n not in rule.passthrough}
    for results in (computed, rule.grads):
        for name, result in results.items():
            if result < 0 or set(range(result)) - {*results.values()}:
                raise DeclarationError(
                    op.name,
                    f"grads={{'{name}': {result}}}: results of the backward are numbered from 0, "
                    f"and no argument has each number below {result}",
                )
    unsaved = set(rule.grads) - {*rule.saves, *rule.passthrough}
    if unsaved and rule.vjp is None and {*op.signature.returns, *rule.keeps} & {*rule.saves}:
        raise DeclarationError(
            op.name, f"save {sorted(unsaved)} too, or give vjp=, for second derivatives"
        )


def _check_family(op: Op) -> None:
    """What a family has no use for would be passed over in silence, or run past an array."""
    grads = op.autograd.grads
    if op.functors is not None and grads and op.functors.backward is None:
        raise DeclarationError(op.name, f"grads={grads} needs backward=, the functor of it")
    if op.pointwise:
        return _check_pointwise(op)
    for option in ("output_dtype", "dtype_like"):
        if getattr(op.signature, option) is not None:
            raise DeclarationError(op.name, f"{option} is for pointwise ops, not for {op.family}")
    if op.family == "rows":
        _check_rows(op)


def _check_rows(op: Op) -> None:
    if op.autograd.passthrough:
        raise DeclarationError(
            op.name, "passthrough is not for rows: let the functor return that gradient"
        )
    either = [a.name for a in op.arguments if a.kind == "tensor_or_number"]
    if either:
        raise DeclarationError(
            op.name, f"'{either[0]}' is annotated Tensor | float, and rows take tensors or None"
        )


def _check_pointwise(op: Op) -> None:
    said, keeps = op.signature, op.autograd.keeps
    refused = {
        f"returns={said.returns}": len(said.returns) > 1,
        f"keeps={keeps}": bool(keeps),
        f"laid_out_as={said.laid_out_as!r}": said.laid_out_as is not None,
        "shapes": bool(said.shapes),
        "own_dtype": bool(said.own_dtype),
    }
    for option, given in refused.items():
        if given:
            raise DeclarationError(
                op.name,
                f"{option} is not for pointwise ops, which return one tensor of the broadcast "
                "shape; make its kernel Rows or a Program",
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
    if op.functors is None:
        return
    rule = op.autograd
    written = op.outputs + len(rule.keeps)
    gradients = len(rule.grads), op.outputs, len(rule.saves)
    for what, count, parts in (
        ("forward", written + len(op.tensors), f"{len(op.tensors)} read, {written} written"),
        ("backward", sum(gradients), "{} gradients, {} incoming, {} saved".format(*gradients)),
    ):
        if rule.grads or what == "forward":
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
    every, rule = len(op.arguments), op.autograd
    if bool(rule.keeps) != (rule.kept is not nothing_kept):
        raise DeclarationError(op.name, f"keeps={rule.keeps} and kept= go together")
    for option, function in (
        ("kept", rule.kept),
        ("flops", op.flops),
        ("launches", op.launches),
        ("unread", op.unread),
        ("check", op.signature.check),
    ):
        if callable(function):
            _takes(op.name, option, function, every, "one for each argument")
    if rule.vjp is not None and op.pointwise:
        _takes(op.name, "vjp", rule.vjp, 1 + len(rule.saves), "the gradient, then what is saved")
    elif rule.vjp is not None:
        named = [*rule.saves, *(a.name for a in op.arguments if not a.is_tensor)]
        what = f"the gradients, and by name {', '.join(named) or 'nothing'}"
        _takes(op.name, "vjp", rule.vjp, op.outputs, what, named)


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
