"""out = scale · x with 16-byte loads and stores, for any n."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Look, Size, Task
from megafuse.learn.exercises.emulator.faults import Kind
from megafuse.learn.exercises.emulator.run import Counted
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_SCALE = 1.7


def _make(size: Size, device: str) -> Arrays:
    (n,) = size
    return {"x": cuda.random(n, device=device), "out": cuda.empty(n, device=device)}


def _exact(arrays: Arrays) -> Arrays:
    # The kernel's 1.7 is a float32.
    return {"out": arrays["x"].double() * float(torch.tensor(_SCALE, dtype=torch.float32))}


_FOURS = (
    "Thread i takes floats 4 i to 4 i + 3: as float4, element i. Each is multiplied, all four of "
    "them. nan: never written."
)
_END = (
    "4,099 floats are 1,024 times four and three more. A float4 that begins at 4,096 would reach "
    "over the end; those three are taken one by one, after or beside the wide ones, by threads "
    "that have the time."
)
_ALIGNED = (
    "As float4*, x[i] is the i-th group of four already: x + 4 i floats. Adding the offset in "
    "floats and then reading four begins in the middle of a group."
)
_HALF = (
    "The {0} take 16 bytes at a time, the {1} 4: reinterpret_cast<float4*>(out)[i] = v is one "
    "store, as reinterpret_cast<const float4*>(x)[i] is one load."
)
_NARROW = (
    "Right, and four times the instructions that are needed: each thread loads and stores 4 "
    "bytes. A float4 is 16 bytes with one instruction: `reinterpret_cast<const float4*>(x)[i]`. "
    "Fewer instructions, and more bytes under way for each."
)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x = arrays["x"].double()
    right = _exact(arrays)["out"]
    whole = len(x) // 4 * 4
    yield "out", "Nothing is multiplied: out is x as it was.", x
    yield "out", "The end was not multiplied.", torch.cat([right[:whole], x[whole:]])
    group = torch.arange(len(x), device=x.device) % 4
    for k, name in enumerate("xyzw"):
        alone = torch.where(group == k, right, x)
        alone[whole:] = right[whole:]
        yield "out", f"Only v.{name} is multiplied: all four of them must be.", alone
    for k, name in enumerate("xyzw"):
        wrong = right.clone()
        wrong[k : len(x) // 4 * 4 : 4] = x[k : len(x) // 4 * 4 : 4]
        yield (
            "out",
            f"v.{name} is not multiplied: every fourth float went through as it was.",
            wrong,
        )


def _requests(counted: Counted, size: Size) -> Finding:
    """Loads and stores are told apart: one of the two may be wide already."""
    wide = {request.writes for request in counted.requests if request.width == 4}
    says = _NARROW
    if len(wide) == 1:
        says = _HALF.format("stores", "loads") if True in wide else _HALF.format("loads", "stores")
    goal = cuda.instructions(lambda size: 2 * cuda.blocks(size[0], 128) + 4, says)
    return goal(counted, size)


TASK = Task(
    kernel=Kernel("scale", "IOfi"),
    launch=lambda size: Launch((cuda.blocks(size[0], 4 * 128),), (128,), size, (_SCALE,)),
    make=_make,
    exact=_exact,
    cases=(
        Case("4,096", (4096,), _FOURS),
        Case("4,099", (4099,), _END),
        Case("3", (3,), _END),
        Case("8,195", (8195,), _END),
    ),
    large=(1 << 24,),
    least=lambda size: 8 * size[0],
    operations=lambda size: size[0],
    limits=(
        _requests,
        cuda.moved(lambda size: 8 * size[0] + 256, "Neighbours side by side."),
    ),
    tolerance=1e-6,
    known=_known,
    looks=(
        Look.without(
            r"blockIdx\.x\s*\*|\*\s*blockIdx\.x",
            "Every block has the same groups: thread i of the grid is blockIdx.x * blockDim.x + "
            "threadIdx.x.",
        ),
        Look.having(
            r"float4\s*\*\s*>?\s*\)?\s*\(?\s*\w+\s*\)?\s*\[\s*4\s*\*",
            "As float4*, [i] is the i-th group of four already: [4 * i] is four times too far.",
        ),
    ),
    means={
        Kind.READ_OUTSIDE: _END,
        Kind.WRITTEN_OUTSIDE: _END,
        Kind.MISALIGNED: _ALIGNED,
        Kind.TWO_WRITERS: (
            "The end begins at float n / 4 * 4, where the whole groups end, and is given to one "
            "thread, or to one thread a float."
        ),
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Multiples of four, ends that are none; requests."""
    return cuda.check(TASK, work)
