"""A fused function among transforms, modes, copies, threads and processes, as our own ops are."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import logging
import os
import pickle
import sys
import types
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compiler.at_once import at_once
from compiler.placed import here
from megafuse.compiler import fuse
from megafuse.graph import torch_versions
from megafuse.graph.capture import CaptureError


def gated(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return torch.sigmoid(x) * y * scale


fused_gated = fuse(gated)


def inputs(requires_grad: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    made = torch.randn(4, 6), torch.randn(6)
    return made[0].requires_grad_(requires_grad), made[1].requires_grad_(requires_grad)


def both(function: Any, given: tuple[Tensor, ...]) -> list[Tensor]:
    out = function(*given)
    return [out, *torch.autograd.grad(out.square().sum(), given)]


# ---- torch.compile


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(fullgraph: bool, backend: str) -> None:
    fused = fuse(gated)
    compiled = torch.compile(
        lambda x, y: fused(x.sin(), y, scale=3.0) + 1, backend=backend, fullgraph=fullgraph
    )
    given = inputs(True)
    torch.testing.assert_close(
        both(compiled, given), both(lambda x, y: gated(x.sin(), y, 3.0) + 1, given)
    )


def test_a_compiled_module_that_holds_one() -> None:
    module = Holder()
    x = torch.randn(3, 6)
    # Before 2.12, Dynamo looks in the class for what is a method of the object's own, and breaks.
    whole = torch.torch_version.TorchVersion(torch.__version__) >= (2, 12)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=whole)
    torch.testing.assert_close(compiled(x), module(x))


# ---- torch.func


def test_vmap_and_jacobians() -> None:
    x, y = inputs()
    fused = fuse(gated)
    for transform in (
        lambda f: torch.vmap(f, in_dims=(0, None))(x, y),
        lambda f: torch.func.jacrev(f)(x, y),
        lambda f: torch.func.jacfwd(f)(x, y),
        lambda f: torch.func.hessian(lambda x: f(x, y).sum())(x),
        lambda f: torch.vmap(torch.func.grad(lambda x: f(x, y).sum()))(x),
        lambda f: torch.func.jvp(f, (x, y), (x, y)),
        lambda f: torch.func.functional_call(Holder(f), {"weight": y}, (x,)),
    ):
        torch.testing.assert_close(transform(fused), transform(gated))  # type: ignore[no-untyped-call]


def test_forward_mode() -> None:
    x, y = inputs()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        mine, theirs = (
            torch.autograd.forward_ad.unpack_dual(f(dual, y)) for f in (fuse(gated), gated)
        )
    torch.testing.assert_close(mine.tangent, theirs.tangent)


# ---- modes


def test_autocast_between_calls() -> None:
    layer = lambda x, w: (x @ w).relu() * x.sum()  # noqa: E731
    fused = fuse(layer)
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 3)
    for on in (False, True, False, True):
        with torch.autocast(here().type, dtype=torch.bfloat16, enabled=on):
            mine, theirs = fused(x, w), layer(x, w)
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
        mine.sum().backward()


def test_gradients_are_asked_for_or_not() -> None:
    given = inputs(True)
    fused = fuse(gated)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
        with mode():
            made, want = fused(*given), gated(*given)
        assert made.requires_grad == want.requires_grad
        assert made.is_inference() == want.is_inference()
        torch.testing.assert_close(made, want)
    with torch.inference_mode():
        inside = inputs()
    torch.testing.assert_close(fused(*inside), gated(*inside))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool) -> None:
    given = inputs(True)
    fused = fuse(gated)
    for _ in range(2):  # when it is traced, and after
        out = checkpoint(fused, *given, use_reentrant=reentrant)
        for leaf in given:
            leaf.grad = None
        out.square().sum().backward()
        torch.testing.assert_close([out, *(leaf.grad for leaf in given)], both(gated, given))
    assert fused.variants


def test_saved_tensors_can_be_moved() -> None:
    given = inputs(True)
    with torch.autograd.graph.save_on_cpu():
        made = both(fuse(gated), given)
    torch.testing.assert_close(made, both(gated, given))


# ---- copies


class Holder(nn.Module):
    def __init__(self, function: Any = fused_gated) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function", [fused_gated, fuse(gated, rounding="eager")], ids=["named", "anew"]
)
def test_copied_and_pickled(function: Any) -> None:
    x = torch.randn(3, 6)
    module = Holder(function)
    before = module(x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(module),
        copy.copy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
    ):
        torch.testing.assert_close(twin(x), before)
        assert twin.function.rounding == function.rounding
        twin(x).sum().backward()


# ---- threads and processes


def test_eight_threads() -> None:
    fused = fuse(gated)

    def call(n: int) -> None:
        for _ in range(10):
            given = (
                torch.randn(n + 2, 6, requires_grad=True),
                torch.randn(6, requires_grad=True),
            )
            torch.testing.assert_close(both(fused, given), both(gated, given))

    at_once(call, range(8))
    assert len(fused.variants) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_fork() -> None:
    if here().type == "cuda":
        pytest.skip("a forked process cannot use CUDA")
    fused = fuse(gated)
    x, y = inputs()
    fused(x, y)
    child = os.fork()
    if not child:
        good = False
        try:  # the child must not come back as a second pytest
            good = torch.allclose(fused(x, y), gated(x, y))
            good &= torch.allclose(fused(x.double(), y.double()), gated(x.double(), y.double()))
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- ways to be called


class Scaler:
    scale = 2.0

    def __init__(self) -> None:
        self.offset = 1.0

    @fuse
    def method(self, x: Tensor) -> Tensor:
        return x.sin() * self.scale + self.offset

    @staticmethod
    @fuse
    def static(x: Tensor, y: Tensor) -> Tensor:
        return x * y + 1

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x * cls.scale


def test_methods() -> None:
    x, y = inputs()
    scaler = Scaler()
    torch.testing.assert_close(scaler.method(x), x.sin() * 2 + 1)
    torch.testing.assert_close(scaler.static(x, y), x * y + 1)
    torch.testing.assert_close(Scaler.static(x, y), x * y + 1)
    torch.testing.assert_close(fuse(scaler.of_class)(x), x * 2)
    torch.testing.assert_close(Scaler.method(scaler, x), x.sin() * 2 + 1)


def test_partials_and_variable_arguments() -> None:
    x, y = inputs()
    torch.testing.assert_close(functools.partial(fuse(gated), y=y)(x), gated(x, y))
    torch.testing.assert_close(fuse(functools.partial(gated, scale=3.0))(x, y), gated(x, y, 3.0))

    def total(*tensors: Tensor, **named: Tensor) -> Tensor:
        return sum(tensors) + sum(named.values())  # type: ignore[return-value]

    fused = fuse(total)
    for count in (1, 2, 3):
        torch.testing.assert_close(fused(*[x] * count, a=y, b=x), total(*[x] * count, a=y, b=x))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclasses.dataclass
class State:
    x: Tensor
    scale: float = 1.0


def test_tuples_by_name() -> None:
    x, y = inputs(True)
    swapped = lambda p: Pair(p.second * 2, p.first + p.second)  # noqa: E731
    made = fuse(swapped)(Pair(x, y))
    assert type(made) is Pair
    torch.testing.assert_close(tuple(made), tuple(swapped(Pair(x, y))))


def test_a_dataclass_is_refused_in_words() -> None:
    """Its tensors are no arguments that torch would see."""
    fused = fuse(lambda state, y: state.x * state.scale * y)
    with pytest.raises(CaptureError, match="not an argument") as error:
        fused(State(torch.randn(3)), torch.randn(3))
    assert error.value.origin.file == __file__


def test_what_is_no_tensor() -> None:
    def function(x: Tensor, flag: bool, how: str | None, dtype: torch.dtype, n: int) -> Tensor:
        made = x.exp() if flag else x.sin()
        if how == "mean":
            made = made - made.mean(-1, keepdim=True)
        return (made * n).to(dtype)

    fused = fuse(function)
    x, _ = inputs()
    for flag in (True, False):
        for how in ("mean", None):
            for dtype in (torch.float32, torch.float64):
                for n in (2, 5):
                    call = (x, flag, how, dtype, n)
                    torch.testing.assert_close(fused(*call), function(*call), rtol=1e-5, atol=1e-5)
    assert len(fused.variants) == 8
    torch.testing.assert_close(fused(x, True, None, torch.float32, True), x.exp())  # True is no 2


# ---- what is read besides the arguments

FACTOR = 2.0
TABLE = torch.ones(3)


def helper(x: Tensor) -> Tensor:
    return x * FACTOR


def test_a_global_number_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    direct, through = fuse(lambda x: x + FACTOR), fuse(lambda x: helper(x) + 1)
    x = torch.ones(3)
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", factor)
        assert direct(x).equal(x + factor)
        assert through(x).equal(x * factor + 1)
    assert len(direct.variants) == 2


shape = (2, 3)


def test_a_global_of_an_attributes_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's `shape` is none of x.shape's business."""
    fused = fuse(lambda x: x.reshape(x.shape[1], x.shape[0]) + 1)
    for sizes in ((2, 3), (4, 5)):
        monkeypatch.setattr(sys.modules[__name__], "shape", sizes)
        x = torch.randn(shape)
        assert fused(x).equal(x.reshape(sizes[::-1]) + 1)
    assert len(fused.variants) == 1


