"""The change, tried: what megafuse can do by itself, checked against float64 and timed in turns.

Tried are the operations of a finding, run again on copies of what they read: nothing of the user's
is touched. A change that gives another result than the original gets no time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.bench import accuracy
from megafuse.bench.timing import Clock, Contender, compare, speedup
from megafuse.compiler import fuse
from megafuse.diagnose.finding import Finding, Trial
from megafuse.diagnose.findings import Case, attention, fusable, product
from megafuse.diagnose.record import Operation
from megafuse.diagnose.replay import Part, Tape, part
from megafuse.runtime import loader

_BUDGET = 0.5  # seconds of measurement for each part
_KINDS = 3  # different chains of a finding that are tried
_MOST = 100  # operations of a chain: with more, compiling takes too long to be tried unasked


@dataclass
class Attempt:
    """A way to compute what a part of the call computes, and how often that part is in it."""

    what: str
    before: Part
    after: Callable[..., Any]
    times: int = 1
    # What is right, when given float64: a kernel of the user's may take one dtype only, and read
    # another as garbage, so there it is PyTorch's way that is run in float64.
    exact: Callable[..., Any] | None = None


def tried(case: Case, finding: Finding, tape: Tape) -> Trial | None:
    """None where there is nothing that megafuse could do by itself."""
    attempts = _ATTEMPTS.get(finding.name)
    if attempts is None or not finding.operations:
        return None
    with torch.no_grad():
        ways = list(attempts(case, finding, tape))
        return _measured(ways, case.record.device) if ways else None


def _measured(ways: list[Attempt], device: str) -> Trial | None:
    before = after = 0.0
    ratios, errors = [], []
    for way in ways:
        problem, told = _checked(way)
        if problem:
            return Trial(way.what, 0.0, 0.0, 0.0, 0.0, f"{way.what}: {problem}", part="operations")
        errors.append(told)
        # On a GPU the device's own time: running operations again one by one is slow on the host.
        clock: Clock = "warm" if device == "cuda" else "wall"
        taken = compare(_contenders(way), device=device, clock=clock, budget=_BUDGET)
        before += taken["before"].median * way.times
        after += taken["after"].median * way.times
        ratios.append(speedup(taken["before"], taken["after"]))
    low, high = min(r.low for r in ratios), max(r.high for r in ratios)
    return Trial(ways[0].what, before, after, low, high, "", errors[0], "operations")


def _contenders(way: Attempt) -> dict[str, Contender]:
    given = way.before.inputs
    return {
        "before": lambda i: way.before.function(*given),
        "after": lambda i: way.after(*given),
    }


def _checked(way: Attempt) -> tuple[str | None, str]:
    """What is wrong with its result, and how far it is from float64 in words."""
    try:
        eager = accuracy.leaves(way.before.function(*way.before.inputs))
        got = accuracy.leaves(way.after(*way.before.inputs))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}", ""
    try:
        exact = accuracy.in_float64(way.exact or way.before.function, way.before.inputs)
    except Exception as error:
        return f"no float64 to check against: {type(error).__name__}: {error}", ""
    wrong = accuracy.wrong(got, eager, exact)
    if wrong:
        return wrong, ""
    worst = [_worst(found, exact) for found in (got, eager)]
    return None, f"largest error against float64 {worst[0]:.2g}, before {worst[1]:.2g}"


def _worst(found: list[Tensor], exact: list[Tensor]) -> float:
    pairs = zip(found, exact, strict=True)
    errors = [float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()]
    return max(errors, default=0.0)


# ---- one kernel in place of a chain


def _fused(case: Case, finding: Finding, tape: Tape) -> Iterator[Attempt]:
    mine = set(finding.operations)
    chains = [c for c in fusable.chains(case) if mine >= {op.index for op in c}]
    return _kinds(case, tape, chains)


def _round_trip(case: Case, finding: Finding, tape: Tape) -> Iterator[Attempt]:
    return _kinds(case, tape, _connected([case.record.operations[i] for i in finding.operations]))


def _kinds(case: Case, tape: Tape, chains: list[list[Operation]]) -> Iterator[Attempt]:
    """Chains of the same operations on the same shapes are tried once."""
    if loader.built() is None:
        return
    alike: dict[tuple[Any, ...], list[list[Operation]]] = {}
    for chain in chains:
        key = tuple((op.name, op.numbers, tuple(t.shape for t in op.reads)) for op in chain)
        alike.setdefault(key, []).append(chain)
    groups = sorted(alike.values(), key=lambda g: -sum(op.seconds for c in g for op in c))
    for group in groups[:_KINDS]:
        found = _replayed(case, tape, group[0]) if len(group[0]) <= _MOST else None
        if found is not None:
            yield Attempt("megafuse.fuse", found, fuse(found.function, dynamic=False), len(group))


def _connected(operations: list[Operation]) -> list[list[Operation]]:
    """In parts of which none reads what another writes."""
    found: list[tuple[set[int], list[Operation]]] = []
    for op in operations:
        written, members = {t.value for t in op.writes}, [op]
        reads = {t.value for t in op.reads}
        for one in [one for one in found if one[0] & reads]:
            found.remove(one)
            written, members = written | one[0], one[1] + members
        found.append((written, members))
    return [sorted(members, key=lambda op: op.index) for _, members in found]


def _replayed(case: Case, tape: Tape, operations: list[Operation]) -> Part | None:
    inside = {op.index for op in operations}
    results = set()
    for op in operations:
        for t in op.writes:
            readers = case.readers.get(t.value, [])
            if not readers or any(r.index not in inside for r in readers):
                results.add(t.value)
    return part(tape, sorted(inside), results)


# ---- the library's product in place of one's own


def _library(case: Case, finding: Finding, tape: Tape) -> Iterator[Attempt]:
    """The first way that gives the same numbers: a linear layer, and what may be fused into it."""
    op = case.record.operations[finding.operations[0]]
    found = _replayed(case, tape, [op])
    if found is None or product.sizes_of(op) is None:
        return
    (expected,) = found.function(*found.inputs)[:1]
    for name, way in _linears(found.inputs):
        try:
            got = way(*found.inputs)
        except (RuntimeError, ValueError, TypeError):
            continue
        if got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-2, atol=1e-2):
            yield Attempt(name, found, way, len(finding.operations), exact=way)
            return


def _linears(inputs: list[Tensor]) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """act(a·Bᵀ + bias) for every choice of a, B, bias among the inputs, and every activation."""
    acts: dict[str, Callable[[Tensor], Tensor]] = {
        "F.linear": lambda t: t,
        "F.linear and F.relu": lambda t: F.relu(t),
        "F.linear and F.gelu": lambda t: F.gelu(t),
        "F.linear and F.gelu(tanh)": lambda t: F.gelu(t, approximate="tanh"),
        "F.linear and F.silu": lambda t: F.silu(t),
        "F.linear and torch.sigmoid": lambda t: torch.sigmoid(t),
        "F.linear and torch.tanh": lambda t: torch.tanh(t),
    }
    matrices = [i for i, t in enumerate(inputs) if t.dim() >= 2]
    vectors = [None, *(i for i, t in enumerate(inputs) if t.dim() == 1)]
    for a, b in itertools.permutations(matrices, 2):
        if inputs[b].dim() != 2:
            continue
        for bias, turned, (name, act) in itertools.product(
            reversed(vectors), (False, True), acts.items()
        ):
            order = [i for i in (a, b, bias) if i is not None]
            same = order == list(range(len(inputs))) and not turned
            told = f"{name}, with its arguments in their order" if same else name
            yield told, _linear(a, b, bias, turned, act)


def _linear(
    a: int, b: int, bias: int | None, turned: bool, act: Callable[[Tensor], Tensor]
) -> Callable[..., Tensor]:
    def way(*given: Tensor) -> Tensor:
        weight = given[b].t() if turned else given[b]
        return act(F.linear(given[a], weight, None if bias is None else given[bias]))

    return way


# ---- attention in one call


def _attention(case: Case, finding: Finding, tape: Tape) -> Iterator[Attempt]:
    for operations in attention.groups(case)[:1]:
        found = _replayed(case, tape, operations)
        products = [op for op in operations if op.kind == "product"]
        if found is None or len(products) != 2:
            return
        (expected,) = found.function(*found.inputs)[:1]
        for way in _attentions(found.inputs, expected):
            got = way(*found.inputs)
            if torch.allclose(got.float(), expected.float(), rtol=2e-2, atol=2e-3):
                name = "F.scaled_dot_product_attention"
                yield Attempt(name, found, way, int(finding.number("attentions") or 1))
                return


def _attentions(inputs: list[Tensor], expected: Tensor) -> Iterator[Callable[..., Tensor]]:
    """Every assignment of q, k and v, with the usual scales, with and without causality."""
    floats = [i for i, t in enumerate(inputs) if t.is_floating_point() and t.dim() >= 3]
    for q, k, v in itertools.permutations(floats, 3):
        width = inputs[q].shape[-1]
        turned = inputs[k].shape[-1] != width
        if inputs[k].shape[-2 if turned else -1] != width:
            continue
        for scale, causal in itertools.product((width**-0.5, 1.0), (False, True)):
            way = _sdpa(q, k, v, turned, scale, causal, expected.shape)
            try:
                way(*inputs)
            except RuntimeError:
                continue
            yield way


def _sdpa(
    q: int, k: int, v: int, turned: bool, scale: float, causal: bool, shape: torch.Size
) -> Callable[..., Tensor]:
    def way(*given: Tensor) -> Tensor:
        keys = given[k].transpose(-2, -1) if turned else given[k]
        # One more dimension: PyTorch's fused kernels take [batch, heads, tokens, width].
        a, b, c = (t if t.dim() == 4 else t.unsqueeze(0) for t in (given[q], keys, given[v]))
        out = F.scaled_dot_product_attention(a, b, c, is_causal=causal, scale=scale)
        return out.reshape(shape)

    return way


# ---- a padded product


def _padded(case: Case, finding: Finding, tape: Tape) -> Iterator[Attempt]:
    op = case.record.operations[finding.operations[0]]
    found, sizes = _replayed(case, tape, [op]), product.sizes_of(op)
    if found is None or sizes is None:
        return
    wide = -(-sizes.columns // 64) * 64
    x = next((i for i, t in enumerate(found.inputs) if t.shape[-1] == sizes.inner), None)
    w = next((i for i, t in enumerate(found.inputs) if sizes.columns in t.shape), None)
    if x is None or w is None or x == w or len(found.inputs) != 2:
        return
    weight = found.inputs[w]
    rows = weight if weight.shape[0] == sizes.columns else weight.t()
    kept = F.pad(rows, (0, 0, 0, wide - sizes.columns)).contiguous()  # once, as a model would

    def way(*given: Tensor) -> Tensor:
        return F.linear(given[x], kept)[..., : sizes.columns]

    yield Attempt(f"the weight padded to {wide:,}", found, way, len(finding.operations))


def _split(case: Case, finding: Finding, tape: Tape) -> Iterator[Attempt]:
    """The product as `megafuse.fuse` computes it: three of float16 on the tensor cores."""
    if loader.built() is None:
        return
    for index in finding.operations[:1]:
        found = _replayed(case, tape, [case.record.operations[index]])
        if found is not None:
            yield Attempt(
                "megafuse.fuse", found, fuse(found.function, dynamic=False), len(finding.operations)
            )


_ATTEMPTS: dict[str, Callable[[Case, Finding, Tape], Iterator[Attempt]]] = {
    fusable.NAME: _fused,
    "launch-bound": _fused,
    "dtype round trip": _round_trip,
    product.NAME: _library,
    attention.NAME: _attention,
    "unaligned product": _padded,
    "strict float32 product": _split,
}
