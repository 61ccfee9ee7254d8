"""Optimizers whose step is one launch, held against torch's own."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks.launch import needs_gloo
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import megafuse as mf
from megafuse.optim import launch as launching
from megafuse.runtime import builders, cpp, fallback, loader, optimizers

pytestmark = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
EVERYWHERE = pytest.mark.parametrize("device", DEVICES)
SHAPES = [(3, 5), (40_000,), (1,), (0, 4), (257, 129), ()]
# Name, arguments: every rule, and every number of it away from where it does nothing.
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"lr": 1e-2}),
    ("AdamW", {"lr": 1e-2, "amsgrad": True, "maximize": True, "weight_decay": 0.3}),
    ("Adam", {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.7, 0.8), "eps": 1e-3}),
    ("Adam", {"lr": 1e-2, "amsgrad": True}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.2, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Lion", {"lr": 1e-2, "weight_decay": 0.2}),
    ("Lion", {"lr": 1e-2, "betas": (0.5, 0.7), "maximize": True}),
]
EACH = pytest.mark.parametrize(("name", "how"), KINDS, ids=lambda v: v if type(v) is str else "")
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)


class PlainLion(torch.optim.Optimizer):
    """The paper's listing."""

    def __init__(self, params: Any, **how: Any) -> None:
        super().__init__(
            params, {"betas": (0.9, 0.99), "weight_decay": 0, "maximize": False, **how}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (mean * one + grad * (1 - one)).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                mean.copy_(mean * two + grad * (1 - two))


def of_torch(name: str) -> Callable[..., torch.optim.Optimizer]:
    return PlainLion if name == "Lion" else getattr(torch.optim, name)


def parameters(dtype: torch.dtype, device: str = "cpu") -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=random) for shape in SHAPES]
    made.append(torch.randn(2, 3, 4, 5, generator=random).to(memory_format=torch.channels_last))
    made.append(torch.randn(6, 7, generator=random).t())
    made.append(torch.randn(70, generator=random)[3:])  # at an odd address
    return [nn.Parameter(each.to(device, dtype)) for each in made]


def stepped(
    kind: Callable[..., Any], how: dict[str, Any], dtype: torch.dtype, device: str = "cpu"
) -> list[nn.Parameter]:
    """Parameters after some steps, in two groups; now and then one has no gradient."""
    values = parameters(dtype, device)
    groups = [{"params": values[:3]}, {"params": values[3:], "lr": 3e-2}]
    optimizer = kind(groups, **how)
    random = torch.Generator().manual_seed(2)
    for step in range(6):
        for at, value in enumerate(values):
            drawn = torch.randn(value.shape, generator=random).to(device, torch.bfloat16)
            value.grad = None if (step + at) % 5 == 4 else drawn.to(dtype)
        optimizer.step()
    return values


