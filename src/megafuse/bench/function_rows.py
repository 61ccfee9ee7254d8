"""`megafuse bench file.py:function`: rows of a function that is no op, against `fuse` of it."""

from __future__ import annotations

import argparse
import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from megafuse.bench import contenders as who
from megafuse.bench import job as jobs
from megafuse.bench import options
from megafuse.bench.api import varies
from megafuse.bench.contenders import Function
from megafuse.bench.job import Job
from megafuse.bench.refusal import Refused
from megafuse.compiler import Fused, arguments

AGAINST = "fuse,compile"


def asked(parsed: argparse.Namespace) -> bool:
    """Whether functions are to be measured, not ops."""
    named = [":" in name for name in parsed.ops]
    if any(named) and not all(named):
        raise Refused("measure ops or functions (file.py:function), not both in one run")
    return any(named)


def rows(parsed: argparse.Namespace, device: str) -> list[Job]:
    """A job for each function, shape, dtype and mode."""
    for option in ("suite", "elements", "features", "counters"):
        if getattr(parsed, option):
            raise Refused(f"--{option} is for ops; a function takes --shape, --dtype and --set")
    if not parsed.shape:
        raise Refused("--shape is needed: 512x768, or 512x768/768 with a shape for each tensor")
    shapes = options.split("shape", parsed.shape)
    dtypes = options.split("dtype", parsed.dtype or "float32")
    modes = options.modes_of(parsed.mode or "forward")
    names = options.split("against", parsed.against or AGAINST)
    made = []
    for spec, shape, dtype, mode in itertools.product(parsed.ops, shapes, dtypes, modes):
        function = who.load(spec)
        plain = function.function if isinstance(function, Fused) else function
        args = _arguments(plain, shape.split("/"), dtype, parsed.set or [], device)
        found = jobs.of_function(plain, args, mode, who.of_function(plain, names))
        found.random = varies(plain, found)
        made.append(found)
    return made


def _arguments(
    function: Function, shapes: Sequence[str], dtype: str, numbers: Sequence[str], device: str
) -> list[Any]:
    """In order, with defaults where a later one is given."""
    try:
        given = arguments.arguments(function, shapes, [dtype], numbers)
    except arguments.Refused as error:
        raise Refused(str(error)) from None
    parameters = list(inspect.signature(function).parameters.values())
    last = max(i for i, p in enumerate(parameters) if p.name in given)
    values = [given.get(p.name, p.default) for p in parameters[: last + 1]]
    return [_drawn(v, device) if isinstance(v, torch.Tensor) else v for v in values]


def _drawn(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Normal numbers; integers and bools are 0 and 1, which any index allows."""
    filled = tensor.normal_() if tensor.is_floating_point() else tensor.random_(0, 2)
    return filled.to(device)
