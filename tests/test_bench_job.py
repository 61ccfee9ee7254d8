"""megafuse.bench.job: what a call does in each mode, and what it must do at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megafuse.bench import op_job
from megafuse.bench.contenders import Contender
from megafuse.bench.job import Job, Work, of_function
from megafuse.bench.op_job import of_op, of_op_call
from megafuse.ops import OPS

CACHE = 1 << 20


@pytest.fixture(autouse=True)
def one_mebibyte_of_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_job, "cache_bytes", lambda device: CACHE)


def first(*args: Any) -> Any:
    return args[0]


def job_on(*args: Any, function: Any = first, mode: str = "forward") -> Job:
    return of_function(function, args, mode, [Contender("f", "", lambda: function)])


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
        n.name in OPS["dequantize_int8"].autograd.grads
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


def work(op: str, mode: str, n: int, dtype: torch.dtype = torch.float32) -> Work:
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


# ---- layers: widths, weights, choices


def layer(op: str, **how: Any) -> Job:
    shape = how.pop("shape", (6, 8))
    return of_op(OPS[op], how.pop("mode", "forward"), torch.float32, shape, "cpu", [], **how)


def argument(job: Job, op: str, name: str) -> Any:
    return job.arguments()[OPS[op].position(name)]


@pytest.mark.parametrize("op", ["linear_relu", "linear_gelu", "gelu_linear", "layernorm_linear"])
def test_features_are_a_layers_output(op):
    job = layer(op, features=5)
    assert job.widths == (5,)
    assert argument(job, op, "weight").shape == (5, 8)
    assert job.reference(*job.arguments()).shape == (6, 5)
    assert layer(op).widths == tuple(argument(layer(op), op, "weight").shape[:1])


@pytest.mark.parametrize("op", ["ffn", "swiglu_ffn"])
def test_features_are_a_blocks_hidden_ones(op):
    job = layer(op, features=20)
    assert job.widths == (20, 8)
    assert job.reference(*job.arguments()).shape == (6, 8)
    assert layer(op, features=8).widths == (8,), "hidden and output are the same"


@pytest.mark.parametrize("op", ["layer_norm", "softmax", "swiglu", "gelu_scale"])
def test_what_is_no_layer_has_no_width(op):
    assert layer(op).widths == ()


def test_weights_are_scaled_so_that_results_stay_near_one():
    job = layer("linear_relu", shape=(64, 4096), features=64)
    assert 0.5 < job.reference(*job.arguments()).std() < 2


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "relu"])
def test_a_choice_replaces_what_the_op_draws(act):
    job = layer("ffn", choices={"act": act, "p": 0.25})
    assert argument(job, "ffn", "act") == act
    assert argument(job, "ffn", "p") == 0.25
    assert job.choices == {"act": act, "p": 0.25}


def test_an_optional_tensor_is_given_or_left_out():
    given = layer("softmax", choices={"mask": True})
    assert argument(given, "softmax", "mask").shape == (6, 8)
    assert argument(layer("softmax"), "softmax", "mask") is None
    without = layer("linear_relu", choices={"bias": False})
    assert argument(without, "linear_relu", "bias") is None
    assert argument(layer("linear_relu"), "linear_relu", "bias") is not None


def test_one_optional_tensor_does_not_bring_the_others():
    job = layer("swiglu_ffn", choices={"residual": True})
    named = zip(OPS["swiglu_ffn"].arguments, job.arguments(), strict=True)
    given = {argument.name for argument, value in named if isinstance(value, Tensor)}
    assert given == {"x", "w_gate", "w_up", "w_down", "residual"}


def test_bytes_and_flops_follow_the_choices():
    narrow, wide = (layer("linear_relu", features=n).work for n in (8, 16))
    assert wide.flops == 2 * narrow.flops
    masked, plain = layer("softmax", choices={"mask": True}).work, layer("softmax").work
    assert masked.bytes_moved - plain.bytes_moved == 4 * 6 * 8


def test_causal_rows_need_not_be_read_whole():
    """Right of the diagonal of 8×8 lie 28 elements; all of the result is written."""
    whole = layer("softmax", shape=(3, 8, 8)).work
    half = layer("softmax", shape=(3, 8, 8), choices={"causal": True}).work
    assert whole.bytes_moved - half.bytes_moved == 4 * 3 * 28


def test_a_call_that_the_op_refuses_is_refused():
    with pytest.raises(ValueError, match="causal=True needs rows and columns"):
        layer("softmax", shape=(8,), choices={"causal": True})


def test_random_is_what_draws():
    assert layer("residual_layer_norm", choices={"p": 0.1}).random
    assert not layer("residual_layer_norm", choices={"p": 0.0}).random
    assert not layer("residual_layer_norm", choices={"p": 0.1, "training": False}).random


def test_who_multiplies_matrices():
    assert layer("linear_relu").multiplies
    assert layer("ffn").multiplies
    assert not any(layer(op).multiplies for op in ("layer_norm", "swiglu", "dropout_add"))


def test_a_call_on_the_users_tensors_tells_the_same():
    """x's shape, although the weight is larger; what is not the default is told."""
    x, weight = torch.randn(2, 8), torch.randn(20, 8)
    job = of_op_call(OPS["linear_gelu"], [x, weight, None, "tanh"], "forward", [])
    assert (job.shape, job.widths, job.choices) == ((2, 8), (20,), {"approximate": "tanh"})
    usual = of_op_call(OPS["linear_gelu"], [x, weight, None, "none"], "forward", [])
    assert usual.choices == {}
    scaled = of_op_call(OPS["gelu_scale"], [x, 1.7, "none"], "forward", [])
    assert scaled.choices == {"approximate": "none"}, "a scale is a value like x's"
