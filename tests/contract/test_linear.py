"""Linear layers and feed-forward blocks: what the suite that walks the registry cannot see.

No copy of x where strides allow none, nothing written that belongs to the caller, no more memory
than the results take, blocks of rows, dropout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import megafuse as mf
from contract.cases import leaves
from megafuse import OPS
from megafuse.ops import Op
from megafuse.registry.sample import Draw

NAMES = ("linear_relu", "linear_gelu", "gelu_linear", "layernorm_linear", "ffn", "swiglu_ffn")
LAYERS = [OPS[name] for name in NAMES]
each_layer = pytest.mark.parametrize("op", LAYERS, ids=NAMES)


def sample(op: Op, shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> Any:
    return list(op.sample(Draw(shape, dtype, device, everything=True)))


def close(got: Tensor, expected: Tensor) -> None:
    scale = expected.abs().max().clamp(min=1e-3).item()
    near = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[got.dtype]
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=near, atol=near * scale)


# ---- x as a view


def views(rows: int, columns: int, device: str) -> dict[str, Tensor]:
    """Layouts of x that a GEMM takes as they are: one of two strides is 1."""
    return {
        "rank 1": torch.randn(columns, device=device),
        "rank 4": torch.randn(2, 3, rows // 6, columns, device=device),
        "rows apart": torch.randn(rows, 3 * columns, device=device)[:, :columns],
        "some rows": torch.randn(rows, 2, columns, device=device)[:, 1],
        "transposed": torch.randn(columns, rows, device=device).t(),
        "one row": torch.randn(1, columns, device=device),
        "off by one": torch.randn(rows * columns + 1, device=device)[1:].view(rows, columns),
    }


def copies(work: Callable[[], object]) -> list[str]:
    work()  # compiles
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    named = ("aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy")
    return [event.name for event in found.events() if event.name in named]


@pytest.mark.parametrize("name", views(12, 16, "cpu"))
@each_layer
def test_x_is_not_copied(op: Op, name: str, device: str) -> None:
    x = views(48, 16, device)[name]
    args = [x, *sample(op, tuple(x.shape), device)[1:]]
    # On ARM oneDNN copies rows that lie apart, inside PyTorch's own product of x with a weight.
    products = {"gelu_linear": 0, "layernorm_linear": 0, "swiglu_ffn": 2}.get(op.name, 1)
    rows, inside = x.reshape(-1, 16), []
    for weight in args[1 : 1 + products]:
        inside += copies(lambda w=weight: torch.mm(rows, w.t()))  # type: ignore[misc]
    assert copies(lambda: op.fused(*args)) == inside
    close(op.fused(*args), op.reference(*args))


@each_layer
def test_x_of_other_strides_is_copied(op: Op, device: str) -> None:
    for x in (
        torch.randn(48, 32, device=device)[:, ::2],
        torch.randn(16, device=device).expand(48, 16),
        torch.randn(6, 16, 8, device=device).transpose(1, 2),
    ):
        args = [x, *sample(op, tuple(x.shape), device)[1:]]
        close(op.fused(*args), op.reference(*args))


@each_layer
def test_transposed_weights(op: Op, device: str) -> None:
    """Weights may be views too; their gradients are contiguous."""
    args = sample(op, (48, 16), device)
    turned = [
        a.t().contiguous().t() if i > 0 and isinstance(a, Tensor) and a.dim() == 2 else a
        for i, a in enumerate(args)
    ]
    assert copies(lambda: op.fused(*turned)) == []
    ours, theirs = (
        gradients(f, [a.detach() if isinstance(a, Tensor) else a for a in turned], op)
        for f in (op.fused, op.reference)
    )
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)
        assert a.is_contiguous()


def gradients(f: Callable[..., Tensor], args: Any, op: Op) -> tuple[Tensor, ...]:
    fresh = wanting_grad_of(op, args)
    out = f(*fresh)
    grad = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype)
    return torch.autograd.grad(out, leaves(fresh), grad)


def wanting_grad_of(op: Op, args: Any) -> Any:
    return [
        a.detach().requires_grad_(n.name in op.autograd.grads) if isinstance(a, Tensor) else a
        for n, a in zip(op.arguments, args, strict=True)
    ]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 3, 5), (7, 1, 9), (33, 17, 1), (65, 31, 127)])
def test_odd_sizes(sizes: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    """No alignment to rely on: rows, K and N one by one."""
    rows, k, n = sizes
    x = torch.randn(rows, k, device=device).to(dtype)
    weight = (torch.randn(n, k, device=device) * k**-0.5).to(dtype)
    bias = torch.randn(n, device=device).to(dtype)
    near = 8 * torch.finfo(dtype).eps
    for op in (mf.linear_relu, mf.linear_gelu, mf.gelu_linear):
        exact = getattr(mf.reference, op.__name__)(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(op(x, weight, bias).double(), exact, rtol=near, atol=4 * near)


# ---- what belongs to the caller


@each_layer
def test_nothing_of_the_callers_is_written(op: Op, dtype: torch.dtype, device: str) -> None:
    """Arguments, incoming gradient and what was kept: a second backward gives the same bits."""
    args = wanting_grad_of(op, sample(op, (40, 24), device, dtype))
    before = [a.detach().clone() for a in args if isinstance(a, Tensor)]
    out = op.fused(*args)
    grad = torch.randn_like(out)
    grad_before, out_before = grad.clone(), out.detach().clone()
    first = torch.autograd.grad(out, leaves(args), grad, retain_graph=True)
    second = torch.autograd.grad(out, leaves(args), grad, retain_graph=True)
    for a, b in zip([a for a in args if isinstance(a, Tensor)], before, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(grad, grad_before)
    assert torch.equal(out, out_before)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@each_layer
def test_each_gradient_alone(op: Op, device: str) -> None:
    """What is left out when only some gradients are wanted is nobody else's part."""
    args = sample(op, (40, 24), device)
    full = wanting_grad_of(op, args)
    out = op.fused(*full)
    grad = torch.randn_like(out)
    together = torch.autograd.grad(out, leaves(full), grad)
    names = [n.name for n, a in zip(op.arguments, full, strict=True) if _is_leaf(a)]
    for name, expected in zip(names, together, strict=True):
        alone = [
            a.detach().requires_grad_(n.name == name) if isinstance(a, Tensor) else a
            for n, a in zip(op.arguments, args, strict=True)
        ]
        got = torch.autograd.grad(op.fused(*alone), leaves(alone), grad)
        close(got[0], expected)


