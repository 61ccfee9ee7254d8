"""The rows that the options of `megafuse bench` ask for."""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from megafuse.bench import op_job
from megafuse.bench.contenders import installed_others
from megafuse.bench.job import Mode
from megafuse.bench.refusal import Refused, unknown, unknown_ops
from megafuse.bench.result import Choice
from megafuse.bench.spec import Spec, default_against, modes, rank_of, shape_of
from megafuse.bench.suites import FUSE, MODELS, SUITES, by_mode
from megafuse.ops import OPS
from megafuse.registry import Op
from megafuse.registry.arguments import Argument
from megafuse.registry.sample import Draw

_SIZE = re.compile(r"(\d+)(Ki|Mi|Gi|K|M|G)?")
_MOST = 1 << 60
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_MODES: dict[str, Mode] = {
    "forward": "forward",
    "grad": "forward, grad",
    "backward": "forward+backward",
}
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_YES_NO = {"yes": True, "true": True, "no": False, "false": False}
# Options that say which rows to measure.
DESCRIBING = ("dtype", "shape", "elements", "features", "set", "mode")

Choices = tuple[tuple[str, Choice], ...]


def specs(parsed: argparse.Namespace, device: str) -> list[Spec]:
    """A suite's rows, or those that the other options describe; all forward ones first."""
    unknown_ops(parsed.ops)
    name, described = suite(parsed), _described(parsed)
    if not name:
        return by_mode(_own_rows(parsed, device))
    if name not in SUITES:
        raise Refused(unknown("suite", name, (*SUITES, FUSE, MODELS)))
    if described:
        raise Refused(f"a suite fixes its rows: leave out --{described[0]}, or --suite")
    found = [s for s in SUITES[name](device) if not parsed.ops or s.op in parsed.ops]
    if not found:
        raise Refused(f"the suite {name} has no rows of {', '.join(parsed.ops)}")
    if parsed.against:
        found = [replace(s, against=tuple(split("against", parsed.against))) for s in found]
    return by_mode(found)


def suite(parsed: argparse.Namespace) -> str:
    """Its name; "" where rows are described instead."""
    return parsed.suite or ("" if parsed.ops or _described(parsed) else "quick")


def device(wanted: str | None) -> str:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Refused("torch sees no CUDA device here; `megafuse doctor` says why")
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


def typed(parsed: argparse.Namespace) -> list[str]:
    """The options again, so that the file says how it was made; not where it was written."""
    words = ["bench", *parsed.ops]
    for name in ("suite", "device", *DESCRIBING, "against", "budget", "visits", "seconds"):
        given = getattr(parsed, name)
        for value in given if isinstance(given, list) else [given]:
            words += [] if value is None else [f"--{name}", str(value)]
    flags = ("counters", "measure_roofs")
    return words + [f"--{name.replace('_', '-')}" for name in flags if getattr(parsed, name)]


def _described(parsed: argparse.Namespace) -> list[str]:
    return [name for name in DESCRIBING if getattr(parsed, name) is not None]


# ---- rows that the user describes


def _own_rows(parsed: argparse.Namespace, device: str) -> Iterator[Spec]:
    if parsed.shape and parsed.elements:
        raise Refused("give --shape or --elements, not both")
    wanted = modes_of(parsed.mode or "forward")
    dtypes = _dtypes(parsed.dtype or "float32")
    for name in parsed.ops or list(OPS):
        op = OPS[name]
        having = modes(op, wanted)
        if not having:
            raise Refused(f"{name} has no gradient: only --mode forward can be measured")
        against = (*default_against(device), *installed_others(name))
        if parsed.against:
            against = tuple(split("against", parsed.against))
        sizes = itertools.product(_shapes(parsed, op), _features(parsed), _choices(parsed, op))
        for mode, dtype, size in itertools.product(having, dtypes, sizes):
            shape, features, choices = size
            _must_fit(op, shape, features, dict(choices))
            yield Spec(name, mode, dtype, shape, against, features, choices)


