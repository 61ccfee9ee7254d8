"""from_torch and to_torch: the very same Parameters, or an error that says why not."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import megafuse.nn as fused
from nn import twins


def encoder_layer(**settings) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(64, 2, 96, batch_first=True, norm_first=True, **settings)


def mlp(*between: nn.Module, act: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 96), act or nn.GELU(), *between, nn.Linear(96, 64))


# torch's modules, and what is made of them
PAIRS: dict[str, tuple[Callable, Callable]] = {
    "linear, relu": (lambda: nn.Sequential(nn.Linear(64, 40), nn.ReLU()), fused.LinearReLU),
    "linear, gelu": (lambda: nn.Sequential(nn.Linear(64, 40), nn.GELU("tanh")), fused.LinearGELU),
    "gelu, linear": (lambda: nn.Sequential(nn.GELU(), nn.Linear(64, 40, False)), fused.GELULinear),
    "norm, linear": (
        lambda: nn.Sequential(nn.LayerNorm(64, bias=False), nn.Linear(64, 40)),
        fused.LayerNormLinear,
    ),
    "layer norm": (lambda: nn.LayerNorm(64, 1e-3), fused.LayerNorm),
    "plain norm": (lambda: nn.LayerNorm(64, elementwise_affine=False), fused.LayerNorm),
    "rms norm": (lambda: nn.RMSNorm(64), fused.RMSNorm),
    "ffn": (mlp, fused.FFN),
    "ffn, dropout": (lambda: mlp(nn.Dropout(0.2), act=nn.ReLU()).append(nn.Dropout()), fused.FFN),
    "sequence": (lambda: nn.Sequential(nn.LayerNorm(64), *mlp(), nn.ReLU()), fused.Sequential),
    "pre-norm": (lambda: encoder_layer(activation="gelu", bias=False), fused.TransformerBlock),
    "tanh": (lambda: encoder_layer(activation=nn.GELU("tanh")), fused.TransformerBlock),
    "post-norm": (
        lambda: nn.TransformerEncoderLayer(64, 2, 96, layer_norm_eps=1e-3),
        fused.TransformerBlock,
    ),
}
pairs = pytest.mark.parametrize(("make", "cls"), PAIRS.values(), ids=list(PAIRS))


@pytest.mark.slow
@pairs
def test_shares_the_parameters(make: Callable, cls: type) -> None:
    module = make()
    for p in module.parameters():
        p.requires_grad_(p.dim() > 1)
    made = cls.from_torch(module)
    assert list(map(id, made.parameters())) == list(map(id, module.parameters()))
    x = torch.randn(3, 7, 64)
    before = made.eval()(x)
    torch.testing.assert_close(before, module.eval()(x), rtol=1e-4, atol=1e-5)
    if before.requires_grad:
        before.square().mean().backward()
        torch.optim.SGD(module.parameters(), 0.1).step()
        assert not torch.equal(made(x), before)
        torch.testing.assert_close(made(x), module(x), rtol=1e-4, atol=1e-4)


@pairs
def test_back_to_torch(make: Callable, cls: type) -> None:
    module = make()
    back = cls.from_torch(module).to_torch()
    assert {id(p) for p in back.parameters()} == {id(p) for p in module.parameters()}
    assert not any(type(m).__module__.startswith("megafuse") for m in back.modules())
    if type(module) is not nn.Sequential:
        assert type(back) is type(module)
        assert repr(back) == repr(module)
        assert vars(back).keys() == vars(module).keys()
    x = torch.randn(3, 7, 64)
    torch.testing.assert_close(back.eval()(x), module.eval()(x), rtol=0, atol=0)


@pairs
def test_keeps_the_mode(make: Callable, cls: type) -> None:
    for mode in (True, False):
        module = make().train(mode)
        made = cls.from_torch(module)
        assert {m.training for m in made.modules()} == {mode}
        assert {m.training for m in made.to_torch().modules()} == {mode}


@pairs
def test_leaves_the_source_alone(make: Callable, cls: type) -> None:
    module = make()
    text, names = repr(module), list(module.state_dict())
    made = cls.from_torch(module)
    for name, _ in list(made.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        if made.get_submodule(owner) not in set(module.modules()):
            setattr(made.get_submodule(owner), leaf, None)
    assert repr(module) == text
    assert list(module.state_dict()) == names


# ---- from the parts


def test_linear_alone() -> None:
    linear = nn.Linear(64, 40)
    assert fused.LinearReLU.from_torch(linear).weight is linear.weight
    assert fused.LinearGELU.from_torch(linear, "tanh").approximate == "tanh"
    assert fused.GELULinear.from_torch(linear).bias is linear.bias


def test_attention() -> None:
    module = nn.MultiheadAttention(64, 2, dropout=0.3, batch_first=True).eval()
    made = fused.Attention.from_torch(module)
    assert made.in_proj_weight is module.in_proj_weight
    assert made.out_proj is module.out_proj
    x = torch.randn(3, 7, 64)
    torch.testing.assert_close(made(x)[0], module(x, x, x)[0], rtol=1e-4, atol=1e-5)
    assert type(made.to_torch()) is nn.MultiheadAttention


def test_norm_with_its_dropout() -> None:
    norm, dropout = nn.LayerNorm(64, 1e-3), nn.Dropout(0.2)
    made = fused.ResidualLayerNorm.from_torch(norm, dropout)
    assert made.weight is norm.weight
    assert made.dropout is dropout
    assert fused.ResidualLayerNorm.from_torch(norm.eval(), 0.2).dropout.training is False
    assert fused.ResidualRMSNorm.from_torch(nn.RMSNorm(64), 0.2).dropout.p == 0.2


@pytest.mark.parametrize(
    ("act", "name"),
    [
        ("relu", "relu"),
        (F.relu, "relu"),
        (torch.relu, "relu"),
        (nn.ReLU(), "relu"),
        (F.gelu, "gelu"),
        (nn.GELU(), "gelu"),
        (nn.GELU("tanh"), "gelu_tanh"),
        (functools.partial(F.gelu, approximate="tanh"), "gelu_tanh"),
        ("gelu_tanh", "gelu_tanh"),
    ],
)
def test_ffn_of_parts(act, name: str) -> None:
    linear1, linear2 = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
    made = fused.FFN.from_torch(linear1, act, linear2, 0.3)
    assert (made.linear1, made.linear2) == (linear1, linear2)
    assert made.activation == name
    assert (made.dropout.p, made.hidden_dropout.p) == (0.3, 0.0)


def test_ffn_of_an_encoder_layer() -> None:
    layer = encoder_layer(activation=nn.GELU(), dropout=0.3)
    made = fused.FFN.from_torch(layer)
    assert (made.linear1, made.linear2) == (layer.linear1, layer.linear2)
    assert (made.hidden_dropout, made.dropout) == (layer.dropout, layer.dropout2)
    assert made.activation == "gelu"


def test_swiglu_of_three_layers() -> None:
    mlp = twins.LlamaMLP(64, 96)
    made = fused.SwiGLUFFN.from_torch(mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    x = torch.randn(3, 64)
    torch.testing.assert_close(made(x), mlp(x), rtol=1e-4, atol=1e-5)
    assert list(map(id, made.parameters())) == list(map(id, mlp.parameters()))


def test_conv1d_as_it_is() -> None:
    """GPT-2's layers keep [in, out]: they are held, read through a view, and never renamed."""
    library = pytest.importorskip("transformers.pytorch_utils", reason="of the dev extra")
    first, second = library.Conv1D(96, 64), library.Conv1D(64, 96)
    nn.init.normal_(first.bias)
    made = fused.FFN.from_torch(first, "gelu_tanh", second)
    assert (made.linear1, made.linear2) == (first, second)
    x = torch.randn(3, 64)
    expected = second(F.gelu(first(x), approximate="tanh"))
    expected.square().sum().backward()
    grads = [p.grad for p in made.parameters()]
    made.zero_grad()
    got = made(x)
    got.square().sum().backward()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for parameter, grad in zip(made.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="which keeps \\[in, out\\]"):
        fused.LinearGELU.from_torch(first)


