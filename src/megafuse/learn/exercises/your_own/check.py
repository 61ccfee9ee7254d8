"""The learner's function through diagnose, fuse and optimize; what they foretold is judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from megafuse.bench import compare, speedup
from megafuse.compiler import fuse, optimize
from megafuse.diagnose.api import diagnose
from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.learn.exercises import roof, tensors
from megafuse.learn.exercises.findings import Finding, Run, Stop
from megafuse.learn.exercises.work import Work
from megafuse.learn.explain import megabytes, seconds
from megafuse.learn.ledger import count
from megafuse.learn.pictures import timeline

_SMALL = 1 << 16  # floats


def check(work: Work) -> Iterator[Finding]:
    """It runs and repeats itself; both guesses; why it is slow; the kernel; a model of it."""
    names = work.python()
    function, given = _function(names, work)
    with torch.no_grad():
        yield (repeats := _repeats(function, given))
        ledger = count(lambda: function(*given))
        yield (first := _guess("operations", names.get("OPERATIONS"), ledger.passes, _OPERATIONS))
        if not (repeats.ok and first.ok):
            return
        fused = fuse(function)
        work.stage("your function was fused")
        told = fused.explain(*given).forward
        if told is None:
            raise Stop("fused", "nothing of it could be captured", _CAPTURE)
        yield (second := _guess("kernels", names.get("KERNELS"), told.launches, _KERNELS))
        if not second.ok:
            return  # think again before you see it
        drawn = timeline.text({"eager": ledger.operations, "fuse": ["yours"] * told.launches})
        found = f"{megabytes(ledger.bytes_moved)} by PyTorch, {megabytes(told.bytes_moved)} fused"
        yield Finding("bytes", None, found, drawn=drawn)
        result, exact = fused(*given), function(*(_double(a) for a in given))
        yield tensors.close("result", result, exact, result.dtype, 1e-4, _RESULT)
        yield _source(function, fused.source_for(*given))
        work.stage("your function was diagnosed")
        diagnosis = diagnose(function, *given)
        yield from _diagnosed(diagnosis)
        work.stage("your function was timed")
        moved = (ledger.bytes_moved, told.bytes_moved)
        yield from _timed(function, fused, given, work.device, diagnosis.record.flops, moved)


def _function(names: dict[str, Any], work: Work) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    function, inputs = names.get("function"), names.get("inputs")
    if not callable(function) or not callable(inputs):
        raise Stop("complete", "there is no function() or no inputs()", "Keep both names.")
    given = inputs(work.device)
    if given is None:
        raise Stop("inputs", "inputs() gave None", "It returns the arguments, as a tuple.")
    given = given if isinstance(given, tuple | list) else (given,)
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        found = f"inputs() gives {len(given)} arguments: {error}"
        raise Stop("inputs", found, "inputs() makes one for each that function() takes.") from None
    floats = sum(a.numel() for a in given if isinstance(a, Tensor))
    if floats < _SMALL:
        raise Stop("inputs", f"{floats} floats in all", _TOO_SMALL)
    result = function(*given)
    if isinstance(result, tuple | list | dict):
        raise Stop("result", f"a {type(result).__name__} came back, not a tensor", _ONE_TENSOR)
    if not isinstance(result, Tensor):
        raise Stop("result", f"a {type(result).__name__} came back, not a tensor", _NO_TENSOR)
    if count(lambda: function(*given)).passes == 0:
        raise Stop("your own", "the function computes nothing yet", _STARTER)
    return function, tuple(given)


def _repeats(function: Callable[..., Any], given: tuple[Any, ...]) -> Finding:
    before = [a.clone() if isinstance(a, Tensor) else a for a in given]
    first, second = function(*given).nan_to_num(), function(*given).nan_to_num()
    pairs = zip(given, before, strict=True)
    if not all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor)):
        return Finding("repeats", False, "it changes its arguments", _IN_PLACE)
    ok = torch.equal(first, second)
    found = "the same result twice" if ok else "another result every time"
    return Finding("repeats", ok, found, "" if ok else _RANDOM)


def _guess(what: str, guessed: object, counted: int, says: str) -> Finding:
    ok = guessed == counted
    found = f"you said {guessed}, counted {counted}"
    return Finding(what, ok, found, "" if ok else says)


def _double(argument: Any) -> Any:
    is_float = isinstance(argument, Tensor) and argument.is_floating_point()
    return argument.double() if is_float else argument


def _source(function: Callable[..., Any], source: str) -> Finding:
    """What they wrote, and the struct that became of it."""
    theirs = inspect.getsource(function).rstrip().splitlines()
    lines = source.rstrip().splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("struct")), 0)
    ours = lines[first : first + 24]
    drawn = ["you wrote", *(f"  {line}" for line in theirs)]
    drawn += ["the compiler writes", *(f"  {line}" for line in ours)]
    shown = [line if len(line) <= 78 else line[:77] + "…" for line in drawn]
    return Finding("the kernel", None, f"{len(lines) - first} lines of C++", drawn="\n".join(shown))


def _diagnosed(found: Diagnosis) -> Iterator[Finding]:
    for each in found.findings[:2]:
        where = f"line {each.where.line}: " if each.where.line else ""
        yield Finding("diagnose", None, f"{where}{each.title}. {each.advice}")
    if not found.findings:
        yield Finding("diagnose", None, "nothing that a change would make faster")


class _Model(nn.Module):
    """The function as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def _timed(
    function: Callable[..., Any],
    fused: Callable[..., Any],
    given: tuple[Any, ...],
    device: str,
    flops: int,
    moved: tuple[int, int],
) -> Iterator[Finding]:
    """`moved`: bytes, by PyTorch and fused."""
    model = optimize(_Model(function))
    taken = compare(
        {
            "eager": lambda _: function(*given),
            "fuse": lambda _: fused(*given),
            "optimize": lambda _: model(*given),
        },
        device=device,
        clock="cold" if device == "cuda" else "warm",
        budget=2 * roof._BUDGET,
        rounds=5,
    )
    eager = taken["eager"].median
    run = Run(device, flops, moved[0], eager) if flops else None
    yield Finding("PyTorch", None, seconds(eager), number=eager, unit="s", run=run)
    for name in ("fuse", "optimize"):
        gain = speedup(taken["eager"], taken[name])
        yield Finding(
            f"mf.{name}",
            None,
            f"{gain.median:.2f}× as fast as PyTorch ({gain.low:.2f}–{gain.high:.2f}): "
            f"{seconds(taken[name].median)}",
            number=taken[name].median,
            unit="s",
            run=Run(device, flops, moved[1], taken[name].median) if flops else None,
        )
    least = sum(a.nbytes for a in (*given, function(*given)) if isinstance(a, Tensor))
    yield roof.share(lambda: fused(*given), least, device, kept=False)


