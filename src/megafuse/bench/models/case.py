"""One row of the suite: a model in a dtype and a mode, on a device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from megafuse.bench.models.zoo import MODELS, Model, Size
from megafuse.bench.result import Choice, Row

MODES = {"forward": "forward", "train": "train step", "decode": "decode step"}
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Case:
    """`mode` is a key of MODES; `tiny` is for tests: two layers, small widths."""

    model: str
    dtype: str
    mode: str
    device: str
    tiny: bool = False

    @property
    def of(self) -> Model:
        return MODELS[self.model]

    @property
    def size(self) -> Size:
        return self.of.size(self.device, self.tiny)

    @property
    def shape(self) -> list[int]:
        """Batch and length, or the picture's; of a decode step one token of one sequence."""
        if self.mode == "decode":
            return [1, 1]
        size = self.size
        return [size.batch, size.length] + ([size.length] if self.pictures else [])

    @property
    def pictures(self) -> bool:
        return bool(self.of.classes) or self.model == "unet"

    @property
    def choices(self) -> dict[str, Choice]:
        found: dict[str, Choice] = {"context": self.size.context} if self.mode == "decode" else {}
        return found | ({"tiny": True} if self.tiny else {})

    def row(self, subject: str) -> Row:
        """Without entries yet."""
        return Row(
            op=self.model,
            mode=MODES[self.mode],
            dtype=self.dtype,
            shape=self.shape,
            elements=math.prod(self.shape),
            device=self.device,
            subject=subject,
            bytes_least=None,
            flops=None,
            roof=None,
            entries=[],
            choices=self.choices,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def cases(
    models: Sequence[str], dtypes: Sequence[str], modes: Sequence[str], device: str, tiny: bool
) -> list[Case]:
    """All combinations that there are: only causal language models decode."""
    found = itertools.product(models, modes, dtypes)
    return [
        Case(model, dtype, mode, device, tiny)
        for model, mode, dtype in found
        if mode != "decode" or MODELS[model].causal
    ]