def test_layers_that_are_more_than_their_weight() -> None:
    """An adapted, hooked or parametrized layer is held and called, and the error names none."""
    up, down = hooked(nn.Linear(64, 96)), Scaled(96, 64)
    gate = parametrizations.weight_norm(nn.Linear(64, 96))
    heard = []
    up.register_forward_hook(lambda *_: heard.append(1))
    x = torch.randn(3, 64)
    ffn = fused.FFN.from_torch(up, "relu", down)
    torch.testing.assert_close(ffn(x), down(up(x).relu()), rtol=1e-4, atol=1e-5)
    swiglu = fused.SwiGLUFFN.from_torch(gate, up, down)
    torch.testing.assert_close(swiglu(x), down(F.silu(gate(x)) * up(x)), rtol=1e-4, atol=1e-5)
    assert len(heard) == 4


# ---- what cannot be


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, args, out: None)
    return module


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: fused.LinearReLU.from_torch(nn.Conv2d(3, 4, 1)), "takes a torch.nn.Linear"),
        (lambda: fused.LinearReLU.from_torch(Scaled(4, 4)), "Scaled, a subclass"),
        (lambda: fused.LinearReLU.from_torch(hooked(nn.Linear(4, 4))), "has hooks"),
        (
            lambda: fused.LinearGELU.from_torch(parametrizations.weight_norm(nn.Linear(4, 4))),
            "Convert first, then parametrize",
        ),
        (
            lambda: fused.LinearGELU.from_torch(nn.Sequential(nn.Linear(4, 4), nn.SiLU())),
            r"takes a torch.nn.GELU, and got a torch\.nn\.modules\.activation\.SiLU",
        ),
        (
            lambda: fused.FFN.from_torch(nn.Conv2d(3, 4, 1), "relu", nn.Linear(4, 4)),
            r"conv\.Conv2d",
        ),
        (
            lambda: fused.FFN.from_torch(nn.Linear(4, 4), "relu", fused.LinearReLU(4, 4)),
            r"got a megafuse\.nn\.linear_relu\.LinearReLU",
        ),
        (
            lambda: fused.LayerNorm.from_torch(nn.BatchNorm1d(4)),
            r"got a torch\.nn\.modules\.batchnorm\.BatchNorm1d",
        ),
        (lambda: fused.FFN.from_torch(nn.Linear(4, 4)), "linear1, activation and linear2"),
        (
            lambda: fused.FFN.from_torch(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
            "got one of Linear, ReLU",
        ),
        (lambda: fused.FFN.from_torch(mlp(act=nn.SiLU())), "no fused form of the activation SiLU"),
        (lambda: fused.FFN(4, 8, activation="swish"), "'relu', 'gelu', 'gelu_tanh'"),
        (lambda: fused.LayerNormLinear.from_torch(nn.LayerNorm(4)), "a norm and a linear layer"),
        (
            lambda: fused.TransformerBlock.from_torch(encoder_layer(activation=F.silu)),
            "no fused form of the activation",
        ),
        (lambda: fused.Attention.from_torch(nn.Linear(4, 4)), "takes a torch.nn.MultiheadAttent"),
        (
            lambda: fused.ResidualLayerNorm.from_torch(nn.LayerNorm(4), nn.AlphaDropout()),
            r"got a torch\.nn\.modules\.dropout\.AlphaDropout",
        ),
    ],
)
def test_errors_say_what_is_wrong(build: Callable, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        build()
