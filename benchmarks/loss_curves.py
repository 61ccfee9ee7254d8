"""50 training steps of whole models: does `optimize` stay inside eager's own spread over seeds?

    python benchmarks/loss_curves.py                               BERT, GPT-2, Llama and ViT
    python benchmarks/loss_curves.py --model gpt2 --dtype bfloat16
    python benchmarks/loss_curves.py --record benchmarks/results/loss-curves-nvidia-h200.json

A seed draws the weights and two batches that take turns, so that the model learns them by heart and
the loss falls. Eager and ours train from the same seeds, each with torch's own AdamW. At each step,
eager's spread is the standard deviation of its losses over the seeds. Ours is inside if the mean of
its losses is never farther from the mean of eager's than that. The worst step decides.

Beside it stands how far ours is from eager with the very same seed. In float32 that is rounding. In
bfloat16 it can be more than a spread at a step or two: weights near 1 are 0.004 apart there, AdamW
moves them not at all or all at once, and the last bit of a gradient decides when; eager's do, too.
Sizes are those of `megafuse bench --suite models`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import megafuse as mf
from megafuse.bench import machine
from megafuse.bench.models.case import DTYPES, Case
from megafuse.bench.models.work import Training
from megafuse.bench.models.zoo import MODELS, TINY_VOCABULARY
from megafuse.runtime import provenance

CHOSEN = ("bert", "gpt2", "llama", "vit")
STEPS, SEEDS, RATE = 50, 8, 1e-4
Batch = tuple[Tensor, dict[str, Tensor]]  # what is to be predicted, and from what
Curve = list[float]


@dataclass(frozen=True)
class Compared:
    """The loss of every step: a curve for each seed, in the same order."""

    model: str
    dtype: str
    shape: list[int]
    eager: list[Curve]
    ours: list[Curve]

    @property
    def apart(self) -> float:
        """The most that the means over seeds differ by at a step, in eager's spreads there."""
        means = [
            abs(statistics.mean(mine) - statistics.mean(known))
            for mine, known in zip(steps_of(self.ours), steps_of(self.eager), strict=True)
        ]
        return max(gap / spread for gap, spread in zip(means, spreads(self.eager), strict=True))

    @property
    def of_a_seed(self) -> float:
        """The same, of the two curves of one seed: the worst one's."""
        return max(
            abs(mine - known) / spread
            for ours, eager in zip(self.ours, self.eager, strict=True)
            for mine, known, spread in zip(ours, eager, spreads(self.eager), strict=True)
        )


def steps_of(curves: Sequence[Curve]) -> list[tuple[float, ...]]:
    """Step by step: the losses of all seeds."""
    return list(zip(*curves, strict=True))


def spreads(curves: Sequence[Curve]) -> list[float]:
    return [statistics.stdev(losses) for losses in steps_of(curves)]


def compared(case: Case, seeds: int = SEEDS, steps: int = STEPS, rate: float = RATE) -> Compared:
    """One model object for all curves: `optimize` captures it once, and weights are loaded."""
    training, _ = drawn(case, 0)
    eager = list(curves(case, training, seeds, steps, rate))
    mf.optimize(training)
    ours = list(curves(case, training, seeds, steps, rate))
    return Compared(case.model, case.dtype, case.shape, eager, ours)


def curves(case: Case, training: nn.Module, seeds: int, steps: int, rate: float) -> Iterator[Curve]:
    for seed in range(seeds):
        made, batches = drawn(case, seed)
        training.load_state_dict(made.state_dict())
        del made
        yield trained(training, batches, steps, rate)


def drawn(case: Case, seed: int) -> tuple[nn.Module, list[Batch]]:
    torch.manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    with torch.device(case.device):
        model = case.of.make(case.tiny).to(dtype)
        batches = [_batch(case, dtype) for _ in range(2)]
    return Training(model, dict(case.of.arguments)).train(), batches


def _batch(case: Case, dtype: torch.dtype) -> Batch:
    about, size = case.of, case.size
    inputs = about.inputs(size, case.tiny)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    if about.classes:
        return torch.randint(about.classes, (size.batch,)), inputs
    vocabulary = TINY_VOCABULARY if case.tiny else about.vocabulary
    return torch.randint(vocabulary, (size.batch, size.length)), inputs


def trained(training: nn.Module, batches: Sequence[Batch], steps: int, rate: float) -> Curve:
    optimizer = torch.optim.AdamW(training.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        target, inputs = batches[step % len(batches)]
        loss = training(target, **inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def shown(found: Compared) -> str:
    wide = spreads(found.eager)
    first, last = (statistics.mean(curve[at] for curve in found.eager) for at in (0, -1))
    return (
        f"{found.model:8} {found.dtype:9} loss {first:7.4f} to {last:7.4f}, eager's spread "
        f"{min(wide):.1e} to {max(wide):.1e}; ours is {found.apart:.1e} of it apart, one seed's "
        f"{found.of_a_seed:.1e}: {'inside' if found.apart <= 1 else 'OUTSIDE'}"
    )


def kept(rows: Sequence[Compared], device: str, options: argparse.Namespace) -> dict[str, Any]:
    commit, changed = provenance.commit()
    return {
        "machine": machine.about(device),
        "versions": provenance.versions(),
        "commit": commit + (" and changes" if changed else ""),
        "steps": options.steps,
        "seeds": options.seeds,
        "rate": options.rate,
        "rows": [{**asdict(row), "apart": row.apart, "of_a_seed": row.of_a_seed} for row in rows],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    trainable = [name for name, model in MODELS.items() if model.vocabulary or model.classes]
    parser.add_argument("--model", choices=trainable, help="only this one")
    parser.add_argument("--dtype", choices=DTYPES, help="only this one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="2 or more")
    parser.add_argument("--rate", type=float, default=RATE, help="AdamW's learning rate")
    parser.add_argument("--tiny", action="store_true", help="two layers, small widths")
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="keep all curves")
    options = parser.parse_args()
    rows = []
    for model in [options.model] if options.model else CHOSEN:
        for dtype in [options.dtype] if options.dtype else DTYPES:
            case = Case(model, dtype, "train", options.device, options.tiny)
            rows.append(compared(case, options.seeds, options.steps, options.rate))
            print(shown(rows[-1]), flush=True)
            gc.collect()  # a model that was captured is part of cycles
            if options.record:
                told = json.dumps(kept(rows, options.device, options), indent=1)
                options.record.write_text(told + "\n", encoding="utf-8")
    return int(any(row.apart > 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
