"""megafuse.bench.arguments: fresh values at the same place, and which of them stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from megafuse.bench.accuracy import leaves
from megafuse.bench.arguments import Arguments
from megafuse.bench.contenders import Contender
from megafuse.bench.job import MODES, Job, of_function
from megafuse.bench.op_job import of_op, of_op_call
from megafuse.ops import OPS


def job_on(*args: Any, function: Any = None, mode: str = "forward") -> Job:
    function = function or (lambda *args: args[0])
    return of_function(function, args, mode, [Contender("f", "", lambda: function)])


def refreshed(arguments: Arguments, times: int) -> list[list[Any]]:
    """Set 0 after each of so many refreshes."""
    found = []
    for _ in range(times):
        arguments.refresh(0)
        found.append([t.detach().clone() for t in leaves(arguments[0])])
    return found


def test_three_sets_in_turn():
    arguments = Arguments(job_on(torch.randn(10)))
    places = [arguments[i][0].data_ptr() for i in range(7)]
    assert len(set(places)) == 3
    assert places == [*places[:3], *places[:3], places[0]]


def test_refreshing_one_set_leaves_the_others_alone():
    arguments = Arguments(job_on(torch.randn(10)))
    before = [arguments[i][0].clone() for i in range(3)]
    arguments.refresh(4)
    assert [torch.equal(arguments[i][0], before[i]) for i in range(3)] == [True, False, True]


@pytest.mark.parametrize("shape", [(100,), (4, 50), (50, 4), (2, 3, 5)])
def test_new_values_at_the_same_address(shape):
    arguments = Arguments(job_on(torch.randn(shape)))
    x = arguments[0][0]
    place = x.data_ptr()
    rounds = [tuple(t.flatten().tolist()) for (t,) in refreshed(arguments, max(shape))]
    assert len(set(rounds)) == max(shape), "values came again too soon"
    assert arguments[0][0] is x
    assert x.data_ptr() == place


def test_values_are_the_drawn_ones_in_another_order():
    x = torch.randn(40, 3)
    ((found,),) = refreshed(Arguments(job_on(x)), 1)
    assert not torch.equal(found, x)
    assert torch.equal(found.flatten().sort().values, x.flatten().sort().values)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, x.tolist()))


def test_integers_of_a_user_stay_where_they_are():
    """They may be indices into another argument, or offsets that must grow."""
    offsets, flags = torch.arange(10), torch.tensor([True, False] * 5)
    arguments = Arguments(job_on(torch.randn(10), offsets, flags))
    for x, indices, mask in refreshed(arguments, 5):
        assert torch.equal(indices, offsets)
        assert torch.equal(mask, flags)
        assert not torch.equal(x, arguments._spare[0])


def test_integers_of_an_op_are_data():
    job = of_op(OPS["dequantize_int8"], "forward", torch.float32, (64, 64), "cpu", [])
    a, b = refreshed(Arguments(job), 2)
    assert a[0].dtype == torch.int8
    assert not torch.equal(a[0], b[0])


def test_numbers_and_nothing_survive():
    arguments = Arguments(job_on(torch.randn(4), 1.7, "tanh", None, [torch.randn(3), {"b": 2}]))
    arguments.refresh(0)
    assert arguments[0][1:4] == [1.7, "tanh", None]
    assert arguments[0][4][1] == {"b": 2}


def test_nested_tensors_are_renewed():
    arguments = Arguments(job_on([torch.randn(30)], {"a": torch.randn(30)}))
    once, twice = refreshed(arguments, 2)
    assert not any(map(torch.equal, once, twice))


def test_zero_dimensional_and_empty_tensors_survive():
    zero, empty = torch.tensor(2.5), torch.empty(0, 4)
    for number, nothing, _ in refreshed(Arguments(job_on(zero, empty, torch.randn(8))), 3):
        assert torch.equal(number, zero)
        assert nothing.shape == (0, 4)


LAYOUTS = {
    "expanded": lambda: torch.randn(1, 8).expand(5, 8),
    "transposed": lambda: torch.randn(5, 8).t(),
    "every other": lambda: torch.randn(5, 16)[:, ::2],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "dense": lambda: torch.randn(5, 8),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("of", ["function", "op"])
def test_strides_are_the_ones_given(make, of):
    """An expanded tensor is read from the cache, a dense copy of it from memory."""
    x = make()
    if of == "op":
        job = of_op_call(OPS["gelu_scale"], [x, 1.7, "tanh"], "forward", [])
    else:
        job = job_on(x)
    arguments = Arguments(job)
    for i in range(3):
        assert torch.equal(arguments[i][0], x)
        assert arguments[i][0].stride() == x.stride()
    arguments.refresh(0)
    assert arguments[0][0].stride() == x.stride()


def test_an_expanded_tensor_is_renewed_and_stays_expanded():
    x = torch.randn(6, 1).expand(6, 4)
    rounds = [found for (found,) in refreshed(Arguments(job_on(x)), 3)]
    for found in rounds:
        assert torch.equal(found, found[:, :1].expand(6, 4))
    assert not torch.equal(rounds[0], rounds[1])


@pytest.mark.parametrize("mode", MODES)
def test_tensors_of_the_user_are_never_changed(mode):
    x, n = torch.randn(50), torch.arange(50)
    before = x.clone()
    job = job_on(x, n, function=lambda x, n: x * n, mode=mode)
    arguments = Arguments(job)
    for i in range(10):
        arguments.refresh(i)
        step = job.step(job.reference)
        step(*arguments[i])
        with torch.no_grad():
            arguments[i][0].zero_()
            arguments[i][1].zero_()
    assert torch.equal(x, before)
    assert torch.equal(n, torch.arange(50))
    assert not x.requires_grad
    assert x.grad is None


def test_a_parameter_can_be_an_argument():
    """With the graph that made it, a tensor could not be copied into."""
    weight = nn.Parameter(torch.randn(8))
    made = weight * 2
    for mode in MODES:
        arguments = Arguments(job_on(weight, made, mode=mode))
        arguments.refresh(0)
        assert [t.requires_grad for t in arguments[0][:2]] == [mode != "forward"] * 2
        assert all(t.is_leaf for t in arguments[0][:2])


# ---- weights


def changed(op: str, mode: str, refresh: str) -> set[str]:
    """Names of the arguments whose values a refresh, or a check, changes."""
    job = of_op(OPS[op], mode, torch.float32, (6, 8), "cpu", [])
    arguments = Arguments(job)
    before = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in arguments[0]]
    getattr(arguments, refresh)(*((0,) if refresh == "refresh" else (0, 3)))
    names = [a.name for a in OPS[op].arguments]
    return {
        name
        for name, was, now in zip(names, before, arguments[0], strict=False)
        if isinstance(now, torch.Tensor) and not torch.equal(was, now)
    }


@pytest.mark.parametrize("op", ["linear_relu", "layernorm_linear", "layer_norm"])
def test_weights_stay_between_forward_calls(op):
    """As in a model: what is worked out from a weight once may be kept."""
    assert changed(op, "forward", "refresh") == {"x"}
    assert changed(op, "forward, grad", "refresh") == {"x"}


def test_weights_change_between_backward_calls_and_in_checks():
    everything = {"x", "weight", "bias"}
    assert changed("linear_relu", "forward+backward", "refresh") == everything
    assert changed("linear_relu", "forward", "renew") == everything


def test_an_op_without_weights_has_all_of_its_values_changed():
    assert changed("swiglu", "forward", "refresh") == {"gate", "up"}
    assert changed("bias_act", "forward", "refresh") == {"x", "bias"}
    assert changed("residual_rms_norm", "forward", "refresh") == {"x", "residual"}
