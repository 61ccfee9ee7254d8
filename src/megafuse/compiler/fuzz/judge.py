"""Whether a result is right: not much farther from float64 than eager is, or than eager could be.

    |fused − exact| ≤ 4 · max(|eager − exact|, |noisy − exact|) + 4 ulps

`exact` is the program in float64. `noisy` is eager once more, with every result that is rounded off
by an ulp at random, a few times: where a sum cancels, a comparison is close or a maximum is nearly
shared, these runs are far from each other, and so may the fused one be. Elements are judged one by
one; an ulp is that of the exact value, or of an eighth of the root of the mean square.

Noisy runs only allow more, and take most of the judging's time: they are made where a result looks
wrong without them, a few, then many before anyone is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from megafuse.compiler.fuzz.noise import Noise

FACTOR, ULPS = 4, 4
FEW, MANY = 6, 48  # noisy runs

Results = list[torch.Tensor | None]


@dataclass
class Yardstick:
    """Eager's results, the exact ones, and as many noisy ones as were asked for."""

    eager: Results
    exact: Results
    again: Callable[[Noise], Results]
    noisy: list[Results] = field(default_factory=list)

    def more(self, runs: int) -> None:
        while len(self.noisy) < runs:
            noise = Noise(1 + len(self.noisy) // FEW, seed=len(self.noisy))
            self.noisy.append([_plain(t) for t in self.again(noise)])


def _plain(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.detach().to("cpu", torch.float64)


def wrong(names: list[str], fused: Results, yardstick: Yardstick) -> str | None:
    """What is wrong with the results, in words; None if they are right."""
    for at, name in enumerate(names):
        mine, eager = fused[at], yardstick.eager[at]
        if mine is None or eager is None:
            if (mine is None) != (eager is None):
                return f"{name} is {_kind(mine)}, and in eager {_kind(eager)}"
            continue
        # Which strides a gradient has is chance in eager: the leaf's .grad has its own.
        unlike = _unlike(mine, eager, strides=not name.startswith("the gradient"))
        if unlike:
            return f"{name} {unlike}"
    for runs in (0, FEW, MANY):
        yardstick.more(runs)
        found = _worst(names, fused, yardstick)
        if found is None:
            return None
    return found


def _kind(value: torch.Tensor | None) -> str:
    return "None" if value is None else "a tensor"


def _unlike(mine: torch.Tensor, eager: torch.Tensor, strides: bool) -> str | None:
    if mine.dtype != eager.dtype:
        return f"is {mine.dtype}, and in eager {eager.dtype}"
    if mine.shape != eager.shape:
        return f"has the shape {tuple(mine.shape)}, and in eager {tuple(eager.shape)}"
    if mine.requires_grad != eager.requires_grad:
        return f"has requires_grad={mine.requires_grad}, and in eager {eager.requires_grad}"
    if strides and mine.numel() and _strides(mine) != _strides(eager):
        return f"has the strides {mine.stride()}, and in eager {eager.stride()}"
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _worst(names: list[str], fused: Results, yardstick: Yardstick) -> str | None:
    for at, name in enumerate(names):
        mine, eager, exact = fused[at], yardstick.eager[at], yardstick.exact[at]
        if mine is None or eager is None or exact is None or not mine.numel():
            continue
        others = [run[at] for run in yardstick.noisy]
        found = _beyond(mine, eager, exact, [o for o in others if o is not None])
        if found:
            return f"{name} {found}"
    return None


def _beyond(
    mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, noisy: list[torch.Tensor]
) -> str | None:
    got, exact = _double(mine), _double(exact)
    runs = torch.stack([_double(eager), *noisy])
    finite = exact.isfinite() & runs.isfinite().all(0)
    off = (runs - exact).abs().nan_to_num(torch.inf).amax(0)
    allowed = FACTOR * off + _floor(exact, finite, mine.dtype)
    error = (got - exact).abs()
    bad = finite & ~(error <= allowed)
    # NaN and Inf: as in float64, or as in eager.
    same = (_classes(runs) == _classes(got)).any(0) | (_classes(exact) == _classes(got))
    bad |= ~finite & ~same
    if not bad.any():
        return None
    where = tuple(int(i) for i in bad.nonzero()[0])
    return (
        f"is {got[where].item()!r} at {where}, in float64 {exact[where].item()!r}, in eager "
        f"{runs[0][where].item()!r} (allowed {allowed[where].item():.3g}; {int(bad.sum())} of "
        f"{bad.numel()} are wrong)"
    )


def _floor(exact: torch.Tensor, finite: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.zeros_like(exact)
    info = torch.finfo(dtype)
    rms = exact[finite].square().mean().sqrt().nan_to_num(0) / 8
    return ULPS * info.eps * exact.abs().maximum(rms).clamp(min=info.tiny)


def _classes(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 inf, 3 −inf."""
    return values.isnan() + 2 * (values == torch.inf) + 3 * (values == -torch.inf)


def _double(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to("cpu", torch.float64)
