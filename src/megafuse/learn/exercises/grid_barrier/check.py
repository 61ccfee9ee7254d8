"""x / sum(x) in one launch: blocks meet at a barrier of the learner."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Look, Size, Task
from megafuse.learn.exercises.emulator.faults import Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_THREADS = 64


def _make(size: Size, device: str) -> Arrays:
    n, blocks = size
    return {
        "x": cuda.random(n, device=device).abs() + 0.1,
        "out": cuda.empty(n, device=device),
        "sums": cuda.empty(blocks, device=device),
        "arrived": torch.zeros(1, dtype=torch.int32, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    x = arrays["x"].double()
    return {"out": x / x.sum()}


_FORMULA = "out[i] = x[i] / the sum of all x, of every block's part."
_BLOCKS = (
    "Blocks do not wait for each other by themselves. The barrier must let nobody through before "
    "every block has counted itself: thread 0 of each block adds 1 to `arrived`, once, after the "
    "whole block has come (a __syncthreads() before it) and after a __threadfence(), so that what "
    "the block wrote is there before its mark; then it looks until `arrived` has reached "
    "gridDim.x; and the other threads of its block wait for thread 0 at a second __syncthreads()."
)
_PLAIN = (
    "If the counter itself is what the race is about: it must be looked at with "
    "atomicAdd(arrived, 0) or through a volatile pointer. A compiler may read a plain variable "
    "once, keep it in a register, and look at that for ever."
)
_GOAL = "The goal is gridDim.x arrivals, one for each block: thread 0 counts, the others do not."
_OUTSIDE = "Both __syncthreads() are for all threads: they stand outside of the if."


def _body(source: str) -> str:
    """Of the function grid_barrier."""
    begun = re.search(r"grid_barrier\(\s*Counter[^)]*\)\s*\{", source)
    return re.split(r"\n\}", source[begun.end() :])[0] if begun else ""


_LOOKS = (
    Look(lambda source: not _body(source).strip(), "The function grid_barrier is still empty."),
    Look.without(
        r"__threadfence\s*\(",
        "There is no __threadfence(): the mark may arrive before what the block wrote.",
    ),
    Look(
        lambda source: re.search(r"\bif\b", _body(source)) is None,
        "There is no `if` in grid_barrier: every thread of a block adds to the counter, and one "
        "block counts as 64.",
    ),
    Look(
        lambda source: re.search(r"\bwhile\b|\bfor\b", _body(source)) is None,
        "Nobody waits in grid_barrier: looking once is not enough, it takes a loop.",
    ),
    Look.having(
        r"\*\s*arrived\s*(?:\+=|=\s*\*\s*arrived\s*\+)|\+\+\s*\*\s*arrived|\(\s*\*\s*arrived\s*\)\s*\+\+"
        r"|arrived\s*\[\s*0\s*\]\s*(?:\+\+|\+=)",
        "The counter is changed by a read and a write, and what another block counted in between "
        "is lost: atomicAdd(arrived, 1u) does it in one step.",
    ),
    Look(
        lambda source: re.search(r"atomic\w+\s*\(\s*arrived\s*,\s*1", _body(source)) is None,
        "Nobody is counted: no thread adds 1 to `arrived`.",
    ),
    Look.having(
        r"while\s*\([^;{]*atomicAdd\(\s*arrived\s*,\s*1",
        "The loop counts: each look adds 1, and a block that looks twice counts as two.",
    ),
    Look.having(
        r"atomicAdd\(\s*arrived\s*,\s*1u?\s*\)\s*;[^}]*__threadfence\s*\(",
        "The fence comes after the count: the mark may arrive before what the block wrote.",
    ),
    Look.having(
        r"while\s*\([^;{]*[<!]=?\s*blockDim",
        "It waits for blockDim.x arrivals, the threads of a block: the goal is gridDim.x.",
    ),
    Look.having(
        r"while\s*\([^;{]*gridDim\.x\s*\*\s*blockDim",
        "It waits for an arrival of every thread: thread 0 alone counts, once a block.",
    ),
    Look.having(
        r"while\s*\([^;{]*(?:>=?|==)\s*gridDim",
        "The loop goes on while all have come: it goes on while arrived is below gridDim.x.",
    ),
    Look.having(
        r"if\s*\(\s*blockIdx\.x\s*==\s*0",
        "blockIdx.x == 0 picks a block, and the others neither count nor wait: it is one thread of "
        "each block, threadIdx.x == 0.",
    ),
    Look.having(
        r"if\s*\(\s*threadIdx\.x\s*%\s*32\s*==\s*0",
        "One thread of each warp counts: a block of two warps counts as two.",
    ),
    Look.having(
        r"\*\s*arrived\s*=\s*0|arrived\s*\[\s*0\s*\]\s*=\s*0",
        "The counter is set back to 0 while other blocks still look at it, and they wait for ever.",
    ),
    Look.having(
        r"while\s*\([^;{]*<=\s*gridDim",
        "It waits while there are gridDim.x arrivals or fewer: one more than there are blocks.",
    ),
    Look.having(
        r"while\s*\([^;{]*<\s*gridDim\.x\s*-\s*1",
        "It waits for gridDim.x - 1 arrivals: one block too few.",
    ),
    Look.having(
        r"while\s*\(\s*\*\s*arrived",
        "The loop looks at *arrived, a plain variable.",
    ),
    Look(
        lambda source: _body(source).count("__syncthreads") < 2,
        "There are not two __syncthreads() in grid_barrier: one before thread 0 counts, one after "
        "it has seen all the others.",
    ),
)

TASK = Task(
    kernel=Kernel("normalise", "IOOCi"),
    launch=lambda size: Launch((size[1],), (_THREADS,), size[:1], at_once=size[1]),
    make=_make,
    exact=_exact,
    cases=(
        Case("one block", (100, 1), _FORMULA),
        Case("two blocks", (300, 2), _FORMULA + " " + _BLOCKS),
        Case("four blocks", (1000, 4), _FORMULA + " " + _BLOCKS),
    ),
    large=(1 << 18, 64),
    least=lambda size: 8 * size[0],
    operations=lambda size: 2 * size[0],
    limits=(
        cuda.moved(
            lambda size: 12 * size[0] + 8 * size[1] * 32 * 8,
            "x is read once for the sum and once for the quotient; everything else is small.",
        ),
    ),
    looks=_LOOKS,
    means={
        Kind.RACE: _BLOCKS + " " + _PLAIN,
        Kind.DEADLOCK: _GOAL,
        Kind.BARRIER_MISSED: _OUTSIDE,
        Kind.BARRIERS_MIXED: _OUTSIDE,
        Kind.NEVER_WRITTEN: "Within the block a __syncthreads() is missing.",
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Two blocks, four; several meetings in one launch."""
    return cuda.check(TASK, work)
