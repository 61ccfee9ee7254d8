"""Modules of other libraries: recognised by structure and by trying, and nothing of theirs lost."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import megafuse.nn as fused

WIDTH, HIDDEN = 24, 40


class Block(nn.Module):
    """A feed-forward block under names of its own, with its dropouts where `places` says."""

    def __init__(self, act: object = None, hidden: int = HIDDEN, p: float = 0.3) -> None:
        super().__init__()
        self.last = nn.Linear(hidden, WIDTH)  # not in the order of their calls
        self.drop_b, self.drop_a = nn.Dropout(p), nn.Dropout(p)
        self.start = nn.Linear(WIDTH, hidden)
        self.curve = nn.GELU() if act is None else act
        self.between = nn.Identity()

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.drop_a(self.curve(self.start(hidden_states)))
        return self.drop_b(self.last(self.between(x)))


class Gated(nn.Module):
    def __init__(self, act: nn.Module | None = None, hidden: int = HIDDEN, p: float = 0.0) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, hidden), nn.Linear(WIDTH, hidden)
        self.three = nn.Linear(hidden, WIDTH, bias=False)
        self.curve, self.drop = act or nn.SiLU(), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.drop(self.one(x) * self.curve(self.two(x))))


class Packed(nn.Module):
    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.both, self.down = nn.Linear(WIDTH, 2 * HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.act = act or nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(up * self.act(gate))


class Wide(nn.Module):
    """BertIntermediate, with the activation a function."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.act = nn.Linear(WIDTH, HIDDEN), F.relu

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.dense(x))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.act, self.norm = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(x)))


class AddNorm(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor, input_tensor: Tensor) -> Tensor:
        return self.norm(self.drop(self.dense(x)) + input_tensor)


class RMS(nn.Module):
    def __init__(self, offset: float = 0.0, centred: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.variance_epsilon, self.offset, self.centred = 1e-3, offset, centred

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() - (x.float().mean(-1, keepdim=True) if self.centred else 0)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.offset + self.scale) * wide.to(x.dtype)


class Stack(nn.Sequential):
    """A subclass of nn.Sequential that adds nothing to its forward."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


class Quick(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


RECOGNISED = {
    "ffn": (Block, "FFN"),
    "ffn, square": (lambda: Block(hidden=WIDTH), "FFN"),
    "ffn, tanh": (lambda: Block(nn.GELU("tanh")), "FFN"),
    "ffn, function": (lambda: Block(F.gelu), "FFN"),
    "gated": (Gated, "SwiGLUFFN"),
    "gated, square": (lambda: Gated(hidden=WIDTH), "SwiGLUFFN"),
    "gated, gelu": (lambda: Gated(nn.GELU("tanh")), "GatedFFN"),
    "packed": (Packed, "SwiGLU"),
    "wide": (Wide, "LinearReLU"),
    "head": (Head, "LinearGELU"),
    "add, norm": (AddNorm, "ResidualLayerNorm"),
    "rms": (RMS, "RMSNorm"),
    "rms, 1 + weight": (lambda: RMS(1.0), "RMSNorm"),
    "layer norm": (lambda: RMS(centred=True), "LayerNorm"),
    "sequence": (Stack, "Sequential"),
}
recognised = pytest.mark.parametrize(("make", "kind"), RECOGNISED.values(), ids=list(RECOGNISED))


def inputs(module: nn.Module, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    count = 2 if isinstance(module, AddNorm) else 1
    return [torch.randn(2, 5, WIDTH).to(dtype) for _ in range(count)]


def converted(module: nn.Module) -> nn.Module:
    made = copy.deepcopy(module)
    assert fused.convert(made)
    return made


@recognised
def test_computes_the_same(make, kind: str) -> None:
    module = make().eval()
    made = copy.deepcopy(module)
    assert fused.convert(made)[""] == kind
    assert isinstance(made, type(module))
    assert type(made).__name__ == type(module).__name__
    assert list(made.state_dict()) == list(module.state_dict())
    x = inputs(module)
    torch.testing.assert_close(made(*x), module(*x), rtol=1e-4, atol=1e-5)
    assert not fused.convert(made)
    assert not fused.convert(made).left


@recognised
def test_gradients(make, kind: str) -> None:
    module = make()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    made = converted(module)
    x = inputs(module)
    expected = module(*x)
    probe = torch.randn_like(expected)
    expected.backward(probe)
    made(*x).backward(probe)
    for (name, ours), theirs in zip(made.named_parameters(), module.parameters(), strict=True):
        size = theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4 * size, msg=name)


@pytest.mark.slow
@recognised
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_dtypes(make, kind: str, dtype: torch.dtype) -> None:
    module = make().eval().to(dtype)
    made = converted(module)
    x = inputs(module, dtype)
    with torch.no_grad():
        got, expected = made(*x), module(*x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0.03, atol=0.06)


@pytest.mark.slow
@recognised
def test_autocast(make, kind: str) -> None:
    module = make().eval()
    made = converted(module)
    x = inputs(module)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = made(*x), module(*x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0.03, atol=0.06)


@recognised
def test_copies_and_pickles(make, kind: str) -> None:
    made = converted(make().eval())
    x = inputs(made)
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is type(made)
        torch.testing.assert_close(again(*x), made(*x), rtol=0, atol=0)
        assert not {id(p) for p in again.parameters()} & {id(p) for p in made.parameters()}


@pytest.mark.slow
@recognised
def test_compiles(make, kind: str) -> None:
    made = converted(make().eval())
    x = inputs(made)
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*x), made(*x), rtol=1e-4, atol=1e-5)


def test_called_by_name() -> None:
    module = Block().eval()
    x = torch.randn(2, 5, WIDTH)
    made = converted(module)
    torch.testing.assert_close(made(hidden_states=x), module(x), rtol=1e-4, atol=1e-5)


# ---- what is added to a part, before or after


class Adapter(nn.Module):
    """As LoRA's: in the layer's place, with its sizes."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.in_features, self.out_features = base, base.in_features, base.out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x.mean(-1, keepdim=True)


