"""The model before and after: same weights, same result, fewer operations; and both timed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from megafuse.bench import compare, speedup
from megafuse.learn.exercises import roof, tensors
from megafuse.learn.exercises.catalog import HERE
from megafuse.learn.exercises.findings import Finding, Run, Stop
from megafuse.learn.exercises.functor.check import op_of, separate
from megafuse.learn.exercises.in_a_model.model import HIDDEN, WIDTH, Gate, model
from megafuse.learn.exercises.work import Work
from megafuse.learn.explain import seconds
from megafuse.learn.ledger import count
from megafuse.learn.pictures import timeline
from megafuse.ops import Op
from megafuse.registry import activate
from megafuse.runtime.cpp import CompileError

_TOKENS = 256
_GATE = 12  # operations an element, as exercise 2 counts them


def check(work: Work) -> Iterator[Finding]:
    """Which kernel; result; what was replaced; operations; time."""
    put_in = work.function("put_in")
    kernel, whose = _kernel(work)
    yield Finding("kernel", None, whose)
    plain = model(work.device)
    yours = copy.deepcopy(plain)
    with torch.no_grad():
        told = put_in(yours, kernel.fused)
        yield _replaced(plain, yours, told)
        yield _kept(plain, yours)
        x = torch.randn(_TOKENS, WIDTH, device=work.device)
        exact = copy.deepcopy(plain).double()(x.double())
        known = _known(plain, x)
        result = _run_once(yours, x)
        yield (right := tensors.close("result", result, exact, x.dtype, 1e-4, _RESULT, known))
        if not right.ok:
            return
        yield (fewer := _operations(plain, yours, x))
        if fewer.ok is not False:
            yield from _timed(plain, yours, kernel, x, work)


def _kernel(work: Work) -> tuple[Op, str]:
    """The learner's functor, if it is right; else ours."""
    theirs, ours = work.path.parent / "functor.h", HERE / "functor" / "solution.h"
    if theirs.exists():
        work.stage("your functor.h was compiled")
        try:
            if _is_right(theirs, work.device):
                return op_of(theirs), f"your own, {theirs.name} of exercise 2"
        except CompileError as error:
            error.discard_source()
        work.stage("your functions were called")
        return op_of(ours), f"ours: your {theirs.name} does not compute the gate yet (exercise 2)"
    return op_of(ours), "ours: there is no functor.h in your folder (exercise 2)"


def _is_right(functor: Path, device: str) -> bool:
    x = torch.linspace(-5, 5, 101, device=device)
    return torch.allclose(op_of(functor).fused(x, 1.3, -0.4), separate(x, 1.3, -0.4), atol=1e-5)


def _replaced(plain: nn.Module, yours: nn.Module, told: object) -> Finding:
    try:
        left = [name for name, module in yours.named_modules() if isinstance(module, Gate)]
    except AttributeError as error:
        raise Stop("replaced", str(error), _SUPER) from None
    if left:
        found = f"{len(left)} of 3 gates are left: {', '.join(left)}"
        added = dict(yours.named_children()).keys() - dict(plain.named_children()).keys()
        if added:
            says = _ELSEWHERE.format(name=sorted(added)[0])
            return Finding("replaced", False, found, says)
        return Finding("replaced", False, found, _LEFT if len(left) < 3 else _NONE)
    if told != 3:
        return Finding("replaced", False, f"all three, but put_in returned {told!r}", _COUNT)
    return Finding("replaced", True, "all three gates")


def _run_once(yours: nn.Module, x: Tensor) -> Tensor:
    """Explains what a gate that returns nothing does to the layer behind it."""
    try:
        out: Tensor = yours(x)
    except TypeError as error:
        if "NoneType" in str(error):
            raise Stop("result", "the gate gave None to the layer behind it", _NOTHING) from None
        raise
    return out


def _kept(plain: nn.Module, yours: nn.Module) -> Finding:
    before, after = plain.state_dict(), yours.state_dict()
    odd = sorted(before.keys() ^ after.keys())
    if odd:
        return Finding("weights", False, f"other names than before: {', '.join(odd[:4])}", _NAMES)
    moved = [name for name, value in before.items() if not torch.equal(value, after[name])]
    if moved:
        return Finding("weights", False, f"changed: {', '.join(moved[:4])}", _NAMES)
    return Finding("weights", True, f"{len(before)} tensors under the same names")