def _is_leaf(a: Any) -> bool:
    return isinstance(a, Tensor) and a.requires_grad


# ---- memory

SLACK = 1 << 16  # partial sums


def peak(work: Callable[[], object]) -> int:
    """The most bytes that a call holds at once beyond what was there before; CPU."""
    work()  # compiles
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = work()
    del kept
    assert found.profiler is not None
    events = found.profiler.kineto_results.events()
    changes = [e.nbytes() for e in events if e.name() == "[memory]"]
    return max(itertools.accumulate(changes), default=0)


ROWS, COLUMNS = 256, 64


@pytest.mark.parametrize(
    ("name", "matrices"),
    # How many of the rows of each width: 64 is x's and ffn's result, the others are hidden.
    [
        ("linear_relu", {128: 1}),
        ("linear_gelu", {256: 1}),
        ("gelu_linear", {64: 1, 16: 1}),
        ("layernorm_linear", {64: 1, 192: 1}),
        ("ffn", {256: 1, 64: 1}),
        ("swiglu_ffn", {192: 2, 64: 1}),
    ],
)
def test_memory_of_a_forward(name: str, matrices: dict[int, int]) -> None:
    """The result and what a GEMM must read: no other matrix, where no gradient is wanted."""
    args = sample(OPS[name], (ROWS, COLUMNS), "cpu")
    least = sum(ROWS * width * 4 * count for width, count in matrices.items())
    with torch.no_grad():
        used = peak(lambda: OPS[name].fused(*args))
    assert least <= used <= least + SLACK


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("linear_relu", {128: 1}),  # the gradient of relu's argument
        ("linear_gelu", {256: 1}),
        ("gelu_linear", {}),  # in the place of x's gradient
        ("layernorm_linear", {}),
        ("ffn", {256: 1}),
        ("swiglu_ffn", {192: 2}),  # of gate and up, the first in the place of the product's
    ],
)
def test_memory_of_a_backward(name: str, hidden: dict[int, int]) -> None:
    """The gradients themselves, and those of what lies between the layers once."""
    op = OPS[name]
    args = wanting_grad_of(op, sample(op, (ROWS, COLUMNS), "cpu"))
    out = op.fused(*args)
    grad = torch.randn_like(out)
    passed = op.autograd.passthrough
    given = [a for n, a in zip(op.arguments, args, strict=True) if n.name not in passed]
    least = sum(t.nbytes for t in leaves(given))
    least += sum(ROWS * width * 4 * count for width, count in hidden.items())
    used = peak(lambda: torch.autograd.grad(out, leaves(args), grad, retain_graph=True))
    assert least <= used <= least + SLACK


# ---- blocks of rows on the CPU


