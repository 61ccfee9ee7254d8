"""Shapes, broadcasting patterns, strides and dtypes that nobody thought of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from selection import often
from torch import Tensor

from contract.cases import ONE_EACH, Case, pointwise, shaped
from contract.rules import check_gradients, check_value
from contract.views import VIEWS

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

# Layers in 16 bits wait for eager's own products: a minute on a CPU without the instructions.
pytestmark = pytest.mark.slow

DTYPES = [torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64]
SIZES = st.one_of(st.integers(0, 9), st.sampled_from([1, 16, 17, 64, 130]))
MOST = 1 << 19  # elements: four dimensions of 130 would not fit into memory


@dataclass(frozen=True)
class View:
    """How one tensor lies in memory, relative to the output's shape."""

    broadcast: tuple[bool, ...]  # per dimension
    drop: int  # leading dimensions left out, where they are broadcast
    order: tuple[int, ...]  # of the dimensions in memory, outermost first
    steps: tuple[int, ...]  # elements skipped along each dimension
    offset: int
    dtype: torch.dtype

    def make(self, shape: tuple[int, ...], integer: bool, device: str) -> Tensor:
        sizes = [1 if b else n for n, b in zip(shape, self.broadcast, strict=True)]
        room = [n * s for n, s in zip(sizes, self.steps, strict=True)]
        memory = [room[d] for d in self.order]
        total = self.offset + int(torch.Size(memory).numel())
        data = torch.randint(-128, 128, (total,)) if integer else torch.randn(total) / 2
        flat = data.to(device, torch.int8 if integer else self.dtype)[self.offset :]
        back = [self.order.index(d) for d in range(len(shape))]
        view = flat.view(memory).permute(back) if memory else flat.view(())
        view = view[tuple(slice(None, None, s) for s in self.steps)]
        lead = 0
        while lead < self.drop and lead < len(shape) and self.broadcast[lead]:
            view, lead = view[0], lead + 1
        return view


@st.composite
def views(draw: st.DrawFn, dims: int, dtypes: st.SearchStrategy[torch.dtype]) -> View:
    return View(
        broadcast=tuple(
            draw(st.lists(st.sampled_from([False, False, True]), min_size=dims, max_size=dims))
        ),
        drop=draw(st.integers(0, dims)),
        order=tuple(draw(st.permutations(range(dims))))
        if draw(st.booleans())
        else tuple(range(dims)),
        steps=tuple(draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=dims, max_size=dims))),
        offset=draw(st.sampled_from([0, 0, 1, 3])),
        dtype=draw(dtypes),
    )


@st.composite
def calls(draw: st.DrawFn, tensors: int) -> tuple[tuple[int, ...], list[View]]:
    shape = tuple(draw(st.lists(SIZES, max_size=4).filter(lambda s: math.prod(s) <= MOST)))
    common = draw(st.sampled_from(DTYPES))
    dtypes = st.sampled_from(DTYPES) if draw(st.integers(0, 3)) == 0 else st.just(common)
    return shape, [draw(views(len(shape), dtypes)) for _ in range(tensors)]


# A batch has a few examples and a seed of its own. Its first example is the simplest there is, so
# none has only one.
BATCHES = often(range(4), [0, 1])


def few(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=False,  # `seed` decides
    )


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_any_call(case: Case, batch: int, device: str, seed: int) -> None:
    places = [i for i, a in enumerate(case.op.arguments) if a.is_tensor]
    template = case.args((2,))

    @seeded(seed)
    @few(7)
    @given(calls(len(places)), st.integers(0, 2**31))
    def run(call: tuple[tuple[int, ...], list[View]], numbers: int) -> None:
        torch.manual_seed(numbers)
        shape, found = call
        args = list(template)
        for place, view in zip(places, found, strict=True):
            integer = (
                isinstance(template[place], Tensor) and not template[place].is_floating_point()
            )
            args[place] = view.make(shape, integer, device)
        check_value(case, args)
        if case.op.differentiable:
            check_gradients(case, args)

    run()


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", shaped(ONE_EACH), ids=str)
def test_any_rows(case: Case, batch: int, device: str, seed: int) -> None:
    layouts = st.sampled_from(["as it is", *VIEWS])
    count = len(case.op.tensors)

    @seeded(seed)
    @few(2 if case.op.family == "rows" else 5)  # each compiles kernels
    @given(
        st.lists(SIZES, min_size=1, max_size=3).filter(lambda s: 40 * math.prod(s) <= MOST),
        st.integers(3, 40),  # shorter rows leave a norm nothing to do
        st.sampled_from(DTYPES),
        st.lists(layouts, min_size=count, max_size=count),
        st.integers(0, 2**31),
    )
    def run(
        lead: list[int], columns: int, dtype: torch.dtype, chosen: list[str], numbers: int
    ) -> None:
        torch.manual_seed(numbers)
        if "norm" in case.name or case.name == "transformer_block":
            # Rows of one number have no variance, and what is left of them is rounding.
            chosen = ["as it is" if c == "expanded inside" else c for c in chosen]
        layout = iter(chosen)
        args = [
            VIEWS.get(next(layout), lambda t: t)(a) if isinstance(a, Tensor) else a
            for a in case.args((*lead, columns), dtype, device)
        ]
        check_value(case, args)
        if case.op.differentiable:
            check_gradients(case, args)

    run()
