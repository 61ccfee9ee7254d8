"""Results, thinned out so that a file of them is small, and how far they are from float64's.

Of a tensor every n-th element is kept, n odd: up to 256 Ki of an output, 4 Ki of each parameter's
gradient. All contenders of a row keep the same elements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from megafuse.bench import accuracy
from megafuse.bench.result import Accuracy, Entry

OUTPUTS, OF_A_GRADIENT = 1 << 18, 1 << 12
FACTOR = 4.0  # of eager's error: what a contender may be off by, as in the contract
LEAST = {"float32": 2e-6, "bfloat16": 1.6e-2}  # of the largest value: never called too much


def thinned(tensors: dict[str, Tensor], most: int) -> dict[str, Tensor]:
    return {name: _every_nth(t.detach(), most).cpu() for name, t in tensors.items()}


def _every_nth(t: Tensor, most: int) -> Tensor:
    step = max(math.ceil(t.numel() / most), 1) | 1
    return t.reshape(-1)[::step].clone()


class Float64(TorchFunctionMode):
    """Code that says float32 (a norm or a softmax of a 16-bit model) gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        widened = [_widened(a) for a in args]
        return func(*widened, **{k: _widened(v) for k, v in (kwargs or {}).items()})


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def reference_mode(dtype: torch.dtype) -> AbstractContextManager[object]:
    """What a reference in this dtype runs under."""
    return Float64() if dtype == torch.float64 else nullcontext()


def fill(entry: Entry, got: dict[str, Any], exact: dict[str, Any]) -> None:
    """Puts the accuracy into an entry; results that are no numbers are its error."""
    for kind in ("outputs", "gradients"):
        mine, known = got.get(kind, {}), exact.get(kind, {})
        if not mine or not known:
            continue
        if set(mine) != set(known):
            unlike = sorted(set(mine) ^ set(known))
            entry.error = f"{kind}: not those of float64, {', '.join(unlike[:3])}"
            return
        pairs = [(mine[name], known[name]) for name in known]
        if any(m.shape != k.shape for m, k in pairs):
            entry.error = f"{kind}: not of the shapes that float64 has"
            return
        if any(bool((k.isfinite() & ~m.isfinite()).any()) for m, k in pairs):
            entry.error = f"{kind}: NaN or Inf where float64 has a number"
            return
        found = accuracy.measure([m for m, _ in pairs], [k for _, k in pairs])
        entry.off[kind] = _worst(pairs)
        _set(entry, kind, found)


def _set(entry: Entry, kind: str, found: Accuracy | None) -> None:
    if kind == "outputs":
        entry.accuracy = found
    else:
        entry.gradients = found


def _worst(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The largest error of any tensor, as a share of that tensor's largest value.

    Some gradients are 0 but for rounding (a key's bias: softmax takes it out again). A tensor is
    taken to be at least a hundredth as large as the others are in the median.
    """
    sizes = [float(k.double().abs().max()) for _, k in pairs]
    least = statistics.median(sizes) / 100 or 1.0
    errors = [float((m.double() - k.double()).abs().max()) for m, k in pairs]
    return max(e / max(size, least) for e, size in zip(errors, sizes, strict=True))


def doubtful(entry: Entry, eager: Entry | None, dtype: str) -> list[str]:
    """What is farther from float64 than four times eager's error, in words."""
    if eager is None or entry is eager:
        return []
    return [
        f"{entry.name}: {kind} off by {off:.1e} of their largest value, eager's by "
        f"{eager.off[kind]:.1e}"
        for kind, off in entry.off.items()
        if kind in eager.off and off > max(FACTOR * eager.off[kind], LEAST.get(dtype, 0.0))
    ]
