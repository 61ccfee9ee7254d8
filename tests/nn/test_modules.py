"""Every module: torch's parameters, torch's numbers, and everything that torch's modules can do."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from conftest import FLOATS, dtype_name
from contract.eager import eagerly
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrizations, prune

import megafuse.nn as fused
from nn.cases import Case, each
from nn.rule import check_module

# ---- parameters


@each
def test_names_shapes_and_initial_values_are_torchs(case: Case) -> None:
    torch.manual_seed(0)
    ours = case.make()
    torch.manual_seed(0)
    twin = case.twin()
    expected = twin.state_dict()
    assert list(ours.state_dict()) == list(expected)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, expected[name]), name


@each
def test_state_dict_goes_both_ways(case: Case) -> None:
    ours, twin = case.make(), case.twin()
    twin.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(case.twin().state_dict(), strict=True)
    again = case.make()
    again.load_state_dict(ours.state_dict(), strict=True)
    for name, value in again.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name])


@each
def test_device_and_dtype_of_the_parameters(case: Case, device: str) -> None:
    made = case.make(device=device, dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in made.parameters()} <= {(device, torch.bfloat16)}


@pytest.mark.slow
@each
def test_meta_then_to_empty(case: Case) -> None:
    twin = case.pair()[1]
    made = case.make(device="meta")
    assert all(p.is_meta for p in made.parameters())
    inputs = case.inputs()
    shapes = [t.to("meta") for t in inputs]
    assert _first(made(*shapes)).shape == _first(twin(*inputs)).shape
    made = made.to_empty(device="cpu")
    made.load_state_dict(twin.state_dict())
    torch.testing.assert_close(made(*inputs), twin(*inputs), rtol=1e-4, atol=1e-5)


# ---- numbers


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@each
def test_results_and_gradients_are_torchs(case: Case, dtype: torch.dtype, device: str) -> None:
    ours, twin = case.pair(dtype=dtype, device=device)
    check_module(ours, twin, case.inputs(dtype, device), case.kink)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["half", "bfloat16", "double"])
@each
def test_cast_after_the_fact(case: Case, dtype: str, device: str) -> None:
    ours, twin = (getattr(module, dtype)() for module in case.pair(device=device))
    inputs = case.inputs(getattr(torch, dtype), device)
    with torch.no_grad():
        got, expected = ours(*inputs), twin(*inputs)
    assert _first(got).dtype == getattr(torch, dtype)
    torch.testing.assert_close(got, expected, rtol=0.03, atol=0.06)


@pytest.mark.slow
@each
def test_autocast(case: Case, device: str) -> None:
    """The dtype that torch's module gives, values near its own, gradients in float32."""
    ours, twin = case.pair(device=device)
    inputs = case.inputs(device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        got, expected = ours(*inputs), eagerly(twin.__call__)(*inputs)
    _first(got).float().sum().backward()
    for mine, theirs in zip(_tuple(got), _tuple(expected), strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=0.03, atol=0.06)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in ours.parameters())


@each
def test_no_grad(case: Case, device: str) -> None:
    """The same without autograd's graph, in training and for inference.

    Not by torch's fast path for inference: on CUDA it takes the tanh form of gelu for the other.
    """
    ours, twin = case.pair(device=device)
    inputs = case.inputs(device=device)
    with torch.no_grad():
        _close(ours(*inputs), twin(*inputs))
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.inference_mode():
            _close(ours.eval()(*inputs), twin.eval()(*inputs))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


# ---- as an object


@each
def test_repr_tells_the_settings(case: Case) -> None:
    made = case.make()
    assert type(made).__name__ in repr(made)
    parent = type(made).__mro__[1].extra_repr
    assert made.extra_repr() or type(made).extra_repr is parent


@each
def test_deepcopy_is_equal_and_apart(case: Case) -> None:
    made, _ = case.pair()
    twice = copy.deepcopy(made)
    inputs = case.inputs()
    torch.testing.assert_close(twice(*inputs), made(*inputs), rtol=0, atol=0)
    mine = {id(p) for p in made.parameters()}
    assert not mine & {id(p) for p in twice.parameters()}


@each
def test_pickle_and_save(case: Case) -> None:
    made, _ = case.pair()
    inputs = case.inputs()
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    for again in (pickle.loads(pickle.dumps(made)), torch.load(file, weights_only=False)):
        assert type(again) is type(made)
        torch.testing.assert_close(again(*inputs), made(*inputs), rtol=0, atol=0)


@each
def test_hooks_of_the_module(case: Case) -> None:
    made, _ = case.pair()
    heard = []
    made.register_forward_pre_hook(lambda module, args: heard.append("before"))
    made.register_forward_hook(lambda module, args, out: heard.append("after"))
    made(*case.inputs())
    assert heard == ["before", "after"]


@each
def test_hooks_of_its_parts(case: Case) -> None:
    """A part that has a hook is called, so the hook runs; and the result stays what it was."""
    made, _ = case.pair()
    inputs = case.inputs()
    before = made(*inputs)
    parts = [m for m in made.modules() if m is not made and not isinstance(m, nn.Sequential)]
    heard = []
    for part in parts:
        part.register_forward_hook(lambda module, args, out: heard.append(module))
    torch.testing.assert_close(made(*inputs), before, rtol=1e-4, atol=1e-5)
    owners = {part for part in parts if list(part.parameters(recurse=False))}
    assert owners <= set(heard)


