"""Named sets of rows: `seeds`, `transformer`, `quick` and `all`; `fuse` is in fuse_suite.py,
`models` in models/.

- seeds: every size of shared/FACTS.md, forward and with backward; and what the foundation promises
  for every pointwise op: near a copy's speed at 16 Mi elements and more on CUDA, never slower than
  eager or torch.compile from 1 Ki to 16 Mi on the CPU, little host time at 1 Ki.
- transformer: layers and rows of a transformer (transformer.py).
- quick: every op once, in under two minutes on two CPU cores.
- all: every op, mode and dtype, from 1 Ki to 64 Mi.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from megafuse.bench.job import MODES, Mode
from megafuse.bench.spec import Spec, default_against, modes, shape_of
from megafuse.bench.transformer import transformer
from megafuse.ops import OPS

FUSE = "fuse"  # its rows are functions, not ops
MODELS = "models"  # its rows are whole models, each contender in a process: models/
K, M = 1_000, 1_000_000
KI, MI = 1 << 10, 1 << 20
SEEDS = {
    "gelu_scale": (KI, MI, 16 * MI, 64 * MI),
    "quantize_int8": (500 * K, M, 5 * M, 10 * M, 50 * M),
    "add_mul_exp": (100 * K, 300 * K, M, 5 * M, 20 * M),
}


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
        for name in (name for name, op in OPS.items() if op.pointwise):
            if (name, "forward", dtype, n) not in seen:
                yield Spec(name, "forward", dtype, shape_of(n), ("eager", "compile"))


def quick(device: str) -> Iterator[Spec]:
    """torch.compile for the three ops of FACTS.md only: on a CPU it takes seconds for each."""
    for name, op in OPS.items():
        compiled = ("compile",) if name in SEEDS else ()
        shape = shape_of(MI if op.family != "composite" else MI // 8, op)
        yield Spec(name, "forward", torch.float32, shape, ("eager", *compiled))
        if name in SEEDS and op.differentiable:
            yield Spec(name, "forward+backward", torch.float32, shape, ("eager",))


def everything(device: str) -> Iterator[Spec]:
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    if device == "cpu":
        dtypes.append(torch.float64)
    sizes = (KI, MI, 16 * MI, *((64 * MI,) if device == "cuda" else ()))
    for name, op in OPS.items():
        # A layer's work grows with its width too.
        suiting = sizes if op.family != "composite" else sizes[: 3 if device == "cuda" else 2]
        for mode in modes(op, ("forward", "forward+backward")):
            for dtype in dtypes:
                for n in suiting:
                    yield Spec(name, mode, dtype, shape_of(n, op), ("eager", "compile"))


def by_mode(specs: Iterable[Spec]) -> list[Spec]:
    """All forward rows first: that is how people read them."""
    return sorted(specs, key=lambda s: MODES.index(s.mode))


SUITES: dict[str, Callable[[str], Iterator[Spec]]] = {
    "quick": quick,
    "seeds": seeds,
    "transformer": transformer,
    "all": everything,
}
