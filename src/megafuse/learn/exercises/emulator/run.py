"""Runs a learner's CUDA kernel on the emulator and reads what it counted."""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megafuse.learn.exercises.emulator import faults
from megafuse.learn.exercises.emulator.source import translated
from megafuse.learn.exercises.native import compile_stop
from megafuse.runtime import build
from megafuse.runtime.cpp import CompileError

HERE = Path(__file__).resolve().parent
_CORE = ("report.h", "api.h", "fiber.h", "grid.h", "arrays.h", "core.cpp")
# Ubuntu's compilers ask glibc to check that a longjmp goes up the stack; fibers have stacks of
# their own, and a jump to another one would end the process.
_UNCHECKED_JUMPS = "#undef _FORTIFY_SOURCE\n"
_KERNEL = ("report.h", "api.h", "memory.h", "cuda.h", "entry.h")
SECTOR = 32  # bytes
FIRST_SHARED = 100  # the number of the first shared array
_LINES, _SHOWN = 256, 24  # as in report.h


def _longs(*names: str) -> list[tuple[str, type[ctypes.c_longlong]]]:
    return [(name, ctypes.c_longlong) for name in names]


class Mistake(ctypes.Structure):
    """As report.h has it."""

    _fields_ = _longs(
        *("kind", "line", "array", "index", "block", "thread"),
        *("other_line", "other_block", "other_thread", "waiting", "ended"),
        *("writes", "other_writes"),
    )


class Line(ctypes.Structure):
    """Counts of one line of the learner's file."""

    requests: int
    lanes: int
    sectors: int
    shared_requests: int
    shared_lanes: int
    passes: int
    barriers: int
    shuffles: int
    atomics: int
    _fields_ = _longs(
        *("requests", "lanes", "sectors", "shared_requests", "shared_lanes", "passes"),
        *("barriers", "shuffles", "atomics"),
    )


class _Shown(ctypes.Structure):
    _fields_ = [*_longs("line", "array", "writes", "width"), ("at", ctypes.c_longlong * 32)]


class _Report(ctypes.Structure):
    _fields_ = [
        ("line", ctypes.c_longlong),
        ("mistake", Mistake),
        ("lines", Line * _LINES),
        ("shown_count", ctypes.c_longlong),
        ("shown", _Shown * _SHOWN),
        ("shared_names", (ctypes.c_char * 32) * 8),
    ]


@dataclass(frozen=True)
class Request:
    """What the lanes of a warp touched at the same time: a place in floats, or None, for each."""

    line: int
    array: str
    writes: bool
    shared: bool
    width: int  # floats a lane
    places: tuple[int | None, ...]


@dataclass(frozen=True)
class Counted:
    """What a run asked for, in all and by line; and the first warp's requests, for pictures."""

    lines: dict[int, Line]
    requests: tuple[Request, ...]

    def total(self, what: str) -> int:
        return sum(getattr(line, what) for line in self.lines.values())

    @property
    def bytes_moved(self) -> int:
        return self.total("sectors") * SECTOR

    def worst(self, over: str, under: str) -> tuple[int, float]:
        """The line with the largest ratio of two counts, and that ratio."""
        ratios = {
            number: getattr(line, over) / getattr(line, under)
            for number, line in self.lines.items()
            if getattr(line, under)
        }
        number = max(ratios, key=lambda n: ratios[n], default=0)
        return number, ratios.get(number, 0.0)


@dataclass(frozen=True)
class Kernel:
    """Its name, and its parameters by letter: I input, O output, C counter, i int, f float."""

    name: str
    parameters: str

    @property
    def call(self) -> str:
        """The launch, in C++."""
        places = {"I": "input", "O": "output", "C": "counter"}
        arrays = numbers = reals = 0
        given = []
        for letter in self.parameters:
            if letter in places:
                given.append(f"arrays.{places[letter]}({arrays})")
                arrays += 1
            elif letter == "i":
                given.append(f"int(numbers[{numbers}])")
                numbers += 1
            else:
                given.append(f"reals[{reals}]")
                reals += 1
        return (
            "void exercise(void* launched) {\n"
            "  const auto& [arrays, numbers, reals] = *static_cast<Launched*>(launched);\n"
            f"  (void)numbers, (void)reals;\n  {self.name}({', '.join(given)});\n}}\n"
        )


