"""torch.compile(fullgraph=True), torch.export and opcheck: the op is one node, and it is right."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import megafuse as mf
from contract.cases import (
    ALL,
    ONE_EACH,
    ONE_EACH_DIFFERENTIABLE,
    Args,
    Case,
    close,
    leaves,
    listed,
    pointwise,
    shaped,
    tensor_places,
    tensors,
    wanting_grad,
)
from contract.views import VIEWS

# Those whose second argument is a number in eager too; the dispatcher wants a tensor there.
FIXED = {"tensor_or_number"}


def dispatched(case: Case, args: Args) -> Args:
    """The arguments as torch.ops.megafuse.<op> takes them."""
    return [
        torch.tensor(float(a), device=tensors(args)[0].device)
        if n.kind in FIXED and not isinstance(a, Tensor)
        else a
        for n, a in zip(case.op.arguments, args, strict=True)
    ]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("case", ALL, ids=str)
def test_opcheck(case: Case, device: str) -> None:
    args = wanting_grad(case, dispatched(case, case.args((4, 6), device=device)))
    checks = ["test_schema", "test_faketensor", "test_autograd_registration"]
    if not case.draws:
        checks.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(case.op.overload, tuple(args), test_utils=checks)


@pytest.mark.slow
@pytest.mark.parametrize("case", shaped(ALL), ids=str)
def test_opcheck_of_what_is_kept(case: Case, device: str) -> None:
    """With nothing to differentiate, and (where the op keeps results) with `keep`."""
    args = case.args((4, 6), device=device)
    torch.library.opcheck(case.op.overload, tuple(args))
    if case.op.autograd.keeps:
        torch.library.opcheck(case.op.overload, (*args, True))


@pytest.mark.slow
@pytest.mark.parametrize("case", shaped(ONE_EACH), ids=str)
def test_opcheck_of_each_argument_in_turn(case: Case, device: str) -> None:
    args = case.args((4, 6), device=device)
    for place in tensor_places(case, args):
        for view in ("transposed", "expanded", "padded"):
            changed = [VIEWS[view](a) if i == place else a for i, a in enumerate(args)]
            torch.library.opcheck(
                case.op.overload,
                tuple(wanting_grad(case, changed)),
                test_utils=["test_schema", "test_faketensor"],
            )


@pytest.mark.slow
@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_opcheck_of_layouts(case: Case, device: str) -> None:
    """The fake tensor has the strides that the kernel gives."""
    for shape, layout in [
        ((2, 3, 4, 5), lambda t: t.to(memory_format=torch.channels_last)),
        ((4, 6), lambda t: t.t().contiguous().t()),
        ((4, 6), lambda t: t[:, :1].expand(4, 6)),
        ((4, 6), lambda t: t[::2, ::2]),
        ((0, 6), lambda t: t),
    ]:
        args = [
            layout(a) if isinstance(a, Tensor) and a.dim() == len(shape) else a
            for a in case.args(shape, device=device)
        ]
        if "::" not in str(shape) and layout(torch.zeros(shape)).shape != shape:
            args = [a if not isinstance(a, Tensor) or a.dim() > 1 else a[:1] for a in args]
        args = wanting_grad(case, dispatched(case, args))
        torch.library.opcheck(
            case.op.overload, tuple(args), test_utils=["test_schema", "test_faketensor"]
        )


class Recorded(TorchDispatchMode):
    """Keeps the arguments of every backward that passes the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.megafuse.backward.default:
            self.calls.append(args)
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_EACH_DIFFERENTIABLE, ids=str)
def test_opcheck_of_backward(case: Case, device: str) -> None:
    """Its fake has the shapes, dtypes and strides of the real one, whatever was broadcast."""
    args = case.args((4, 6), device=device)
    channels_last = [
        a.to(memory_format=torch.channels_last) if isinstance(a, Tensor) and a.dim() == 4 else a
        for a in case.args((2, 3, 4, 5), device=device)
    ]
    half = [
        a.half() if isinstance(a, Tensor) and a.is_floating_point() and i else a
        for i, a in enumerate(args)
    ]
    for called in (args, channels_last, half) if case.op.pointwise else (args, channels_last):
        fresh = wanting_grad(case, called)
        outs = listed(case.op.fused(*fresh))
        with Recorded() as mode:
            torch.autograd.grad(outs, leaves(fresh), [torch.randn_like(t) for t in outs])
        (recorded,) = mode.calls
        torch.library.opcheck(
            torch.ops.megafuse.backward.default,
            recorded,
            test_utils=["test_schema", "test_faketensor"],
        )