_STARTER = (
    "Put something of yours in its place: some operations on tensors, such as a normalisation, a "
    "gate, a loss."
)
_TOO_SMALL = (
    "With so few, a call costs more than its work, and every way is as slow. Take the size that "
    "you really use, or a million."
)
_NO_TENSOR = "The function must return the tensor that it computes. Without `return` it gives None."
_ONE_TENSOR = (
    "For this exercise the function returns one tensor: choose one of them. (`mf.fuse` itself "
    "takes functions of several results.)"
)
_IN_PLACE = (
    "A name that ends in _ (add_, mul_) and an assignment to x[…] write into the tensor that was "
    "passed in, so the second call starts from other numbers. Use x + y, and keep the result."
)
_RANDOM = (
    "It draws random numbers, so no two runs can be compared. Draw them in inputs() and pass them "
    "in."
)
_OPERATIONS = (
    "Every operator (+, *, /), every function of torch that makes a new tensor is one operation, "
    "also a product with a number. Views are none."
)
_KERNELS = (
    "What is pointwise, or reduces the last dimension, shares a kernel with its neighbours; a "
    "matrix product is one more, and what comes between two products is one more. "
    "`mf.fuse(f).explain` says which and why."
)
_CAPTURE = (
    "A function that looks at the values of its tensors (if x.sum() > 0, .item()) cannot be seen "
    "as a whole. Write it with torch.where."
)
_RESULT = "Fused and eager differ: please report it, with the function."
