"""`mf.bench`: one function against others, on arguments of yours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from megafuse.bench import contenders as who
from megafuse.bench import honesty, op_job
from megafuse.bench import job as jobs
from megafuse.bench.accuracy import leaves
from megafuse.bench.contenders import Function
from megafuse.bench.job import Job, Mode
from megafuse.bench.refusal import unknown
from megafuse.bench.result import Result
from megafuse.bench.row import Effort
from megafuse.bench.run import run
from megafuse.bench.spec import default_against
from megafuse.compiler import Fused
from megafuse.ops import OPS, Op


def bench(
    function: Op | Function | str,
    *args: Any,
    against: Sequence[str | Function] | str | Function | None = None,
    mode: Mode = "forward",
    budget: float = 1.0,
    visits: int = 1,
) -> Result:
    """Times a function, or an op of megafuse, against others on the same arguments.

        mf.bench(mf.gelu_scale, x, 1.7)                       against eager and torch.compile
        mf.bench(mine, x)                                     against mf.fuse and torch.compile
        mf.bench(mine, x, against=["compile", theirs])        yours against others
        print(mf.bench("swiglu", gate, up, mode="forward+backward"))

    `against` holds names ("eager", "compile", "compile-max", "fuse", "liger", "module:function")
    and functions. `mode` is "forward", "forward, grad" (the graph is recorded) or
    "forward+backward". Every contender is first checked against the function itself (an op: its
    PyTorch twin) and float64; one that is wrong gets its error and no time. The arguments are
    copied, never changed.
    """
    if mode not in jobs.MODES:
        raise ValueError(f"mode is {mode!r}, expected one of {', '.join(map(repr, jobs.MODES))}")
    if not budget > 0 or visits < 1:
        raise ValueError(f"budget is {budget}, visits {visits}: expected more than 0 of both")
    if isinstance(against, str) or callable(against):
        against = [against]
    op = _op(function)
    made = _of_op(op, args, against, mode) if op else _of_function(function, args, against, mode)
    return run([made], command="mf.bench", effort=Effort(budget, visits))


def _op(function: Op | Function | str) -> Op | None:
    if isinstance(function, str):
        if function not in OPS:
            raise ValueError(unknown("op", function, OPS))
        return OPS[function]
    if isinstance(function, Op):
        return function
    return next((op for op in OPS.values() if op.fused is function), None)


def _of_op(
    op: Op, args: Sequence[Any], against: Sequence[str | Function] | None, mode: Mode
) -> Job:
    given = list(args) + [a.default for a in op.arguments[len(args) :]]
    op.check(*given)
    device = next(a.device.type for a in given if isinstance(a, torch.Tensor))
    names = list(against) if against is not None else list(default_against(device))
    return op_job.of_op_call(op, given, mode, who.of_op(op, device, names))


def _of_function(
    function: Any, args: Sequence[Any], against: Sequence[str | Function] | None, mode: Mode
) -> Job:
    if not callable(function):
        raise TypeError(f"bench: a {type(function).__name__} is not a function, module or op")
    fusable = not isinstance(function, (torch.nn.Module, Fused))
    names = [*(["fuse"] if fusable else []), "compile"] if against is None else list(against)
    made = jobs.of_function(function, args, mode, who.of_function(function, names))
    made.random = varies(function, made)
    return made


def varies(function: Function, made: Job) -> bool:
    """Whether the same arguments give another result: dropout, say."""
    args = made.draw()
    with torch.no_grad():
        once, twice = (leaves(function(*args)) for _ in range(2))
    return not all(map(honesty.same, once, twice))
