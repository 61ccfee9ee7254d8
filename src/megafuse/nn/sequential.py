"""Sequential: its modules one after the other, neighbours fused where an op knows the run."""

from __future__ import annotations

from torch import Tensor, nn

from megafuse.nn import activation
from megafuse.nn.adopt import adopt, expect
from megafuse.nn.ffn import feed_forward
from megafuse.nn.layer_norm import LayerNorm
from megafuse.nn.layernorm_linear import norm_linear
from megafuse.nn.linear import readable, weight_of
from megafuse.nn.linear_gelu import linear_act
from megafuse.nn.plain import plain
from megafuse.ops.gelu_linear import gelu_linear


class Sequential(nn.Sequential):
    """What nn.Sequential computes, with each of these runs of modules as one op:

    Linear, ReLU or GELU, Linear, with or without a Dropout after the second and the third;
    Linear, ReLU or GELU; LayerNorm, Linear; GELU, Linear.

    The modules stay what they are, under their names; one that has hooks is called.
    """

    def forward(self, input: Tensor) -> Tensor:
        modules = list(self)
        letters = spelled(modules)
        start = 0
        for taken in runs(letters):
            input = _step(input, letters[start : start + taken], modules[start : start + taken])
            start += taken
        return input

    @classmethod
    def from_torch(cls, module: nn.Module) -> Sequential:
        """From an nn.Sequential, whose modules it holds."""
        return adopt(cls, expect(module, "Sequential.from_torch", nn.Sequential))

    def to_torch(self) -> nn.Sequential:
        """An nn.Sequential of the same modules."""
        return adopt(nn.Sequential, self)


def spelled(modules: list[nn.Module]) -> str:
    """A letter for each: Linear, Relu, Gelu, layerNorm, Dropout; a dot for what is called."""
    return "".join(_letter(module) for module in modules)


def _letter(module: nn.Module) -> str:
    if readable(module):
        return "L"
    if plain(module, nn.LayerNorm, LayerNorm):
        return "N"
    if plain(module, nn.Dropout):
        return "D"
    return {None: ".", "relu": "R"}.get(activation.known(module), "G")


# The longest first. A norm before a linear layer that has its activation in its epilogue stays
# alone: the hidden layer is the wider one.
_RUNS = [f"L{act}{inner}L{outer}" for inner in ("D", "") for outer in ("D", "") for act in "RG"]
_RUNS += ["LR", "LG", "NL", "GL"]


def runs(letters: str) -> list[int]:
    """How many modules each step takes."""
    taken, start = [], 0
    while start < len(letters):
        rest = letters[start:]
        found = [run for run in _RUNS if rest.startswith(run)]
        alone = not found or rest[:3] in ("NLR", "NLG", "GLR", "GLG")
        taken.append(1 if alone else len(found[0]))
        start += taken[-1]
    return taken


def _step(x: Tensor, run: str, modules: list[nn.Module]) -> Tensor:
    first, *rest = modules
    if len(run) == 1:
        return first(x)  # type: ignore[no-any-return]
    if run == "NL":
        return norm_linear(x, first, rest[0])
    if run == "GL":
        linear = rest[0]
        weight = weight_of(linear)  # type: ignore[arg-type]
        return gelu_linear(x, weight, linear.bias, first.approximate)  # type: ignore[arg-type]
    act = activation.named(rest[0], "Sequential")
    if len(run) == 2:
        return linear_act(x, first, act)
    hidden_dropout = rest[1] if run[2] == "D" else None
    linear2 = rest[run.rindex("L") - 1]
    dropout = rest[-1] if run[-1] == "D" else None
    return feed_forward(x, first, act, hidden_dropout, linear2, dropout)