def compiled_like_eager(case: Case, device: str, backend: str, dynamic: bool) -> None:
    """Compiled inside other work, forward and backward, at three shapes."""

    def model(*args: Any) -> list[Tensor]:
        out = case.op.fused(*args)
        return [out + 1] if isinstance(out, Tensor) else [t + 1 for t in out]

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for shape in [(8, 16), (5, 7), (9, 1)]:
        args = case.args(shape, device=device)
        ours, theirs = wanting_grad(case, args), wanting_grad(case, args)
        got, expected = compiled(*ours), model(*theirs)
        close(case, got, expected)
        assert [t.stride() for t in got] == [t.stride() for t in expected]
        if case.op.differentiable:
            grads = [torch.randn_like(t) for t in expected]
            for outs in (got, expected):
                torch.autograd.backward(outs, grads)
            for a, b in zip(leaves(ours), leaves(theirs), strict=True):
                close(case, a.grad, b.grad)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_compile(case: Case, dynamic: bool, device: str) -> None:
    compiled_like_eager(case, device, "aot_eager", dynamic)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bias_act", "swiglu"])
def test_compile_with_inductor(name: str, device: str) -> None:
    case = next(c for c in ONE_EACH if c.name == name)
    compiled_like_eager(case, device, "inductor", True)


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_compiled_graph_holds_our_op(case: Case, device: str) -> None:
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    torch.compile(case.op.fused, fullgraph=True, backend=backend)(*case.args((4, 6), device=device))
    assert any(f"megafuse.{case.name}" in target for target in seen), seen
    assert not any("gelu" in target and "megafuse" not in target for target in seen), seen


def test_compiled_with_channels_last(device: str) -> None:
    for case in pointwise(ONE_EACH):
        args = [
            a.to(memory_format=torch.channels_last) if isinstance(a, Tensor) and a.dim() == 4 else a
            for a in case.args((2, 3, 4, 5), device=device)
        ]
        got = torch.compile(case.op.fused, fullgraph=True, backend="aot_eager")(*args)
        expected = case.op.fused(*args)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride() == case.op.reference(*args).stride(), case


def test_compiled_dropout(device: str) -> None:
    """Draws anew in each call, reproducibly, and again in backward."""
    model = torch.compile(lambda x: mf.dropout_relu(x, 0.5), fullgraph=True, backend="aot_eager")
    x = (torch.rand(1003, device=device) + 0.5).requires_grad_()
    torch.manual_seed(3)
    first, second = model(x), model(x)
    torch.manual_seed(3)
    again = model(x)
    assert torch.equal(first, again)
    assert not torch.equal(first != 0, second != 0)
    for out in (second, first):
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad != 0, out != 0)
    torch.manual_seed(3)
    assert torch.equal(mf.dropout_relu(x, 0.5), first), "eager draws others"


class Module(torch.nn.Module):
    """The op with all arguments fixed that are not tensors."""

    def __init__(self, case: Case, args: Args) -> None:
        super().__init__()
        self.fused = case.op.fused
        self.is_tensor = [isinstance(a, Tensor) for a in args]
        self.others = [None if isinstance(a, Tensor) else a for a in args]

    def forward(self, *args: Any) -> Any:
        given = iter(args)
        pairs = zip(self.is_tensor, self.others, strict=True)
        return self.fused(*(next(given) if tensor else other for tensor, other in pairs))


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_export(case: Case, strict: bool, device: str) -> None:
    args = case.args((4, 6), device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Module(case, args), tuple(tensors(args)), strict=strict)
    assert f"megafuse.{case.name}" in program.graph_module.code
    close(case, program.module()(*tensors(args)), case.op.reference(*args))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*pointwise(ONE_EACH_DIFFERENTIABLE)[:2], *shaped(ONE_EACH)], ids=str
)
def test_export_with_dynamic_shapes(case: Case, device: str) -> None:
    """As many rows as there are (of the first argument, and of those that have as many)."""
    dim = torch.export.Dim("rows", min=2, max=4096)
    args, other = case.args((8, 2, 6), device=device), case.args((33, 2, 6), device=device)
    pairs = zip(tensors(args), tensors(other), strict=True)
    shapes = tuple(
        {i: dim for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n}
        for a, b in pairs
    )
    program = torch.export.export(
        Module(case, args), tuple(tensors(args)), dynamic_shapes={"args": shapes}, strict=False
    )
    close(case, program.module()(*tensors(other)), case.op.reference(*other))
