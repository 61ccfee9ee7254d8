"""Models at random through `optimize` and torch.compile, by the fuzzer's rule."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from compiler.judged import are_right
from megafuse.codegen import expression
from megafuse.compiler.fuzz import Argument, Network, trial
from megafuse.compiler.fuzz.network_grammar import generate
from megafuse.compiler.fuzz.report import Finding, test_case
from megafuse.compiler.fuzz.runs import eager, exact, names
from megafuse.compiler.fuzz.shrink import shrunk

SEED, NETWORKS, MORE = 0, 1, 5  # hundreds are run by hand: CONTRIBUTING.md

pytestmark = pytest.mark.usefixtures("quiet", "anew")


def test_networks_are_right() -> None:
    are_right(generate, SEED, range(NETWORKS))


@pytest.mark.slow
def test_more_networks_are_right() -> None:
    are_right(generate, SEED, range(NETWORKS, NETWORKS + MORE))


def test_a_network_is_its_source() -> None:
    networks = [generate(SEED, index) for index in range(40)]
    assert networks[5] == generate(SEED, 5) != generate(SEED, 6)
    for each in networks:
        how = {"training": each.training, "gradients": each.gradients, "optimize": each.optimize}
        assert Network.of_source(each.source, each.arguments, each.seed, **how) == each
        assert Network.of_json(json.loads(json.dumps(each.as_json()))) == each


NORMED = """
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.m0 = nn.Linear(5, 4)
            self.m1 = nn.BatchNorm1d(4)
        def forward(self, a0):
            v0 = self.m0(a0)
            v1 = self.m1(v0)
            v2 = v1.cos()
            return v2,
"""
GIVEN = [Argument("a0", "float32", ((7, 5), (9, 5)), requires_grad=True)]


def test_weights_inputs_and_buffers_are_judged() -> None:
    network = Network.of_source(NORMED, GIVEN, training=True)
    found = names(network)
    assert found[:3] == ["v2", "the gradient of a0", "the gradient of m0.weight"]
    assert found[-3:-1] == ["the buffer m1.running_mean", "the buffer m1.running_var"]
    theirs, right = eager(network, 0, "cpu"), exact(network, 0, "cpu")
    assert len(theirs) == len(right) == len(found)
    for name, mine, wide in zip(found, theirs, right, strict=True):
        assert mine is not None, name
        assert wide is not None, name
        torch.testing.assert_close(mine.double(), wide.double(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_a_wrong_kernel_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    written = expression.expression

    def planted(term, args, slots, rounds):  # type: ignore[no-untyped-def]
        made = written(term, args, slots, rounds)
        return dataclasses.replace(made, code=made.code.replace("cos(", "sin("))

    monkeypatch.setattr("megafuse.codegen.scope.expression", planted)
    network = Network.of_source(NORMED, GIVEN, training=True)
    outcome = trial(network)
    assert outcome.verdict == "wrong", outcome
    small = shrunk(network, outcome, trial)
    assert isinstance(small, Network)
    assert not small.layers
    assert [statement.text.partition(".")[2] for statement in small.statements] == ["cos()"]
    assert "Network.of_source" in test_case(Finding(7, small, outcome))