def _must_fit(
    op: Op, shape: tuple[int, ...], features: int | None, choices: dict[str, Choice]
) -> None:
    """Refuses what the op would refuse, before anything is measured."""
    rank = rank_of(op)
    said = "x".join(map(str, shape))
    if rank is not None and len(shape) != rank:
        letters = "x".join(op.arguments[0].shape)
        raise Refused(f"--shape {said}: {op.name} takes {rank} sizes, {letters}")
    imagined = Draw(shape, device="meta", features=features)
    try:
        op.check(*op_job.sample(op, imagined, choices))
    except (TypeError, ValueError) as error:
        raise Refused(f"{op.name}, --shape {said}: {error}") from None
    if features is not None:
        other = op_job.sample(op, replace(imagined, features=features + 1), choices)
        if _sizes(other) == _sizes(op_job.sample(op, imagined, choices)):
            raise Refused(f"--features {features}: {op.name} has no layer to be so wide")


def _sizes(args: Sequence[object]) -> list[object]:
    return [getattr(a, "shape", None) for a in args]


# ---- one option each


def _shapes(parsed: argparse.Namespace, op: Op) -> list[tuple[int, ...]]:
    if parsed.shape:
        told = split("shape", parsed.shape)
        if len(told) > 1 and all(text.isdecimal() for text in told):
            raise Refused(
                f"--shape {parsed.shape}: one shape has x between its sizes, {'x'.join(told)}; "
                f"several of one dimension are --elements {','.join(told)}"
            )
        return [_shape(text) for text in told]
    told = split("elements", parsed.elements or "1Mi")
    return [shape_of(_elements(text), op) for text in told]


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split("x"))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise Refused(f"--shape {text}: expected sizes with x between them, such as 4096x1024")
    if math.prod(sizes) > _MOST:
        raise Refused(f"--shape {text}: more elements than can be counted")
    return sizes


def _elements(text: str) -> int:
    told = _SIZE.fullmatch(text)
    if told is None or int(told[1]) < 1:
        raise Refused(f"--elements {text}: expected a number, K, M, Ki or Mi after it if you like")
    elements = int(told[1]) * _UNITS[told[2] or ""]
    if elements > _MOST:
        raise Refused(f"--elements {text}: more than can be counted")
    return elements


def _features(parsed: argparse.Namespace) -> list[int | None]:
    if parsed.features is None:
        return [None]
    told = split("features", parsed.features)
    for text in told:
        if not text.isdecimal() or not 1 <= int(text) <= _MOST:
            raise Refused(f"--features {text}: expected a layer's width, such as 3072")
    return [int(text) for text in told]


def _choices(parsed: argparse.Namespace, op: Op) -> list[Choices]:
    """Every combination of the values that --set gives to each argument."""
    arguments = {a.name: a for a in op.arguments}
    values: dict[str, list[tuple[str, Choice]]] = {}
    for text in parsed.set or ():
        name, sign, told = text.partition("=")
        if not sign:
            raise Refused(f"--set {text}: expected an argument and its value, such as p=0.1")
        if name not in arguments:
            said = unknown(f"argument of {op.name}", name, arguments)
            raise Refused(f"--set {text}: {said}")
        values[name] = [(name, _value(text, arguments[name], v)) for v in split("set", told)]
    return list(itertools.product(*values.values()))


def _value(text: str, argument: Argument, told: str) -> Choice:
    """As the argument's kind has it: a word, a number, or yes and no."""
    if argument.choices:
        if told not in argument.choices:
            raise Refused(f"--set {text}: expected one of {', '.join(argument.choices)}")
        return told
    if argument.kind == "flag" or (argument.is_tensor and argument.optional):
        if told.lower() not in _YES_NO:
            raise Refused(f"--set {text}: expected yes or no")
        return _YES_NO[told.lower()]
    if argument.is_tensor:
        raise Refused(f"--set {text}: {argument.name} is a tensor, which the op draws itself")
    try:
        return int(told) if argument.kind == "integer" else float(told)
    except ValueError:
        kind = "a whole number" if argument.kind == "integer" else "a number"
        raise Refused(f"--set {text}: expected {kind}") from None


def _dtypes(text: str) -> list[torch.dtype]:
    for name in split("dtype", text):
        if name not in _DTYPES:
            raise Refused(f"--dtype {name}: expected one of {', '.join(_DTYPES)}")
    return [getattr(torch, name) for name in split("dtype", text)]


def modes_of(text: str) -> list[Mode]:
    """What --mode names."""
    if text == "all":
        return list(_MODES.values())
    for name in split("mode", text):
        if name not in _MODES:
            raise Refused(f"--mode {name}: expected one of {', '.join(_MODES)}, all")
    return [_MODES[name] for name in split("mode", text)]


def split(option: str, text: str) -> list[str]:
    """a,b,… as a list."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise Refused(f"--{option} {text}: nothing is named")
    return parts
