"""Bad input raises one error that names the op, the argument, what was expected and what came."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contract.cases import ONE_EACH, Case, close, full_args, pointwise, shaped, tensor_places
from megafuse import OPS
from megafuse.ops import Op
from megafuse.registry.arguments import Argument


def places(fits: Callable[[Op, Argument], bool]) -> pytest.MarkDecorator:
    """Every (op, position of an argument) for which `fits` holds."""
    found = [
        pytest.param(case, position, id=f"{case.name}-{argument.name}")
        for case in ONE_EACH
        for position, argument in enumerate(case.op.arguments)
        if fits(case.op, argument)
    ]
    return pytest.mark.parametrize(("case", "position"), found)


everywhere = places(lambda op, argument: True)
where_tensors_go = places(lambda op, argument: argument.is_tensor)
beside_another_tensor = places(
    lambda op, argument: op.pointwise and argument.is_tensor and len(op.tensors) > 1
)


def raises(case: Case, args: list[Any], position: int, came: str) -> str:
    """The one error that the call must raise; `came` must be in its text."""
    argument = case.op.arguments[position]
    with pytest.raises((TypeError, ValueError)) as caught:
        case.op.fused(*args)
    text = str(caught.value)
    assert f"megafuse.{case.name}" in text, text
    assert f"'{argument.name}'" in text, text
    assert came in text, text
    assert caught.value.__cause__ is None, "one error, not two"
    assert caught.value.__context__ is None or caught.value.__suppress_context__, "one error"
    return text


def wrong_types(argument: Argument) -> list[tuple[Any, str]]:
    """(a value that does not fit, what the message must mention)"""
    tensor = torch.ones(3)
    anywhere: list[tuple[Any, str]] = [
        *([] if argument.optional else [(None, "None")]),
        ([1.0], "list"),
        ({}, "dict"),
        (1j, "complex"),
        (object(), "object"),
    ]
    anywhere += [(torch.float32, "float32"), (np.ones(3), "ndarray")]
    if argument.kind in ("tensor", "any_tensor"):
        return [*anywhere, (1.0, "float"), (3, "int"), (True, "bool"), ("x", "str")]
    if argument.kind == "tensor_or_number":
        return [*anywhere, (True, "bool"), ("x", "str")]
    if argument.kind == "number":
        return [
            *anywhere,
            (tensor, "float32[3]"),
            (torch.tensor(1.0), "float32[]"),
            ("1.0", "str"),
            (True, "bool"),
        ]
    if argument.kind == "integer":
        return [*anywhere, (tensor, "float32[3]"), (1.0, "float"), ("1", "str"), (True, "bool")]
    if argument.kind == "flag":
        return [*anywhere, (1, "int"), (0.0, "float"), ("True", "str"), (tensor, "float32[3]")]
    return [*anywhere, (1, "int"), (True, "bool"), (tensor, "float32[3]"), (b"gelu", "bytes")]


@everywhere
def test_wrong_python_type(case: Case, position: int, device: str) -> None:
    for value, came in wrong_types(case.op.arguments[position]):
        args = case.args((3,), device=device)
        args[position] = value
        with pytest.raises(TypeError):
            case.op.fused(*args)
        raises(case, args, position, came)


@where_tensors_go
def test_wrong_dtype(case: Case, position: int, device: str) -> None:
    argument = case.op.arguments[position]
    wrong = [torch.complex64, torch.complex128]
    if argument.kind == "tensor":
        wrong += [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]
    for dtype in wrong:
        args = full_args(case, (3,), torch.float32, device)
        shape = list(args[position].shape)
        args[position] = args[position].to(dtype)
        came = f"{str(dtype).removeprefix('torch.')}{shape} on {device}"
        assert "float32" in raises(case, args, position, came)


@where_tensors_go
def test_exotic_dtypes(case: Case, position: int, device: str) -> None:
    for dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint32):
        args = full_args(case, (3,), torch.float32, device)
        args[position] = torch.zeros_like(args[position]).to(dtype)
        raises(case, args, position, str(dtype).removeprefix("torch."))


@where_tensors_go
def test_sparse(case: Case, position: int, device: str) -> None:
    args = full_args(case, (3, 3), torch.float32, device)
    dense = args[position]
    for sparse in (dense.to_sparse(), *([dense.to_sparse_csr()] if dense.dim() == 2 else [])):
        args[position] = sparse
        raises(case, args, position, "layout")


@places(lambda op, argument: argument.kind == "choice")
def test_choice(case: Case, position: int, device: str) -> None:
    argument = case.op.arguments[position]
    for value in ("", "Gelu", argument.choices[0] + "\0", argument.choices[0] + " ", "gélu"):
        args = case.args((3,), device=device)
        args[position] = value
        text = raises(case, args, position, repr(value))
        assert all(repr(choice) in text for choice in argument.choices)


@places(lambda op, a: a.kind in ("number", "integer") and math.isfinite(a.most))
def test_range(case: Case, position: int, device: str) -> None:
    argument = case.op.arguments[position]
    if argument.kind == "integer":
        beyond: list[Any] = [int(argument.least) - 1, int(argument.most) + 1, 10**400]
    else:
        inf = float("inf")
        beyond = [argument.least - 0.1, argument.most + 0.1, float("nan"), inf, -inf]
    for value in beyond:
        args = case.args((3,), device=device)
        args[position] = value
        bounds = re.escape(f"between {argument.least:g} and {argument.most:g}")
        with pytest.raises(ValueError, match=bounds):
            case.op.fused(*args)
        raises(case, args, position, repr(value))


@beside_another_tensor
def test_shapes_that_do_not_broadcast(case: Case, position: int, device: str) -> None:
    for first, second in [((3,), (4,)), ((3, 4), (3,)), ((2, 3, 4), (2, 1, 4, 4)), ((0,), (2,))]:
        args = full_args(case, first, torch.float32, device)
        args[position] = torch.ones(second, device=device).to(args[position].dtype)
        text = raises(case, args, position, str(list(second)))
        assert str(list(first)) in text


# ---- ops that are not pointwise: shapes by rules, one dtype


def sizes_of(rule: str) -> list[tuple[int, str]]:
    """`3EE` is [(3, "E"), (1, "E")]."""
    return [(int(times or 1), letter) for times, letter in re.findall(r"(\d*)([A-Z])", rule)]


@places(lambda op, argument: not op.pointwise and bool(argument.shape))
def test_a_size_that_does_not_agree(case: Case, position: int, device: str) -> None:
    """Each dimension in turn is one longer; the error has both arguments and both sizes."""
    args = case.args((3, 8), device=device)
    rule = case.op.arguments[position].shape
    sizes = sizes_of(rule)
    met = {
        letter: i
        for i in reversed(tensor_places(case, args[:position]))
        for _, letter in sizes_of(case.op.arguments[i].shape)
    }
    shape = list(args[position].shape)
    free = len(shape) - len(sizes)
    seen: set[str] = set()
    for i, (_, letter) in enumerate(sizes):
        if letter in met or letter in seen:
            longer = [n + (d == free + i) for d, n in enumerate(shape)]
            bad = [*args[:position], torch.ones(longer, device=device), *args[position + 1 :]]
            text = raises(case, bad, position, str(longer))
            other = met.get(letter, position)
            assert f"'{case.op.arguments[other].name}' {list(bad[other].shape)}" in text
        seen.add(letter)
    if rule.startswith("...") and position > 0:
        longer = [shape[0] + 1, *shape[1:]]
        bad = [*args[:position], torch.ones(longer, device=device), *args[position + 1 :]]
        assert str(list(args[0].shape)) in raises(case, bad, position, str(longer))


@places(lambda op, argument: not op.pointwise and bool(argument.shape))
def test_a_wrong_number_of_dimensions(case: Case, position: int, device: str) -> None:
    args = case.args((3, 8), device=device)
    rule = case.op.arguments[position].shape
    wrong = [args[position].reshape(-1)[0].clone()]
    if not rule.startswith("..."):
        wrong.append(args[position][None])
    for bad in wrong:
        text = raises(
            case, [*args[:position], bad, *args[position + 1 :]], position, str(list(bad.shape))
        )
        assert all(letter in text for _, letter in sizes_of(rule))


@places(lambda op, argument: not op.pointwise and argument.is_tensor)
def test_another_dtype_than_the_first(case: Case, position: int, device: str) -> None:
    argument = case.op.arguments[position]
    args = case.args((3, 8), device=device)
    if position == 0 or argument.own_dtype:
        pytest.skip("it may have one of its own")
    args[position] = args[position].double()
    text = raises(case, args, position, "float64")
    others = [a.name for a in case.op.arguments if a.is_tensor and not a.own_dtype]
    assert any(f"'{name}' is float32" in text for name in others if name != argument.name)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_wrong_number_of_arguments(case: Case) -> None:
    args = case.args((3,))
    for bad in ([], [*args, 1.0, 2.0, 3.0, 4.0]):
        with pytest.raises(TypeError, match=case.name):
            case.op.fused(*bad)
    with pytest.raises(TypeError, match="no_such_argument"):
        case.op.fused(*args, no_such_argument=1)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_the_dispatcher_says_the_same(case: Case, device: str) -> None:
    """torch.ops.megafuse.<op> checks what its schema does not."""
    args = full_args(case, (3,), torch.float32, device)
    for position, argument in enumerate(case.op.arguments):
        bad = list(args)
        if argument.kind == "choice":
            bad[position] = "no such choice"
        elif argument.kind == "number" and argument.most < float("inf"):
            bad[position] = argument.most + 1
        elif argument.kind == "integer":
            bad[position] = int(argument.most) + 1
        elif argument.kind == "tensor":
            bad[position] = torch.ones(3, dtype=torch.int32, device=device)
        else:
            continue
        with pytest.raises(
            (TypeError, ValueError), match=f"megafuse.{case.name}.*'{argument.name}'"
        ):
            case.op.overload(*bad)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_nothing_is_left_behind(case: Case, device: str) -> None:
    """A failed call leaves no error state and no lost reference: the next one works."""
    args = case.args((3,), device=device)
    expected = case.op.reference(*args)
    for position in range(len(args)):
        bad = list(args)
        bad[position] = object()
        with pytest.raises(TypeError):
            case.op.fused(*bad)
        close(case, case.op.fused(*args), expected)


def test_good_numbers_of_other_kinds(device: str) -> None:
    """NumPy's scalars, and integers, where a number is wanted."""
    x = torch.randn(50, device=device)
    for kind in (np.float32, np.float64, np.int64, int):
        gelu, quantize = OPS["gelu_scale"], OPS["quantize_int8"]
        assert torch.equal(gelu.fused(x, kind(2)), gelu.fused(x, 2.0))
        assert torch.equal(quantize.fused(x, kind(2), kind(1)), quantize.fused(x, 2.0, 1.0))