@EVERYWHERE
@EACH
@DTYPES
def test_as_torchs(name: str, how: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    """In float32 inside, so as near to float64 as torch's in the same dtype, or nearer."""
    exact = stepped(of_torch(name), how, torch.float64)
    before = loader.load().launch_count()  # type: ignore[union-attr]
    ours = stepped(getattr(mf.optim, name), how, dtype, device)
    launched = loader.load().launch_count() - before  # type: ignore[union-attr]
    assert launched >= 6
    theirs = stepped(of_torch(name), how, dtype, device)
    eps = torch.finfo(dtype).eps
    for mine, known, right in zip(ours, theirs, exact, strict=True):
        assert mine.shape == right.shape
        if not right.numel():
            continue
        off = (mine.detach().cpu().double() - right.detach()).abs()
        # Torch's float16 divides by an eps that is 0: Inf there tells nothing.
        room = (known.detach().cpu().double() - right.detach()).abs().nan_to_num(1e3).max()
        unit = eps * right.detach().abs().clamp(min=1)
        allowed = 2 * room + 8 * unit
        if name == "Lion" and dtype != torch.float64:  # a sign near zero may turn
            assert (off > allowed).double().mean() <= 0.02
            allowed = allowed + 2 * 6 * 3e-2
        assert (off <= allowed).all(), f"{tuple(right.shape)} off by {off.max()}"


@EVERYWHERE
def test_one_launch(device: str) -> None:
    values = parameters(torch.float32, device)
    optimizer = mf.optim.AdamW([{"params": values[:4]}, {"params": values[4:], "lr": 0.1}])
    for value in values:
        value.grad = torch.randn_like(value)
    optimizer.step()
    host: Any = loader.load()
    before = host.launch_count()
    optimizer.step()
    assert host.launch_count() - before == 1


PLAIN = pytest.mark.parametrize(
    ("name", "how"),
    [("AdamW", {"amsgrad": True}), ("SGD", {"momentum": 0.9}), ("SGD", {}), ("Lion", {})],
    ids=lambda v: v if type(v) is str else "",
)


@PLAIN
def test_python_does_nothing_for_each_parameter(name: str, how: dict[str, Any]) -> None:
    """From the second step on: the host's time must not grow with them by more than C++ takes."""
    calls = []
    for many in (4, 40):
        values = [nn.Parameter(torch.ones(2)) for _ in range(many)]
        groups = [{"params": values[: many // 2]}, {"params": values[many // 2 :], "lr": 0.1}]
        optimizer = getattr(mf.optim, name)(groups, **how)
        train(optimizer, values, 2)
        calls.append(calls_of(optimizer.step))
    assert calls[0] == calls[1]


def calls_of(function: Callable[[], Any]) -> int:
    """How many functions it calls, Python's and built-in ones."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events)


def other_memory(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[0].data = values[0].detach() + 0.5


def other_strides(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[1].data = values[1].detach().t().contiguous().t()


def other_dtype(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[0].data = values[0].detach().double()
    for key, kept in optimizer.state[values[0]].items():
        optimizer.state[values[0]][key] = kept.double() if key != "step" else kept


def other_state(optimizer: Any, values: list[nn.Parameter]) -> None:
    own = optimizer.state[values[0]]
    own.update({key: kept + 1 for key, kept in own.items()})


def other_dict(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.state[values[0]] = {key: t / 2 for key, t in optimizer.state[values[0]].items()}


def no_state(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.state.pop(values[0], None)


def other_order(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.param_groups[0]["params"].reverse()  # than that of the state


def other_numbers(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.param_groups[0].update(lr=0.3, weight_decay=0.2, maximize=True)


def new_group(optimizer: Any, values: list[nn.Parameter]) -> None:
    values.append(nn.Parameter(torch.linspace(0, 1, 5)))
    optimizer.add_param_group({"params": values[-1:], "lr": 0.2})


def other_parameter(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[0] = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(6))


CHANGES = [
    *(other_memory, other_strides, other_dtype, other_state, other_dict, no_state),
    *(other_order, other_numbers, new_group, other_parameter),
]


@PLAIN
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_between_steps(change: Callable[..., None], name: str, how: dict[str, Any]) -> None:
    found = []
    for kind in (getattr(mf.optim, name), of_torch(name)):
        values = [nn.Parameter(torch.linspace(-1, 1, 6)), nn.Parameter(torch.ones(3, 4))]
        values.append(nn.Parameter(torch.full((2,), 0.5)))
        optimizer = kind(values, lr=0.1, **how)
        train(optimizer, values, 2)
        change(optimizer, values)
        train(optimizer, values, 2)
        found.append([t.detach() for v in values for t in (v, *optimizer.state[v].values())])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)  # float32's, for float64 too


@PLAIN
def test_gradients_change_between_steps(name: str, how: dict[str, Any]) -> None:
    """Their memory, their strides and whether they are there."""
    made: list[Callable[[Tensor], Tensor | None]] = [
        *(torch.sin, torch.cos, lambda t: None, lambda t: torch.sin(t).t().contiguous().t()),
        *(lambda t: torch.ones(()).expand_as(t), torch.sin, torch.cos),
    ]
    found = []
    for kind in (getattr(mf.optim, name), of_torch(name)):
        values = [nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)) for _ in range(3)]
        optimizer = kind(values, lr=0.1, **how)
        for step in range(len(made)):
            for at, value in enumerate(values):
                value.grad = made[(step + at) % len(made)](value.detach())
            optimizer.step()
        found.append([t.detach() for v in values for t in (v, *optimizer.state[v].values())])
    torch.testing.assert_close(*found)


def test_strides_where_there_is_one_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """They mean nothing: such a gradient is not copied."""
    monkeypatch.setattr(launching, "_made_fit", lambda row: pytest.fail("copied"))
    value = nn.Parameter(torch.zeros(1, 5))
    value.grad = torch.arange(5.0).as_strided((1, 5), (1, 1))
    mf.optim.SGD([value], lr=1.0).step()
    assert torch.equal(value.detach(), -torch.arange(5.0).view(1, 5))


def test_dtypes_side_by_side() -> None:
    values = [nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in (torch.float, torch.double) * 2]
    values.append(nn.Parameter(torch.ones(5, dtype=torch.complex64)))
    optimizer = mf.optim.SGD(values, lr=0.5)
    for value in values:
        value.grad = torch.ones_like(value)
    host: Any = loader.load()
    before = host.launch_count()
    optimizer.step()
    assert host.launch_count() - before == 2
    assert all(torch.equal(value, torch.full_like(value, 0.5)) for value in values)


def test_a_dtype_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' steps are launched, and none is done twice."""

    def not_double(rule: str, dtype: str) -> Any:
        if dtype == "Double":
            raise fallback.Unbuildable("not here")
        return optimizers.cpu_kernel(rule, dtype)

    host: Any = loader.load()
    monkeypatch.setitem(builders._ON_CPU, "optimizer", not_double)
    host.forget_kernels()
    try:
        values = [nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5, dtype=torch.double))]
        values.append(nn.Parameter(torch.ones(5, 4)[:, 0]))
        optimizer = mf.optim.AdamW(values, lr=0.5, weight_decay=0)
        before = host.launch_count()
        train(optimizer, values, 1)
        assert host.launch_count() - before == 1
    finally:
        host.forget_kernels()
    assert all(torch.allclose(value, torch.full_like(value, 0.5)) for value in values)
    assert [state["step"] for state in optimizer.state.values()] == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16])
