"""Handing the ops to the host runtime: each once, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.processes import cold_cache, environment, run
from megafuse.runtime import cpp

pytestmark = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")

# A host runtime that counts what is registered, and fails as it is told.
COUNTED = """
import collections
from megafuse.registry import OPS, Program, op
from megafuse.runtime import loader

host, counted, failing = loader.load(), collections.Counter(), {}

class Host:
    @staticmethod
    def register_op(description):
        name = description["name"]
        if name in failing:
            raise failing.pop(name)
        counted[name] += 1
        return host.register_op(description)

loader.load = lambda: Host
names = list(OPS)
middle = names[len(names) // 2]
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(cold_cache(tmp_path))


@pytest.mark.slow
def test_an_interrupted_activation_is_finished_by_the_next_call(env: dict[str, str]) -> None:
    code = """
failing[middle] = KeyboardInterrupt()
try:
    mf.gelu_scale(x, 1.7)
except KeyboardInterrupt:
    print("interrupted", 0 < len(counted) < len(names))
right("gelu_scale", x, 1.7)
right("swiglu", x, x)
print(counted == dict.fromkeys(names, 1))
"""
    assert run(COUNTED + code, env)[0] == "interrupted True\nTrue\n"


@pytest.mark.slow
def test_an_op_that_fails_stops_no_other_and_is_tried_again(env: dict[str, str]) -> None:
    code = """
failing[middle] = RuntimeError("this one")
other = next(name for name in ("gelu_scale", "swiglu") if name != middle)
right(other, x, 1.7 if other == "gelu_scale" else x)
print(middle in counted, len(counted) == len(names) - 1)
from megafuse.registry import activate
print(activate(), counted == dict.fromkeys(names, 1))
"""
    assert run(COUNTED + code, env)[0] == "False True\nTrue True\n"


@pytest.mark.slow
def test_what_the_runtime_refuses_is_said_by_that_op_alone(env: dict[str, str]) -> None:
    """A composite whose program nobody wrote is known to be wrong only there."""
    code = """
@op(kernel=Program(), flops=(1, 1), sample=lambda draw: (draw.full(),))
def unwritten(x: torch.Tensor) -> torch.Tensor:
    return x

for call in (OPS["unwritten"].fused, OPS["unwritten"]._namespace["traced"]):
    right("gelu_scale", x, 1.7)
    for _ in range(2):
        try:
            call(x)
        except RuntimeError as error:
            print("programs.h has no program named unwritten" in str(error))
print(counted == dict.fromkeys(names, 1) | {"unwritten": counted["unwritten"]})
"""
    assert run(COUNTED + code, env)[0] == "True\n" * 5


@pytest.mark.slow
def test_an_op_registered_again_is_the_same_op(env: dict[str, str]) -> None:
    """Ctrl-C between the registration and Python's note of it."""
    code = """
right("gelu_scale", x, 1.7)
before = host.launch_count()
OPS["gelu_scale"].handed_over = False
from megafuse.registry import activate
activate()
right("gelu_scale", x, 1.7)
right("swiglu", x, x)
torch.testing.assert_close(
    torch.ops.megafuse.gelu_scale(x, 1.7, "tanh"), mf.reference.gelu_scale(x, 1.7, "tanh"))
print(counted["gelu_scale"], host.launch_count() - before)
"""
    assert run(COUNTED + code, env)[0] == "2 3\n"


@pytest.mark.slow
def test_a_program_finds_arguments_by_name(env: dict[str, str]) -> None:
    """ffn's, under a signature that has everything in another order."""
    code = """
from typing import Optional
from torch import Tensor
from megafuse.registry import Autograd, Signature

def kept(w2, b2, x, residual, training, act, p, b1, w1):
    return [x.new_empty(*x.shape[:-1], len(w1)) for _ in range(2)]

@op(
    kernel=Program(name="ffn", random=True),
    signature=Signature(choices={"act": ("relu", "gelu_tanh", "gelu")}, ranges={"p": (0.0, 1.0)}),
    autograd=Autograd(
        saves=("hidden", "b2", "w1", "x", "pre", "w2", "b1"),
        grads={"w2": 0, "residual": 5, "b1": 1, "w1": 2, "x": 3, "b2": 4},
        passthrough=("residual",),
        keeps=("hidden", "pre"),
        kept=kept,
    ),
    flops=(1, 1),
    launches=(1, 1),
    sample=lambda draw: (draw.full(),),
)
def turned(w2: Tensor, b2: Optional[Tensor], x: Tensor, residual: Optional[Tensor],
           training: bool, act: str, p: float, b1: Optional[Tensor], w1: Tensor) -> Tensor:
    return mf.reference.ffn(x, w1, b1, w2, b2, act, residual, p, training)

given = {
    "w2": torch.randn(6, 20), "b2": torch.randn(6), "x": torch.randn(5, 6),
    "residual": torch.randn(5, 6), "b1": torch.randn(20), "w1": torch.randn(20, 6),
}
for act in ("gelu", "gelu_tanh", "relu"):
    leaves = {name: t.clone().requires_grad_() for name, t in given.items()}
    ours = OPS["turned"].fused(training=False, act=act, p=0.0, **leaves)
    theirs = mf.ffn(training=False, act=act, p=0.0, **leaves)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), [*leaves.values()])
                      for y in (ours, theirs))):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours, theirs)
    print(act)
"""
    assert run(COUNTED + code, env)[0] == "gelu\ngelu_tanh\nrelu\n"


@pytest.mark.slow
def test_a_program_says_which_argument_it_misses(env: dict[str, str]) -> None:
    code = """
@op(kernel=Program(name="dropout_add"), flops=(1, 1), sample=lambda draw: (draw.full(),))
def lonely(x: torch.Tensor) -> torch.Tensor:
    return x

try:
    OPS["lonely"].fused(x)
except RuntimeError as error:
    print("megafuse.lonely has no argument residual" in str(error))
"""
    assert run(COUNTED + code, env)[0] == "True\n"
