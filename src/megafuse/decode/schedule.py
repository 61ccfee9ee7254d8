"""A model's decode step as a list of phases: what each reads, who shares it, what it waits for.

    embed;  for each layer: qkv, attend, project, gate_up, down;  head, sample

Every phase reads everything that the one before it wrote, so each waits for that one as a whole. As
words (words.py) the list is what a kernel walks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from megafuse.decode.cache import Cache
from megafuse.decode.reading import Layer, Matrix, Model, Norm
from megafuse.decode.words import kinds, packed

TITLES = {
    "embed": "embedding",
    "qkv": "norm + QKV",
    "attend": "RoPE + cache + attention",
    "project": "output product + residual",
    "gate_up": "norm + FFN in + activation",
    "down": "FFN out + residual",
    "head": "norm + head",
    "sample": "next token",
}
_WORDS = {
    "embed": "kEmbed",
    "qkv": "kQkv",
    "attend": "kAttend",
    "project": "kProject",
    "gate_up": "kGateUp",
    "down": "kDown",
    "head": "kHead",
    "sample": "kSample",
}


@dataclass(frozen=True)
class Phase:
    """One phase. `tiles` is what threads or blocks share out: rows of weights, or heads of a row
    (times the pieces of the cache). `bytes` are read once a step; `bytes_a_position` besides for
    every position of the cache that is seen, of each row of the batch."""

    kind: str
    layer: int | None
    tiles: int
    bytes: int
    waits_for: int | None
    bytes_a_position: int = 0
    window: int = 0
    values: dict[str, Any] = field(default_factory=dict, repr=False)

    def bytes_at(self, length: int, batch: int = 1) -> int:
        """Read by a step whose rows have so many positions in the cache."""
        seen = min(length, self.window) if self.window else length
        return self.bytes + self.bytes_a_position * seen * batch

    def words(self) -> list[int]:
        return packed("Phase", {"kind": kinds()[_WORDS[self.kind]], **self.values})


class Schedule(Sequence[Phase]):
    """The phases in order, and what was measured of them.

    Printed: each kind of phase, how often it is there, its bytes, and, once tokens were made, its
    µs a token by the clock inside the kernel (waiting for the slowest thread included) and the
    bytes it reads in a second.
    """

    def __init__(self, phases: list[Phase], clocks: torch.Tensor) -> None:
        self._phases = phases
        self.clocks = clocks  # int64 [phases]: nanoseconds, of all steps together
        self.steps = 0
        self.positions = 0  # of the cache, seen by all rows of those steps

    def __len__(self) -> int:
        return len(self._phases)

    def __getitem__(self, i: Any) -> Any:
        return self._phases[i]

    def __iter__(self) -> Iterator[Phase]:
        return iter(self._phases)

    @property
    def bytes(self) -> int:
        """Read by a step with an empty cache."""
        return sum(phase.bytes for phase in self)

    def bytes_at(self, length: int, batch: int = 1) -> int:
        return sum(phase.bytes_at(length, batch) for phase in self)

    def microseconds(self) -> list[float] | None:
        """Of each phase, a step; None before the first."""
        if self.steps == 0:
            return None
        return [ns / 1e3 / self.steps for ns in self.clocks.tolist()]

    def reset(self) -> None:
        """Forgets what was measured."""
        self.clocks.zero_()
        self.steps = self.positions = 0

    def words(self) -> torch.Tensor:
        return torch.tensor([phase.words() for phase in self], dtype=torch.int64)

    def __str__(self) -> str:
        from megafuse.decode.shown import shown

        return shown(self)


def schedule(model: Model, cache: Cache) -> Schedule:
    """The phases of one step of `model`, whose keys and values go to `cache`."""
    phases: list[Phase] = []

    def add(kind: str, layer: int | None, tiles: int, size: int, **more: Any) -> None:
        before = len(phases) - 1 if phases else None
        phases.append(Phase(kind, layer, tiles, size, before, **more))

    element = model.embedding.element_size()
    rows = 1 if model.positions is None else 2
    add("embed", None, model.hidden, rows * model.hidden * element)
    for number, layer in enumerate(model.layers):
        for kind, tiles, size, values in _layer_phases(model, layer):
            more: dict[str, Any] = {"values": {"layer": number, **values}}
            if kind == "attend":
                more["values"] |= {"keys": cache.keys[number], "values": cache.values[number]}
                more["window"] = layer.window
                more["bytes_a_position"] = 2 * model.kv_heads * cache.pitch * element
            add(kind, number, tiles, size, **more)
    head = {**_matrices([model.head]), **_norm(model.norm)}
    add("head", None, model.vocab, model.head.bytes, values=head)
    add("sample", None, 1, 4 * model.vocab)
    return Schedule(
        phases, torch.zeros(len(phases), dtype=torch.int64, device=model.embedding.device)
    )


def _layer_phases(model: Model, layer: Layer) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """(kind, tiles, bytes, words) of each phase of a layer."""
    attend = {
        "eps": layer.q_norm.eps if layer.q_norm else 0.0,
        "q_norm": layer.q_norm.weight if layer.q_norm else None,
        "k_norm": layer.k_norm.weight if layer.k_norm else None,
        "window": layer.window,
        "scaling": layer.scaling,
        "rope": layer.rope,
    }
    products: tuple[tuple[str, list[Matrix], Norm | None], ...] = (
        ("qkv", layer.qkv, layer.attention_norm),
        ("attend", [], None),
        ("project", [layer.project], None),
        ("gate_up", layer.gate_up, layer.ffn_norm),
        ("down", [layer.down], None),
    )
    for kind, matrices, norm in products:
        size = sum(matrix.bytes for matrix in matrices)
        if kind == "attend":
            yield kind, model.kv_heads, 0, attend
            continue
        values = {**_matrices(matrices), **(_norm(norm) if norm else {})}
        if kind == "gate_up":  # a row of gate and the same of up are one tile
            values["rows"] = values["rows0"]
        yield kind, values["rows"], size, values


def _matrices(matrices: list[Matrix]) -> dict[str, Any]:
    values: dict[str, Any] = {"cols": matrices[0].weight.shape[1]}
    values["rows"] = sum(matrix.weight.shape[0] for matrix in matrices)
    for i, matrix in enumerate(matrices):
        values |= {f"weight{i}": matrix.weight, f"rows{i}": matrix.weight.shape[0]}
        values |= {f"bias{i}": matrix.bias, f"scale{i}": matrix.scale}
    return values


def _norm(norm: Norm) -> dict[str, Any]:
    return {"norm": norm.weight, "norm_bias": norm.bias, "eps": norm.eps}