def test_steps_are_counted_in_any_dtype(dtype: torch.dtype) -> None:
    value = nn.Parameter(torch.ones(3))
    optimizer = mf.optim.AdamW([value])
    train(optimizer, [value], 1)
    step = optimizer.state[value]["step"] = torch.tensor(7, dtype=dtype)
    version = step._version
    train(optimizer, [value], 1)
    assert step == 8
    assert step._version > version


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads: int) -> None:
    before = torch.get_num_threads()
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        value = nn.Parameter(torch.linspace(-1, 1, 200_003))
        optimizer = mf.optim.AdamW([value], lr=0.1)
        for _ in range(3):
            value.grad = torch.cos(value.detach() * 50)
            optimizer.step()
        found.append(value.detach())
    torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.0])
@EACH
def test_special_values(name: str, how: dict[str, Any], value: float) -> None:
    found = []
    for kind in (getattr(mf.optim, name), of_torch(name)):
        parameter = nn.Parameter(torch.tensor([1.0, -2.0, 0.0, value]))
        optimizer = kind([parameter], **how)
        for _ in range(2):
            parameter.grad = torch.tensor([value, 0.0, value, 1.0])
            optimizer.step()
        found.append([parameter.detach(), *optimizer.state[parameter].values()])
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_checkpoints_go_both_ways(name: str) -> None:
    how: dict[str, Any] = {"lr": 0.05} | ({"momentum": 0.9} if name == "SGD" else {})
    ours, theirs = getattr(mf.optim, name), getattr(torch.optim, name)
    results = []
    for first, second in ((ours, theirs), (theirs, ours), (theirs, theirs)):
        torch.manual_seed(0)
        values = [nn.Parameter(torch.randn(50)), nn.Parameter(torch.randn(7, 3))]
        optimizer = first(values, **how)
        train(optimizer, values, 3)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        other = second(values, lr=1.0, **({"momentum": 0.1} if name == "SGD" else {}))
        other.load_state_dict(torch.load(file))
        train(other, values, 3)
        assert other.state_dict().keys() == optimizer.state_dict().keys()
        results.append([*values, *(t for s in other.state.values() for t in s.values())])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[2])


