"""A program that is recorded and replayed: `graphs=True` of `optimize` and of the backend.

A recording is fixed: where it reads, where it writes, every number. So for each signature of a call
(sizes, strides, dtypes, numbers) there is one, made at the third such call: the first runs as it
is, the second runs as it is but reads the static copies, so that every kernel is built and every
library open when the third records.

What a recording reads. Parameters and buffers, and what another recording keeps for the backward
pass, are read where they are; a call where one of them lies elsewhere has a recording of its own.
Other arguments are copied to static memory first, all in one operation.

What it writes is its own memory, which the next replay writes again.
- The model's results are copied out of it, always: who holds one may hold it for ever.
- What is saved for the backward, gradients, and new contents of buffers (which AOTAutograd copies
  to the buffers at once) are lent: a tensor of that very memory. Before a replay we look whether
  there is still a tensor of any memory that was lent. If so that recording is left alone: a forward
  pass is recorded a second time, in other memory; of the others nothing is lent any more, and their
  outputs are copied, too (gradients that are added to those of an earlier step).

Each recording has memory of its own. Sharing it would lay what one lends over what another computes
in between, and they are replayed in whatever order the user calls the model.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from megafuse.compiler.cuda_graph import CudaRecorder
from megafuse.runtime import loader, progress

Program = Callable[[list[Any]], Sequence[Any]]  # empties the list
MOST = 8  # recordings of one program
_FORWARDS = 2  # recordings of one forward: as many may be under way before their backwards
_IDLE = 1000  # calls after which a recording that none of them replayed may give its place up
_KINDS = 64  # signatures that are remembered
_AS_IT_IS, _COPIED, _LENT = -1, -2, -3  # as in runtime/host/graph/replay.h


class Recorder(Protocol):
    """What records and replays: CUDA's graphs, or in tests what behaves as they do."""

    def blocked(self) -> bool:
        """Whether someone else records just now."""

    def join(self) -> None:
        """Makes the current stream wait for what the last call did, on whichever stream."""

    def settle(self) -> None:
        """Waits for replays that are under way: memory that they use is about to be let go."""

    def record(self, call: Program, given: list[Any]) -> tuple[Callable[[], None], list[Any]]:
        """What call(given) does, to be done later: a function that does it with the same memory,
        and where results will be."""


def recorder_for(device: torch.device) -> Recorder:
    return CudaRecorder(device)


@dataclass(frozen=True)
class Role:
    """What AOTAutograd made a program for: its outputs, and what its arguments should be."""

    results: range  # the outputs that are the model's
    saves: bool = False  # outputs after these are kept until a backward pass is over
    saved: tuple[int, ...] = ()  # arguments that the forward pass has computed