@dataclass(frozen=True)
class Launch:
    """How many blocks of how many threads, the numbers that go with them, and how many blocks run
    at the same time, where they meet each other (0: they do not)."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    numbers: tuple[int, ...] = ()
    reals: tuple[float, ...] = ()
    at_once: int = 0


class Emulated:
    """The learner's file, compiled when it is first run."""

    def __init__(self, path: Path, kernel: Kernel, trail: Path | None = None) -> None:
        self.path, self.kernel, self._trail = path, kernel, trail
        self._object: ctypes.CDLL | None = None

    def run(self, arrays: Mapping[str, Tensor], launch: Launch) -> Counted:
        """Changes the arrays as the kernel does; its first mistake raises Stop."""
        tensors = list(arrays.values())
        letters = [letter for letter in self.kernel.parameters if letter in "IOC"]
        if len(letters) != len(tensors):
            raise ValueError(f"{self.kernel.name} takes {len(letters)} arrays, not {len(tensors)}")
        data = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        sizes = (ctypes.c_longlong * len(tensors))(*(t.numel() for t in tensors))
        kinds = (ctypes.c_int * len(tensors))(*map(_kind, letters, tensors))
        shape = (ctypes.c_uint * 4)(*_two(launch.grid), *_two(launch.block))
        numbers = (ctypes.c_longlong * max(len(launch.numbers), 1))(*launch.numbers)
        reals = (ctypes.c_float * max(len(launch.reals), 1))(*launch.reals)
        report = self._report()
        loaded, core = self._loaded(), _core()
        table = core.emulator_core(ctypes.byref(report))
        made = core.emulator_arrays(data, sizes, kinds, len(tensors))
        each = (ctypes.c_void_p * len(tensors))(
            *(core.emulator_array(made, i) for i in range(len(tensors)))
        )
        loaded.exercise_run(
            *(ctypes.c_void_p(table), each, shape, launch.at_once, numbers, reals),
            ctypes.byref(report),
        )
        core.emulator_forget(made)
        names = _names(arrays, report)
        if report.mistake.kind:
            raise faults.stop(report.mistake, names, _sizes(arrays))
        return _counted(report, names)

    def source(self) -> str:
        """The whole translation unit."""
        text = self.path.read_text(encoding="utf-8", errors="replace")
        parts = [_part(HERE / name) for name in _KERNEL]
        return "".join(
            [
                *parts,
                f'#line 1 "{self.path.name}"\n{translated(text)}\n',
                f'#line 1 "launch.cpp"\n{self.kernel.call}',
            ]
        )

    def _report(self) -> _Report:
        """In a file, where there is a trail to leave: it outlives this process."""
        if self._trail is None:
            return _Report()
        self._trail.write_bytes(bytes(_Report()))
        with self._trail.open("r+b") as file:
            return _Report.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(_Report)))

    def _loaded(self) -> ctypes.CDLL:
        if self._object is None:
            try:
                made = build.cpu_object(self.source(), self.path.name)
            except CompileError as error:
                raise compile_stop(error, self.path) from None
            self._object = ctypes.CDLL(str(made))
        return self._object


@functools.cache
def _core() -> ctypes.CDLL:
    """The emulator itself."""
    parts = "".join(_part(HERE / name) for name in _CORE)
    made = build.cpu_object(_UNCHECKED_JUMPS + parts, "the emulator")
    core = ctypes.CDLL(str(made))
    core.emulator_core.restype = ctypes.c_void_p
    core.emulator_arrays.restype = ctypes.c_void_p
    core.emulator_array.restype = ctypes.c_void_p
    core.emulator_array.argtypes = [ctypes.c_void_p, ctypes.c_int]
    core.emulator_forget.argtypes = [ctypes.c_void_p]
    return core


def _part(path: Path) -> str:
    """A header as text: those that it includes stand above it already."""
    text = re.sub(r'(?m)^#include "\w+\.h"$', "", path.read_text(encoding="utf-8"))
    text = text.replace("#pragma once", "")
    return f'#line 1 "{path.name}"\n{text}\n'


def _kind(letter: str, tensor: Tensor) -> int:
    """As core.cpp has them: 1 is only read, 2 holds nothing yet (nan everywhere)."""
    return 1 if letter == "I" else 2 if bool(tensor.isnan().all()) else 0


def _two(sizes: tuple[int, ...]) -> tuple[int, int]:
    return (*sizes, 1)[:2]  # type: ignore[return-value]


def _names(arrays: Mapping[str, Tensor], report: _Report) -> dict[int, str]:
    shared = {FIRST_SHARED + i: name.value.decode() for i, name in enumerate(report.shared_names)}
    return {**dict(enumerate(arrays)), **{i: name for i, name in shared.items() if name}}


def _sizes(arrays: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: tensor.numel() for name, tensor in arrays.items()}


def _counted(report: _Report, names: dict[int, str]) -> Counted:
    touched = {
        number: Line.from_buffer_copy(line)
        for number, line in enumerate(report.lines)
        if any(bytes(line))
    }
    requests = tuple(
        Request(
            line=shown.line,
            array=names.get(shown.array, "?"),
            writes=bool(shown.writes),
            shared=shown.array >= FIRST_SHARED,
            width=shown.width,
            places=tuple(None if place < 0 else place for place in shown.at),
        )
        for shown in report.shown[: report.shown_count]
    )
    return Counted(touched, tuple(sorted(requests, key=lambda r: (r.line, r.writes))))


def as_words(tensor: Tensor) -> Tensor:
    """A float32 or int32 tensor that the emulator may use in place."""
    if tensor.dtype not in (torch.float32, torch.int32) or not tensor.is_contiguous():
        raise ValueError(f"the emulator takes contiguous float32 and int32, not {tensor.dtype}")
    return tensor
