"""Draws cases: the same ones for the same seed, on any machine.

In groups that differ in their shape only, so that what was compiled for one serves the next. Ops
take turns; an op's dtypes, modes and kinds of shape are dealt like cards, so that all come up
before one comes twice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from megafuse.bench.job import Mode
from megafuse.bench.result import Choice
from megafuse.bench.spec import modes, rank_of
from megafuse.bench.sweep.case import FORMS, LAYOUTS, Case, accepted
from megafuse.registry import OPS, Op
from megafuse.registry.arguments import Argument

MODES: tuple[Mode, ...] = ("forward", "forward+backward")
DTYPES = {"cuda": ("bfloat16", "float32", "float16"), "cpu": ("float32", "bfloat16", "float16")}
HIDDEN = (384, 768, 1000, 1536, 2880, 4096, 7168, 12345)
VOCABULARY = (32000, 50257, 128256, 151936, 262144)
FEW_ROWS = (1, 2, 7, 64)
HEAD_SIZES = (32, 64, 80, 96, 128)
GROUP = 4  # shapes of a group
# The largest first tensor, and the most multiplications of a layer: a few milliseconds of an H200,
# some tens of a CPU.
ELEMENTS = {"cuda": 1 << 28, "cpu": 1 << 22}
PRODUCTS = {"cuda": 1 << 39, "cpu": 1 << 29}


class Drawing:
    """An endless row of cases for these ops."""

    def __init__(self, ops: Sequence[str], device: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._device = device
        self._ops = list(ops)
        self._decks: dict[object, list[Any]] = {}

    def __iter__(self) -> Iterator[Case]:
        while True:
            for name in self._random.sample(self._ops, len(self._ops)):
                yield from self._group(OPS[name])

    def _group(self, op: Op) -> Iterator[Case]:
        """Cases that differ in their shapes; fewer where the op refuses some."""
        mode = self._deal((op.name, "mode"), modes(op, MODES))
        dtype = self._deal((op.name, "dtype"), DTYPES[self._device])
        layout = self._deal((op.name, "layout"), ["plain", *LAYOUTS])
        choices = self._choices(op, mode)
        forms = self._forms(op)
        shapes = shapes_of(op)
        for _ in range(GROUP):
            kind = self._deal((op.name, "kind"), list(shapes))
            shape, features = shapes[kind](Sizes(self._random, self._device))
            rows = layout if len(shape) > 1 or layout == "plain" else "offset"
            case = Case(op.name, mode, dtype, shape, kind, rows, features, choices, forms)
            if accepted(case):
                yield case

    def _choices(self, op: Op, mode: Mode) -> tuple[tuple[str, Choice], ...]:
        """Half of the time as the op's sample has it; else another act, causal, no bias."""
        chosen: dict[str, Choice] = {}
        for argument in op.arguments:
            if self._random.random() < 0.5:
                values = _values(op, argument, mode)
                if values:
                    chosen[argument.name] = self._random.choice(values)
        return tuple(chosen.items())

    def _forms(self, op: Op) -> tuple[tuple[str, str], ...]:
        """How a pointwise op's further arguments broadcast; () is as its sample has them."""
        further = [a for a in op.arguments[1:] if a.is_tensor and not a.optional]
        if not op.pointwise or not further or self._random.random() < 0.4:
            return ()
        argument = self._random.choice(further)
        forms = [f for f in FORMS if f != "number" or argument.kind == "tensor_or_number"]
        return ((argument.name, self._random.choice(forms)),)

    def _deal(self, deck: object, cards: Sequence[Any]) -> Any:
        """The next card; when all have been dealt they are shuffled again."""
        left = self._decks.setdefault(deck, [])
        if not left:
            left.extend(self._random.sample(list(cards), len(cards)))
        return left.pop()


def _values(op: Op, argument: Argument, mode: Mode) -> list[Choice]:
    if argument.choices:
        return list(argument.choices)
    if argument.kind == "flag" and argument.name != "training":
        return [True]
    if argument.name == "p" and op.random:
        return [0.0, 0.1]
    if argument.is_tensor and argument.optional and argument.shape:
        return [False]
    # A mask in a model wants no gradient.
    if argument.is_tensor and argument.optional and mode == "forward":
        return [True]
    return []


# ---- shapes, by kind


