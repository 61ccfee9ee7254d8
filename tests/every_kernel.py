"""Launches every kind of CUDA kernel once, for compute-sanitizer, which is too slow for the suite.

compute-sanitizer --tool memcheck --error-exitcode 1 python tests/every_kernel.py

Every op, choice and dtype; whole, broadcast, strided, unaligned and odd-sized tensors; forward and
backward with each form of sum. Results are held against the reference, so that it also fails by
itself.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

import megafuse as mf
from megafuse.registry import Op
from megafuse.registry.sample import Draw

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def forms(t: Tensor) -> Iterator[Tensor]:
    """One tensor of 2 dimensions in several layouts."""
    yield t
    yield torch.cat([t.flatten()[:1], t.flatten()])[1:].view_as(t)  # starts off a 16-byte boundary
    yield t.t().contiguous().t()
    yield torch.stack([t, t], dim=-1)[..., 0]


def broadcast(t: Tensor) -> Iterator[Tensor]:
    """What can stand in for the last tensor, with every form of sum in its gradient."""
    yield t
    yield t[:1].clone()
    yield t[:, :1].clone()
    yield t[0, 0].clone()


def calls(op: Op) -> Iterator[tuple[object, ...]]:
    choices = [list(v) for v in op.functors.choices.values()]
    for dtype, shape in itertools.product(DTYPES, ((33, 65), (64, 128))):
        args = list(op.sample(Draw(shape, dtype, "cuda")))
        tensors = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        for picked in itertools.product(*choices):
            named = dict(zip(op.functors.choices, picked, strict=True))
            for i, argument in enumerate(op.arguments):
                if argument.name in named:
                    value = named[argument.name]
                    args[i] = value == "True" if argument.kind == "flag" else value
            yield tuple(args)
        for form in forms(args[tensors[0]]):
            yield (*args[: tensors[0]], form, *args[tensors[0] + 1 :])
        if len(tensors) > 1:
            last = tensors[-1]
            whole = torch.randn(shape, device="cuda").to(args[last].dtype)
            for part in broadcast(whole):
                yield (*args[:last], part, *args[last + 1 :])


def check(op: Op, args: tuple[object, ...]) -> None:
    wants = op.differentiable
    given = [
        a.detach().requires_grad_(wants and a.is_floating_point()) if isinstance(a, Tensor) else a
        for a in args
    ]
    out = op.fused(*given)
    gradients = ()
    leaves = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
    if leaves:
        gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
    if op.random:
        assert torch.isfinite(out).all()
        return
    wanted = op.reference(*given)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.01, torch.int8: 0}
    rtol = tolerance[out.dtype]
    torch.testing.assert_close(out, wanted, rtol=rtol, atol=rtol)
    if leaves:
        expected = torch.autograd.grad(wanted, leaves, torch.ones_like(out))
        for got, want in zip(gradients, expected, strict=True):
            scale = float(want.abs().max()) + 1
            torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * scale)


def main() -> int:
    count = 0
    for op in mf.OPS.values():
        for args in calls(op):
            check(op, args)
            count += 1
    torch.cuda.synchronize()
    print(f"{count} calls, forward and backward, all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
