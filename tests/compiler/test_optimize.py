"""mf.optimize: the model runs as programs, and stays the object that it was."""

from __future__ import annotations

import copy
import functools
import io
import logging
import logging.handlers
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import megafuse as mf
from compiler.blocks import WIDTH, Block
from compiler.counted import launches
from megafuse.runtime import cpp, generated

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]


class Model(nn.Module):
    """Two blocks of one kind, and a head that is tied to the embedding."""

    def __init__(self, checkpoints: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embed.weight
        self.checkpoints = checkpoints

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.checkpoints else block(h)
        logits: Tensor = self.head(h)
        return logits


def tokens(rows: int = 3, cols: int = 5) -> Tensor:
    return torch.randint(11, (rows, cols))


def same(model: nn.Module, *args: Any) -> None:
    """The optimized model, and the module without it: values and gradients."""
    found = []
    for call in (model, model._call_impl):
        model.zero_grad()
        out = call(*args)
        if out.requires_grad:
            out.square().mean().backward()
        found.append([out, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


# ---- the object


def test_it_is_the_same_object() -> None:
    model = Model()
    before = set(vars(model)), list(model.state_dict()), list(dict(model.named_parameters()))
    assert mf.optimize(model) is model
    assert type(model) is Model
    assert (
        set(vars(model)) - {"_compiled_call_impl"},
        list(model.state_dict()),
        list(dict(model.named_parameters())),
    ) == before
    assert model.train() is model
    assert model.eval() is model
    assert model.to(torch.float32) is model
    assert model.head.weight is model.embed.weight


def test_it_runs_as_a_program() -> None:
    model, x = mf.optimize(Model()), tokens()
    same(model, x)
    with torch.no_grad():
        model(x)
        assert 1 <= launches(lambda: model(x)) <= 5
        assert launches(lambda: model._call_impl(x)) == 0


def test_twice_is_once() -> None:
    model = mf.optimize(Model())
    first = model._compiled_call_impl
    assert mf.optimize(model)._compiled_call_impl is first


def test_deoptimize_leaves_nothing() -> None:
    model, x = Model(), tokens()
    before, names = model(x), set(vars(model))
    mf.optimize(model)(x)
    assert mf.deoptimize(model) is model
    assert set(vars(model)) == names
    assert torch.equal(model(x), before)
    assert launches(lambda: model(x)) == 0
    assert mf.deoptimize(model) is model


@pytest.mark.slow
def test_copies_are_plain_models() -> None:
    model, x = mf.optimize(Model()), tokens()
    model(x)
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for each in (twin, loaded, copy.copy(model)):
        assert each._compiled_call_impl is None
        assert each.head.weight is each.embed.weight
        assert torch.equal(each(x), model._call_impl(x))
    same(mf.optimize(twin), x)


class Stateful(Model):
    """Says itself what is copied of it."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def test_copies_of_modules_that_say_themselves_what_is_copied() -> None:
    model, x = mf.optimize(Stateful()), tokens()
    for twin in (copy.deepcopy(model), _saved_and_loaded(model)):
        assert twin._compiled_call_impl is None
        assert torch.equal(twin(x), model._call_impl(x))


def _saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda x: x, "Functions are for megafuse.fuse"),
        (3, "this is a int"),
        (nn.Linear, "Linear is a class"),
        (torch.compile(nn.Linear(2, 2)), "what torch.compile returned"),
        (torch.jit.script(nn.Linear(2, 2)), "TorchScript"),
    ],
    ids=["function", "number", "class", "compiled", "script"],
)
def test_errors_in_plain_words(given: Any, says: str) -> None:
    for call in (mf.optimize, mf.deoptimize, mf.explain):
        with pytest.raises(TypeError, match=says):
            call(given)


def test_a_model_that_is_compiled_otherwise() -> None:
    model = nn.Linear(2, 2)
    model.compile(backend="eager")
    with pytest.raises(TypeError, match="another backend"):
        mf.optimize(model)
    assert model._compiled_call_impl is not None


# ---- what changes later


@pytest.mark.slow
def test_weights_that_change_later() -> None:
    model, x = mf.optimize(Model()), tokens()
    same(model, x)
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    same(model, x)
    first = model.blocks[0]
    assert isinstance(first, Block)
    first.up.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
    same(model, x)
    first.up.weight.requires_grad_(False)
    same(model, x)
    model.double()
    same(model, x)


def test_a_hook_that_is_added_later() -> None:
    model, x = mf.optimize(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), torch.randn(2, 4)
    before = model(x)
    hook = model[1].register_forward_hook(lambda module, given, out: out * 3)
    torch.testing.assert_close(model(x), before * 3)
    hook.remove()
    torch.testing.assert_close(model(x), before)


@pytest.mark.slow
def test_hooks_before_and_after() -> None:
    model, x = Model(), tokens()
    first, second = model.blocks
    seen: list[str] = []
    first.register_forward_hook(lambda *_: seen.append("before"))
    mf.optimize(model)
    same(model, x)
    assert seen == ["before"] * 2
    added = second.norm.register_forward_hook(lambda module, given, out: out * 3)
    same(model, x)
    plain = model(x)
    added.remove()
    assert not torch.allclose(model(x), plain)
    outer = model.register_forward_pre_hook(lambda module, given: (given[0] * 0,))
    torch.testing.assert_close(model(x), model._call_impl(x * 0))
    outer.remove()
    same(model, x)


@pytest.mark.slow
def test_backward_hooks() -> None:
    model, x = mf.optimize(Model()), tokens()
    seen: list[int] = []
    model(x).sum().backward()
    model.blocks[1].register_full_backward_hook(lambda *_: seen.append(1))
    model.head.weight.register_hook(lambda grad: seen.append(2))
    model(x).sum().backward()
    assert sorted(seen) == [1, 2]
    same(model, x)


class Adapter(nn.Module):
    """LoRA by hand."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.inner(x) + 0.5 * self.up(self.down(x))
        return adapted


@pytest.mark.slow
def test_adapters_added_later() -> None:
    model, x = mf.optimize(Model()), tokens()
    same(model, x)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.up = Adapter(block.up)  # type: ignore[assignment]
    same(model, x)
    assert any("down" in name for name in model.state_dict())


@pytest.mark.slow
def test_a_patched_forward() -> None:
    model, x = mf.optimize(Model()), tokens()
    same(model, x)
    model.blocks[0].forward = lambda x: x * 2  # type: ignore[method-assign]
    same(model, x)


# ---- modes


class Conv(nn.Module):
    """Buffers that training changes, and random numbers."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(p)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.head(self.drop(F.relu(self.norm(self.conv(x)))).mean((2, 3)))
        return seen


@pytest.mark.slow
def test_train_and_eval() -> None:
    model, x = mf.optimize(Conv()), torch.randn(4, 3, 6, 6)
    torch.manual_seed(1)
    first = model(x)
    torch.manual_seed(1)
    assert torch.equal(model(x), first)
    assert not torch.equal(model(x), first)
    assert model.norm.num_batches_tracked == 3
    model.eval()
    same(model, x)
    assert model.norm.num_batches_tracked == 3


@pytest.mark.slow
def test_without_gradients() -> None:
    model, x = mf.optimize(Model()), tokens()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = model(x)
            torch.testing.assert_close(out, model._call_impl(x))
            assert not out.requires_grad
    same(model, x)


@pytest.mark.slow
def test_autocast_and_grad_scaler() -> None:
    model, x = mf.optimize(Model()), tokens()
    device = x.device.type
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype):
            ours, theirs = model(x), model._call_impl(x)
        assert ours.dtype == theirs.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=128.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.head.weight.detach().clone()
    with torch.autocast(device, torch.float16):
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), x.flatten())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.isfinite(model.head.weight).all()
    assert not torch.equal(model.head.weight, before)


@pytest.mark.slow
def test_gradient_checkpointing() -> None:
    same(mf.optimize(Model(checkpoints=True)), tokens())


class Talkative(nn.Module):
    """Says something between two layers, as transformers' models do."""

    def __init__(self, logger: Any, says: Callable[[Tensor], str]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.logger, self.says = logger, says

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        self.logger.warning_once(self.says(x))
        return self.second(x)


class Logger(logging.Logger):
    @functools.lru_cache(None)  # noqa: B019 (as transformers has it)
    def warning_once(self, text: str) -> None:
        self.warning(text)


@pytest.mark.parametrize(
    ("says", "in_one"),
    [(lambda x: f"this {'model'} is old", True), (lambda x: f"mean {x.mean().item():.1f}", False)],
    ids=["constant", "from a value"],
)
def test_what_a_logger_says_once_is_no_end_of_a_graph(
    says: Callable[[Tensor], str], in_one: bool
) -> None:
    logger, heard = Logger("talkative"), logging.handlers.BufferingHandler(100)
    logger.addHandler(heard)
    model, x = Talkative(logger, says), torch.randn(4, 8)
    expected = model(x)
    said = [record.getMessage() for record in heard.buffer]
    Logger.warning_once.cache_clear()
    heard.buffer.clear()
    mf.optimize(model)
    for _ in range(3):
        torch.testing.assert_close(model(x), expected)
    assert [record.getMessage() for record in heard.buffer] == said
    assert (len(model._compiled_call_impl.recorder.graphs) == 1) is in_one


def test_other_sizes_compile_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mf.optimize(Model())
    same(model, tokens())
    monkeypatch.setattr(generated, "kernel", lambda *_: pytest.fail("a kernel is built"))
    for rows, cols in ((2, 7), (9, 4), (30, 50)):
        same(model, tokens(rows, cols))
    assert len(mf.explain(model).graphs) == 1


@pytest.mark.slow
def test_many_models_do_not_share_a_limit() -> None:
    x = torch.randn(2, 4)
    for _ in range(10):
        model = mf.optimize(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
        model(x)
        assert len(mf.explain(model).graphs) == 1


def test_inside_another_capture() -> None:
    """An optimized part of a model that is captured itself is a part of that."""
    inner = mf.optimize(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    model, x = mf.optimize(nn.Sequential(inner, nn.GELU())), torch.randn(2, 4)
    ours = model(x)
    assert len(mf.explain(model).graphs) == 1
    assert not mf.explain(inner).graphs
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), ours)
    torch.testing.assert_close(make_fx(lambda x: model(x))(x)(x), ours)
    mf.deoptimize(inner)
    torch.testing.assert_close(mf.deoptimize(model)(x), ours)


@pytest.mark.slow
def test_training_follows_eager() -> None:
    losses = []
    for change in (mf.optimize, mf.deoptimize):
        torch.manual_seed(1)
        model = change(Model())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        told = []
        for _ in range(20):
            x = tokens(8, 6)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
            told.append(loss.item())
        losses.append(told)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]