def _known(plain: nn.Module, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Results of the model with other numbers in its gates."""
    numbers = [(gate.scale, gate.shift) for gate in plain.modules() if isinstance(gate, Gate)]

    def changed(others: list[tuple[float, float]]) -> Tensor:
        made = copy.deepcopy(plain).double()
        gates = [gate for gate in made.modules() if isinstance(gate, Gate)]
        for gate, (scale, shift) in zip(gates, others, strict=True):
            gate.scale, gate.shift = scale, shift
        out: Tensor = made(x.double())
        return out

    swapped = [(shift, scale) for scale, shift in numbers]
    yield "scale and shift have changed places.", changed(swapped)
    for number, each in enumerate(numbers, 1):
        yield f"All three gates have the numbers of gate {number}.", changed([each] * 3)
    told = "Every gate has the scale 1 and the shift 0: each child has numbers of its own."
    yield told, changed([(1.0, 0.0)] * 3)
    yield "The gates' shift is left out.", changed([(scale, 0.0) for scale, _ in numbers])
    yield "The gates' scale is left out.", changed([(1.0, shift) for _, shift in numbers])
    # sigmoid(0 * x + 100) is 1 to the last digit
    yield "The gates give back x as it came.", changed([(0.0, 100.0)] * 3)


def _operations(plain: nn.Module, yours: nn.Module, x: Tensor) -> Finding:
    before, after = count(lambda: plain(x)), count(lambda: yours(x))
    saved = before.passes - after.passes
    found = f"{before.passes} before, {after.passes} now"
    drawn = timeline.text({"before": before.operations, "now": after.operations})
    if not activate():
        return Finding("operations", None, found + ", since nothing can be fused here", drawn=drawn)
    ok = saved >= 9
    return Finding("operations", ok, found, "" if ok else _UNUSED, drawn=drawn)


def _timed(
    plain: nn.Module, yours: nn.Module, kernel: Op, x: Tensor, work: Work
) -> Iterator[Finding]:
    gate = torch.randn(_TOKENS, HIDDEN, device=work.device)
    taken = compare(
        {
            "model": lambda _: plain(x),
            "with your kernel": lambda _: yours(x),
            "gate": lambda _: separate(gate, 1.3, -0.4),
            "kernel": lambda _: kernel.fused(gate, 1.3, -0.4),
        },
        device=work.device,
        clock="cold" if work.device == "cuda" else "warm",
        budget=2 * roof._BUDGET,
        rounds=5,
    )
    alone = speedup(taken["gate"], taken["kernel"])
    whole = speedup(taken["model"], taken["with your kernel"])
    before, after = (taken[name].median for name in ("model", "with your kernel"))
    yield Finding("the gate", None, f"{alone.median:.2f}× as fast by your kernel")
    was, now = _run(plain, x, before), _run(yours, x, after)
    yield Finding("as it was", None, seconds(before), number=before, unit="s", run=was)
    yield Finding(
        "the model",
        None,
        f"{whole.median:.2f}× as fast ({whole.low:.2f}–{whole.high:.2f}): {seconds(after)}",
        _AMDAHL,
        number=after,
        unit="s",
        run=now,
    )
    yield roof.share(
        lambda: kernel.fused(gate, 1.3, -0.4), 2 * gate.nbytes, work.device, kept=False
    )


def _run(model: nn.Module, x: Tensor, taken: float) -> Run:
    """Both models do the same arithmetic: that of the products, and of three gates."""
    with FlopCounterMode(display=False) as counter:
        model(x)
    flops = counter.get_total_flops() + 3 * _GATE * _TOKENS * HIDDEN
    return Run(x.device.type, flops, count(lambda: model(x)).bytes_moved, taken)


_RESULT = (
    "The model computes something else than before. Each gate has a scale and a shift of its own, "
    "child.scale and child.shift: a number that is written down, or one gate's for all, fits at "
    "most one of them. And the order is kernel(x, scale, shift)."
)
_LEFT = (
    "named_children() has only what lies directly below a module, and the second and third layer "
    "lie deeper: go through model.modules(), and look at the children of each. And a `return` in "
    "the loop ends it at the first gate."
)
_SUPER = (
    "A module calls super().__init__() before anything else in its __init__: that makes the lists "
    "of its parameters and children."
)
_NONE = (
    "No gate was replaced. A child is replaced by setattr(parent, name, new), where parent is the "
    "module directly above it: go through model.modules(), and look at the children of each."
)
_ELSEWHERE = (
    "The new module was put on the model itself, as {name!r}, and the gates are where they were: "
    "setattr(parent, name, new) wants the module directly above the gate, and its name there."
)
_NOTHING = "forward() ends without `return`: it returns what the kernel gives."
_COUNT = (
    "put_in says how many gates there were: so that whoever calls it sees that it did something."
)
_NAMES = (
    "A checkpoint must fit before and after: replace the gates, which hold no parameters, and "
    "leave the linear layers and the norms as they are."
)
_UNUSED = (
    "Three gates of four operations each should have become three of one. Your module still "
    "computes with PyTorch's operations: its forward should be one call of the kernel."
)
_AMDAHL = (
    "The model gains less than the gate: the products between the gates take as long as before. "
    "What a kernel is worth is its share of the time, so measure the whole first: `megafuse "
    "diagnose`."
)