def adapt(module: nn.Module) -> None:
    for name, part in list(module.named_children()):
        if type(part) is nn.Linear:
            setattr(module, name, Adapter(part))


def adapt_one(module: nn.Module) -> None:
    name = next(n for n, part in module.named_children() if type(part) is nn.Linear)
    setattr(module, name, Adapter(getattr(module, name)))


def hook(module: nn.Module) -> None:
    for part in module.children():
        part.register_forward_hook(lambda part, args, out: out * 1.5)


def hook_before(module: nn.Module) -> None:
    for part in module.children():
        if type(part) is nn.Linear:
            part.register_forward_pre_hook(lambda part, args: (args[0] * 1.5,))


def norm_weights(module: nn.Module) -> None:
    for part in module.children():
        if type(part) is nn.Linear:
            parametrizations.weight_norm(part)
            with torch.no_grad():
                part.parametrizations.weight.original0.mul_(1.5)


def pruned(module: nn.Module) -> None:
    for part in module.children():
        if type(part) is nn.Linear:
            torch.manual_seed(0)
            prune.random_unstructured(part, "weight", 0.5)


def own_forward(module: nn.Module) -> None:
    for part in module.children():
        if type(part) is nn.Linear:
            part.forward = lambda x, call=part.forward: call(x) * 2


CHANGES = [adapt, adapt_one, hook, hook_before, norm_weights, pruned, own_forward]
BLOCKS = [
    case for case in RECOGNISED.items() if not case[1][1].endswith("orm") or "Res" in case[1][1]
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "make", [make for _, (make, _) in BLOCKS], ids=[name for name, _ in BLOCKS]
)
def test_nothing_added_later_is_skipped(make, change) -> None:
    module = make().eval()
    made = converted(module)
    change(module)
    change(made)
    x = inputs(module)
    torch.testing.assert_close(made(*x), module(*x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "make", [make for _, (make, _) in BLOCKS], ids=[name for name, _ in BLOCKS]
)
def test_nothing_added_before_is_skipped(make, change) -> None:
    torch.manual_seed(0)
    module = make().eval()
    torch.manual_seed(0)
    made = make().eval()
    change(module)
    change(made)
    answer = fused.convert(made)
    if change is not hook and not isinstance(module, nn.Sequential):
        assert "" in answer, answer  # a hook on the activation is a reason to leave it
    x = inputs(module)
    torch.testing.assert_close(made(*x), module(*x), rtol=1e-4, atol=1e-5)


def test_an_activation_exchanged_later() -> None:
    module = Block().eval()
    made = converted(module)
    module.curve = made.curve = nn.Tanh()
    x = torch.randn(2, 5, WIDTH)
    torch.testing.assert_close(made(x), module(x), rtol=1e-4, atol=1e-5)


def test_a_hook_for_every_module_hears_the_parts() -> None:
    made = converted(Block().eval())
    heard = []
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: heard.append(type(module).__name__)
    )
    try:
        made(torch.randn(2, WIDTH))
    finally:
        handle.remove()
    assert heard.count("Linear") == 2


def test_weights_of_two_dtypes() -> None:
    """T5 keeps its second layer in float32 and casts in between: its own forward knows how."""

    class Casting(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.curve(self.start(x))
            return self.last(x.to(self.last.weight.dtype))

    module = Casting().eval()
    module.start.bfloat16()
    made = converted(module)
    x = torch.randn(2, WIDTH).bfloat16()
    assert made(x).dtype == module(x).dtype == torch.float32
    torch.testing.assert_close(made(x), module(x), rtol=0.02, atol=0.02)


def test_a_weight_of_another_tensor_class_is_not_read() -> None:
    """Quantization and tensor parallelism put such weights into an nn.Linear."""
    two = pytest.importorskip("torch.testing._internal.two_tensor")
    from megafuse.nn.linear import readable

    linear = nn.Linear(4, 4)
    assert readable(linear)
    linear.weight = nn.Parameter(two.TwoTensor(torch.randn(4, 4), torch.randn(4, 4)))
    assert not readable(linear)


# ---- dropout


@pytest.mark.parametrize("make", [lambda: Block(p=0.5), lambda: Gated(p=0.5)])
def test_dropout_acts_where_it_did(make) -> None:
    """The share of zeros in the result, and of the hidden layer through a last layer of ones."""
    made = converted(make())
    x = torch.randn(64, WIDTH)
    if isinstance(made, Block):
        dropped = (made(x) == 0).float().mean().item()
        assert 0.4 < dropped < 0.6
        made.drop_b.p = 0.0
    first, second = made(x), made(x)
    assert not torch.equal(first, second)  # the hidden one draws
    made.eval()
    torch.testing.assert_close(made(x), made(x), rtol=0, atol=0)


# ---- what stays, and why


class FunctionalDropout(Block):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.last(self.curve(self.start(x))), 0.1, self.training)