def test_attributes_that_change() -> None:
    scaler = Scaler()
    x = torch.ones(3)
    for offset in (1.0, 5.0):
        scaler.offset = offset
        torch.testing.assert_close(scaler.method(x), x.sin() * 2 + offset)
    layer = nn.Module()
    layer.config = State(x, 2.0)  # type: ignore[assignment]
    fused = fuse(lambda module, x: x * module.config.scale if module.training else x)
    for scale, training in ((2.0, True), (3.0, True), (3.0, False)):
        layer.config.scale = scale  # type: ignore[union-attr, assignment]
        layer.train(training)
        assert fused(layer, x).equal(x * scale if training else x)


def test_a_closure_that_changes() -> None:
    scale = 2.0

    def inner(x: Tensor) -> Tensor:
        return x * scale

    fused = fuse(inner)
    x = torch.ones(3)
    assert fused(x).equal(x * 2)
    scale = 4.0
    assert fused(x).equal(x * 4)


def test_tensors_besides_the_arguments_are_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    module = nn.Linear(3, 3)
    for function in (
        lambda x: x * weight,
        lambda x: x + TABLE,
        lambda x: module(x) * 2,
        lambda x: x * module.weight[0],
    ):
        with pytest.raises(CaptureError, match="Pass it as an argument") as error:
            fuse(function)(torch.ones(2, 3))
        assert error.value.origin.file == __file__


