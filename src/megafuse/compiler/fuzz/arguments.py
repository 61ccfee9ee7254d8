"""The tensors and numbers that a program is called with: the same for the same seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch

from megafuse.compiler.fuzz.program import Argument, Program

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "expanded", "channels_last")


def arguments(program: Program, run: int, device: str = "cpu") -> list[Any]:
    return [_argument(a, run, program.seed, device) for a in program.arguments]


def _argument(argument: Argument, run: int, seed: int, device: str) -> Any:
    if argument.is_number:
        return argument.each[run]
    random = torch.Generator()
    random.manual_seed(zlib.crc32(f"{seed} {run} {argument.name}".encode()))

    def filled(*sizes: int) -> torch.Tensor:
        return _filled(argument, sizes, random).to(device)

    made = _laid_out(argument, argument.each[run], filled)
    return made.requires_grad_(argument.requires_grad)


def _laid_out(
    argument: Argument, shape: tuple[int, ...], filled: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """A view, made on the device: a copy there would lie as copies do."""
    rank = len(shape)
    if argument.layout == "transposed" and rank > 1:
        return filled(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    if argument.layout == "sliced" and rank:
        return filled(*shape[:-1], shape[-1] * 2 + 1)[..., 1::2]
    if argument.layout == "offset" and rank:
        return filled(shape[0] + 1, *shape[1:])[1:]
    if argument.layout == "expanded" and rank and shape[0]:
        return filled(1, *shape[1:]).expand(shape)
    if argument.layout == "channels_last" and rank == 4:
        return filled(*shape).contiguous(memory_format=torch.channels_last)
    return filled(*shape)


def _filled(argument: Argument, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, argument.dtype)
    how: dict[str, Any] = {"generator": random, "device": "cpu"}
    if dtype == torch.bool:
        return torch.rand(shape, **how) < 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -9
        return torch.randint(low, 10, shape, **how).to(dtype)
    filled = torch.randn(shape, **how, dtype=torch.float64)
    if argument.values == "special":
        inf = float("inf")
        table = torch.tensor([float("nan"), inf, -inf, 0.0, -0.0, 300.0], device="cpu")
        chosen = torch.randint(0, 24, shape, **how)
        filled = torch.where(chosen < 6, table.double()[chosen.clamp(max=5)], filled)
    return filled.to(dtype)
