"""What users call: a model compiled into one kernel, and text from it."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megafuse.decode import rope
from megafuse.decode.cache import Cache
from megafuse.decode.columns import columns
from megafuse.decode.columns import made as made_by_the_last
from megafuse.decode.errors import CacheFull, Unsupported
from megafuse.decode.int8 import with_int8
from megafuse.decode.kernel import CpuKernel, Variant
from megafuse.decode.kernel_cuda import CudaKernel, chunk_on_gpu, processors, shared_limit
from megafuse.decode.options import Options, pad_token, seed_or_drawn, stop_tokens
from megafuse.decode.prompts import check, rows_of
from megafuse.decode.reading import read
from megafuse.decode.schedule import Schedule, schedule
from megafuse.decode.workspace import CHUNK, Workspace

BATCH = 8  # rows at most
# Tokens of a launch at most. On a CPU Python sees Ctrl-C between two launches. A GPU that has a
# screen as well must be free after a few seconds: a launch may read so many bytes there.
TOGETHER = {"cpu": 16, "cuda": 256}
_BYTES = 1e12


def compile(
    model: nn.Module,
    max_length: int,
    *,
    batch: int = 1,
    weights: str | None = None,
    threads: int | None = None,
    watchdog: float = 30.0,
) -> Decoder:
    """A decoder of `model`, a Hugging Face causal LM, for texts of up to `max_length` tokens.

    batch: how many texts at once, 1 to 8; a call may have fewer.
    weights: None takes the model's own where they lie, without a copy; "int8" quantizes a copy of
        them, one scale for each output channel.
    threads: as many as torch has, by default; on a GPU blocks, one for each multiprocessor.
    watchdog: seconds that a thread may wait for the others before the step is given up.

    Compile again after changing weights. A model that is not known raises Unsupported, which names
    the field of its config.
    """
    return Decoder(
        model,
        max_length,
        batch=batch,
        weights=weights,
        threads=threads,
        watchdog=watchdog,
    )


class Decoder:
    """Makes text, a launch for every few tokens, one text at a time: a call while another Python
    thread is in one is an error, and a stream that was not taken to its end ends when the next
    text begins."""

    def __init__(
        self,
        model: nn.Module,
        max_length: int,
        *,
        batch: int = 1,
        weights: str | None = None,
        threads: int | None = None,
        watchdog: float = 30.0,
    ) -> None:
        if not 1 <= batch <= BATCH:
            raise ValueError(f"batch is {batch}: expected 1 to {BATCH} texts at once")
        if weights not in (None, "int8"):
            raise ValueError(f'weights is {weights!r}: expected None, the model\'s own, or "int8"')
        self.model = model
        parts = read(model)
        where = parts.embedding.device
        if where.type not in ("cpu", "cuda"):
            raise Unsupported("model.device", str(where), "models on a CPU or a CUDA device")
        on_gpu = where.type == "cuda"
        if parts.longest is not None and max_length > parts.longest:
            raise Unsupported(
                "config.max_position_embeddings",
                parts.longest,
                f"max_length={max_length} then: less",
            )
        if max_length < 1:
            raise ValueError(f"max_length is {max_length}: expected at least 1 token")
        self._parts = with_int8(parts) if weights == "int8" else parts
        self.max_length, self.batch, self.device = max_length, batch, where
        self.threads = threads or (processors(where) if on_gpu else torch.get_num_threads())
        self._cache = Cache(self._parts, max_length, batch)
        self.schedule: Schedule = schedule(self._parts, self._cache)
        angles = None
        if parts.rotary is not None:
            angles = rope.tables(parts.rotary, max_length, parts.embedding.device)
        self._space = Workspace(
            self._parts,
            self.schedule,
            self._cache,
            angles,
            self.threads,
            watchdog,
            _together(where, self.schedule.bytes_at(0)),
            chunk_on_gpu(max_length) if on_gpu else CHUNK,
        )
        if on_gpu:
            self._shared = self._space.divide_shared_memory(self._parts, shared_limit(where))
        self._kernels: dict[int, CpuKernel | CudaKernel] = {}
        self._texts: list[list[int]] = []  # of each row: prompt and what was made of it
        self._ended: list[bool] = []  # of each row: whether a stop token was made
        self._stream: Generator[list[int], None, None] | None = None  # that is under way
        self._logits_are_later = False  # than the last token that was taken
        self._process, self._lock = os.getpid(), threading.Lock()
        kernel = self._kernel(1)
        kernel.open(self._space.step)
        weakref.finalize(self, _end, kernel, self._space)
        _decoders.add(self)

    # ---- text

    def generate(
        self,
        prompt_ids: Any = (),
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: int | Sequence[int] | None = None,
        seed: int | None = None,
        resume: bool = False,
    ) -> Tensor:
        """The new tokens: [n] for one prompt, [rows, n] for several, padded after a row's end.

        stop: tokens that end a row, themselves included; by default those of the model's generation
            config, and () for none.
        seed: the same text again; without it one is drawn from torch's generator.
        resume: `prompt_ids`, which may be empty, are appended to the texts of the last call, whose
            cache is kept.
        """
        rows, alone = rows_of(prompt_ids)
        options = self._options(temperature, top_k, top_p, repetition_penalty, stop, seed)
        with self._alone():
            rows = self._begin(rows, max_new_tokens, resume)
            made = list(self._made(rows, max_new_tokens, options, streaming=False))
        tokens = torch.tensor(made, dtype=torch.int64).reshape(-1, len(rows)).T.contiguous()
        return tokens[0] if alone and len(rows) == 1 else tokens

    def stream(
        self,
        prompt_ids: Any = (),
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: int | Sequence[int] | None = None,
        seed: int | None = None,
        resume: bool = False,
    ) -> Iterator[Any]:
        """As generate, a token at a time: an int for one prompt, a list of ints for several.

        Tokens are made while the last one is looked at, a few at most. Closed early, the text is
        what was taken: `resume=True` goes on from there.
        """
        rows, alone = rows_of(prompt_ids)
        options = self._options(temperature, top_k, top_p, repetition_penalty, stop, seed)
        with self._alone():
            rows = self._begin(rows, max_new_tokens, resume)
            made = self._stream = self._made(rows, max_new_tokens, options, streaming=True)
        single = alone and len(rows) == 1
        try:
            while True:
                with self._alone():
                    if self._stream is not made:
                        raise RuntimeError("the decoder has begun another text: this one is over")
                    column = next(made, None)
                if column is None:
                    return
                yield column[0] if single else column
        finally:
            if self._stream is made:
                with self._alone():
                    self._end_stream()

    @torch.no_grad()
    def logits(self, ids: Any, prefilled: int = 0) -> Tensor:
        """float32 [n − prefilled, vocab]: what the kernel predicts after each token of a text.

        The first `prefilled` tokens go through the model, the others through the kernel.
        """
        rows, _ = rows_of(ids)
        check(rows, 1, self._parts.embedding.shape[0], may_be_empty=False)
        with self._alone():
            self._begin(rows, 0, resume=False)
            text = rows[0]
            if prefilled:
                self._fill(0, text[:prefilled])
            found = []
            for token in text[prefilled:].tolist():
                self._switch_angles()
                self._space.tokens[0] = token
                self._launch(1, len(self.schedule) - 1, 0, 1)
                self._cache.lengths[0] += 1
                found.append(self._space.logits[0].clone())
        return torch.stack(found)

    @property
    def last_logits(self) -> Tensor:
        """float32 [rows, vocab]: those from which the last token of each row was chosen.

        Not during a stream, nor after one that was closed early: the kernel is ahead of it then.
        """
        if self._stream is not None or self._logits_are_later:
            raise RuntimeError(
                "last_logits belong to a later token than the last one of the stream"
            )
        return self._space.logits[: len(self._texts)].clone()

    # ---- in place of model.generate

    def attach(self, model: nn.Module | None = None) -> None:
        """From now on `model.generate` makes its text here where it can: see decode/attach.py."""
        from megafuse.decode.attach import attach

        attach(self, self.model if model is None else model)

    def detach(self, model: nn.Module | None = None) -> None:
        """`model.generate` is the model's own again."""
        from megafuse.decode.attach import detach

        detach(self.model if model is None else model)

    # ---- how

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Raises where another Python thread is in here."""
        if self._process != os.getpid():  # that thread may have stayed in the parent process
            self._process, self._lock = os.getpid(), threading.Lock()
        lock = self._lock
        if not lock.acquire(blocking=False):
            raise RuntimeError(
                "another thread is using this decoder: a decoder makes one text at a time, and "
                "megafuse.decode.compile(model, ...) makes another one for the same weights"
            )
        try:
            yield
        finally:
            lock.release()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _options(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        repetition_penalty: float,
        stop: int | Sequence[int] | None,
        seed: int | None,
    ) -> Options:
        ends = stop_tokens(stop, self.model)
        return Options(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            stop=ends,
            pad=pad_token(ends, self.model),
            seed=seed_or_drawn(seed) if temperature else 0,
        )

    def _begin(self, rows: list[Tensor], new: int, resume: bool) -> list[Tensor]:
        """Checks that all will fit; the tokens of each row that are not in the cache yet."""
        self._end_stream()
        if new < 0:
            raise ValueError(f"max_new_tokens is {new}: expected 0 or more")
        if resume and not self._texts:
            raise ValueError("resume=True, but there is no text yet to go on from")
        if resume and len(rows) != len(self._texts):
            raise ValueError(f"{len(rows)} rows to go on from {len(self._texts)}: expected as many")
        check(rows, self.batch, self._parts.embedding.shape[0], may_be_empty=resume)
        before = self._texts if resume else [[] for _ in rows]
        for i, (text, row) in enumerate(zip(before, rows, strict=True)):
            length = len(text) + row.numel()
            # The last token is returned without being read.
            if length + max(new - 1, 0) > self.max_length:
                raise CacheFull(
                    f"row {i} has {length} tokens, and {new} more do not fit into max_length="
                    f"{self.max_length}: ask for fewer, or compile(model, max_length=...) for more"
                )
        if not resume:
            self._cache.lengths.zero_()
            self._space.seen.zero_()
        self._texts = [text + row.tolist() for text, row in zip(before, rows, strict=True)]
        self._ended, self._logits_are_later = [False] * len(rows), False
        self._space.finished.zero_()
        for i, row in enumerate(rows):
            self._space.seen[i, row[row < self._parts.vocab]] = 1
        return [
            torch.tensor(text[done:])
            for text, done in zip(self._texts, self._cache.lengths.tolist(), strict=False)
        ]

    def _made(
        self, rows: list[Tensor], new: int, options: Options, streaming: bool
    ) -> Generator[list[int], None, None]:
        """The next token of each row, again and again."""
        if new == 0:
            return
        space, count, taken = self._space, len(rows), 0
        stop = torch.tensor(options.stop, dtype=torch.int64, device=space.tokens.device)
        for member, value in options.words().items():
            space.step[member] = value
        space.step["stop"], space.step["stop_count"] = stop, stop.numel()
        filled = any(row.numel() != 1 for row in rows)
        if filled:
            for i, row in enumerate(rows):
                space.logits[i] = self._fill(i, row)
        else:
            space.tokens[:count] = torch.stack(rows)[:, 0]
        while taken < new and not all(self._ended):
            space.step["drawn"] = taken
            first = len(self.schedule) - 1 if filled else 0
            filled = False
            self._switch_angles()
            steps = min(space.step["out_pitch"], new - taken, self._until_switch() + (first > 0))
            with contextlib.closing(self._taken(steps, first, options.stop, streaming)) as some:
                for column in some:
                    taken += 1
                    yield column

    def _taken(
        self, steps: int, first: int, stop: Sequence[int], streaming: bool
    ) -> Generator[list[int], None, None]:
        """One launch: its tokens, each of which belongs to the texts once it is taken."""
        space, count, taken = self._space, len(self._texts), 0
        before = self._prepare(steps, len(self.schedule), first, count)
        found = columns(self._kernel(count), space, steps, count, streaming)
        try:
            with contextlib.closing(found):
                for column in found:
                    taken += 1
                    self._append(column, stop)
                    yield column
        finally:
            made = made_by_the_last(space, steps)
            self._measured(made - (first > 0), before, count)
            if taken < steps and not all(self._ended):
                self._logits_are_later = made > taken
                self._go_back()

    def _append(self, column: list[int], stop: Sequence[int]) -> None:
        for i, token in enumerate(column):
            if not self._ended[i]:
                self._texts[i].append(token)
                self._ended[i] = token in stop

    def _go_back(self) -> None:
        """The launch did not stop where the texts do: cache, tokens and all follow the texts."""
        space = self._space
        for i, text in enumerate(self._texts):
            self._cache.lengths[i] = len(text) - 1  # the last token is not read yet
            space.tokens[i] = text[-1]
            space.finished[i] = self._ended[i]
            known = torch.tensor(text)
            space.seen[i].zero_()
            space.seen[i, known[known < self._parts.vocab].to(space.seen.device)] = 1

    def _launch(self, steps: int, phases: int, first: int, count: int) -> None:
        """Some of the phases, and nothing is taken."""
        before = self._prepare(steps, phases, first, count)
        kernel = self._kernel(count)
        kernel.launch(self._space.step)
        kernel.finish(self._space.step)
        self._measured(steps - (first > 0), before, count)

    def _prepare(self, steps: int, phases: int, first: int, count: int) -> int:
        """Tells the kernel what to do; how many positions the cache holds before that."""
        step = self._space.step
        step["steps"], step["phase_count"], step["first_phase"] = steps, phases, first
        self._space.number_phases(steps * phases)
        return int(self._cache.lengths[:count].sum())

    def _measured(self, steps: int, before: int, count: int) -> None:
        self.schedule.steps += steps
        self.schedule.positions += before * steps + count * steps * (steps + 1) // 2

    def _fill(self, row: int, ids: Tensor) -> Tensor:
        """Appends tokens through the model itself; the logits after them."""
        from megafuse.decode.prefill import prefill

        at, length = self._parts.switches_at, int(self._cache.lengths[row])
        if at is not None and length <= at < length + ids.numel():
            self._cache.lengths[row] = 0  # the model takes other angles from here on, for all
            ids = torch.tensor(self._texts[row][: length + ids.numel()])
        return prefill(self.model, self._cache, row, ids)

    def _until_switch(self) -> int:
        """How many tokens can be read before a row's angles change."""
        at = self._parts.switches_at
        if at is None:
            return self.max_length
        lengths = self._cache.lengths[: len(self._texts)].tolist()
        return min((at - length for length in lengths if length < at), default=self.max_length)

    def _switch_angles(self) -> None:
        """longrope: from a certain length on all angles are others, so the cache is made anew."""
        at = self._parts.switches_at
        if at is None:
            return
        for row, text in enumerate(self._texts):
            if int(self._cache.lengths[row]) == at and len(text) > at:
                from megafuse.decode.prefill import prefill

                self._cache.lengths[row] = 0
                prefill(self.model, self._cache, row, torch.tensor(text[: at + 1]))
                self._cache.lengths[row] = at  # the kernel reads that token itself

    def _kernel(self, count: int) -> CpuKernel | CudaKernel:
        if count not in self._kernels:
            variant, fresh = Variant.of(self._parts, count), self._space.fresh
            made = (
                CudaKernel(variant, fresh, self._shared, self._space.step)
                if fresh.is_cuda
                else CpuKernel(variant)
            )
            self._kernels[count] = made
        return self._kernels[count]


def _together(where: torch.device, step: int) -> int:
    """Tokens of a launch whose steps read so many bytes each."""
    most = TOGETHER[where.type]
    return most if where.type == "cpu" else min(most, max(16, int(_BYTES // step)))


_decoders: weakref.WeakSet[Decoder] = weakref.WeakSet()


@atexit.register
def _end_streams() -> None:
    """While there is a Python that can."""
    for decoder in list(_decoders):
        with contextlib.suppress(ValueError):  # another thread is in it
            decoder._end_stream()


def _end(kernel: CpuKernel | CudaKernel, space: Workspace) -> None:
    """Of a decoder that nobody has any more, and of all at the end of Python."""
    space.halt[0] = 1
    kernel.close(space.step)
