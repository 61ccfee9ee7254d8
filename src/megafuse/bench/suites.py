"""Named sets of rows: `seeds`, `quick` and `all`.

- seeds: every size of shared/FACTS.md, forward and with backward; and what the foundation
  promises for every op: near a copy's speed at 16 Mi elements and more on CUDA, never slower than
  eager or torch.compile from 1 Ki to 16 Mi on the CPU, little host time at 1 Ki.
- quick: every op once, in under two minutes on two CPU cores.
- all: every op, mode and dtype, from 1 Ki to 64 Mi.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from megafuse.bench.job import MODES, Mode
from megafuse.ops import OPS
from megafuse.registry import Op

K, M = 1_000, 1_000_000
KI, MI = 1 << 10, 1 << 20
SEEDS = {
    "gelu_scale": (KI, MI, 16 * MI, 64 * MI),
    "quantize_int8": (500 * K, M, 5 * M, 10 * M, 50 * M),
    "add_mul_exp": (100 * K, 300 * K, M, 5 * M, 20 * M),
}


@dataclass(frozen=True)
class Spec:
    """One row to measure."""

    op: str
    mode: Mode
    dtype: torch.dtype
    shape: tuple[int, ...]
    against: tuple[str, ...]


def shape_of(elements: int) -> tuple[int, ...]:
    """Rows of 1024 or 1000, so that ops with a bias get a vector as long; else one row."""
    for columns in (1024, 1000):
        if elements % columns == 0 and elements > columns:
            return (elements // columns, columns)
    return (1, elements)


def modes(op: Op, wanted: Sequence[Mode] = MODES) -> list[Mode]:
    """Those of the wanted modes that the op has."""
    return [m for m in wanted if m == "forward" or op.differentiable]


def default_against(device: str) -> tuple[str, ...]:
    """On the CPU max-autotune changes matrix products only, so it is left out there."""
    return ("eager", "compile", "compile-max") if device == "cuda" else ("eager", "compile")


def seeds(device: str) -> Iterator[Spec]:
    both: tuple[Mode, ...] = ("forward", "forward+backward")
    seen = set()
    against = default_against(device)
    for name, sizes in SEEDS.items():
        for mode in modes(OPS[name], both):
            for n in sizes:
                if n > 50 * M and device == "cpu":
                    continue  # FACTS.md has it for the GPU; here it would take minutes
                bare = ("bare",) if n == KI and mode == "forward" and device == "cuda" else ()
                seen.add((name, mode, torch.float32, n))
                yield Spec(name, mode, torch.float32, shape_of(n), (*against, *bare))
    yield Spec("gelu_scale", "forward, grad", torch.float32, shape_of(KI), ("eager", "compile"))
    if device == "cuda":
        wide = [(d, n) for d in (torch.float32, torch.bfloat16) for n in (16 * MI, 64 * MI)]
    else:
        wide = [(torch.float32, n) for n in (KI, 16 * KI, MI, 16 * MI)]
    for dtype, n in wide:
        for name in OPS:
            if (name, "forward", dtype, n) not in seen:
                yield Spec(name, "forward", dtype, shape_of(n), ("eager", "compile"))


def quick(device: str) -> Iterator[Spec]:
    """torch.compile for the three ops of FACTS.md only: on a CPU it takes seconds for each."""
    for name, op in OPS.items():
        compiled = ("compile",) if name in SEEDS else ()
        yield Spec(name, "forward", torch.float32, shape_of(MI), ("eager", *compiled))
        if name in SEEDS and op.differentiable:
            yield Spec(name, "forward+backward", torch.float32, shape_of(MI), ("eager",))


def everything(device: str) -> Iterator[Spec]:
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    if device == "cpu":
        dtypes.append(torch.float64)
    sizes = (KI, MI, 16 * MI, *((64 * MI,) if device == "cuda" else ()))
    for name, op in OPS.items():
        for mode in modes(op, ("forward", "forward+backward")):
            for dtype in dtypes:
                for n in sizes:
                    yield Spec(name, mode, dtype, shape_of(n), ("eager", "compile"))


def by_mode(specs: Iterable[Spec]) -> list[Spec]:
    """All forward rows first: that is how people read them."""
    return sorted(specs, key=lambda s: MODES.index(s.mode))


SUITES: dict[str, Callable[[str], Iterator[Spec]]] = {
    "quick": quick,
    "seeds": seeds,
    "all": everything,
}