def train(optimizer: Any, values: list[nn.Parameter], steps: int) -> None:
    for step in range(steps):
        for value in values:
            value.grad = torch.sin(value.detach() * 9 + step)
        optimizer.step()


def test_a_checkpoint_of_a_fused_one_counts_on_the_host() -> None:
    value = nn.Parameter(torch.randn(9))
    fused = torch.optim.AdamW([value], fused=True)
    train(fused, [value], 2)
    kept = fused.state_dict()
    groups = copy.deepcopy(kept["param_groups"])
    ours = mf.optim.AdamW([value])
    ours.load_state_dict(kept)
    assert kept["param_groups"] == groups  # the caller's
    assert not ours.param_groups[0]["fused"]
    assert ours.state[value]["step"].device.type == "cpu"
    train(ours, [value], 1)
    assert ours.state[value]["step"] == 3


def test_gradients_that_lie_otherwise() -> None:
    """Transposed, and expanded from one number; a parameter with gaps is torch's to do."""
    whole = torch.randn(8, 12)
    found = []
    for kind in (mf.optim.AdamW, torch.optim.AdamW):
        base = whole.clone()
        values = [nn.Parameter(base[:, :6].detach()), nn.Parameter(whole.clone())]
        values.append(nn.Parameter(torch.ones(5, 4)))
        optimizer = kind(values, lr=0.1)
        for _ in range(3):
            values[0].grad = values[0].detach().clone()
            values[1].grad = torch.cos(values[1].detach()).t().contiguous().t()
            values[2].grad = torch.ones(()).expand(5, 4)
            optimizer.step()
        found.append([*values, base])
        assert [s["step"].item() for s in optimizer.state.values()] == [3, 3, 3]
    assert not torch.equal(found[0][3][:, :6], whole[:, :6])
    assert torch.equal(found[0][3][:, 6:], whole[:, 6:])
    torch.testing.assert_close(*found)


def test_complex_and_sparse_ones() -> None:
    for kind in (mf.optim.AdamW, mf.optim.SGD):
        theirs = getattr(torch.optim, kind.__name__)
        found = []
        for each in (kind, theirs):
            value = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
            optimizer = each([value], lr=0.1)
            value.grad = torch.tensor([0.5 - 1j, 1j])
            optimizer.step()
            found.append(value.detach())
        torch.testing.assert_close(*found)
    table = nn.Embedding(5, 3, sparse=True)
    expected = table.weight.detach().clone()
    expected[2] -= 0.5
    table(torch.tensor([2])).sum().backward()
    mf.optim.SGD(table.parameters(), lr=0.5).step()
    torch.testing.assert_close(table.weight.detach(), expected)
    for kind in (mf.optim.AdamW, mf.optim.Lion):
        with pytest.raises(RuntimeError, match="sparse"):
            kind(table.parameters()).step()


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Lion"])
def test_without_a_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"lr": 0.1}
    expected = stepped(getattr(mf.optim, name), how, torch.float32)
    monkeypatch.setattr(launching.loader, "load", lambda: None)
    found = stepped(getattr(mf.optim, name), how, torch.float32)
    torch.testing.assert_close(found, expected)


def test_closures_schedules_and_hooks() -> None:
    model = nn.Linear(4, 2)
    optimizer = mf.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().sum()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)
    assert optimizer.step(closure) < first
    assert called == ["before", "after"] * 2


def test_a_rate_that_is_a_tensor() -> None:
    found = []
    for rate in (0.25, torch.tensor(0.25)):
        value = nn.Parameter(torch.ones(3))
        optimizer = mf.optim.Lion([value], lr=rate)
        value.grad = torch.ones(3)
        optimizer.step()
        found.append(value.detach())
    assert torch.equal(*found)


