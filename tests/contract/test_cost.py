"""An op's cost is what really happens: launches counted, bytes worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from contract.cases import (
    ALL,
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Case,
    full_args,
    leaves,
    listed,
    one_pass,
    wanting_grad,
)
from megafuse import OPS
from megafuse.bench.traffic import watch
from megafuse.runtime import loader


def launched(device: str, work: Callable[[], object]) -> int:
    """Kernels of ours on the CPU; on CUDA every kernel that the profiler saw, and prints."""
    work()  # compiles
    if device == "cpu":
        host = loader.load()
        assert host is not None
        before = host.launch_count()
        work()
        return host.launch_count() - before
    names = [k for k in watch(work, device).kernels if not k.startswith(("Memcpy", "Memset"))]
    print(*names, sep="\n")
    return len(names)


def check_composite(case: Case, count: int, declared: int, aligned: bool, ways: int = 1) -> None:
    """A product of the library may be two kernels (K is split, or the result filled first), and
    where sizes are odd its bias or activation takes a pass of its own. `ways`: products for each
    weight, one forward and two backward. All else is as declared, but for the block's backward,
    whose 23 may be two fewer where sums of biases are in an epilogue."""
    weights = [a for a in case.op.arguments if re.fullmatch("[0-9]?[A-Z][A-Z]", a.shape)]
    most = declared + len(weights) * ways * (1 if aligned else 2)
    assert declared - declared // 10 <= count <= most, f"{count} launches, {declared} declared"


def usual_dtype(case: Case, device: str) -> torch.dtype:
    """float32 attention is torch's own on CUDA, with launches of its own; 16 bits are ours."""
    attends = case.name in ("attention", "transformer_block")
    return torch.bfloat16 if attends and device == "cuda" else torch.float32


WHOLE, ODD = (64, 64), (1000, 33)


def usual_shape(case: Case) -> tuple[int, int]:
    """Attention's keys are three more than its queries here, and up to 64 of them are ours."""
    return (60, 64) if case.name == "attention" else WHOLE


def takes_torchs_attention(case: Case, device: str, shape: tuple[int, ...]) -> bool:
    """Long or odd."""
    return usual_dtype(case, device) == torch.bfloat16 and shape == ODD


@pytest.mark.parametrize("shape", [WHOLE, ODD])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_forward_launches(case: Case, shape: tuple[int, ...], device: str) -> None:
    if takes_torchs_attention(case, device, shape):
        pytest.skip("torch's own attention, whose launches we do not count")
    if device == "cpu" and case not in one_pass(ALL):
        pytest.skip("what a composite launches on the CPU is not what its cost is about")
    shape = usual_shape(case) if shape == WHOLE else shape
    args = case.args(shape, usual_dtype(case, device), device)
    count = launched(device, lambda: case.op.fused(*args))
    if case in one_pass(ALL):
        assert count == case.op.cost(*args).launches == 1
    else:
        check_composite(case, count, case.op.cost(*args).launches, aligned=shape != ODD)


@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_backward_launches(case: Case, device: str) -> None:
    """Gradients of whole tensors: one launch for all of them, or none where they pass through."""
    if device == "cpu" and case not in one_pass(ONE_EACH):
        pytest.skip("what a composite launches on the CPU is not what its cost is about")
    args = full_args(case, usual_shape(case), usual_dtype(case, device), device)
    if case.name == "dropout_add":
        args[2] = 0.5  # with 0, the sample's, both gradients are the result's
    fresh = [
        a.detach() if n.name == "mask" and isinstance(a, Tensor) else a  # its gradient is eager's
        for n, a in zip(case.op.arguments, wanting_grad(case, args), strict=True)
    ]
    outs = listed(case.op.fused(*fresh))
    grads = [torch.randn_like(t) for t in outs]
    work = lambda: torch.autograd.grad(outs, leaves(fresh), grads, retain_graph=True)  # noqa: E731
    declared = case.op.backward_cost(*args).launches
    if case in one_pass(ONE_EACH):
        assert launched(device, work) == declared
    else:
        check_composite(case, launched(device, work), declared, aligned=True, ways=2)