def is_linear(part: nn.Module) -> bool:
    """An nn.Linear, or one of ours that has its weight and bias: a LinearReLU is none itself."""
    return hasattr(part, "in_features")


@each
def test_pruned_parts(case: Case) -> None:
    """Pruning makes the weight anew in a hook, before each call of the layer that has it.

    Not an attention's out_proj: torch never calls that one, so its own module misses the hook.
    """
    ours, twin = case.pair()
    for module in (ours, twin):
        for part in list(module.modules()):
            if is_linear(part) and type(part) is not NonDynamicallyQuantizableLinear:
                torch.manual_seed(1)
                prune.random_unstructured(part, "weight", 0.5)
                part.weight = torch.zeros_like(part.weight)  # stale, until the hook ran
    inputs = case.inputs()
    torch.testing.assert_close(ours(*inputs), twin(*inputs), rtol=1e-4, atol=1e-5)


class Adapter(nn.Module):
    """As LoRA does: in the layer's place, with its attributes, and doing more than it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x.mean(-1, keepdim=True)


@each
def test_parts_replaced(case: Case) -> None:
    ours, twin = case.pair()
    for module in (ours, twin):
        for parent in list(module.modules()):
            for name, part in list(parent.named_children()):
                if type(part) is nn.Linear:
                    setattr(parent, name, Adapter(part))
    inputs = case.inputs()
    torch.testing.assert_close(ours(*inputs), twin(*inputs), rtol=1e-4, atol=1e-5)


@each
def test_forward_of_the_instance(case: Case) -> None:
    """accelerate and others put a forward of their own on the instance."""
    ours, twin = case.pair()
    for module in (ours, twin):
        for part in module.modules():
            if type(part) is nn.Linear:
                part.forward = lambda x, call=part.forward: call(x) * 2
    inputs = case.inputs()
    torch.testing.assert_close(ours(*inputs), twin(*inputs), rtol=1e-4, atol=1e-5)


@each
def test_parametrized(case: Case) -> None:
    ours, twin = case.pair()
    for module in (ours, twin):
        for part in list(module.modules()):
            if is_linear(part):
                parametrizations.weight_norm(part)
                with torch.no_grad():
                    part.parametrizations.weight.original0.mul_(1.5)
    check_module(ours, twin, case.inputs(), case.kink)


@each
def test_functional_call(case: Case) -> None:
    made, twin = case.pair()
    inputs = [t.detach() for t in case.inputs()]
    values = {name: value.detach() * 1.5 for name, value in made.named_parameters()}

    def loss(values: dict, module: nn.Module) -> torch.Tensor:
        return _first(torch.func.functional_call(module, values, tuple(inputs))).square().sum()

    got = torch.func.grad(loss)(values, made)
    expected = torch.func.grad(loss)(values, twin)
    for name, value in got.items():
        size = expected[name].abs().max().item()
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5 * size)


@each
def test_tied_weights_and_optimizer(case: Case) -> None:
    """One Parameter in two modules: its gradient is the sum, and one step moves both."""
    first, second = case.make(), case.make()
    if not list(first.parameters()):
        pytest.skip("it has none")
    for module, name in [(first, name) for name, _ in first.named_parameters()]:
        owner, _, leaf = name.rpartition(".")
        setattr(second.get_submodule(owner), leaf, module.get_parameter(name))
    inputs = case.inputs()
    (_first(first(*inputs)).sum() + _first(second(*inputs)).sum()).backward()
    optimizer = torch.optim.SGD(nn.ModuleList([first, second]).parameters(), lr=0.1)
    optimizer.step()
    torch.testing.assert_close(first(*inputs), second(*inputs), rtol=0, atol=0)


# ---- compilers


@pytest.fixture
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@each
def test_compile(case: Case, device: str) -> None:
    made, twin = case.pair(device=device)
    check_module(
        torch.compile(made, fullgraph=True, backend="aot_eager"),
        twin,
        case.inputs(device=device),
        case.kink,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_a_block_with_dropout(backend: str, device: str) -> None:
    """In one graph, in training and in eval; and for another batch and length."""
    settings = {"dropout": 0.1, "batch_first": True, "norm_first": True, "activation": "gelu"}
    block = fused.TransformerBlock(64, 2, 96, **settings).to(device)
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for shape in ((3, 8, 64), (5, 11, 64)) if backend == "aot_eager" else ((3, 8, 64),):
        x = torch.randn(shape, device=device)
        block.train()
        compiled(x).square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())
        block.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@each
def test_export(case: Case) -> None:
    made, _ = case.pair()
    inputs = tuple(t.detach() for t in case.inputs())
    made.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(made, inputs)
    torch.testing.assert_close(program.module()(*inputs), made(*inputs), rtol=1e-4, atol=1e-5)


def _tuple(value):
    return value if isinstance(value, tuple) else (value,)


def _first(value):
    return _tuple(value)[0]


def _close(ours, expected):
    for mine, wanted in zip(_tuple(ours), _tuple(expected), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
