"""The registry's own ops in the emulator: pointwise and row-wise, forward and backward.

Their calls are those of tests/every_kernel.py without layers, which need tensor cores, and with
rows that an emulator gets through.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from contract.cases import ALL, ONE_EACH, Args, Case
from every_kernel import broadcast, check, forms, tensor_places, with_one
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((33, 65), (16, 128))
ROWS = ((3, 1), (5, 8), (2, 2050), (20, 776), (20, 777), (3, 8200), (1, 20_003), (600, 20))


def calls() -> Iterator[tuple[str, Case, Args]]:
    """What is called, in words, and with what."""
    for case in filter(runs_here, ALL):
        yield "every choice", case, case.args(SHAPES[0], DTYPES[0], "cuda")
    for case in filter(runs_here, ONE_EACH):
        for dtype in DTYPES:
            for shape in SHAPES:
                yield f"{dtype} {shape}", case, case.args(shape, dtype, "cuda")
        yield from layouts(case)
        for shape in ROWS if case.op.family == "rows" else ():
            for dtype in DTYPES[:2]:
                yield f"{dtype} {shape}", case, case.args(shape, dtype, "cuda")


def layouts(case: Case) -> Iterator[tuple[str, Case, Args]]:
    args = case.args(SHAPES[1], torch.bfloat16, "cuda")
    places = tensor_places(case, args)
    for i, form in enumerate(forms(args[places[0]])):
        yield f"layout {i}", case, with_one(args, places[0], form)
    if case.op.pointwise and len(places) > 1:
        like: Tensor = args[places[-1]]
        for part in broadcast(torch.randn(SHAPES[1], device="cuda").to(like.dtype)):
            yield f"broadcast {tuple(part.shape)}", case, with_one(args, places[-1], part)


def runs_here(case: Case) -> bool:
    return case.op.family != "composite"


def problems() -> Iterator[tuple[str, str]]:
    """Each call and what is wrong with it, or nothing."""
    for words, case, args in calls():
        problem = ""
        try:
            check(case, args)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        yield f"{case.name} {words}", problem
