"""Where in the user's source an operation comes from: file, line, text, and the variable's name."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any

import torch

from megafuse.graph.ir import Origin

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_NOT_THE_USERS = (
    os.path.dirname(torch.__file__) + os.sep,
    # Of ours, those who trace: an op's reference and the functions of a suite are fused, too.
    *(os.path.join(_PACKAGE, folder, "") for folder in ("graph", "compiler", "runtime")),
    "<frozen",
    "<string>",  # the one-line function that fx makes
)
_LINE = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+)(?P<backward>, in backward)?')


def is_users(frame: FrameType) -> bool:
    """Whether the frame runs code that is neither torch's nor the tracer's."""
    return not frame.f_code.co_filename.startswith(_NOT_THE_USERS)


def here() -> Origin:
    """The innermost line of the user's that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    return Origin() if frame is None else _origin(frame.f_code.co_filename, frame.f_lineno)


def of_error(traceback: TracebackType | None) -> Origin:
    """The innermost line of the user's that an exception went through."""
    found = Origin()
    while traceback is not None:
        if is_users(traceback.tb_frame):
            found = _origin(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def written(origin: Origin, backward: bool = False) -> str:
    """As a line of a stack trace: what fx nodes carry, and `parsed` reads."""
    return f'File "{origin.file}", line {origin.line}{", in backward" * backward}\n'


def parsed(stack_trace: str | None) -> Origin:
    """The last line that a node's stack trace names."""
    found = list(_LINE.finditer(stack_trace or ""))
    if not found:
        return Origin()
    origin = _origin(found[-1]["file"], int(found[-1]["line"]))
    # A gradient is of the line's, but not what the line assigns.
    return replace(origin, name=None) if found[-1]["backward"] else origin


def _origin(file: str, line: int) -> Origin:
    text = linecache.getline(file, line).strip()
    return Origin(_targets(file).get(line), file, line, text or None)


@functools.lru_cache(maxsize=64)
def _targets(file: str) -> dict[int, str]:
    """Which variable each line assigns to, where it is exactly one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    names: dict[int, str] = {}
    for node in _statements(tree):
        target = _target(node)
        if isinstance(target, ast.Name):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                names[line] = target.id
    return names


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All of a file, without what they are made of."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _statements(child)


def _target(node: ast.stmt) -> ast.expr | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return node.targets[0]
    return node.target if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else None


def of_function(function: Any) -> Origin:
    """Its first line, where it has a source."""
    code = getattr(function, "__code__", None)
    return Origin() if code is None else _origin(code.co_filename, code.co_firstlineno)