class Replays:
    """What the programs of one graph share: the recorder, and what stays where it is."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.lock = threading.RLock()
        self.recorder: Recorder | None = None
        self.stable: Counter[int] = Counter()  # addresses
        self.programs: dict[str, Replayed | str] = {}  # or why it is not one

    def replayed(self, name: str, call: Program, device: torch.device, role: Role) -> Program:
        """The program, recorded and replayed from its third call on."""
        if self.recorder is None:
            self.recorder = recorder_for(device)
        made = Replayed(call, self, device, role)
        self.programs[name] = made
        return made

    def refuse(self, name: str, why: str) -> None:
        """This one is not replayed."""
        self.programs[name] = f"none: {why}"

    def release(self) -> None:
        """Lets all recordings go. Programs run as they are from now on."""
        with self.lock:
            for each in self.programs.values():
                if isinstance(each, Replayed):
                    each.stop("the model is not optimized any more")


@dataclass
class _Recording:
    """One of them, and what it takes and gives."""

    replay: Callable[[], None]
    outputs: list[Any]  # static memory; of views of arguments only their sizes and strides
    handed: tuple[int, ...]  # what becomes of each
    offsets: tuple[int, ...]
    addresses: bytes  # of what is read where it is
    lent: list[Tensor]
    holders: bytes  # of `lent`, when nobody else has them
    stable: list[int]
    used: int = 0  # the program's call that it last served


@dataclass
class _Kind:
    """Calls with one signature."""

    calls: int = 0
    ready: bool = False  # to be recorded
    in_place: tuple[int, ...] = ()  # arguments
    copied: tuple[int, ...] = ()
    static: list[Tensor] = field(default_factory=list)  # of `copied`
    lends: bool = True
    recordings: list[_Recording] = field(default_factory=list)


class Replayed:
    """The program: called as before."""

    def __init__(self, call: Program, shared: Replays, device: torch.device, role: Role) -> None:
        self.call, self.shared, self.device, self.role = call, shared, device, role
        host, recorder = loader.load(), shared.recorder
        assert host is not None
        assert recorder is not None
        self.host, self.recorder = host, recorder
        self.kinds: dict[bytes, _Kind] = {}
        self.calls = self.replays = 0
        self.why = ""  # it is not replayed any more

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self.why or self.recorder.blocked():
            return self.call(args)
        key = self.host.replay_key(args)
        if key is None:
            return self.call(args)
        with self.shared.lock:
            self.recorder.join()
            self.calls += 1
            found = self._recording(key, args)
            if found is not None:
                return self._replay(found, self.kinds[key], args)
        return self.call(args)

    def __str__(self) -> str:
        recorded = sum(len(kind.recordings) for kind in self.kinds.values())
        if self.why:
            return f"none: {self.why}"
        return f"{recorded}, replayed in {self.replays} of {self.calls} calls"

    def stop(self, why: str) -> None:
        """Runs as it is from now on."""
        for kind in self.kinds.values():
            self._drop(kind, kind.recordings)
        self.kinds.clear()
        self.why = why

    # ---- which recording

    def _recording(self, key: bytes, args: list[Any]) -> _Recording | None:
        """None: this call runs the program. Its arguments may be static copies from here on."""
        kind = self._kind(key)
        kind.calls += 1
        if not kind.ready:
            if kind.calls > 1 and self._worth(args) and self._has_room():
                self._prepare(kind, args)
            return None
        addresses = self.host.replay_addresses(args, kind.in_place)
        there = [each for each in kind.recordings if each.addresses == addresses]
        free = (each for each in there if self.host.replay_holders(each.lent) == each.holders)
        found = next(free, None)
        if found is not None:
            return found
        if there and self.role.saves and len(there) >= _FORWARDS:
            return None
        if there and not self.role.saves:
            kind.lends = False
            self._drop(kind, there)
            there.clear()  # so that its memory is free for the next one
        return self._record(kind, addresses, args)

    def _kind(self, key: bytes) -> _Kind:
        found = self.kinds.get(key)
        if found is None:
            if len(self.kinds) >= _KINDS:
                unused = (k for k, kind in self.kinds.items() if not kind.recordings)
                self.kinds.pop(next(unused, key), None)
            found = self.kinds[key] = _Kind()
        return found

    def _worth(self, args: list[Any]) -> bool:
        """Not a backward whose forward was not replayed: all that was saved would be copied."""
        return all(self._stays(args[i]) for i in self.role.saved if isinstance(args[i], Tensor))

    def _stays(self, arg: Tensor) -> bool:
        """Whether it will be there at the next call, too: this decides about speed alone."""
        if isinstance(arg, nn.Parameter) or hasattr(arg, "_dynamo_static_input_type"):
            return True  # the latter is Dynamo's mark on buffers
        return arg.data_ptr() in self.shared.stable

    def _has_room(self) -> bool:
        """For one more recording; one that has long been idle gives its place up."""
        every = [(r.used, kind, r) for kind in self.kinds.values() for r in kind.recordings]
        if len(every) < self.shared.most:
            return True
        used, kind, oldest = min(every, key=lambda each: each[0])
        if self.calls - used < _IDLE:
            return False
        self._drop(kind, [oldest])
        return True

    def _drop(self, kind: _Kind, gone: Sequence[_Recording]) -> None:
        if gone:
            self.recorder.settle()
        for each in gone:
            kind.recordings = [other for other in kind.recordings if other is not each]
            self.shared.stable -= Counter(each.stable)
        if not kind.recordings:
            kind.static = []

    # ---- recording and replaying

    def _prepare(self, kind: _Kind, args: list[Any]) -> None:
        """The call reads copies, as the recording will: kernels are chosen by how memory is
        aligned. Not yet the static ones, of which its outputs may be views."""
        there = [i for i, arg in enumerate(args) if _is_on(arg, self.device)]
        kind.in_place = tuple(i for i in there if self._stays(args[i]))
        kind.copied = tuple(i for i in there if not self._stays(args[i]))
        kind.ready = True
        args[:] = _replaced(args, kind.copied, self._filled(kind, args))

    def _filled(self, kind: _Kind, args: list[Any]) -> list[Tensor]:
        with torch.inference_mode(False):  # memory that can be written in any mode
            made = [_like(args[i]) for i in kind.copied]
        self.host.replay_fill(made, args, kind.copied)
        return made

    def _record(self, kind: _Kind, addresses: bytes, args: list[Any]) -> _Recording | None:
        if not all(self._stays(args[i]) for i in kind.in_place) or not self._has_room():
            return None
        if not kind.recordings:
            kind.static = self._filled(kind, args)
        given = _replaced(args, kind.copied, kind.static)
        try:
            replay, outputs = self.recorder.record(self.call, given)
        except Exception as error:  # what cannot be recorded runs all the same
            words = f"{type(error).__name__}: {error}".partition("\n")[0]
            progress.logger.warning("megafuse: a program is not replayed: %s", words)
            self.stop(f"recording it failed ({words})")
            return None
        made = self._recorded(kind, addresses, given, replay, outputs)
        kind.recordings.append(made)
        self.shared.stable += Counter(made.stable)
        return made

    def _recorded(
        self,
        kind: _Kind,
        addresses: bytes,
        given: list[Any],
        replay: Callable[[], None],
        outputs: list[Any],
    ) -> _Recording:
        sources = self.host.replay_sources(outputs, given)
        memories = [s and s[0] for s in self.host.replay_sources(outputs, outputs)]
        shares = Counter(memories)
        handed, offsets, stable = [], [], []
        for at, output in enumerate(outputs):
            source, offset = sources[at] or (_AS_IT_IS, 0)
            if not isinstance(output, Tensor):
                what = _AS_IT_IS
            elif sources[at] is not None:
                what = source
            elif self._is_copied(kind, at, shares[memories[at]]):
                what = _COPIED
            else:
                what = _LENT
            handed.append(what)
            offsets.append(offset)
            if self.role.saves and (what == _LENT or what in kind.in_place):
                stable.append(output.data_ptr())
            if what >= 0:
                outputs[at] = torch.empty_strided(output.size(), output.stride(), device="meta")
        lent = [o for o, what in zip(outputs, handed, strict=True) if what == _LENT]
        holders = self.host.replay_holders(lent)
        return _Recording(
            replay, outputs, tuple(handed), tuple(offsets), addresses, lent, holders, stable
        )

    def _is_copied(self, kind: _Kind, at: int, shared_by: int) -> bool:
        """Gradients that are one memory: two parameters must not have it as their .grad."""
        if at in self.role.results or not kind.lends:
            return True
        return not self.role.saves and shared_by > 1

    def _replay(self, found: _Recording, kind: _Kind, args: list[Any]) -> Sequence[Any]:
        self.host.replay_fill(kind.static, args, kind.copied)
        found.replay()
        found.used = self.calls
        self.replays += 1
        handed: Sequence[Any] = self.host.replay_outputs(
            found.outputs, found.handed, found.offsets, args
        )
        args.clear()
        return handed


def _is_on(arg: Any, device: torch.device) -> bool:
    """Not so what an attention of torch's says of its random numbers, which may be on the host."""
    return isinstance(arg, Tensor) and arg.device.type == device.type


def _replaced(args: list[Any], places: tuple[int, ...], by: list[Tensor]) -> list[Any]:
    given = list(args)
    for place, each in zip(places, by, strict=True):
        given[place] = each
    return given


def _like(arg: Tensor) -> Tensor:
    """Memory of its own, with the same sizes and strides: also where elements overlap."""
    if arg.numel() == 0:
        return torch.empty_strided(arg.size(), arg.stride(), dtype=arg.dtype, device=arg.device)
    steps = zip(arg.size(), arg.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in steps)
    flat = torch.empty(span, dtype=arg.dtype, device=arg.device)
    return flat.as_strided(arg.size(), arg.stride())