class Noisy(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.curve(self.start(x + torch.randn_like(x))))


class Scaled(Block):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class OwnParameter(Block):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))


class Twice(Block):
    """Its dropout acts twice on the way, where the op has one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.drop_b(super().forward(x))


class WrongEps(RMS):
    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


class AlwaysWide(RMS):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class KeepsAMethod(Block):
    def __init__(self) -> None:
        super().__init__()
        self.run = self.compute

    def compute(self, x: Tensor) -> Tensor:
        return super().forward(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def own_call() -> nn.Module:
    module = Block()
    module.forward = lambda x: x
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Block(Quick()), "no fused form of Quick"),
        (lambda: Block(nn.ReLU6()), "no fused form of ReLU6"),
        (lambda: Block(nn.SiLU()), "silu between two linear layers"),
        (lambda: Packed(nn.GELU()), "no fused form with gelu"),
        (FunctionalDropout, "computes something else"),
        (Noisy, "computes something else"),
        (Scaled, "computes something else"),
        (Twice, "computes something else"),
        (OwnParameter, "parameters or buffers of its own beside its layers: gamma"),
        (KeepsAMethod, "attribute run leads back"),
        (WrongEps, "neither a layer norm nor an RMS norm"),
        (AlwaysWide, "neither a layer norm nor an RMS norm"),
        (own_call, "forward of its own on the instance"),
        (lambda: nn.LayerNorm([3, WIDTH]), "over 2 dimensions"),
        (lambda: nn.GroupNorm(1, WIDTH), "could not be called"),
        (lambda: nn.BatchNorm1d(WIDTH), "not one over the last dimension"),
        (lambda: nn.MultiheadAttention(WIDTH, 2), "Attention.from_torch"),
        (lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, activation=F.silu), "its activation"),
        (lambda: nn.TransformerDecoderLayer(WIDTH, 2, 8), "more than a feed-forward block"),
    ],
)
def test_left_for_a_reason(make, reason: str) -> None:
    module = make()
    before = type(module)
    answer = fused.convert(module)
    assert reason in answer.left[""], answer
    assert "" not in answer
    assert type(module) is before


def test_what_nothing_is_about_is_not_mentioned() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Embedding(3, 3), "c": nn.ReLU()})
    answer = fused.convert(model)
    assert answer == {}
    assert answer.left == {}
    assert str(answer) == "nothing replaced"


# ---- a trial leaves no trace


@recognised
def test_the_trial_leaves_no_trace(make, kind: str) -> None:
    module = make()
    heard: list[object] = []
    for part in module.modules():
        if part is not module or not list(module.children()):
            part.register_forward_hook(lambda *_: heard.append(1))
            part.register_forward_pre_hook(lambda *_: heard.append(1))
    acts = [part for part in module.children() if isinstance(part, (nn.GELU, nn.SiLU))]
    for act in acts:  # hooks there are a reason to leave the block
        act._forward_hooks.clear()
        act._forward_pre_hooks.clear()
    modes = {name: i % 2 == 0 for i, (name, _) in enumerate(module.named_modules())}
    for name, part in module.named_modules():
        part.training = modes[name]
    values = {name: p.clone() for name, p in module.named_parameters()}
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    fused.convert(module)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == grad
    assert {name: part.training for name, part in module.named_modules()} == modes
    assert heard == []
    for name, parameter in module.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, values[name])


def test_on_the_meta_device_and_under_autocast() -> None:
    with torch.device("meta"):
        module = nn.Sequential(Block(), Gated(), RMS())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answer = fused.convert(module)
    assert answer == {"0": "FFN", "1": "SwiGLUFFN", "2": "RMSNorm"}


# ---- the answer


def test_the_answer_reads_at_80_columns() -> None:
    model = nn.ModuleDict(
        {f"layer_with_a_long_name_{i}": nn.ModuleList([Block(), RMS()]) for i in range(9)}
    )
    model["scaled"] = Scaled()
    answer = fused.convert(model)
    assert len(answer) == 18
    assert answer.was["scaled"] == "Scaled"
    text = str(answer)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "9 Block -> FFN at layer_with_a_long_name_0.*, " in text
    assert "1 Scaled left at scaled: a small copy of it computes something else" in text
