"""convert: the class of what it knows changes, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import megafuse.nn as fused


class Model(nn.Module):
    """A bit of everything, with a tied weight, a shared module and a hook."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            64, 2, 96, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(11, 64)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(64), enable_nested_tensor=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(64), nn.Linear(64, 96), nn.GELU(), nn.Dropout(0.0), nn.Linear(96, 64)
        )
        self.norm = self.again = nn.RMSNorm(64)
        self.picture = nn.LayerNorm([7, 64])
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.plain = nn.Sequential(nn.Linear(64, 64), nn.SiLU())
        self.head = nn.Linear(64, 11)
        self.head.weight = self.embedding.weight
        self.heard = 0
        self.norm.register_forward_hook(self.hear)

    def hear(self, *_: object) -> None:
        self.heard += 1

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.embedding(tokens))
        x = self.picture(self.norm(x + self.mlp(x)))
        x, _ = self.attention(x, x, x)
        return self.head(self.again(self.plain(x)))


REPLACED = {
    "encoder.layers.0": "TransformerBlock",
    "encoder.layers.0.self_attn": "Attention",
    "encoder.layers.0.norm1": "LayerNorm",
    "encoder.layers.0.norm2": "LayerNorm",
    "encoder.layers.1": "TransformerBlock",
    "encoder.layers.1.self_attn": "Attention",
    "encoder.layers.1.norm1": "LayerNorm",
    "encoder.layers.1.norm2": "LayerNorm",
    "encoder.norm": "LayerNorm",
    "mlp": "Sequential",
    "mlp.0": "LayerNorm",
    "norm": "RMSNorm",
}


def test_tells_what_it_replaced_and_leaves_the_rest() -> None:
    model = Model()
    before = {path: type(module) for path, module in model.named_modules()}
    assert fused.convert(model) == REPLACED
    for path, module in model.named_modules():
        ours = type(module).__module__.startswith("megafuse.nn")
        assert ours == (path in REPLACED)
        assert isinstance(module, before[path])
    assert fused.convert(model) == {}


@pytest.mark.slow
def test_nothing_but_the_class_changes() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parameters = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    state, tokens = list(model.state_dict()), torch.randint(11, (3, 7))
    before = model(tokens)
    twin = copy.deepcopy(model)
    fused.convert(model)
    assert {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)} == parameters
    assert list(model.state_dict()) == state
    model.heard = 0
    torch.testing.assert_close(model(tokens), before, rtol=1e-4, atol=1e-5)
    assert model.heard == 2  # the norm stands in two places, and its hook stays
    twin.load_state_dict(model.state_dict(), strict=True)
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    assert not torch.equal(model(tokens), before)


def test_the_model_itself() -> None:
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 3))
    assert fused.convert(model) == {"": "Sequential"}
    assert isinstance(model, fused.Sequential)
    layer = nn.TransformerEncoderLayer(64, 2, 96)
    found = {"": "TransformerBlock", "self_attn": "Attention"}
    assert fused.convert(layer) == {**found, "norm1": "LayerNorm", "norm2": "LayerNorm"}


def test_leaves_what_computes_something_else() -> None:
    class Doubled(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model = nn.Sequential(Doubled(64), nn.Linear(64, 64), nn.SiLU(), nn.LayerNorm([3, 64]))
    assert fused.convert(model) == {}
    layer = nn.TransformerEncoderLayer(64, 2, 96, activation=F.silu)
    assert fused.convert(layer) == {"norm1": "LayerNorm", "norm2": "LayerNorm"}


# ---- Sequential


@pytest.mark.parametrize(
    ("letters", "runs"),
    [
        ("LG", [2]),
        ("LRL", [3]),
        ("LGDLD", [5]),
        ("LGLRL", [3, 1, 1]),
        ("NLGL", [1, 3]),
        ("NL", [2]),
        ("NLD", [2, 1]),
        ("NLG", [1, 2]),
        ("GL", [2]),
        ("GLG", [1, 2]),
        ("RL.LGDL", [1, 1, 1, 4]),
        ("", []),
    ],
)
def test_runs(letters: str, runs: list[int]) -> None:
    from megafuse.nn import sequential

    assert sequential.runs(letters) == runs


def test_sequential_stays_a_sequence() -> None:
    """Indexing, slicing, appending and calling a part alone give what nn.Sequential gives."""
    made = fused.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))
    x = torch.randn(3, 64)
    linear, gelu, last = made
    torch.testing.assert_close(made[0](x), F.linear(x, linear.weight, linear.bias))
    torch.testing.assert_close(made[:2](x), gelu(linear(x)), rtol=1e-4, atol=1e-5)
    assert isinstance(made[:2], fused.Sequential)
    made.append(nn.ReLU())
    torch.testing.assert_close(made(x), last(gelu(linear(x))).relu(), rtol=1e-4, atol=1e-5)
    made[1] = nn.SiLU()
    torch.testing.assert_close(made(x), last(F.silu(linear(x))).relu(), rtol=1e-4, atol=1e-5)
