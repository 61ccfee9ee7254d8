"""megafuse.bench.job: fresh arguments at the same place, and what a call must do at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megafuse.bench import job as module
from megafuse.bench.contenders import Contender
from megafuse.bench.job import Arguments, Job, of_function, of_op, of_op_call
from megafuse.ops import OPS

CACHE = 1 << 20


@pytest.fixture(autouse=True)
def one_mebibyte_of_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_bytes", lambda device: CACHE)


def first(*args: Any) -> Any:
    return args[0]


def job_on(*args: Any, function: Any = first, mode: str = "forward") -> Job:
    return of_function(function, args, mode, [Contender("f", "", lambda: function)])


def refreshed(arguments: Arguments, times: int) -> list[list[Any]]:
    """Set 0 after each of so many refreshes."""
    found = []
    for _ in range(times):
        arguments.refresh(0)
        found.append([t.detach().clone() for t in module.leaves(arguments[0])])
    return found


# ---- arguments


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


@pytest.mark.parametrize("mode", module.MODES)
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
    for mode in module.MODES:
        arguments = Arguments(job_on(weight, made, mode=mode))
        arguments.refresh(0)
        assert [t.requires_grad for t in arguments[0][:2]] == [mode != "forward"] * 2
        assert all(t.is_leaf for t in arguments[0][:2])


# ---- forward and backward


def called(job: Job) -> tuple[Sequence[Any], Any]:
    args = job.arguments()
    return args, job.step(job.reference)(*args)


def test_forward_is_the_function_itself():
    job = job_on(torch.randn(3))
    assert job.step(first) is first
    assert job_on(torch.randn(3), mode="forward, grad").step(first) is first
    assert len(job.arguments()) == 1


def test_backward_gives_the_result_and_the_gradients():
    def function(x: Tensor, factor: float, y: Tensor) -> Tensor:
        return factor * x * x + y.sum()

    job = job_on(torch.randn(5), 3.0, torch.randn(7), function=function, mode="forward+backward")
    (x, _, y, (incoming,)), (out, (dx, dy)) = called(job)
    torch.testing.assert_close(out, function(x, 3.0, y))
    assert incoming.shape == (5,)
    torch.testing.assert_close(dx, 6 * x * incoming)
    torch.testing.assert_close(dy, incoming.sum().expand(7))
    assert x.grad is None, "gradients would add up from call to call"


def test_backward_of_several_results_and_unused_arguments():
    def function(x: Tensor, unused: Tensor) -> dict[str, Tensor]:
        return {"a": x * 2, "b": x.detach(), "c": x[:2] * 3, "d": x.argmax()}

    job = job_on(torch.ones(4), torch.ones(4), function=function, mode="forward+backward")
    (*_, incoming), (_, (dx, unused)) = called(job)
    assert [tuple(t.shape) for t in incoming] == [(4,), (2,)]
    expected = 2 * incoming[0]
    expected[:2] += 3 * incoming[1]
    torch.testing.assert_close(dx, expected)
    assert unused is None


def test_backward_of_a_module_reaches_its_parameters():
    linear = nn.Linear(3, 2)
    job = job_on(torch.randn(5, 3), function=linear, mode="forward+backward")
    (x, (incoming,)), (_, (dx, dw, db)) = called(job)
    torch.testing.assert_close(dx, incoming @ linear.weight)
    torch.testing.assert_close(dw, incoming.t() @ x)
    torch.testing.assert_close(db, incoming.sum(0))
    assert linear.weight.grad is None


def test_backward_of_a_module_with_a_frozen_parameter():
    linear = nn.Linear(3, 2)
    linear.bias.requires_grad_(False)
    job = job_on(torch.randn(5, 3), function=linear, mode="forward+backward")
    _, (_, gradients) = called(job)
    assert [tuple(g.shape) for g in gradients] == [(5, 3), (2, 3)]


def test_backward_of_an_op():
    job = of_op(OPS["swiglu"], "forward+backward", torch.float32, (4, 8), "cpu", [])
    (gate, up, (incoming,)), (out, (dgate, dup)) = called(job)
    torch.testing.assert_close(out, nn.functional.silu(gate) * up)
    torch.testing.assert_close(dup, incoming * nn.functional.silu(gate))
    assert dgate.shape == gate.shape


# ---- what a job is


def test_an_op_by_its_shape():
    job = of_op(OPS["gelu_scale"], "forward", torch.bfloat16, (4, 1024), "cpu", [])
    assert (job.name, job.mode, job.device) == ("gelu_scale", "forward", "cpu")
    assert (job.dtype, job.shape, job.elements) == ("bfloat16", (4, 1024), 4096)
    x, scale, approximate = job.arguments()
    assert (x.dtype, x.shape, x.requires_grad) == (torch.bfloat16, (4, 1024), False)
    assert (scale, approximate) == (1.7, "tanh")
    assert not torch.equal(x, job.arguments()[0]), "not drawn anew"


def test_only_arguments_with_a_gradient_want_one():
    job = of_op(OPS["dequantize_int8"], "forward, grad", torch.float32, (8,), "cpu", [])
    assert [a.requires_grad for a in job.arguments() if isinstance(a, Tensor)] == [
        n.name in OPS["dequantize_int8"].grads
        for n, a in zip(OPS["dequantize_int8"].arguments, job.arguments(), strict=True)
        if isinstance(a, Tensor)
    ]


def test_a_function_is_described_by_its_largest_tensor():
    job = job_on(torch.ones(3), torch.ones(2, 50, dtype=torch.float64), mode="forward")
    assert (job.name, job.dtype, job.shape) == ("first", "float64", (2, 50))
    assert job.work is None
    assert job_on(torch.ones(2), function=nn.Linear(2, 2)).name == "Linear"


def test_no_tensor_is_an_error():
    with pytest.raises(ValueError, match="there is no tensor among the arguments"):
        job_on(3.0, "text")


def test_no_gradient_is_an_error():
    for mode in ("forward, grad", "forward+backward"):
        with pytest.raises(ValueError, match="quantize_int8 has no gradient"):
            of_op(OPS["quantize_int8"], mode, torch.float32, (8,), "cpu", [])


def test_randomness_is_the_ops():
    assert of_op(OPS["dropout_relu"], "forward", torch.float32, (8,), "cpu", []).random
    assert not of_op(OPS["gelu_scale"], "forward", torch.float32, (8,), "cpu", []).random


# ---- the least to do


def work(op: str, mode: str, n: int, dtype: torch.dtype = torch.float32) -> module.Work:
    found = of_op(OPS[op], mode, dtype, (n,), "cpu", []).work
    assert found is not None
    return found


def test_bytes_that_no_cache_can_spare():
    """gelu_scale: x is read, and of the result what the cache cannot hold is written."""
    small = work("gelu_scale", "forward", 1000)
    assert (small.bytes_moved, small.bytes_from_memory, small.flops) == (8000, 4000, 12_000)
    n = CACHE  # four times the cache
    large = work("gelu_scale", "forward", n)
    assert (large.bytes_moved, large.bytes_from_memory) == (8 * n, 8 * n - CACHE)
    assert work("gelu_scale", "forward, grad", n) == large


def test_bytes_by_dtype():
    assert work("gelu_scale", "forward", 1000, torch.bfloat16).bytes_moved == 4000
    assert work("quantize_int8", "forward", 1000).bytes_moved == 5000


def test_bytes_of_the_backward_pass():
    """The gradient and x are read, x's gradient is written: 12 more for each element."""
    small = work("gelu_scale", "forward+backward", 1000)
    assert (small.bytes_moved, small.bytes_from_memory) == (20_000, 4000)
    assert small.flops == 12_000 + 20_000
    n = CACHE
    large = work("gelu_scale", "forward+backward", n)
    assert large.bytes_moved == 20 * n
    assert large.bytes_from_memory == (8 * n - CACHE) + (12 * n - 2 * CACHE)


def test_a_broadcast_argument_is_read_once():
    x, bias = torch.randn(100, 64), torch.randn(64)
    op = OPS["bias_act"]
    given = [x, bias, *(a.default for a in op.arguments[2:])]
    job = of_op_call(op, given, "forward", [])
    assert job.work.bytes_moved == 4 * (2 * 6400 + 64)


def test_the_copy_moves_as_many_bytes(monkeypatch):
    job = of_op(OPS["gelu_scale"], "forward", torch.float32, (1 << 16,), "cpu", [])
    copy = job.yardsticks["copy"]()
    target = copy()
    assert 2 * target.nbytes == job.work.bytes_moved
    assert target.amax() > 0
    tiny = of_op(OPS["gelu_scale"], "forward", torch.float32, (1,), "cpu", [])
    assert tiny.yardsticks["copy"]().__call__().nbytes == 4096
