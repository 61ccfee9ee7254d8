"""The contract's error rule, for whole modules.

Against torch's module in float64, on the same numbers: the root mean square of our errors is at
most twice that of torch's in the same dtype, and the worst at most four times, plus two units of
the dtype at the size of the exact values. In float64 torch's errors are taken to be what they are
in float32, in units of that; and counted once more, as it is the reference too.

Behind a relu, rounding can put an element on the other side of 0, where the slope is another.
Torch's module has such elements too, elsewhere, and by luck fewer or more. What is allowed there
stands among the contract's EXCEPTIONS.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from contract.eager import eagerly
from contract.rules import BEHIND_RELU, FLOOR, MOST, WORST
from torch import Tensor, nn


def check(
    what: str, ours: Tensor, theirs: Tensor, exact: Tensor, kink: bool = False, room: float = 1.0
) -> None:
    """`theirs` may be float32 where `ours` is float64: the yardstick. `room`: times the rule."""
    assert ours.shape == exact.shape, f"{what}: {ours.shape}, expected {exact.shape}"
    assert ours.isfinite().all(), f"{what}: not finite"
    size = exact.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)

    def units(t: Tensor) -> Tensor:
        eps = torch.finfo(t.dtype).eps
        return (t.detach().to("cpu", torch.float64) - exact).abs() / (size * eps)

    got, known = units(ours), units(theirs)
    more = ours.dtype == torch.float64
    if kink and not more:
        error = _rms(got).item() * torch.finfo(ours.dtype).eps
        assert error <= BEHIND_RELU, f"{what}: off by {error:.0%} of its size"
        return
    for statistic, factor in ((_rms, MOST), (torch.max, WORST)):
        error = statistic(got).item()
        allowed = room * ((factor + more) * statistic(known).item() + FLOOR)
        assert error <= allowed, (
            f"{what}: off by {error:.2f} units ({statistic.__name__.strip('_')}), torch by "
            f"{statistic(known).item():.2f}, so {allowed:.2f} are allowed"
        )


def _rms(t: Tensor) -> Tensor:
    return t.square().mean().sqrt()


def check_module(
    ours: nn.Module, twin: nn.Module, inputs: Sequence[Tensor], kink: bool = False
) -> None:
    """Results and all gradients of `ours` against `twin`, which has the same parameters."""
    dtype = inputs[0].dtype
    exact = copy.deepcopy(twin).to("cpu", torch.float64)
    if dtype == torch.float64:
        twin = copy.deepcopy(twin).float()
    sources = [f"input {i}" for i in range(len(inputs))]
    sources += [name for name, _ in ours.named_parameters()]
    probe: list[Tensor] = []

    def run(module: nn.Module, like: torch.dtype) -> list[Tensor]:
        device = "cpu" if module is exact else inputs[0].device
        args = [t.detach().to(device, like).requires_grad_() for t in inputs]
        outs = _tuple(module(*args))
        if not probe:
            probe.extend(torch.randn(out.shape).to(dtype) for out in outs)
        wanted = [*args, *module.parameters()]
        grads = torch.autograd.grad(
            outs, wanted, [p.to(o) for p, o in zip(probe, outs, strict=True)]
        )
        return [*outs, *grads]

    results = [run(ours, dtype), eagerly(run)(twin, next_narrower(dtype))]
    results.append(run(exact, torch.float64))
    outs = probe
    names = [f"output {i}" for i in range(len(outs))]
    names += [f"the gradient of {source}" for source in sources]
    for i, (name, *each) in enumerate(zip(names, *results, strict=True)):
        assert each[0].dtype == dtype, f"{name}: {each[0].dtype}, expected {dtype}"
        check(name, *each, kink=kink and i >= len(outs))


def next_narrower(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch's errors are measured."""
    return torch.float32 if dtype == torch.float64 else dtype


def _tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