class Sizes:
    """Random sizes within what the device is given to do."""

    def __init__(self, drawn: random.Random, device: str) -> None:
        self._random = drawn
        self.most = ELEMENTS[device]
        self.products = PRODUCTS[device]

    def one_of(self, sizes: Sequence[int]) -> int:
        return self._random.choice(sizes)

    def between(self, least: int, most: int) -> int:
        """As likely to be between 10 and 20 as between 1000 and 2000."""
        most = max(least, most)
        return round(math.exp(self._random.uniform(math.log(least), math.log(most))))

    def odd(self, least: int, most: int) -> int:
        return self.between(least, most) | 1

    def prime(self, least: int, most: int) -> int:
        size = self.odd(max(least, 3), most)
        while any(size % d == 0 for d in range(3, math.isqrt(size) + 1, 2)):
            size += 2
        return size

    def rows(self, columns: int, share: float) -> int:
        """Of so many columns, within a share of the largest tensor."""
        return self.between(1, int(self.most * share) // columns)

    def layers(self, k: int, n: int) -> int:
        """Rows of a k×n layer."""
        return self.between(1, max(1, min(self.products // (k * n), self.most // max(k, n))))


Shape = tuple[tuple[int, ...], int | None]
Kinds = dict[str, Callable[[Sizes], Shape]]


def shapes_of(op: Op) -> Kinds:
    """How the op's shapes are drawn, by kind: rows, layers [rows, K]→N, blocks, heads."""
    rank = rank_of(op)
    if rank in _BY_RANK:
        return _BY_RANK[rank]
    return _LAYERS if any(a.shape == "NK" for a in op.arguments) else _ROWS


def _rows(columns: Callable[[Sizes], int], share: float = 0.1) -> Any:
    def drawn(sizes: Sizes) -> Shape:
        c = columns(sizes)
        return (sizes.rows(c, share), c), None

    return drawn


def _three(sizes: Sizes) -> Shape:
    c = sizes.one_of(HIDDEN)
    rows = sizes.rows(c, 0.1)
    batch = sizes.between(1, 64)
    return (batch, max(rows // batch, 1), c), None


def _huge(sizes: Sizes) -> Shape:
    c = sizes.between(256, 16384)
    return (sizes.between(sizes.most // 4 // c, sizes.most // c), c), None


_ROWS: Kinds = {
    "tiny": lambda s: ((s.between(1, 8), s.between(1, 64)), None),
    "odd": lambda s: ((s.odd(3, 4096), s.odd(3, s.most // 2**16)), None),
    "prime": lambda s: ((s.prime(3, 4096), s.prime(3, s.most // 2**16)), None),
    "huge": _huge,
    "few long rows": lambda s: ((s.between(1, 16), s.between(2**15, s.most // 64)), None),
    "many short rows": lambda s: ((s.between(2**14, s.most // 64), s.between(1, 64)), None),
    "vocabulary": _rows(lambda s: s.one_of(VOCABULARY), share=0.5),
    "hidden": _rows(lambda s: s.one_of(HIDDEN)),
    "three dimensions": _three,
    "one dimension": lambda s: ((s.between(1, s.most // 16),), None),
}


def _layer(k: Callable[[Sizes], int], n: Callable[[Sizes], int], few: bool = False) -> Any:
    def drawn(sizes: Sizes) -> Shape:
        wide, out = k(sizes), n(sizes)
        rows = sizes.one_of(FEW_ROWS) if few else sizes.layers(wide, out)
        return (rows, wide), out

    return drawn


_LAYERS: Kinds = {
    "tiny": _layer(lambda s: s.between(1, 64), lambda s: s.between(1, 64), few=True),
    "odd": _layer(lambda s: s.odd(65, 4096), lambda s: s.odd(65, 4096)),
    "prime": _layer(lambda s: s.prime(65, 4096), lambda s: s.prime(65, 4096)),
    "few rows": _layer(lambda s: s.one_of(HIDDEN), lambda s: s.one_of(HIDDEN), few=True),
    "hidden": _layer(lambda s: s.one_of(HIDDEN), lambda s: s.one_of(HIDDEN)),
    "large": _layer(lambda s: s.one_of((4096, 7168)), lambda s: s.one_of((11008, 12345, 16384))),
    "vocabulary": _layer(lambda s: s.one_of((384, 768, 1000)), lambda s: s.one_of(VOCABULARY)),
}


def _block(tokens: Callable[[Sizes], int], features: Callable[[Sizes], int]) -> Any:
    def drawn(sizes: Sizes) -> Shape:
        s, e = tokens(sizes), features(sizes)
        return (max(sizes.layers(12 * e, e) // s, 1), s, e), None

    return drawn


_BLOCKS: Kinds = {
    "tiny": lambda s: ((s.between(1, 4), s.between(1, 16), 8 * s.between(1, 16)), None),
    "odd": _block(lambda s: s.odd(3, 512), lambda s: 4 * s.odd(9, 257)),
    "prime": _block(lambda s: s.prime(3, 512), lambda s: 3 * s.prime(9, 257)),
    "encoder": _block(lambda s: 128, lambda s: 384),
    "hidden": _block(lambda s: s.between(16, 512), lambda s: s.one_of((384, 768, 1000, 1536))),
    "few long rows": _block(lambda s: s.between(512, 2048), lambda s: s.one_of((384, 768))),
}


def _heads(tokens: Callable[[Sizes], int], dims: Callable[[Sizes], int]) -> Any:
    def drawn(sizes: Sizes) -> Shape:
        s, d, heads = tokens(sizes), dims(sizes), sizes.one_of((1, 3, 6, 8, 12))
        most = min(sizes.products // (2 * heads * s * s * d), sizes.most // (heads * s * d))
        return (sizes.between(1, min(max(most, 1), 512)), heads, s, d), None

    return drawn


_ATTENTION: Kinds = {
    "tiny": lambda s: ((s.between(1, 4), s.between(1, 4), s.between(1, 32), 8), None),
    "odd": _heads(lambda s: s.odd(3, 1024), lambda s: s.odd(9, 128)),
    "prime": _heads(lambda s: s.prime(3, 1024), lambda s: s.one_of(HEAD_SIZES)),
    "heads": _heads(lambda s: s.one_of((128, 197, 512)), lambda s: s.one_of(HEAD_SIZES)),
    "few long rows": _heads(lambda s: s.between(1024, 2048), lambda s: 64),
    "many short rows": _heads(lambda s: s.between(2, 32), lambda s: s.one_of(HEAD_SIZES)),
}
_BY_RANK: dict[int | None, Kinds] = {3: _BLOCKS, 4: _ATTENTION}