def cost_bytes(name: str, *args: object) -> tuple[int, int]:
    op = OPS[name]
    backward = op.backward_cost(*args).bytes_moved if op.differentiable else 0
    return op.cost(*args).bytes_moved, backward


def test_bytes_by_hand() -> None:
    def full(dtype: torch.dtype) -> Tensor:
        return torch.zeros(100, 30, dtype=dtype)

    n, row = 100 * 30, 30
    # x in, out out; backward: grad and x in, x's gradient out.
    assert cost_bytes("gelu_scale", full(torch.float32), 1.7, "tanh") == (8 * n, 12 * n)
    assert cost_bytes("gelu_scale", full(torch.bfloat16), 1.7, "tanh") == (4 * n, 6 * n)
    # The bias is read once; backward: grad, x and bias in, both gradients out.
    bias = torch.zeros(30)
    assert cost_bytes("bias_act", full(torch.float32), bias, "gelu") == (
        8 * n + 4 * row,
        12 * n + 8 * row,
    )
    # float16 in, int8 out.
    assert cost_bytes("quantize_int8", full(torch.float16), 0.1, 3) == (3 * n, 0)
    # Backward: grad, gate and up in, both gradients out.
    assert cost_bytes("swiglu", full(torch.float32), full(torch.float32)) == (12 * n, 20 * n)
    # x, y, z, w in; backward: grad, x, y and z in; x and y share one gradient, z has its own and
    # w's is the incoming one.
    four = [full(torch.float32) for _ in range(4)]
    assert cost_bytes("add_mul_add", *four) == (20 * n, 24 * n)
    # exp saves its output, and x and y share one gradient.
    assert cost_bytes("add_mul_exp", *four[:2]) == (12 * n, 12 * n)


def test_bytes_of_views() -> None:
    """An expanded tensor is read as it is stored; a row and a column are small."""
    x, row = torch.zeros(100, 30), torch.zeros(30)
    expanded = row.expand(100, 30)
    assert OPS["swiglu"].cost(x, expanded).bytes_moved == OPS["swiglu"].cost(x, row).bytes_moved
    assert OPS["swiglu"].cost(x, x[:, :1]).bytes_moved == 4 * (2 * 3000 + 100)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_flops_grow_with_the_output(case: Case) -> None:
    small, large = (case.op.cost(*case.args((n, 8))).flops for n in (10, 1000))
    if case in one_pass(ALL):
        assert large == 100 * small > 0
    else:  # an attention's grow with the square
        assert large >= 100 * small > 0


@pytest.mark.parametrize("case", [c for c in ALL if c.op.family == "composite"], ids=str)
def test_flops_are_those_of_the_matrix_products(case: Case) -> None:
    """What torch counts in the reference, which leaves out all but products; then a little more."""
    args = case.args((64, 128))
    fresh = wanting_grad(case, args)
    # torch counts nothing in its tiled attention for the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        outs = listed(case.op.reference(*fresh))
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(outs, leaves(fresh), [torch.randn_like(t) for t in outs])
    for counted, told in (
        (forward.get_total_flops(), case.op.cost(*args).flops),
        (backward.get_total_flops(), case.op.backward_cost(*args).flops),
    ):
        # Of a causal attention, too, torch counts every pair: about half of them are seen.
        least = 0.4 if ("causal", True) in case.choices else 1
        assert least * counted <= told
        assert told <= 1.5 * counted or not counted


@pytest.mark.parametrize("case", ALL, ids=str)
def test_empty_costs_nothing_to_compute(case: Case, device: str) -> None:
    args = case.args((0, 4), device=device)
    assert case.op.cost(*args).flops == 0
    scalars = case.name == "transformer_block" and device == "cuda"  # one, filled by torch's SDPA
    assert launched(device, lambda: case.op.fused(*args)) == int(scalars)
