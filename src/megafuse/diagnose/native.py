"""Calls that PyTorch's dispatcher does not see: a user's C++ function, a data loader, printing.

Python's own profile hook tells when such a call begins and ends; a function that takes tensors and
runs no ATen call of its own is somebody's kernel. Its tensors are found by reading the call in the
source: names and attributes in it are looked up, nothing is called.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import textwrap
import time
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from megafuse.diagnose import frames
from megafuse.diagnose.record import Where

_SHORTEST = 20e-6  # seconds of a call that is worth a line


@dataclass
class Native:
    """One such call. `operations` are the numbers of the ATen calls inside it, from and to."""

    name: str
    kind: str  # "extension", "data loader", "print", "python"
    where: Where
    start: float
    seconds: float = 0.0
    operations: tuple[int, int] = (0, 0)
    inside: float = 0.0  # seconds of the ATen calls in it
    tensors: list[Tensor] = field(default_factory=list)
    function: Any = None  # of an extension, where its tensors are all its arguments

    @property
    def own(self) -> float:
        return max(0.0, self.seconds - self.inside)


class Natives:
    """`with Natives(watch):` notes them while the watch notes operations."""

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self.calls: list[Native] = []
        self._open: list[tuple[Any, Native]] = []

    def __enter__(self) -> Natives:
        self._was = sys.getprofile()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        _profile_again(self._was)

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            kind = _kind(arg)
            if kind and not self._open and frames.is_users(frame.f_code.co_filename):
                found = Native(_name(arg), kind, _where(frame), time.perf_counter())
                if kind == "extension":
                    given = _arguments(frame)
                    found.tensors = [v for v in given if isinstance(v, Tensor)]
                    found.function = arg if len(found.tensors) == len(given) else None
                self._begin(arg, found)
        elif event in ("c_return", "c_exception"):
            self._end(arg)
        elif event == "call" and not self._open:
            loads = _LOADERS.get(frame.f_code.co_name)
            if loads and "torch/utils/data" in frame.f_code.co_filename.replace("\\", "/"):
                begun = Native("DataLoader", loads, _where(frame), time.perf_counter())
                self._begin(frame.f_code, begun)
        elif event == "return":
            self._end(frame.f_code)

    def _begin(self, what: Any, call: Native) -> None:
        call.operations = (len(self._watch.operations), 0)
        self._open.append((what, call))

    def _end(self, what: Any) -> None:
        if not self._open or self._open[-1][0] is not what:
            return
        _, call = self._open.pop()
        call.seconds = time.perf_counter() - call.start
        first, last = call.operations[0], len(self._watch.operations)
        call.operations = (first, last)
        call.inside = sum(op.host_seconds for op in self._watch.operations[first:last])
        if call.own >= _SHORTEST:
            self.calls.append(call)


def _profile_again(was: Any) -> None:
    """What looked on before; cProfile is no function, but can be told to go on."""
    goes_on = getattr(was, "enable", None)
    sys.setprofile(None if goes_on else was)
    if goes_on:
        goes_on()


_LOADERS = {"__next__": "data loader"}


@functools.cache
def _quiet(module: str) -> bool:
    """Whether a module's functions are PyTorch's, or Python's own machinery."""
    first = module.partition(".")[0]
    return first in ("torch", "_thread", "sys", "gc", "_abc", "_weakref", "megafuse", "")


def _kind(function: Any) -> str:
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    if module == "builtins":
        return "print" if name == "print" else ""
    if isinstance(owner, Tensor) or type(owner).__module__.partition(".")[0] == "torch":
        return ""
    if _is_extension(function, module, owner):
        return "extension"
    if module and not _quiet(module):
        return "python"
    return ""


def _is_extension(function: Any, module: str, owner: Any) -> bool:
    """pybind11's functions are methods of a capsule or of a record of its own."""
    kind = type(owner).__name__
    if kind == "PyCapsule" or "pybind11" in kind:
        return not _quiet(module)
    return False


def _name(function: Any) -> str:
    module = getattr(function, "__module__", "") or ""
    return f"{module.rpartition('.')[2]}.{function.__name__}".strip(".")


def _where(frame: FrameType | None) -> Where:
    return frames.where(frame)


# ---- a call's tensors


def _arguments(frame: FrameType) -> list[Any]:
    """The arguments of the call that this frame is at; None for those that are not looked up."""
    call = _call(frame.f_code, frame.f_lasti, frame.f_lineno)
    if call is None:
        return []
    return [_value(a, frame) for a in (*call.args, *(k.value for k in call.keywords))]


@functools.lru_cache(maxsize=256)
def _call(code: CodeType, at: int, line: int) -> ast.Call | None:
    text = _text(code, at, line)
    try:
        tree = ast.parse(textwrap.dedent(text).strip())
    except SyntaxError:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return calls[0] if calls else None


def _text(code: CodeType, at: int, line: int) -> str:
    """The source of the call, from where the compiler says it stands; of 3.10 the whole line."""
    places = getattr(code, "co_positions", None)
    if places is not None:
        first, last, begin, end = list(places())[at // 2]
        if None not in (first, last, begin, end):
            lines = [linecache.getline(code.co_filename, n) for n in range(first, last + 1)]
            if lines:
                encoded = [text.encode() for text in lines]
                encoded[-1] = encoded[-1][:end]
                encoded[0] = encoded[0][begin:]
                return b"".join(encoded).decode(errors="replace")
    text = linecache.getline(code.co_filename, line).strip()
    return text.removeprefix("return ").rpartition(" = ")[2]


def _value(node: ast.expr, frame: FrameType) -> Any:
    """What a name or an attribute is, by looking it up; None for all that would have to be run."""
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if owner is None:
            return None
        for names in (getattr(owner, "__dict__", {}), getattr(owner, "_parameters", {}),
                      getattr(owner, "_buffers", {})):  # fmt: skip
            if node.attr in names:
                return names[node.attr]
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        harmless = ("contiguous", "t", "detach", "float", "cuda", "cpu")
        return _value(node.func.value, frame) if node.func.attr in harmless else None
    return None
