"""What is judged: a program fused, or a model through the backend."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from megafuse.compiler.compile import Compiled
from megafuse.compiler.fused import fuse
from megafuse.compiler.fuzz.arguments import arguments
from megafuse.compiler.fuzz.judge import Results
from megafuse.compiler.fuzz.network import Network
from megafuse.compiler.fuzz.program import Program
from megafuse.compiler.fuzz.runs import buffers, grad_mode, with_gradients
from megafuse.compiler.optimize import optimize, optimized
from megafuse.compiler.recorded import Recorder
from megafuse.graph.plan import Plan


class Subject(Protocol):
    """Ours, of one program: kept from run to run, so that a second run has other sizes."""

    @property
    def captures(self) -> int: ...

    def run(self, run: int) -> Results: ...

    def plans(self) -> list[Plan]: ...

    def refusals(self) -> list[str]: ...


def subject(program: Program, device: str) -> Subject:
    if isinstance(program, Network):
        return FusedNetwork(program, device)
    return FusedProgram(program, device)


class FusedProgram:
    """A function, by `fuse`."""

    def __init__(self, program: Program, device: str) -> None:
        self.program, self.device = program, device
        self.fused = fuse(program.function())

    def run(self, run: int) -> Results:
        given = arguments(self.program, run, self.device)
        torch.manual_seed(self.program.seed)
        results = list(self.fused(*given))
        return with_gradients(self.program, None, given, results)

    @property
    def captures(self) -> int:
        return len(self.fused.variants)

    def plans(self) -> list[Plan]:
        parts = [part for v in self.fused.variants for part in (v.forward, v.backward)]
        return [part[1] for part in parts if part is not None]

    def refusals(self) -> list[str]:
        return []


class FusedNetwork:
    """A model, by `optimize` or by torch.compile."""

    def __init__(self, network: Network, device: str) -> None:
        torch._dynamo.reset()
        self.network, self.device = network, device
        self.model = network.function().to(device)
        self.recorder, self.call = _compiled(self.model, network.optimize)

    def run(self, run: int) -> Results:
        self.network.fill(self.model)
        given = arguments(self.network, run, self.device)
        torch.manual_seed(self.network.seed)
        with grad_mode(self.network):
            results = list(self.call(*given))
        found = with_gradients(self.network, self.model, given, results)
        return [*found, *buffers(self.model)]

    @property
    def captures(self) -> int:
        return len(self.recorder.graphs)

    def plans(self) -> list[Plan]:
        return [part.forward[1] for part in self._parts() if isinstance(part, Compiled)]

    def refusals(self) -> list[str]:
        return [str(part) for part in self._parts() if not isinstance(part, Compiled)]

    def _parts(self) -> list[Any]:
        return [part for graph in self.recorder.graphs for part in graph.parts.values()]


def _compiled(model: torch.nn.Module, by_optimize: bool) -> tuple[Recorder, Any]:
    if by_optimize:
        found = optimized(optimize(model))
        assert found is not None
        return found.recorder, model
    recorder = Recorder(model)
    return recorder, torch.compile(model, backend=recorder)
