"""optimize(model, graphs=True): the same numbers as without, whatever the user holds or changes.

On a CPU a stand-in records (recording.py), so that the rules are tested everywhere; on a GPU these
are CUDA graphs.
"""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.nn import functional as F

import megafuse as mf
from compiler.blocks import WIDTH, Block
from compiler.placed import here
from compiler.recording import AtAddresses
from megafuse.compiler import recordable, replayed
from megafuse.compiler.optimize import optimized
from megafuse.compiler.replayed import Replayed
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew", "recorded"),
]
STEPS = 6  # calls, of which the third records


@pytest.fixture
def recorded(placed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordable, "_FEWEST_STEPS", 1)
    if here().type == "cpu":
        monkeypatch.setattr(recordable, "DEVICES", ("cpu",))
        monkeypatch.setattr(replayed, "recorder_for", AtAddresses)


class Model(nn.Module):
    """Tokens to logits, tied; with buffers that training changes, and dropout if asked for."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(p)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = self.drop(block(h))
        logits: Tensor = self.head(self.norm(h.mean(1)))
        return logits


def tokens(rows: int = 4, cols: int = 5) -> Tensor:
    return torch.randint(11, (rows, cols))


def pair(p: float = 0.0, graphs: bool | int = True) -> tuple[Model, Model]:
    """Without graphs and with them, of the same weights."""
    plain = Model(p)
    ours = copy.deepcopy(plain)
    return mf.optimize(plain), mf.optimize(ours, graphs=graphs)


def programs(model: nn.Module) -> list[Replayed]:
    found = optimized(model)
    assert found is not None
    shared = [graph.replays for graph in found.recorder.graphs if graph.replays is not None]
    return [each for s in shared for each in s.programs.values() if isinstance(each, Replayed)]


def replays(model: nn.Module) -> list[int]:
    return [each.replays for each in programs(model)]


def recorder() -> type:
    return AtAddresses if here().type == "cpu" else replayed.CudaRecorder


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def same_state(a: nn.Module, b: nn.Module) -> None:
    for (name, ours), theirs in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)


def called(model: nn.Module, *args: Tensor) -> Any:
    return model(*args)


def both(models: tuple[nn.Module, ...], step: Callable[..., Any], *args: Tensor) -> list[Any]:
    """What a step gives for each, with the same random numbers; compared."""
    found = []
    state = torch.random.get_rng_state(), torch.cuda.get_rng_state_all()
    for model in models:
        torch.random.set_rng_state(state[0])
        torch.cuda.set_rng_state_all(state[1])
        found.append(step(model, *args))
    close(*found)
    return found


# ---- inference


@pytest.mark.slow
def test_inference_has_new_inputs_each_time() -> None:
    models = tuple(model.eval() for model in pair())
    with torch.no_grad():
        for _ in range(STEPS):
            both(models, called, tokens())
    assert replays(models[1]) == [STEPS - 2]
    assert replays(models[0]) == []


def test_results_that_are_held_do_not_change() -> None:
    models = tuple(model.eval() for model in pair())
    with torch.no_grad():
        held = [both(models, called, tokens()) for _ in range(STEPS)]
    for theirs, ours in held:
        close(ours, theirs)
    assert replays(models[1]) == [STEPS - 2]


@pytest.mark.slow
def test_weights_that_change_in_place_are_read_anew() -> None:
    models, x = tuple(model.eval() for model in pair()), tokens()
    with torch.no_grad():
        for step in range(STEPS):
            for model in models:
                model.norm.running_mean.fill_(step)
                model.head.weight.mul_(1.1)
            both(models, called, x)
    assert replays(models[1]) == [STEPS - 2]


@pytest.mark.slow
def test_a_parameter_that_lies_elsewhere_has_a_recording_of_its_own() -> None:
    models, x = tuple(model.eval() for model in pair()), tokens()
    with torch.no_grad():
        for step in range(2 * STEPS):
            if step == STEPS:
                new = torch.randn(WIDTH)
                for model in models:
                    model.norm.weight.data = new.clone()
            both(models, called, x)
    assert replays(models[1]) == [2 * STEPS - 2]


@pytest.mark.slow
def test_inference_mode_is_a_kind_of_its_own() -> None:
    models, x = tuple(model.eval() for model in pair()), tokens()
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        for _ in range(STEPS):
            with mode():
                _, ours = both(models, called, x)
            assert ours.is_inference() == (mode is torch.inference_mode)
    assert sum(replays(models[1])) > STEPS


@pytest.mark.slow
def test_sizes_have_recordings_and_not_too_many_of_them() -> None:
    models = tuple(model.eval() for model in pair(graphs=2))
    with torch.no_grad():
        for _ in range(STEPS):
            for rows in (2, 3, 4):
                both(models, called, tokens(rows))
    (program,) = programs(models[1])
    assert sum(len(kind.recordings) for kind in program.kinds.values()) == 2
    assert program.replays == 2 * (STEPS - 2)


@pytest.mark.slow
def test_a_recording_that_is_idle_gives_its_place_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "_IDLE", STEPS)
    models = tuple(model.eval() for model in pair(graphs=1))
    with torch.no_grad():
        for rows in (2, 3):
            for _ in range(3 * STEPS):
                both(models, called, tokens(rows))
    (program,) = programs(models[1])
    first, second = program.kinds.values()
    assert (len(first.recordings), len(second.recordings)) == (0, 1)


@pytest.mark.slow
def test_sizes_that_come_once_are_not_recorded_nor_remembered_for_ever() -> None:
    models = tuple(model.eval() for model in pair())
    with torch.no_grad():
        for rows in range(2, replayed._KINDS + 6):
            models[1](tokens(rows))
    (program,) = programs(models[1])
    assert program.replays == 0
    assert len(program.kinds) == replayed._KINDS


@pytest.mark.slow
def test_inputs_with_gaps_and_overlaps() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return torch.softmax(F.gelu(x) * scale, -1)

    ours = mf.optimize(Scaled(), graphs=True)
    with torch.no_grad():
        for _ in range(STEPS):
            x, scale = torch.randn(4, 12)[:, 1:10:2], torch.randn(4, 1).expand(4, 5)
            close(ours(x, scale), torch.softmax(F.gelu(x) * scale, -1))
    assert replays(ours) == [STEPS - 2]


class Cached(nn.Module):
    """Writes to what it is given, and returns a view of it."""

    def forward(self, x: Tensor, cache: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        cache.index_copy_(1, at, torch.tanh(x))
        return F.gelu(cache.sum(1)), cache[:, 1:]


@pytest.mark.slow
def test_arguments_that_are_written_to() -> None:
    ours, theirs = mf.optimize(Cached(), graphs=True), Cached()
    caches = [torch.zeros(3, 8, 7), torch.zeros(3, 8, 7)]
    with torch.no_grad():
        for step in range(STEPS):
            x, at = torch.randn(3, 1, 7), torch.tensor([step])
            found = [m(x, c, at) for m, c in zip((ours, theirs), caches, strict=True)]
            close(*found)
            close(*caches)
            assert found[0][1].untyped_storage().data_ptr() == caches[0].data_ptr()
    assert sum(replays(ours)) == STEPS - 2


# ---- training


def trained(models: tuple[nn.Module, ...], steps: int = 2 * STEPS, **zero: bool) -> None:
    optimizers = {m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models}

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        optimizers[model].zero_grad(**zero)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizers[model].step()
        return loss.detach()

    for _ in range(steps):
        x, y = tokens(), torch.randint(11, (4,))
        both(models, step, x, y)
    same_state(*models)


@pytest.mark.slow
def test_training() -> None:
    models = pair()
    trained(models)
    forward, backward = replays(models[1])
    assert forward == 2 * STEPS - 2
    assert backward == 2 * STEPS - 3
    for each in programs(models[1]):  # nothing had to be recorded again
        (kind,) = (kind for kind in each.kinds.values() if kind.recordings)
        assert len(kind.recordings) == 1
        assert kind.lends


@pytest.mark.slow
def test_training_draws_new_numbers_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it draws without recordings: by the same programs, since two captures draw
    differently."""
    model, x = mf.optimize(Model(p=0.5), graphs=True), tokens()

    def step(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        model.zero_grad()
        out = model(x)
        out.square().mean().backward()
        return [out, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    found = [step(seed) for seed in (1, 1, 2, 3, 4, 5, 5)]
    assert min(replays(model)) > 2
    assert not torch.equal(found[-3][0], found[-2][0])
    close(found[-2], found[-1])
    torch.manual_seed(6)
    assert not torch.equal(model(x), model(x))  # without a new seed
    monkeypatch.setattr(recorder(), "blocked", lambda self: True)
    for seed, replayed_step in zip((1, 1, 2, 3, 4, 5, 5), found, strict=True):
        close(step(seed), replayed_step)


@pytest.mark.slow
def test_gradients_that_stay_where_they_are() -> None:
    models = pair()
    trained(models, set_to_none=False)
    assert min(replays(models[1])) > STEPS


@pytest.mark.slow
def test_gradients_are_added_up() -> None:
    models = pair()

    def step(model: nn.Module, x: Tensor) -> list[Tensor]:
        model(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for at in range(3 * STEPS):
        if at % 3 == 0:
            for model in models:
                model.zero_grad()
        both(models, step, tokens())
    assert min(replays(models[1])) > STEPS


@pytest.mark.slow
def test_gradients_that_are_kept_do_not_change() -> None:
    models, kept = pair(), []
    for _ in range(STEPS):
        x = tokens()
        for model in models:
            model.zero_grad()
            model(x).square().mean().backward()
        kept.append([[p.grad for p in model.parameters()] for model in models])
    for theirs, ours in kept:
        close(ours, theirs)


@pytest.mark.slow
def test_two_forwards_before_a_backward() -> None:
    models = pair()

    def step(model: nn.Module, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        model.zero_grad()
        first, second, third = model(x), model(y), model(z)
        (second.square().mean() + (third * first).mean()).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for _ in range(STEPS):
        both(models, step, tokens(), tokens(), tokens())
    forward = programs(models[1])[0]
    (kind,) = forward.kinds.values()
    assert len(kind.recordings) == replayed._FORWARDS
    assert forward.replays > STEPS


@pytest.mark.slow
@functorch.patch(donated_buffer=False)  # without, torch lets no backward come twice
def test_a_backward_that_never_comes_or_comes_twice() -> None:
    models = pair()

    def step(model: nn.Module, x: Tensor) -> list[Tensor]:
        model.zero_grad()
        model(x)
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        model(x + 0)
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for _ in range(STEPS):
        both(models, step, tokens())
    assert min(replays(models[1])) > 0


@pytest.mark.slow
def test_inference_between_forward_and_backward() -> None:
    models = pair()

    def step(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        model.zero_grad()
        loss = model(x).square().mean()
        with torch.no_grad():
            seen = model(y)
        loss.backward()
        return [seen, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    for _ in range(STEPS):
        both(models, step, tokens(), tokens())
    assert min(replays(models[1])) > 0


@pytest.mark.slow
def test_parameters_that_share_their_gradient() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(7))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x * torch.tanh(x) + self.a + self.b, -1)

    ours = mf.optimize(Sum(), graphs=True)
    for _ in range(STEPS):
        ours.zero_grad()
        ours(torch.randn(5, 7)).square().mean().backward()
        before = ours.b.grad.clone()
        ours.a.grad.mul_(2)
        close(ours.b.grad, before)
    assert len(replays(ours)) == 2


@pytest.mark.slow
def test_an_input_with_a_gradient_and_a_changed_output() -> None:
    models = pair()

    class Soft(nn.Module):
        def __init__(self, model: Model) -> None:
            super().__init__()
            self.blocks = model.blocks

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return torch.softmax(x, -1)  # is kept for the backward, too

    plain = Soft(models[0])
    ours = mf.optimize(copy.deepcopy(plain), graphs=True)
    for _ in range(STEPS):
        x = torch.randn(3, 5, WIDTH)
        found = []
        for model in (plain, ours):
            given = x.clone().requires_grad_()
            out = model(given)
            (out * torch.arange(WIDTH)).sum().backward()
            found.append([out, given.grad])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert min(replays(ours)) > 0


@pytest.mark.slow
def test_a_model_that_is_given_its_own_result() -> None:
    plain = nn.Sequential(Block(), Block())
    ours = mf.optimize(copy.deepcopy(plain), graphs=True)
    for _ in range(STEPS):
        x = torch.randn(3, 5, WIDTH)
        found = []
        for model in (plain, ours):
            model.zero_grad()
            given = x.clone().requires_grad_()
            model(model(given)).square().mean().backward()
            found.append([given.grad, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
    assert min(replays(ours)) > STEPS


# ---- when it is not for us


@pytest.mark.slow
def test_what_cannot_be_recorded_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    models = tuple(model.eval() for model in pair())

    def fail(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(recorder(), "record", fail)
    with torch.no_grad():
        for _ in range(STEPS):
            both(models, called, tokens())
        assert replays(models[1]) == [0]
        assert "recording it failed (RuntimeError: operation not permitted" in str(
            programs(models[1])[0]
        )
        assert "CUDA graphs: none: recording it failed" in str(mf.explain(models[1]))


@pytest.mark.slow
def test_nothing_is_recorded_while_someone_else_records(monkeypatch: pytest.MonkeyPatch) -> None:
    models = tuple(model.eval() for model in pair())
    monkeypatch.setattr(recorder(), "blocked", lambda self: True)
    with torch.no_grad():
        for _ in range(STEPS):
            both(models, called, tokens())
    assert replays(models[1]) == [0]


@pytest.mark.slow
def test_sizes_that_depend_on_data_are_not_recorded() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(torch.nonzero(x > 0).float()) * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        ours = mf.optimize(Picks(), graphs=True)
        for _ in range(STEPS):
            x = torch.randn(9)
            close(ours(x), Picks()(x))
        assert replays(ours) == []


@pytest.mark.parametrize("graphs", [0, -1, "yes", 1.5, None])
def test_options_are_checked(graphs: Any) -> None:
    with pytest.raises(ValueError, match="graphs is True, False, or the most"):
        mf.optimize(Model(), graphs=graphs)


@pytest.mark.slow
def test_options_of_the_backend() -> None:
    from megafuse.compiler.backend import backend

    model = Model().eval()
    call = torch.compile(model, backend=backend, options={"graphs": True})
    with torch.no_grad():
        for _ in range(STEPS):
            x = tokens()
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)
    wrong = torch.compile(Model(), backend=backend, options={"graph": True})
    with pytest.raises(Exception, match="is graphs, not graph"):
        wrong(tokens())


# ---- the model stays what it is


@pytest.mark.slow
def test_explain_tells() -> None:
    models = pair()
    trained(models)
    ours = models[1]
    told = str(mf.explain(ours))
    assert f"CUDA graphs: 1, replayed in {2 * STEPS - 2} of {2 * STEPS} calls" in told


@pytest.mark.slow
def test_copies_and_saving() -> None:
    models = pair()
    trained(models)
    ours = models[1]
    x = tokens()
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for twin in (copy.deepcopy(ours), torch.load(file, weights_only=False)):
        assert twin._compiled_call_impl is None
        torch.testing.assert_close(twin.eval()(x), ours.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_other_options_replace_what_is_there() -> None:
    model, x = Model().eval(), tokens()
    with torch.no_grad():
        before = model(x)
        for graphs in (True, False, 3):
            mf.optimize(model, graphs=graphs)
            for _ in range(STEPS):
                torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
            assert replays(model) == ([STEPS - 2] if graphs else [])


@pytest.mark.slow
def test_deoptimize_lets_recordings_go() -> None:
    _, ours = pair()
    loss = ours(tokens()).square().mean()
    for _ in range(STEPS):
        loss.backward()
        loss = ours(tokens()).square().mean()
    gone = [weakref.ref(r) for p in programs(ours) for k in p.kinds.values() for r in k.recordings]
    assert gone
    mf.deoptimize(ours)
    assert all(each() is None for each in gone)
    loss.backward()  # of a call before


@pytest.mark.slow
def test_a_model_that_dies_takes_its_recordings_along() -> None:
    _, ours = pair()
    with torch.no_grad():
        for _ in range(STEPS):
            ours.eval()(tokens())
    (recording,) = [r for p in programs(ours) for k in p.kinds.values() for r in k.recordings]
    gone = weakref.ref(recording)
    del recording, ours, _
    gc.collect()
    assert gone() is None
