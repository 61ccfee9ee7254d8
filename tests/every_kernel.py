"""Launches every kind of CUDA kernel once, for compute-sanitizer, which is too slow for the suite.

compute-sanitizer --tool memcheck --error-exitcode 1 python tests/every_kernel.py

Every op, choice and dtype; whole, broadcast, strided, unaligned and odd-sized tensors; forward and
backward with each form of sum; rows from 1 to many; products large enough for the kernels that
small ones do not reach. Results are held against the reference, so that it also fails by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from contract.cases import ALL, ONE_EACH, Args, Case, leaves, listed, tensor_places, wanting_grad
from contract.rules import readable
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((33, 65), (64, 128))
ROWS = ((3, 1), (5, 8), (2, 2050), (2, 16384), (1, 100_003), (300, 776), (270, 16384))
ROWS += ((270, 777), (9, 50257), (2, 151_936))  # cut across rows; in clusters of sixteen
# x's shape and the width of the layer: the GEMM of sm_90, products of split float32.
PRODUCTS = {
    torch.bfloat16: ((4100, 72), 1032),
    torch.float16: ((8440, 1544), 1024),
    torch.float32: ((2056, 256), 1032),
}


def forms(t: Tensor) -> Iterator[Tensor]:
    """One tensor in several layouts."""
    yield torch.cat([t.flatten()[:1], t.flatten()])[1:].view_as(t)  # starts off a 16-byte boundary
    yield t.mT.contiguous().mT
    yield torch.stack([t, t], dim=-1)[..., 0]


def broadcast(t: Tensor) -> Iterator[Tensor]:
    """What can stand in for the last tensor, with every form of sum in its gradient."""
    yield t
    yield t[:1].clone()
    yield t[:, :1].clone()
    yield t[0, 0].clone()


def with_one(args: Args, place: int, value: object) -> Args:
    return [*args[:place], value, *args[place + 1 :]]


def calls() -> Iterator[tuple[Case, Args]]:
    for case in ALL:
        for dtype in DTYPES:
            for shape in SHAPES:
                yield case, case.args(shape, dtype, "cuda")
    for case in ONE_EACH:
        args = case.args(SHAPES[1], torch.bfloat16, "cuda")
        places = tensor_places(case, args)
        for form in forms(args[places[0]]):
            yield case, with_one(args, places[0], form)
        if case.op.pointwise and len(places) > 1:
            for part in broadcast(torch.randn(SHAPES[1], device="cuda").to(args[places[-1]].dtype)):
                yield case, with_one(args, places[-1], part)
        if case.op.family == "rows":
            for shape in ROWS:
                yield case, case.args(shape, torch.float32, "cuda")
                yield case, case.args(shape, torch.bfloat16, "cuda")
    for case in ALL:
        if case.op.family == "composite" and case.op.arguments[0].shape == "...K":
            for dtype, (shape, width) in PRODUCTS.items():
                yield case, case.args(shape, dtype, "cuda", features=width)


def check(case: Case, args: Args) -> None:
    op = case.op
    given = wanting_grad(case, args) if op.differentiable else args
    outs = listed(op.fused(*given))
    wanted = leaves(given)
    ones = [torch.ones_like(t) for t in outs]
    gradients = torch.autograd.grad(outs, wanted, ones, allow_unused=True) if wanted else ()
    if case.draws:
        assert all(torch.isfinite(t).all() for t in outs)
        return
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.01, torch.int8: 0}
    rtol = tolerance[outs[0].dtype]
    plain = readable(case, args)
    plain = wanting_grad(case, plain) if op.differentiable else plain
    expected = listed(op.reference(*plain))
    for got, want in zip(outs, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=rtol, atol=rtol)
    if wanted:
        right = torch.autograd.grad(expected, leaves(plain), ones, allow_unused=True)
        for got, want in zip(gradients, right, strict=True):
            if want is None:
                continue
            scale = float(want.abs().max()) + 1
            torch.testing.assert_close(got, want, rtol=rtol, atol=10 * rtol * scale)


def main() -> int:
    names = set(sys.argv[1:])  # only these ops
    count = 0
    for case, args in calls():
        if names and case.name not in names:
            continue
        check(case, args)
        count += 1
    torch.cuda.synchronize()
    print(f"{count} calls, forward and backward, all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
