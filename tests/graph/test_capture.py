"""Capture: what stays symbolic, what becomes a guard, what is refused and how that is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graph import compare
from graph.functions import SAMPLES, Sample
from megafuse.graph.capture import CaptureError, capture
from megafuse.graph.clean import clean
from megafuse.graph.evaluate import evaluated
from megafuse.graph.interpret import interpret
from megafuse.graph.ir import Number
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.show import show


def scaled(x: Tensor, scale: float, count: int) -> Tensor:
    h = x * scale
    return h / count + (1 - scale) ** 2


def test_numbers_and_sizes_come_with_the_call() -> None:
    one = compare.lowered(scaled, torch.randn(3, 5), 0.5, 7)
    other = compare.lowered(scaled, torch.randn(6, 4), -1.5, 2)
    assert show(one) == show(other)
    x = torch.randn(9, 2)
    got = interpret(one, [x, 2.5, 3])
    torch.testing.assert_close(got[0], scaled(x, 2.5, 3))


@pytest.mark.parametrize("number", [0.0, 1.0, -2.0, 1e-6])
def test_no_float_is_special(number: float) -> None:
    usual = compare.lowered(scaled, torch.randn(3, 5), 0.5, 7)
    assert show(compare.lowered(scaled, torch.randn(3, 5), number, 7)) == show(usual)


def test_a_new_size_gives_the_same_program() -> None:
    """Every sample function, traced with one size, is right for another."""

    def stretched(arg: Any) -> Any:
        return torch.cat([arg, arg]) if isinstance(arg, Tensor) and arg.dim() > 1 else arg

    for sample in SAMPLES:
        if str(sample) in ("rope", "causal_softmax", "label_smoothing"):
            continue  # sizes that depend on each other: below
        found = compare.captured(sample.function, *sample.drawn())
        graph = clean(lower(found))
        args = [stretched(arg) for arg in sample.drawn()]
        want = sample.function(*[stretched(arg) for arg in sample.drawn()])
        if not found.writes:
            compare.assert_same(compare.returned(found, interpret(graph, args)), want)


def test_equal_sizes_are_not_one_symbol() -> None:
    graph = compare.lowered(lambda x: x + 1, torch.randn(4, 4))
    assert len({*graph.inputs[0].shape}) == 2


def test_sizes_that_must_agree_are_one_symbol() -> None:
    graph = compare.lowered(lambda x, y: x + y, torch.randn(4, 6), torch.randn(6))
    assert graph.inputs[0].shape[1] == graph.inputs[1].shape[0]


@pytest.mark.parametrize("size", [0, 1])
def test_sizes_0_and_1_are_fixed(size: int) -> None:
    graph = compare.lowered(lambda x: x * 2, torch.randn(size, 5))
    assert graph.inputs[0].shape[0] == size


def branches(x: Tensor, count: int, scale: float) -> Tensor:
    if x.shape[0] > 8:
        x = x * 2
    if count == 3:
        x = x + 1
    return x - 1 if scale > 0.5 else x


def holds(found: Any, **values: float) -> bool:
    """Whether the guards hold where the arguments' symbols are these."""
    named = {}
    for argument in found.arguments:
        node = getattr(argument.value, "node", None)
        if node is not None and not node.expr.is_number:
            named[found.symbols[node.expr]] = values[argument.name]
        if argument.kind == "tensor":
            for dim, size in enumerate(argument.value.shape):
                if isinstance(size, torch.SymInt):
                    named[found.symbols[size.node.expr]] = values[f"{argument.name}{dim}"]
    return all(evaluated(guard, named) for guard in found.guards)


def test_branches_on_sizes_and_numbers_are_guards() -> None:
    found = compare.captured(branches, torch.randn(5, 6), 4, 0.75)
    usual = {"x0": 5, "x1": 6, "count": 4, "scale": 0.75}
    assert holds(found, **usual)
    assert holds(found, **{**usual, "x0": 8, "count": 5, "scale": 3.0})
    for wrong in ({"x0": 9}, {"x1": 1}, {"count": 3}, {"scale": 0.25}):
        assert not holds(found, **{**usual, **wrong})


def test_a_number_that_torch_needs_is_fixed() -> None:
    found = compare.captured(lambda x, dim: x.sum(dim), torch.randn(3, 4), 1)
    assert found.arguments[1].kind == "fixed" or found.arguments[1].value.node.expr == 1
    compare.assert_same(
        compare.run(lambda x, dim: x.sum(dim), torch.arange(12).view(3, 4), 1),
        torch.arange(12).view(3, 4).sum(1),
    )


def test_everything_else_is_fixed() -> None:
    def act(x: Tensor, kind: str, flag: bool, dtype: torch.dtype, nothing: None) -> Tensor:
        return (F.relu(x) if kind == "relu" and flag else x).to(dtype)

    found = compare.captured(act, torch.randn(3), "relu", True, torch.float16, None)
    assert [a.kind for a in found.arguments] == ["tensor", *["fixed"] * 4]
    assert [a.value for a in found.arguments[1:]] == ["relu", True, torch.float16, None]


