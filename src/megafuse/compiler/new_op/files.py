"""The files of a new op, by their place in a checkout."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megafuse.codegen.body import Body
from megafuse.codegen.names import type_name
from megafuse.compiler.new_op.functors import bodies, operations, struct
from megafuse.compiler.new_op.read import Written, read

KERNELS, OPS, TESTS = "src/megafuse/kernels", "src/megafuse/ops", "tests/ops"


def files(name: str, function: Callable[..., Any], checkout: Path) -> dict[str, str]:
    """Path → text: the header, the op and its test. Raises Refused."""
    written = read(function)
    forward, backward = bodies(written)
    functor = _free(type_name(name), checkout / KERNELS)
    return {
        f"{KERNELS}/{name}.h": _header(name, functor, written, forward, backward),
        f"{OPS}/{name}.py": _op(name, functor, written, forward, backward),
        f"{TESTS}/test_{name}.py": _TEST.format(name=name, grads=written.tensors),
    }


def _free(functor: str, kernels: Path) -> str:
    """The functor's type, unless a header has one of that name."""
    taken = {
        found
        for header in kernels.glob("*.h")
        for found in re.findall(r"\bstruct (\w+)", header.read_text(encoding="utf-8"))
    }
    return functor if not taken & {functor, f"{functor}Backward"} else f"{functor}Op"


def _header(name: str, functor: str, written: Written, forward: Body, backward: Body) -> str:
    tensors, numbers = written.tensors, written.numbers
    return f"""// {name}: out = {written.formula}
// Made by `megafuse new` from the PyTorch function, for you to refine.
#pragma once

#include "pointwise.h"
#include "prims.h"

namespace mf {{

{struct(forward, functor, tensors, numbers)}
// {_gradients(tensors)}
{struct(backward, f"{functor}Backward", ["grad", *tensors], numbers)}
}}  // namespace mf
"""


def _gradients(tensors: Sequence[str]) -> str:
    if len(tensors) == 1:
        return f"The gradient of {tensors[0]}."
    return f"Gradients of {', '.join(tensors[:-1])} and {tensors[-1]}."


def _op(name: str, functor: str, written: Written, forward: Body, backward: Body) -> str:
    tensors = written.tensors
    saves = ", ".join(f'"{t}"' for t in tensors) + ("," if len(tensors) == 1 else "")
    grads = ", ".join(f'"{t}": {at}' for at, t in enumerate(tensors))
    drawn = [
        "draw.full()" if p.kind == "Tensor" else p.default or _USUAL[p.kind]
        for p in written.parameters
    ]
    sample = ", ".join(drawn) + ("," if len(drawn) == 1 else "")
    flops = f"({operations(forward)}, {operations(backward)})"
    signature = ", ".join(map(str, written.parameters))
    return f'''"""{name}: {written.formula} in one pass."""

from __future__ import annotations

{_imports(written)}

@op(
    kernel=Pointwise("{functor}<{{F}}>", "{functor}Backward<{{F}}>"),
    autograd=Autograd(saves=({saves}), grads={{{grads}}}),
    flops={flops},
    sample=lambda draw: ({sample}),
)
def {name}({signature}) -> Tensor:
    """{written.formula}"""
{written.body}
'''


_USUAL = {"float": "1.7", "int": "2"}


def _imports(written: Written) -> str:
    """Python's own, then torch's, then ours; constants below."""
    lines = {line for line in written.imports if line.startswith(("import ", "from "))}
    own = sorted(line for line in lines if "torch" not in line)
    lines = {line for line in lines if "torch" in line} | {"from torch import Tensor"}
    torch = sorted(lines, key=lambda line: (not line.startswith("import"), line))
    constants = [line for line in written.imports if " = " in line]
    parts = [own, torch, ["from megafuse.registry import Autograd, Pointwise, op"], constants]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


_TEST = '''"""{name} on its own; tests/contract holds it to what every op must do."""

from __future__ import annotations

import pytest
import torch

import megafuse as mf
from megafuse.registry.sample import Draw

OP = mf.OPS["{name}"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(37, 29), (1,), (0, 4), (3, 1, 129)], ids=str)
def test_it_gives_what_pytorch_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """In float64: in 16 bits eager rounds after each operation, and the kernel once."""
    args = OP.sample(Draw(shape, dtype))
    wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
    exact = OP.reference(*wide).to(dtype)
    torch.testing.assert_close(OP.fused(*args), exact, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES[::3], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    args = OP.sample(Draw((17, 23), dtype, requires_grad=True))
    wanted = [a for a in args if isinstance(a, torch.Tensor)]
    grad = torch.randn(17, 23, dtype=dtype)
    mine, theirs = (
        torch.autograd.grad(f(*args), wanted, grad) for f in (OP.fused, OP.reference)
    )
    torch.testing.assert_close(mine, theirs)


def test_its_benchmark_row() -> None:
    """`megafuse bench {name}` measures it; here it only has to run, and be right."""
    args = OP.sample(Draw((8, 128)))
    (row,) = mf.bench(OP, *args, against="eager", budget=0.001).rows
    assert [entry.error for entry in row.entries] == [None] * len(row.entries)
'''
