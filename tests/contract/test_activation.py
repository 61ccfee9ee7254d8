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