def test_nested_arguments_and_results() -> None:
    def step(state: dict[str, Tensor], pair: tuple[Tensor, float], *, shift: int) -> Any:
        return {"sum": state["a"] + pair[0] * pair[1], "none": None, "n": state["a"].shape[0]}

    args = ({"a": torch.randn(3, 2)}, (torch.randn(2), 0.5))
    found = compare.captured(step, *args, shift=2)
    assert [a.name for a in found.arguments] == ["state_a", "pair_0", "pair_1", "shift"]
    compare.assert_same(compare.run(step, *args, shift=2), step(*args, shift=2))


def test_promotion_of_python_numbers() -> None:
    for x in (torch.arange(4), torch.tensor([True, False]), torch.randn(3).bfloat16()):
        for number in (2, 2.5):
            got = compare.run(lambda x, n: (x * n, x + n, x > n, x / n), x, number)
            compare.assert_same(got, (x * number, x + number, x > number, x / number))


# Refused


def prints(x: Tensor) -> Tensor:
    print(x)
    return x


def branches_on_a_value(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


def formats(x: Tensor) -> str:
    return f"{x}"


def reads(x: Tensor) -> float:
    return x.max().item()


def loses_its_shape(x: Tensor) -> Tensor:
    return x[x > 0]


def asks_where_it_lies(x: Tensor) -> Tensor:
    return x * 2 if x.data_ptr() % 16 == 0 else x * 3


OUTSIDE = torch.ones(3)


def uses_what_is_outside(x: Tensor) -> Tensor:
    return x + OUTSIDE


REFUSED = [
    (prints, "print(x)", "printed"),
    (branches_on_a_value, "if x.sum() > 0:", "branches"),
    (formats, 'return f"{x}"', "formatted"),
    (reads, "return x.max().item()", "reads"),
    (loses_its_shape, "return x[x > 0]", "depends on a tensor's values"),
    (
        asks_where_it_lies,
        "return x * 2 if x.data_ptr() % 16 == 0 else x * 3",
        "where a tensor lies",
    ),
    (uses_what_is_outside, "return x + OUTSIDE", "not an argument"),
]


@pytest.mark.parametrize(
    ("function", "line", "why"), REFUSED, ids=lambda v: getattr(v, "__name__", "")
)
def test_refused_with_the_users_line(function: Callable[..., Any], line: str, why: str) -> None:
    with pytest.raises(CaptureError, match=why) as error:
        compare.captured(function, torch.randn(3))
    lines, start = inspect.getsourcelines(function)
    number = start + [text.strip() for text in lines].index(line)
    assert f'File "{__file__}", line {number}' in str(error.value)
    assert line in str(error.value)


def test_an_argument_with_gradients_is_not_written() -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(CaptureError, match="requires gradients and is written to"):
        compare.captured(lambda x, y: x.mul_(y), x * 1, torch.randn(3))


def test_written_arguments_do_not_share_memory() -> None:
    x = torch.randn(4)
    with pytest.raises(CaptureError, match="same memory"):
        compare.captured(lambda x, y: x.mul_(y), x, x[:])


def test_the_users_own_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="size") as error:
        compare.captured(lambda x, y: x + y, torch.randn(3), torch.randn(4))
    assert not isinstance(error.value, CaptureError)


# Origins and gradients


def test_values_have_the_users_names_and_lines() -> None:
    graph = compare.lowered(scaled, torch.randn(3, 5), 0.5, 7)
    h = next(value for value in graph.values if value.name == "h")
    assert h.origin.text == "h = x * scale"
    assert h.origin.line == inspect.getsourcelines(scaled)[1] + 1


def test_gradients_have_the_forwards_lines() -> None:
    sample = next(s for s in SAMPLES if str(s) == "swiglu")
    found = compare.captured(sample.function, *sample.drawn(gradients=True))
    backward = clean(lower(found, "backward"))
    texts = {value.origin.text for value in backward.values if value.operands}
    assert texts == {"return F.silu(gate) * up"}


def test_without_grad_mode_there_is_no_backward() -> None:
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert compare.captured(torch.sin, x).backward is None
    assert compare.captured(torch.sin, x.detach()).backward is None
    assert compare.captured(torch.sin, x).gradients == (0,)


def test_numbers_are_saved_for_the_backward() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    found = compare.captured(lambda x, s: x.sin() * s, x, 0.3)
    backward = clean(lower(found, "backward"))
    assert any(isinstance(value, Number) for value in backward.inputs)
    _, got, want = compare.gradients(lambda x, s: x.sin() * s, x, 0.3)
    compare.assert_same(got, want)


def test_the_trace_is_the_same_on_every_run() -> None:
    sample: Sample = SAMPLES[0]
    texts = {
        show(lower(capture(sample.function, sample.drawn(), {}, decompositions())))
        for _ in range(3)
    }
    assert len(texts) == 1
