"""Runs something once torch.distributed.tensor is imported, which takes a second: not before."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

NAME = "torch.distributed.tensor"


def when_imported(run: Callable[[], None]) -> None:
    """At once where it is there already."""
    if NAME in sys.modules:
        run()
    else:
        sys.meta_path.insert(0, _Finder(run))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module where it is, with a loader that runs the function afterwards."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.run)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, run: Callable[[], None]) -> None:
        self.real, self.run = real, run

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        self.run()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # where its source is, and the like
