"""A learner's C++ file as two functions: plain, and with every access counted (counted.h).

Both are called with named arrays; the harness beside the exercise passes them to the learner's
function by their place.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from megafuse.learn.exercises.catalog import HERE
from megafuse.learn.exercises.findings import Stop
from megafuse.runtime import build
from megafuse.runtime.cpp import CompileError

LINE = 64  # bytes
_BLANK = 3  # a fault, as counted.h has them


class Counts(ctypes.Structure):
    """As counted.h has it."""

    line: int
    read_elements: int
    written_elements: int
    read_lines: int
    written_lines: int
    fault: int
    fault_array: int
    fault_index: int
    _fields_ = tuple(
        (name, ctypes.c_longlong)
        for name in (
            "line",
            "read_elements",
            "written_elements",
            "read_lines",
            "written_lines",
            "fault",
            "fault_array",
            "fault_index",
        )
    )

    @property
    def bytes_moved(self) -> int:
        """Between memory and a cache of 32 KiB."""
        return (self.read_lines + self.written_lines) * LINE


class Native:
    """The file, compiled once when it is first run plainly and once when it is first counted."""

    def __init__(self, path: Path, harness: Path, trail: Path | None = None):
        self._path, self._harness, self._trail = path, harness, trail
        self._objects: dict[bool, ctypes.CDLL] = {}

    def plain(self, arrays: Mapping[str, Tensor], numbers: Sequence[int]) -> None:
        """As fast as it gets; nothing is checked."""
        self._run(arrays, numbers, Counts(), counted=False)

    def counted(self, arrays: Mapping[str, Tensor], numbers: Sequence[int]) -> Counts:
        """What it moved. A step outside an array raises Stop."""
        counts = self._counts()
        self._run(arrays, numbers, counts, counted=True)
        if counts.fault == _BLANK:
            _unwritten(counts, arrays)
        if counts.fault:
            _outside(counts, arrays)
        return counts

    def _counts(self) -> Counts:
        """In a file, where there is a trail to leave: it outlives this process."""
        if self._trail is None:
            return Counts()
        self._trail.write_bytes(bytes(Counts()))
        with self._trail.open("r+b") as file:
            return Counts.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Counts)))

    def source(self, counted: bool) -> str:
        """The whole translation unit."""
        return "".join(
            (
                "#define MF_COUNTED 1\n" if counted else "",
                pasted(HERE / "counted.h"),
                pasted(self._path),
                pasted(self._harness),
            )
        )

    def _run(
        self, arrays: Mapping[str, Tensor], numbers: Sequence[int], counts: Counts, counted: bool
    ) -> None:
        tensors = list(arrays.values())
        data = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        sizes = (ctypes.c_longlong * len(tensors))(*(t.numel() for t in tensors))
        given = (ctypes.c_longlong * max(len(numbers), 1))(*numbers)
        self._object(counted).exercise_run(data, sizes, len(tensors), given, ctypes.byref(counts))

    def _object(self, counted: bool) -> ctypes.CDLL:
        if counted not in self._objects:
            try:
                # counted.h throws at a step outside an array; kernels have no exceptions.
                made = build.cpu_object(
                    self.source(counted), self._path.name, more_flags=("-fexceptions",)
                )
            except CompileError as error:
                raise compile_stop(error, self._path) from None
            self._objects[counted] = ctypes.CDLL(str(made))
        return self._objects[counted]


def pasted(path: Path) -> str:
    """A file's text, behind a line that tells the compiler where it comes from."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return f'#line 1 "{path.name}"\n{text}\n'


def compile_stop(error: CompileError, path: Path) -> Stop:
    """The compiler's first error, with the learner's line."""
    if error.source is not None:  # kept for people who read it; here they have their own file
        shutil.rmtree(error.source.parent, ignore_errors=True)
    stderr = error.stderr.replace(str(path), path.name)
    # g++ and clang++: walk.cpp:3:5: error: …; NVRTC: cuda_index.cu(3): error: …
    errors = (
        r"(?m)^(?:.*[/\\])?([\w.-]+?)[:(](\d+)\)?(?::\d+)?: (?:fatal |catastrophic )?error:? (.*)"
    )
    found: list[tuple[str, str, str]] = re.findall(errors, stderr)
    own = [(line, text) for file, line, text in found if file == path.name]
    if not own:
        told = found[0][2] if found else (stderr.strip().splitlines() or ["no reason given"])[-1]
        return Stop(
            "compiles",
            told,
            f"The compiler stumbled after the end of {path.name}: the name or the arguments of the "
            "function that is called there have changed, or a brace is missing. `--solution` shows "
            "how it should look; `--restart` gives you the starter again and keeps your file.",
        )
    line, text = own[0][0], _in_cuda(own[0][1])
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = lines[int(line) - 1].strip() if 0 < int(line) <= len(lines) else ""
    more = f" ({len(own) - 1} more after it)" if len(own) > 1 else ""
    return Stop("compiles", f"line {line}: {text}{more}", f"    {shown}" if shown else "")


def _in_cuda(told: str) -> str:
    """The compiler's words, with the types that the learner wrote and not the emulator's."""
    told = re.sub(r"'emulator::[^']*' \{aka '([^']*)'\}", r"'\1'", told)
    told = re.sub(r"emulator::Pointer<((?:const |volatile )?\w+)>", r"\1*", told)
    return re.sub(r"emulator::(?:Cell|Shared|Row)<(\w+)[^'>]*>", r"\1", told)


def last_line(trail: Path) -> int:
    """Of the learner's file, where a run that did not return last accessed an array; or 0. It is
    the first thing in either kind of report."""
    try:
        return int(ctypes.c_longlong.from_buffer_copy(trail.read_bytes()).value)
    except (OSError, ValueError):  # nothing was counted
        return 0


def _unwritten(counts: Counts, arrays: Mapping[str, Tensor]) -> None:
    name, line = list(arrays)[counts.fault_array], f"line {counts.line}: " if counts.line else ""
    raise Stop(
        "written first",
        f"{line}{name}[{counts.fault_index}] is read, and nobody has written it yet",
        f"{name} is for results, and begins with whatever lies there. `+=` reads before it writes, "
        "too: collect in a variable, and write once, with `=`.",
    )


def _outside(counts: Counts, arrays: Mapping[str, Tensor]) -> None:
    name, tensor = list(arrays.items())[counts.fault_array]
    did = "written" if counts.fault == 2 else "read"
    size, line = tensor.numel(), f"line {counts.line}: " if counts.line else ""
    raise Stop(
        "stays inside",
        f"{line}{name}[{counts.fault_index}] is {did}; {name} has {size} floats",
        f"The valid places are 0 to {size - 1}. In C++ nothing stops such an access: it reads or "
        "overwrites whatever lies there, or the program crashes. The counting run caught it.",
    )
