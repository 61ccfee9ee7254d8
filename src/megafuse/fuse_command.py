"""The command `megafuse fuse file.py:function --shape …`: the kernels that `fuse` would make."""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from megafuse.compiler.arguments import Refused, arguments

if TYPE_CHECKING:
    from megafuse.compiler.compile import Compiled

_EXAMPLES = """\
examples:
  megafuse fuse model.py:gated_norm --shape 4096x1024 --shape 4096x1024 \\
      --shape 1024 --dtype bfloat16       a shape for each tensor, in order
  megafuse fuse model.py:gelu --shape 1024        one shape for all tensors
  megafuse fuse model.py:gelu --shape 1024 --arch sm_90    the CUDA kernel,
      with its registers and instructions; needs no GPU
  megafuse fuse model.py:decay --shape 64 --arg rate=0.5 --backward --explain
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="or package.module:function")
    parser.add_argument(
        "--shape", action="append", help="of all tensors, or again for each in order: 4096x1024"
    )
    parser.add_argument(
        "--dtype", action="append", help="of all tensors (default float32), or again for each"
    )
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument, no tensor"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--arch", help="CUDA kernels for this architecture, such as sm_90")
    where.add_argument("--cpu", action="store_true", help="CPU kernels (default without a GPU)")
    parser.add_argument("--backward", action="store_true", help="also the backward pass")
    parser.add_argument("--explain", action="store_true", help="also what each step moves, and why")


def run(parsed: argparse.Namespace) -> int:
    """Prints the source; status 2 where the options make no sense, 1 where it is not fused."""
    from megafuse.compiler.compile import NotFused, compiled
    from megafuse.compiler.explain import explain
    from megafuse.compiler.fused import Fused
    from megafuse.compiler.source import variant_source
    from megafuse.graph.errors import CaptureError

    try:
        arch = _architecture(parsed)
        function = _function(parsed.function)
        fused = function if isinstance(function, Fused) else Fused(function)
        plain, rounding, dynamic = fused.function, fused.rounding, fused.dynamic
        kwargs = arguments(plain, parsed.shape, parsed.dtype, parsed.arg)
        if parsed.backward:
            kwargs = {name: _with_gradient(value) for name, value in kwargs.items()}
    except Refused as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 2
    device = torch.device("cuda" if arch else "cpu")
    try:
        made = compiled(plain, (), kwargs, rounding, device, dynamic)
    except (NotFused, CaptureError) as error:
        print(f"megafuse: {parsed.function} is not fused: {error}", file=sys.stderr)
        return 1
    name = str(getattr(plain, "__name__", "function"))
    print("\n".join(variant_source(name, made)))
    if parsed.explain:
        print(explain(plain, (), kwargs, rounding, device, dynamic), end="\n\n")
    return _counts(made, kwargs, arch) if arch else 0


# ---- what is asked for


def _architecture(parsed: argparse.Namespace) -> str | None:
    if parsed.arch:
        arch = str(parsed.arch)
        if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
            digits = re.sub(r"\D", "", arch)
            meant = f": did you mean sm_{digits}?" if digits else ", expected sm_90 or the like"
            raise Refused(f"--arch {arch} is no architecture{meant}")
        return arch
    if parsed.cpu or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _function(spec: str) -> Callable[..., Any]:
    from megafuse.bench.contenders import Unknown, load

    where, _, name = spec.rpartition(":")
    if not where:
        raise Refused(f"{spec} names no function: write {spec or 'file.py'}:function")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise Refused(f"there is no file {where}")
        _refuse_unknown(where, name)
    try:
        return load(spec)
    except Unknown as error:
        raise Refused(str(error)) from None


def _refuse_unknown(file: str, name: str) -> None:
    """Before the file is run: what it defines is there to read."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise Refused(f"{file}, line {error.lineno}: {error.msg}") from None
    defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    close = difflib.get_close_matches(name, defined, n=1)
    if close and close[0] != name and not re.search(rf"\b{re.escape(name)}\b", ast.unparse(tree)):
        raise Refused(f"{file} has no function {name!r}: did you mean {close[0]}?")


def _with_gradient(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.requires_grad_() if floating else value


# ---- machine code


def _counts(made: Compiled, kwargs: dict[str, Any], arch: str) -> int:
    """Registers, spills and instructions of each kernel, where there is NVRTC."""
    from megafuse.codegen.names import type_name
    from megafuse.compiler.explain import symbols_of
    from megafuse.compiler.machine_code import compiled_for
    from megafuse.runtime import nvrtc
    from megafuse.runtime.cpp import CompileError

    trouble = nvrtc.problem()
    if trouble is not None:
        print(f"// not compiled for {arch}: {trouble}")
        return 0
    symbols = symbols_of(made, (), kwargs)
    plans = [made.forward[1], *([made.backward[1]] if made.backward else [])]
    for step in (kernel for plan in plans for kernel in plan.kernels):
        try:
            found = compiled_for(step, symbols, arch)
        except CompileError as error:
            print(f"megafuse: {type_name(step.body.name)} for {arch}: {error}", file=sys.stderr)
            return 1
        spilled = f"{found.spilled} bytes spilled" if found.spilled else "nothing spilled"
        print(
            f"// {type_name(step.body.name)} on {arch}: {found.registers} registers, {spilled}, "
            f"{found.instructions} instructions"
        )
    return 0
