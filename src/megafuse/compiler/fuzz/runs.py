"""A program called once: its results, the gradients, and what a model keeps."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from megafuse.compiler.fuzz.arguments import arguments
from megafuse.compiler.fuzz.exact import Exact, widened
from megafuse.compiler.fuzz.judge import Results
from megafuse.compiler.fuzz.network import Network
from megafuse.compiler.fuzz.noise import Noise
from megafuse.compiler.fuzz.program import Program
from megafuse.graph import draws
from megafuse.graph.random_calls import AsFused


def names(program: Program) -> list[str]:
    """What called() gives, in words."""
    taken = [a.name for a in program.arguments if a.requires_grad]
    kept: list[str] = []
    if isinstance(program, Network):
        model = program.function()
        taken += [name for name, _ in model.named_parameters()]
        taken = taken if program.gradients else []
        kept = [f"the buffer {name}" for name, _ in model.named_buffers()]
    return [*program.results, *(f"the gradient of {name}" for name in taken), *kept]


def eager(program: Program, run: int, device: str) -> Results:
    return in_eager(program, program.function(), arguments(program, run, device), device)


def exact(program: Program, run: int, device: str) -> Results:
    """In float64, on the CPU."""
    given = [widened(value) for value in arguments(program, run)]
    return in_eager(program, program.function(exact=True), given, device, Exact())


def noisy(program: Program, run: int, device: str, noise: Noise) -> Results:
    given = [noise.argument(value) for value in arguments(program, run, device)]
    function = program.function()
    for weight in _weights(function):
        weight.data.copy_(noise.shaken(weight.data))
    return in_eager(program, function, given, device, noise)


def in_eager(
    program: Program,
    function: Any,
    given: list[Any],
    device: str,
    mode: TorchDispatchMode | None = None,
) -> Results:
    """What is random is as on `device`; `mode` is on while the function and its backward run."""
    if isinstance(function, nn.Module):
        function.to(given[0].device)
    torch.manual_seed(program.seed)
    with grad_mode(program), _random(program, device, given), mode or nullcontext():
        results = list(function(*given))
    return [*with_gradients(program, function, given, results, mode), *buffers(function)]


def grad_mode(program: Program) -> torch.set_grad_enabled:
    return torch.set_grad_enabled(not isinstance(program, Network) or program.gradients)


def buffers(function: Any) -> list[Tensor]:
    return [b.clone() for b in function.buffers()] if isinstance(function, nn.Module) else []


def _weights(function: Any) -> list[Tensor]:
    return list(function.parameters()) if isinstance(function, nn.Module) else []


def with_gradients(
    program: Program,
    function: Any,
    given: list[Any],
    results: list[Tensor],
    mode: TorchDispatchMode | None = None,
) -> Results:
    """Results, then gradients, for cotangents that the seed decides: the same in every dtype."""
    wanted = [v for v in given if isinstance(v, Tensor) and v.requires_grad] + _weights(function)
    if not wanted or (isinstance(program, Network) and not program.gradients):
        return [*results]
    random = torch.Generator()
    random.manual_seed(program.seed)
    cotangents = {
        at: torch.randn(r.shape, generator=random, device="cpu").bfloat16().to(r.device, r.dtype)
        for at, r in enumerate(results)
        if r.is_floating_point()
    }
    if isinstance(mode, Noise):  # what the backward is given
        cotangents = {at: mode.argument(each) for at, each in cotangents.items()}
    at = [i for i in cotangents if results[i].requires_grad]
    if not at:
        return [*results, *([None] * len(wanted))]
    with mode or nullcontext():
        gradients = torch.autograd.grad(
            [results[i] for i in at], wanted, [cotangents[i] for i in at], allow_unused=True
        )
    return [*results, *gradients]


def _random(program: Program, device: str, given: list[Any]) -> AbstractContextManager[Any]:
    """As ours draws: a function with an empty argument runs unfused (fused.py)."""
    empty = any(isinstance(v, Tensor) and v.numel() == 0 for v in given)
    if empty and not isinstance(program, Network):
        return nullcontext()
    return AsFused(_state(device, given))


def _state(device: str, given: list[Any]) -> Tensor:
    """Of the random numbers: drawn on `device`, and moved to where the program runs."""
    there = next(v.device for v in given if isinstance(v, Tensor))
    drawn: Tensor = draws.ops.state(torch.device(device))
    return drawn.to(there)
