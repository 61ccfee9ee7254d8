"""The memory of a decoder beside weights and cache, and the Step that tells the kernel about it."""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.decode.cache import Cache
from megafuse.decode.kernel_cuda import Shared, host_words
from megafuse.decode.reading import Model, padded
from megafuse.decode.schedule import Schedule
from megafuse.decode.words import Struct

CHUNK = 64  # positions of the cache that one piece of attention takes
_FRESH = ("x", "attended", "inner_values")  # that a launch begins with 0, and the barrier
_NUMBERED = ("qkv", "parts")  # words that stay from launch to launch
_NUMBERS = 1 << 32  # of phases, as those words have them


class Workspace:
    """Buffers for `batch` rows and `threads` threads."""

    def __init__(
        self,
        model: Model,
        schedule: Schedule,
        cache: Cache,
        angles: tuple[Tensor, Tensor] | None,
        threads: int,
        watchdog: float,
        tokens: int,
        chunk: int = CHUNK,
    ) -> None:
        batch, where = cache.batch, model.embedding.device
        self._kept = (model, cache, angles)  # whose addresses are in the words
        self.phases = schedule.words().to(where)
        pitches = {
            "x_pitch": padded(model.hidden),
            "qkv_pitch": padded((model.heads + 2 * model.kv_heads) * model.head_dim),
            "inner_pitch": padded(model.inner),
            "attended_pitch": padded(model.heads * model.head_dim),
            "own_pitch": padded(max(model.hidden, model.heads * model.head_dim, model.inner)),
            "part_pitch": cache.pitch + 16,
            "max_chunks": -(-cache.max_length // chunk),
        }
        words = 1 if where.type == "cpu" else 2  # with the number of a phase: decode.h
        floats = {
            "x": words * batch * pitches["x_pitch"],
            "qkv": words * batch * pitches["qkv_pitch"],
            "inner_values": words * batch * pitches["inner_pitch"],
            "parts": words * batch * model.heads * pitches["max_chunks"] * pitches["part_pitch"],
            "attended": words * batch * pitches["attended_pitch"],
            "own": threads * batch * pitches["own_pitch"],
            "scores": batch * model.vocab,
            "chances": batch * model.vocab,
        }
        # One piece of memory, so that a kernel can make it 0 at once.
        first = {"barrier": 128, **{name: floats.pop(name) for name in _FRESH}}
        self.fresh = torch.zeros(sum(first.values()), device=where).view(torch.int64)
        pieces = self.fresh.view(torch.float32).split(list(first.values()))
        self._floats = {name: torch.zeros(n, device=where) for name, n in floats.items()}
        self._floats |= dict(zip(first, pieces, strict=True))
        self._next_number = 1  # of a phase: memory that is 0 is of none
        self.logits = torch.zeros(batch, model.vocab, device=where)
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=where)
        self.finished = torch.zeros(batch, dtype=torch.int64, device=where)
        self.seen = torch.zeros(batch, model.vocab, dtype=torch.uint8, device=where)
        # The host reads tokens while the kernel runs, and sets `halt` to end it.
        self.out, self.halt = host_words(where, batch, tokens), host_words(where, 1)
        self.bests = torch.zeros(batch, threads, dtype=torch.int64, device=where)
        cosines, sines = angles or (None, None)
        self.step = Struct(
            "Step",
            {
                "phases": self.phases,
                "phase_count": len(schedule),
                "threads": threads,
                "parties": threads,
                "watchdog": int(watchdog * 1e9),
                "hidden": model.hidden,
                "vocab": model.vocab,
                "heads": model.heads,
                "kv_heads": model.kv_heads,
                "head_dim": model.head_dim,
                "head_pitch": cache.pitch,
                "rotary": 0 if cosines is None else 2 * cosines.shape[1],
                "inner": model.inner,
                "max_length": cache.max_length,
                "chunk": chunk,
                "embedding": model.embedding,
                "positions_table": model.positions,
                "cosines": cosines,
                "sines": sines,
                **pitches,
                **self._floats,
                "own_floats": batch * pitches["own_pitch"],
                "logits": self.logits,
                "tokens": self.tokens,
                "positions": cache.lengths,
                "finished": self.finished,
                "seen": self.seen,
                "out": self.out,
                "out_pitch": tokens,
                "halt": self.halt,
                "clocks": schedule.clocks,
                "bests": self.bests,
            },
        )

    def number_phases(self, count: int) -> None:
        """For a launch of so many: numbers that no word in memory has, whichever kernel left it."""
        if self._next_number + count >= _NUMBERS:
            self._next_number = 1
            for name in _NUMBERED:
                self._floats[name].zero_()
        self.step["numbered"] = self._next_number
        self._next_number += count + 1

    def divide_shared_memory(self, model: Model, limit: int) -> Shared:
        """On a GPU: how much of a block's shared memory is for what."""
        step, batch = self.step, self.tokens.numel()
        group = model.heads // model.kv_heads
        weights = model.head.weight.dtype
        shared = Shared.of(limit, group, step["head_pitch"], weights, model.hidden, batch)
        step["stage_bytes"], step["input_floats"] = shared.stage, shared.floats
        return shared
