"""The check of an optimized model in place of Dynamo's guards: whatever changes is seen.

Every test calls a model until the short way is taken, changes one thing, and looks that it is not
taken any more, and that results are those of the model as it is now.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import megafuse as mf
from megafuse.compiler.checked import Checks
from megafuse.graph import torch_versions
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.usefixtures("anew"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]
WIDTH = 8
FACTOR = 2.0  # a global that a model reads


class Settings:
    """As configurations are: plain attributes, and one that is computed."""

    kind = "plain"

    def __init__(self) -> None:
        self.scale = 2.0
        self.table = {"shift": 1.0}
        self.steps = [1.0, 2.0]

    @property
    def computed(self) -> float:
        return OUTSIDE["value"]


OUTSIDE = {"value": 1.0}


class Layer(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(1.0)  # what is left is 0: in training one can tell
        self.power = 1.0

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.drop(torch.tanh(self.up(self.norm(x)))) * self.power
        return self.finish(seen)

    def finish(self, x: Tensor) -> Tensor:
        return x + self.settings.scale


class Model(nn.Module):
    flavor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.first, self.second = Layer(self.settings), Layer(self.settings)
        self.second.up.weight = self.first.up.weight
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: Tensor, other: Tensor | None = None, flag: bool = True) -> Tensor:
        s = self.settings
        y: Tensor = self.second(self.first(x)) * FACTOR + self.shift * self.flavor
        y = y * s.table["shift"] + s.steps[1] * s.computed
        if s.kind == "other":
            y = y.exp()
        if other is not None:
            y = y * other
        return y if flag else -y


def checks(model: nn.Module) -> Checks:
    found: Checks = model._compiled_call_impl.checks  # type: ignore[union-attr]
    return found


def is_short(model: nn.Module, *args: Any, **kwargs: Any) -> bool:
    """Whether these arguments would take the short way, as the model is now."""
    return checks(model).find(args, kwargs) is not None


def settled(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    for _ in range(3):
        model(*args, **kwargs)
    assert is_short(model, *args, **kwargs)


def same(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    ours, theirs = model(*args, **kwargs), model._call_impl(*args, **kwargs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert ours.requires_grad == theirs.requires_grad
    assert ours.is_inference() == theirs.is_inference()


@pytest.fixture
def model() -> Model:
    return mf.optimize(Model().eval())


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, WIDTH)


def test_the_short_way_gives_the_same(model: Model, x: Tensor) -> None:
    settled(model, x)
    before = checks(model).calls
    same(model, x)
    same(model, torch.randn(7, WIDTH))
    model(x).sum().backward()
    assert checks(model).calls == before + 3


# ---- the model changes


def _hook(module: nn.Module, given: Any, out: Tensor) -> Tensor:
    return out * 3


def _pre_hook(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] * 3,)


def _set_forward(model: Model) -> None:
    model.first.forward = lambda x: x * 2  # type: ignore[method-assign]


def _set_class(model: Model) -> None:
    class Other(Layer):
        def finish(self, x: Tensor) -> Tensor:
            return x - 5

    model.first.__class__ = Other


def _grow(model: Model) -> None:
    model.second.up = nn.Sequential(model.second.up, nn.Tanh())  # type: ignore[assignment]


def _replace_dict(model: Model) -> None:
    model.settings.__dict__ = {**vars(model.settings), "scale": 7.0}


CHANGES: dict[str, Callable[[Model], Any]] = {
    "hook": lambda m: m.first.norm.register_forward_hook(_hook),
    "pre-hook": lambda m: m.second.register_forward_pre_hook(_pre_hook),
    "hook of the model": lambda m: m.register_forward_hook(_hook),
    "forward of a module": _set_forward,
    "class of a module": _set_class,
    "parameter": lambda m: setattr(m.first.norm, "weight", nn.Parameter(torch.randn(WIDTH))),
    "parameter that is another's": lambda m: setattr(m.second.norm, "bias", m.first.norm.bias),
    "tied weights": lambda m: setattr(
        m.second.up, "weight", nn.Parameter(torch.randn(WIDTH, WIDTH))
    ),
    "parameter that needs no gradient": lambda m: m.first.up.weight.requires_grad_(False),
    "no parameter needs a gradient": lambda m: m.requires_grad_(False),
    "buffer": lambda m: setattr(m, "shift", torch.randn(WIDTH)),
    "buffer of another size": lambda m: setattr(m.shift, "data", torch.randn(1)),
    "strides of a parameter": lambda m: setattr(m.first.up.weight, "data", m.first.up.weight.t()),
    "module": lambda m: setattr(m.first, "norm", nn.LayerNorm(WIDTH, eps=0.5)),
    "module that is new": _grow,
    "module that is another's": lambda m: setattr(m, "second", m.first),
    "number": lambda m: setattr(m.second, "power", 3.0),
    "setting": lambda m: setattr(m.settings, "scale", 5.0),
    "settings' dict": _replace_dict,
    "other settings": lambda m: setattr(m.second, "settings", Settings()),
    "item of a dict": lambda m: m.settings.table.update(shift=4.0),
    "item of a list": lambda m: m.settings.steps.__setitem__(1, 9.0),
    "training": lambda m: m.train(),
    "training of one module": lambda m: m.second.drop.train(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_the_model(name: str, model: Model, x: Tensor) -> None:
    settled(model, x)
    CHANGES[name](model)
    assert not is_short(model, x)
    same(model, x)
    if name == "buffer of another size" and torch_versions.GUARDS_LESS:
        return  # Dynamo's guards do not see it, and the program does at each call
    settled(model, x)
    same(model, x)


@pytest.mark.slow
def test_another_dtype(model: Model, x: Tensor) -> None:
    settled(model, x)
    assert not is_short(model, x.double())
    model.double()
    assert not is_short(model, x)
    assert not is_short(model, x.double())
    same(model, x.double())


@pytest.mark.slow
def test_backward_hooks(model: Model, x: Tensor) -> None:
    settled(model, x)
    told: list[int] = []
    model.first.register_full_backward_hook(lambda *_: told.append(1))
    assert not is_short(model, x)
    model(x).sum().backward()
    assert told == [1]


def test_what_is_as_before_again(model: Model, x: Tensor) -> None:
    """Dicts have new versions and the same items: nothing is noted a second time."""
    settled(model, x)
    captured, left = len(mf.explain(model).graphs), checks(model)._left
    model.train()
    assert not is_short(model, x)
    model.eval()
    assert is_short(model, x)
    handle = model.first.register_forward_hook(_hook)
    handle.remove()
    assert is_short(model, x)
    with torch.no_grad():
        model.first.up.weight.add_(1)
    assert is_short(model, x)
    same(model, x)
    assert (len(mf.explain(model).graphs), checks(model)._left) == (captured, left)


# ---- what the model reads elsewhere


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (Model, "flavor", 4.0),
        (Settings, "kind", "other"),
        (Layer, "forward", lambda self, x: x * 2),
        (Layer, "finish", lambda self, x: x * 2),
        (nn.LayerNorm, "forward", lambda self, x: x * 2),
        (F, "layer_norm", lambda x, *_: x * 2),
        (torch, "tanh", torch.sin),
        (Settings, "computed", property(lambda self: 3.0)),
    ],
    ids=lambda each: each.__name__ if hasattr(each, "__name__") else None,
)
def test_changes_elsewhere(
    where: Any, name: str, value: Any, model: Model, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(model, x)
    monkeypatch.setattr(where, name, value)
    assert not is_short(model, x)
    same(model, x)
    monkeypatch.undo()
    same(model, x)


@pytest.mark.slow
def test_globals(model: Model, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(model, x)
    monkeypatch.setitem(globals(), "SOMETHING_ELSE", 1)
    assert is_short(model, x)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert not is_short(model, x)
    same(model, x)


@pytest.mark.slow
def test_what_is_computed(model: Model, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property: its guard runs at each call, whatever the property reads."""
    settled(model, x)
    monkeypatch.setitem(OUTSIDE, "value", 3.0)
    assert not is_short(model, x)
    same(model, x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks_for_all_modules(kind: str, model: Model, x: Tensor) -> None:
    settled(model, x)
    add = getattr(nn.modules.module, f"register_module_{kind}_hook")
    handle = add({"forward": _hook, "forward_pre": _pre_hook}[kind])
    try:
        assert not is_short(model, x)
        same(model, x)
    finally:
        handle.remove()
    same(model, x)


# ---- torch's state


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.float16),
    ],
    ids=["no_grad", "inference_mode", "bfloat16", "float16"],
)
def test_modes(mode: Callable[[], AbstractContextManager[Any]], model: Model, x: Tensor) -> None:
    if x.device.type != "cpu":
        pytest.skip("autocast is the CPU's here")
    settled(model, x)
    with mode():
        assert not is_short(model, x)
        ours, theirs = model(x), model._call_impl(x)
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.1)
        assert ours.requires_grad == theirs.requires_grad
        assert ours.is_inference() == theirs.is_inference()
        settled(model, x)
    assert is_short(model, x)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_states_that_are_seldom_others(model: Model, x: Tensor) -> None:
    settled(model, x)
    with Watching():
        assert not is_short(model, x)
    with torch.overrides.TorchFunctionMode():
        assert not is_short(model, x)
    torch.use_deterministic_algorithms(True)
    try:
        assert not is_short(model, x)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        assert not is_short(model, x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert is_short(model, x)
    with torch.compiler.set_stance("force_eager"):
        before = checks(model).calls
        assert torch.equal(model(x), model._call_impl(x))
        assert checks(model).calls == before
    torch._dynamo.reset()
    assert not is_short(model, x)
    same(model, x)


# ---- arguments


def test_other_arguments(model: Model, x: Tensor) -> None:
    settled(model, x)
    assert is_short(model, torch.randn(9, WIDTH))  # sizes are arguments
    others: dict[str, tuple[Any, ...]] = {
        "dtype": (x.double(),),
        "device": (x.to("meta"),),
        "dimensions": (x[None],),
        "strides": (torch.randn(WIDTH, 4).t(),),
        "a batch of one": (x[:1],),
        "width": (torch.randn(4, 1),),
        "gradient": (x.clone().requires_grad_(),),
        "class": (nn.Parameter(x),),
        "number": (3.0,),
        "one more": (x, x.clone()),
        "the model's own buffer": (model.shift,),
    }
    for name, given in others.items():
        assert not is_short(model, *given), name
    assert not is_short(model, x=x)
    assert not is_short(model, x, flag=False)
    assert not is_short(model)


@pytest.mark.slow
def test_two_arguments_that_are_one(model: Model, x: Tensor) -> None:
    settled(model, x, x.clone())
    assert not is_short(model, x, x)
    same(model, x, x)
    settled(model, x, x.clone())
    same(model, x, x.clone())
    big = torch.randn(WIDTH, WIDTH)
    settled(model, big, big.clone())
    assert not is_short(model, big, model.first.up.weight)
    same(model, big, model.first.up.weight)
    same(model, big, big.clone())


# ---- what is not for the short way, and what it holds


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()


def test_a_break_stays_with_dynamo(x: Tensor) -> None:
    model = mf.optimize(Broken())
    for _ in range(4):
        same(model, x)
    assert not is_short(model, x)


def test_the_model_is_freed() -> None:
    model = mf.optimize(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    settled(model, torch.randn(2, WIDTH))
    gone = weakref.ref(model), weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert [each() for each in gone] == [None, None]


# ---- the debug mode


def test_debugging_compares_with_all_guards(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFUSE_CHECK_GUARDS", "1")
    model = mf.optimize(Model().eval())
    settled(model, x)
    monkeypatch.setattr(checks(model).checked[0], "_same", lambda: True)  # as if it saw nothing
    model(x)
    model.second.power = 3.0
    with pytest.raises(AssertionError, match=r"(?s)power.*report this"):
        model(x)