@pytest.mark.parametrize("columns", [1024, 1040])
def test_blocks_of_rows(columns: int) -> None:
    """Results over 32 MiB are made in blocks of 1024 rows; here the last one is short."""
    rows = (32 << 20) // (4 * columns) + 700
    x, weight = torch.randn(rows, 8), torch.randn(columns, 8) * 8**-0.5
    bias = torch.randn(columns)
    close(mf.linear_gelu(x, weight, bias), mf.reference.linear_gelu(x, weight, bias))
    # With gelu's argument kept, in blocks of its own.
    leaf = bias.clone().requires_grad_()
    total = mf.linear_gelu(x, weight, leaf).sum()
    theirs = mf.reference.linear_gelu(x, weight, leaf).sum()
    ours, expected = (torch.autograd.grad(t, leaf)[0] for t in (total, theirs))
    close(ours, expected)
    # A residual is cut like the rest.
    residual = torch.randn(rows, columns)
    args = (x, torch.eye(8), None, weight, bias, "relu", residual)
    close(mf.ffn(*args), mf.reference.ffn(*args))


# ---- dropout

P = 0.3


def with_dropout(op: Op, device: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Arguments with dropout, and the same without dropout and residual."""
    drawn = sample(op, (96, 32), device, dtype)
    if op.name == "ffn":
        drawn[op.position("act")] = "gelu"
    drawn[op.position("p")] = P
    bare = list(drawn)
    bare[op.position("p")] = 0.0
    bare[op.position("residual")] = None
    return drawn, bare


each_dropping = pytest.mark.parametrize(
    "op", [OPS["ffn"], OPS["swiglu_ffn"]], ids=["ffn", "swiglu_ffn"]
)


@each_dropping
def test_dropout(op: Op, device: str) -> None:
    """The result is the residual, plus the product over 1 − p where it is kept."""
    args, bare = with_dropout(op, device)
    residual, product = args[op.position("residual")], op.fused(*bare)
    torch.manual_seed(3)
    out = op.fused(*args)
    dropped = out == residual
    expected = residual + product / (1 - P)
    close(out, torch.where(dropped, residual, expected))
    share = dropped.float().mean().item()
    assert abs(share - P) < 5 * (P * (1 - P) / out.numel()) ** 0.5
    torch.manual_seed(3)
    assert torch.equal(out, op.fused(*args))
    assert not torch.equal(out, op.fused(*args))
    args[op.position("training")] = False
    close(op.fused(*args), residual + product)


@each_dropping
def test_dropout_backward(op: Op, device: str) -> None:
    """The gradients are those of the product times the mask that the forward drew."""
    args, bare = with_dropout(op, device)
    fresh = wanting_grad_of(op, args)
    out = op.fused(*fresh)
    residual = args[op.position("residual")]
    mask = (out.detach() != residual) / (1 - P)
    grad = torch.randn_like(out)
    ours = torch.autograd.grad(out, leaves(fresh), grad)
    fresh = wanting_grad_of(op, bare)
    product = op.reference(*fresh)
    added = residual.clone().requires_grad_()
    expected = torch.autograd.grad(added + product * mask, [*leaves(fresh), added], grad)
    for a, b in zip(ours, expected, strict=True):
        close(a, b)


@each_dropping
def test_everything_dropped(op: Op, device: str) -> None:
    args, _ = with_dropout(op, device)
    args[op.position("p")] = 1.0
    assert torch.equal(op.fused(*args), args[op.position("residual")])


def test_dropout_add(device: str) -> None:
    x, residual = (torch.randn(64, 33, device=device, requires_grad=True) for _ in range(2))
    out = mf.dropout_add(x, residual, P)
    mask = (out.detach() != residual) / (1 - P)
    close(out, residual + x * mask)
    grad = torch.randn_like(out)
    dx, dresidual = torch.autograd.grad(out, (x, residual), grad)
    close(dx, grad * mask)
    assert torch.equal(dresidual, grad)
    # Draws go by place, not by memory.
    torch.manual_seed(5)
    flat = mf.dropout_add(x, residual, P)
    torch.manual_seed(5)
    assert torch.equal(flat, mf.dropout_add(x.t().contiguous().t(), residual, P))


# ---- a residual of another dtype


@pytest.mark.parametrize("p", [0.0, P])
@each_dropping
def test_residual_in_float32(op: Op, p: float, device: str) -> None:
    """Under autocast the residual is float32 beside bfloat16 layers, and so is the result."""
    args, bare = with_dropout(op, device, torch.bfloat16)
    place = op.position("residual")
    args[op.position("p")] = p
    args[place] = torch.randn(96, 32, device=device)
    fresh = wanting_grad_of(op, args)
    out = op.fused(*fresh)
    assert out.dtype == torch.float32
    mask = (out.detach() != args[place]) / (1 - p)
    # With gradients wanted here too: what is kept is rounded, and some paths go on from there.
    product = op.fused(*wanting_grad_of(op, bare)).detach()
    close(out, args[place] + product.float() * mask)
    ours = torch.autograd.grad(out, leaves(fresh), torch.ones_like(out))
    assert [g.dtype for g in ours] == [t.dtype for t in leaves(fresh)]
    assert torch.equal(ours[-1], torch.ones_like(out))