def test_numbers_too_large_for_a_float(device: str) -> None:
    x = torch.randn(5, device=device)
    for op in ("gelu_scale", "quantize_int8"):
        case = next(c for c in ONE_EACH if c.name == op)
        args = case.args((5,), device=device)
        args[0], args[1] = x, 10**400
        with pytest.raises((TypeError, ValueError, OverflowError)):
            case.op.fused(*args)


def test_every_kind_of_argument_was_met() -> None:
    kinds = {a.kind for op in OPS.values() for a in op.arguments}
    known = {"tensor", "any_tensor", "tensor_or_number", "number", "integer", "flag", "choice"}
    assert kinds <= known


def test_wrong_in_two_places_names_the_first(device: str) -> None:
    case = next(c for c in ONE_EACH if c.name == "scale_bias_sigmoid")
    for first, second in itertools.combinations(range(3), 2):
        args: list[Any] = case.args((3,), device=device)
        args[first] = args[second] = None
        raises(case, args, first, "None")


def test_a_subclass_is_no_mistake(device: str) -> None:
    x = torch.nn.Parameter(torch.randn(5, device=device))
    for case in pointwise(ONE_EACH):
        args = [
            x if isinstance(a, Tensor) and a.is_floating_point() else a
            for a in case.args((5,), device=device)
        ]
        torch.testing.assert_close(case.op.fused(*args), case.op.reference(*args))
    for case in shaped(ONE_EACH):
        args = [
            torch.nn.Parameter(a, a.is_floating_point()) if isinstance(a, Tensor) else a
            for a in case.args((3, 8), device=device)
        ]
        close(case, case.op.fused(*args), case.op.reference(*args))
