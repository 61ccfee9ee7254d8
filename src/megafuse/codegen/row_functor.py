"""Row-wise bodies: not yet."""

from __future__ import annotations

from megafuse.codegen.scope import Scope
from megafuse.codegen.writer import Lines


def write_row_functor(scope: Scope, lines: Lines) -> None:
    raise NotImplementedError