def test_autograd_sees_that_a_parameter_changed() -> None:
    value = nn.Parameter(torch.ones(3))
    kept = (value * value).sum()
    value.grad = torch.ones(3)
    mf.optim.SGD([value], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


class Seen(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_who_watches_sees_it() -> None:
    found = []
    for watch in (Seen(), nullcontext()):  # type: ignore[var-annotated]
        value = nn.Parameter(torch.arange(5.0))
        optimizer = mf.optim.AdamW([value], lr=0.1)
        value.grad = torch.ones(5)
        with watch:
            optimizer.step()
        found.append(value.detach())
    assert torch.equal(*found)
    watch = Seen()
    with watch:
        optimizer.step()
    assert "megafuse.optimizer_step.default" in watch.names


@needs_gloo
def test_who_watches_sees_the_step_of_a_shard() -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        value = nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
        value.grad = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        watch = Seen()
        with watch:
            mf.optim.SGD([value], lr=0.5).step()
        assert "megafuse.optimizer_step.default" in watch.names
        assert torch.equal(value.full_tensor(), torch.full((4, 3), 0.5))
    finally:
        dist.destroy_process_group()


def test_diagnose_undoes_a_step() -> None:
    model = nn.Linear(40, 30)
    optimizer = mf.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(8, 40)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    before = [t.clone() for t in (*model.parameters(), *everything_kept(optimizer))]
    mf.diagnose(step, attempt=False)
    assert all(map(torch.equal, (*model.parameters(), *everything_kept(optimizer)), before))


def everything_kept(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for state in optimizer.state.values() for tensor in state.values()]


def test_tensors_without_memory() -> None:
    with FakeTensorMode():
        value = nn.Parameter(torch.ones(3))
        value.grad = torch.ones(3)
        mf.optim.AdamW([value]).step()
    assert value.shape == (3,)


def test_a_cuda_graph_cannot_hold_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    value = nn.Parameter(torch.ones(3))
    value.grad = torch.ones(3)
    for kind in (mf.optim.AdamW, mf.optim.SGD, mf.optim.Lion):
        with pytest.raises(RuntimeError, match="cannot be part of a CUDA graph"):
            kind([value]).step()
    assert torch.equal(value, torch.ones(3))


def test_a_default_dtype_of_16_bits_counts_on() -> None:
    value = nn.Parameter(torch.randn(3))
    optimizer = mf.optim.AdamW([value])
    train(optimizer, [value], 1)
    optimizer.state[value]["step"] += 299
    kept = optimizer.state_dict()
    torch.set_default_dtype(torch.bfloat16)
    try:
        optimizer.load_state_dict(kept)
    finally:
        torch.set_default_dtype(torch.float32)
    train(optimizer, [value], 1)
    assert optimizer.state[value]["step"] == 301


def test_grad_scaler_skips_what_overflowed() -> None:
    value = nn.Parameter(torch.ones(3))
    optimizer = mf.optim.AdamW([value], lr=0.1, weight_decay=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor, expected in ((float("inf"), 1.0), (1.0, 0.9)):
        optimizer.zero_grad()
        scaler.scale((value * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(value.detach(), torch.full((3,), expected))


def test_a_copy_goes_on_by_itself() -> None:
    value = nn.Parameter(torch.randn(5))
    optimizer = mf.optim.AdamW([value])
    train(optimizer, [value], 1)
    other = copy.deepcopy(optimizer)
    inside = other.param_groups[0]["params"]
    train(other, inside, 1)
    assert not torch.equal(inside[0], value)
    assert optimizer.state[value]["step"] == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"lr": -1.0}, "lr must be 0 or more"),
        ({"betas": (0.9, 1.0)}, r"betas must be in \[0, 1\)"),
        ({"weight_decay": float("nan")}, "weight_decay must be 0 or more"),
    ],
)
def test_what_lion_refuses(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mf.optim.Lion([nn.Parameter(torch.ones(2))], **how)


@pytest.mark.slow
def test_with_an_optimized_model() -> None:
    """The graph's program reads the parameters where they lie: it sees every step."""
    losses = []
    for change, kind in ((mf.optimize, mf.optim.AdamW), (lambda m: m, torch.optim.AdamW)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        model = change(model)
        optimizer = kind(model.parameters(), lr=1e-2)
        x, seen = torch.randn(64, 16), []
        for _ in range(10):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(seen)
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-4, atol=1e-6)
