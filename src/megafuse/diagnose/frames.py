"""Which line of the user's code is running: the innermost frame neither of torch nor of ours."""

from __future__ import annotations

import functools
import linecache
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import torch

from megafuse.diagnose.record import Where

_OURS = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
_STANDARD = sysconfig.get_paths()["stdlib"]
_PACKAGES = sysconfig.get_paths()["purelib"]


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file holds code that a user can change: no library's machinery."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    if file.startswith((_OURS, _TORCH)):
        return False
    return not file.startswith(_STANDARD) or file.startswith(_PACKAGES)


@functools.cache
def is_installed(file: str) -> bool:
    return file.startswith(_PACKAGES)


def own_line(frame: FrameType | None, until: CodeType) -> Where:
    """The innermost line of the user's that is in no installed package; else of any. None of
    them while PyTorch is running."""
    inner = frame
    while frame is not None and frame.f_code is not until:
        file = frame.f_code.co_filename
        if file.startswith((_TORCH, _OURS)):
            return Where()
        if is_users(file) and not is_installed(file):
            return of(file, frame.f_lineno, _function(frame))
        frame = frame.f_back
    return where(inner, until)


def stack(frame: FrameType | None, until: CodeType | None) -> Iterator[tuple[str, int]]:
    """All lines of the user's that this frame was called from, and its own."""
    while frame is not None and frame.f_code is not until:
        if is_users(frame.f_code.co_filename):
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def where(frame: FrameType | None, until: CodeType | None = None) -> Where:
    """From this frame outwards, up to the one that runs `until`.

    A model made of torch's modules alone has no line of the user's: then it is the line in the
    innermost `forward` of torch's, which at least names the layer.
    """
    layer: FrameType | None = None
    while frame is not None and frame.f_code is not until:
        file = frame.f_code.co_filename
        if is_users(file):
            return of(file, frame.f_lineno, _function(frame))
        if layer is None and frame.f_code.co_name == "forward" and "/nn/modules/" in file:
            layer = frame
        frame = frame.f_back
    if layer is None:
        return Where()
    return of(layer.f_code.co_filename, layer.f_lineno, _function(layer))


@functools.cache
def of(file: str, line: int, function: str = "") -> Where:
    return Where(file, line, function, linecache.getline(file, line).strip())


def _function(frame: FrameType) -> str:
    """Model.forward; of 3.10 only forward."""
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
