"""Who can be compared: eager, torch.compile, fused, and other people's kernels.

A contender makes a function from the thing that is measured. It is found by name
(`--against eager,compile,liger`), by `module:function`, or is any callable with the same
arguments.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from megafuse.bench.refusal import unknown
from megafuse.compiler import fuse
from megafuse.registry import Op, activate
from megafuse.runtime import build

Function = Callable[..., Any]
_BUILT_IN = ("eager", "compile", "compile-max", "compile-graphs", "fuse")


@dataclass(frozen=True)
class Contender:
    """A way to compute what the reference does."""

    name: str
    about: str
    make: Callable[[], Function]
    replays_graph: bool = False  # runs a CUDA graph of its own, and reuses its output's memory


class Unknown(ValueError):
    """There is no such contender."""


def of_op(op: Op, device: str, names: Sequence[str | Function]) -> list[Contender]:
    """The fused op first, then the named ones."""
    found = [fused(op, device), *(_named(n, op.reference, op.name) for n in names)]
    return _told_apart(found, taken=("copy", "bare"))  # the yardsticks beside them


def of_function(function: Function, others: Sequence[str | Function]) -> list[Contender]:
    """A function of the user's, against others: by default against itself, fused and compiled."""
    subject = Contender(_function_name(function), "the function as it is", lambda: function)
    return _told_apart([subject, *(_named(n, function, None) for n in others)])


def fused(op: Op, device: str) -> Contender:
    if activate() and build.available(device):
        layer = "megafuse, its kernels around the library's matrix products"
        about = layer if op.family == "composite" else "megafuse, one kernel"
        return Contender("fused", about, lambda: op.fused)
    about = "megafuse without a compiler: the PyTorch reference, labelled as what it is"
    return Contender("reference", about, lambda: op.fused)


def _named(wanted: str | Function, reference: Function, op: str | None) -> Contender:
    if not isinstance(wanted, str):
        if not callable(wanted):
            raise TypeError(f"a contender is a name or a function, not {wanted!r}")
        return Contender(_function_name(wanted), "a function of yours", lambda: wanted)
    if wanted == "eager":
        return Contender("eager", "PyTorch, one operation after the other", lambda: reference)
    if wanted == "fuse":
        return Contender("fuse", "megafuse.fuse of the same function", lambda: fuse(reference))
    if wanted == "compile":
        return Contender("compile", "torch.compile", lambda: compiled(reference))
    if wanted == "compile-max":
        about = "torch.compile, mode max-autotune-no-cudagraphs: its kernels are tuned"
        make = functools.partial(compiled, reference, mode="max-autotune-no-cudagraphs")
        return Contender("compile-max", about, make)
    if wanted == "compile-graphs":
        about = "torch.compile, mode max-autotune: copies its arguments, replays a CUDA graph"
        make = functools.partial(compiled, reference, mode="max-autotune")
        return Contender("compile-graphs", about, make, replays_graph=torch.cuda.is_available())
    if wanted in OTHERS:
        return OTHERS[wanted](op)
    if ":" in wanted:
        function = load(wanted)
        return Contender(wanted.rpartition(":")[2], wanted, lambda: function)
    said = unknown("contender", wanted, (*_BUILT_IN, *OTHERS))
    raise Unknown(f"{said}, and module:function")


def compiled(function: Function, mode: str | None = None, dynamic: bool = False) -> Function:
    """`torch.compile` of a copy of the function, for one shape or with dynamic ones.

    Dynamo keeps what it compiled with the code object: of one that is compiled for many shapes,
    each call would search all of them, and after 8 it would quietly run eagerly.
    """
    plain = function if isinstance(function, types.FunctionType) else _call_of(function)
    copy = types.FunctionType(
        plain.__code__.replace(),
        plain.__globals__,
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    if mode is not None:
        _tune_quietly()
    made: Function = torch.compile(copy, dynamic=dynamic, mode=mode)
    return _Compiled(function, made) if isinstance(function, nn.Module) else made


def _tune_quietly() -> None:
    """Else Inductor prints a table of candidates for every matrix product, over ours."""
    with contextlib.suppress(ImportError):
        from torch._inductor import select_algorithm

        select_algorithm.PRINT_AUTOTUNE = False


def _call_of(function: Function) -> types.FunctionType:
    """A module, say, as a function whose code can be copied."""

    def call(*args: Any) -> Any:
        return function(*args)

    assert isinstance(call, types.FunctionType)
    return call


class _Compiled(nn.Module):
    """A compiled module: still one, so that its parameters are found."""

    def __init__(self, module: nn.Module, call: Function) -> None:
        super().__init__()
        self.module = module
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


def load(spec: str) -> Function:
    """The function that "package.module:function" or "file.py:function" names."""
    where, _, name = spec.rpartition(":")
    try:
        module = _run(where) if where.endswith(".py") else importlib.import_module(where)
        function = functools.reduce(getattr, name.split("."), module)
    except Exception as error:  # running a file of the user's can fail in any way
        raise Unknown(f"{spec}: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise Unknown(f"{spec} is a {type(function).__name__}, not a function")
    made: Function = function
    return made


def _run(file: str) -> types.ModuleType:
    found = importlib.util.spec_from_file_location(f"megafuse contender {file}", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses, among others, look for their module there
    found.loader.exec_module(module)
    return module


def _told_apart(found: Sequence[Contender], taken: Sequence[str] = ()) -> list[Contender]:
    """The second of a name becomes name-2: names are what samples are kept by."""
    seen = set(taken)
    apart = []
    for each in found:
        names = (each.name, *(f"{each.name}-{n}" for n in range(2, len(found) + 2)))
        name = next(n for n in names if n not in seen)
        seen.add(name)
        apart.append(replace(each, name=name))
    return apart


def _function_name(function: Function) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# ---- other people's kernels, when installed


def _liger(op: str | None) -> Contender:
    """Liger-Kernel's Triton kernels, for the ops that it has."""
    if importlib.util.find_spec("liger_kernel") is None:
        raise Unknown("liger: not installed (pip install liger-kernel)")
    if op not in _LIGER:
        raise Unknown(f"liger: has nothing like {op}; it has {', '.join(_LIGER)}")
    return Contender("liger", f"Liger-Kernel, {_LIGER[op]}", lambda: load(_LIGER[op]))


_LIGER = {
    # SwiGLU's pointwise part: silu(gate) * up.
    "swiglu": "liger_kernel.ops.swiglu:LigerSiLUMulFunction.apply",
    # The same arguments in the same order, so far as they are given.
    "layer_norm": "liger_kernel.ops.layer_norm:LigerLayerNormFunction.apply",
    "rms_norm": "liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply",
}
OTHERS: dict[str, Callable[[str | None], Contender]] = {"liger": _liger}


def installed_others(op: str) -> list[str]:
    """Names of the other people's kernels that are installed and have this op."""
    found = []
    for name, make in OTHERS.items():
        try:
            make(op)
        except Unknown:
            continue
        found.append(name)
    return found