# ---- what is written besides the results

KEPT: list[Tensor] = []


@functools.cache
def made_once() -> Tensor:
    return torch.arange(3.0)


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [False, True])
def test_a_tensor_that_is_kept_elsewhere_is_refused(gradients: bool) -> None:
    """A later call would put nothing there, and what the first has put there is no tensor."""
    state = State(torch.ones(3), 1.0)
    for function, place in (
        (lambda x: (KEPT.append(x * 2), x + 1)[1], ", in a list."),
        (lambda x: (setattr(state, "x", x * 2), x + 1)[1], ", as x."),
        (lambda x: (setattr(state, "x", x), x + 1)[1], ", as x."),
        (lambda x: types.SimpleNamespace(y=x + 1), ", as y."),
        (lambda x: x * made_once(), "."),
    ):
        x = torch.ones(3, requires_grad=gradients)
        with pytest.raises(CaptureError, match="is still there when it has returned") as error:
            fuse(function)(x)
        assert error.value.what.endswith(f"returned{place}")
        assert error.value.origin.file == __file__
        KEPT.clear()
        made_once.cache_clear()


def test_numbers_and_sizes_may_be_kept() -> None:
    state = State(torch.ones(3), 1.0)

    def function(x: Tensor) -> Tensor:
        state.scale = 3.0
        return x * 2

    assert fuse(function)(torch.ones(3)).equal(torch.full((3,), 2.0))
    assert state.scale == 3.0


def test_lists_and_dicts_that_were_given_are_not_written_to() -> None:
    x = torch.ones(3)
    for function, given in (
        (lambda x, into: (into.append(x * 2), x)[1], []),
        (lambda x, into: (into.pop(), x * 2)[1], [x]),
        (lambda x, into: (into.__setitem__("y", x * 2), x)[1], {}),
        (lambda x, into: (into.update(y=x * 2), x)[1], {"y": x}),
    ):
        with pytest.raises(CaptureError, match="A list or a dict among the arguments is changed"):
            fuse(function)(x, given)
    assert fuse(lambda x, given: given.get("y", x) + 1)(x, {"z": x}).equal(x + 1)


# ---- what cannot be traced


def test_a_trace_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """torch logged a traceback where a Python kernel of its own met symbolic sizes in C++."""
    x, y = inputs()
    fused = fuse(lambda x, y: torch.lerp(x, y, 0.3))
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(fused(x, y), torch.lerp(x, y, 0.3))
        fused(x[:2], y)
    assert not caplog.records
    assert len(fused.variants) == 1


def test_an_error_that_depends_on_values(caplog: pytest.LogCaptureFixture) -> None:
    fused = fuse(lambda x: torch.linalg.inv(x) * 2)
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(fused(torch.eye(3)), torch.eye(3) * 2)
    if not torch_versions.LOSES_CHECKS:
        assert __file__ in caplog.text  # the line that it is about
    with pytest.raises(RuntimeError, match="singular"):
        fused(torch.zeros(3, 3))


def test_values_are_refused_with_the_line() -> None:
    def branches(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    def reads(x: Tensor) -> Tensor:
        return x * x.max().item()

    def prints(x: Tensor) -> Tensor:
        print(x)
        return x

    for function, word in ((branches, "branches"), (reads, "reads"), (prints, "printed")):
        with pytest.raises(CaptureError, match=word) as error:
            fuse(function)(torch.ones(3))
        assert error.value.origin.file == __file__
        first = function.__code__.co_firstlineno
        assert error.value.origin.line == first + 1


def test_arguments_written_in_place() -> None:
    def written(x: Tensor, out: Tensor) -> Tensor:
        out[..., 1:] = x[..., 1:] * 2
        x.add_(1)
        return x * 2

    fused = fuse(written)
    for n in (4, 7):
        mine = [torch.randn(2, n), torch.zeros(2, n)]
        theirs = [t.clone() for t in mine]
        torch.testing.assert_close(fused(*mine), written(*theirs))
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(CaptureError, match="requires gradients and is written to"):
        fused(torch.randn(3, requires_grad=True) * 1, torch.zeros(3))
