"""Each case counted, then measured: what would fusing gain here?"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.bench import compare
from megafuse.learn import explain
from megafuse.learn.exercises import roof
from megafuse.learn.exercises.findings import Finding, Stop
from megafuse.learn.exercises.work import Work
from megafuse.learn.ledger import count
from megafuse.ops import OPS
from megafuse.registry import activate
from megafuse.runtime import build, cpp

_WORTH = 1.05  # a gain of 5 %


@dataclass(frozen=True)
class Case:
    """What was counted, whether fusing is worth it, what was measured, and why it is so."""

    number: float
    fuse: bool
    measured: str
    why: str
    factor: float = 1.05  # the learner's number may be off by


def check(work: Work) -> Iterator[Finding]:
    """A finding for each case, and what was measured where the answer is right."""
    answers = work.python().get("ANSWERS")
    all_right = True
    for name, find in _CASES.items():
        fuse, number = _answer(answers, name)
        if fuse is None or number is None:
            yield Finding(name, False, "not answered yet", f"{name}: {_HOW[name]}")
            all_right = False
            continue
        judged = list(_judged(name, fuse, number, find(work.device)))
        yield from judged
        all_right &= judged[0].ok is True
    if not all_right:
        return
    x, y = (torch.randn(1 << 22, device=work.device) for _ in range(2))
    fused = OPS["add_mul_exp"].fused
    says = "The share of the roof is that of the fused chain."
    yield roof.share(lambda: fused(x, y), 3 * x.nbytes, work.device, says, kept=False)


def _answer(answers: Any, name: str) -> tuple[bool | None, float | None]:
    row = answers.get(name) if isinstance(answers, dict) else None
    if not isinstance(row, dict) or not {"fuse", "number"} <= set(row):
        raise Stop(name, f"ANSWERS has no row {name!r} with fuse and number", _FORM)
    fuse, number = row["fuse"], row["number"]
    if not isinstance(fuse, bool | None) or isinstance(number, bool):
        raise Stop(name, f"fuse is {fuse!r}, number is {number!r}", _FORM)
    if not isinstance(number, int | float | None):
        raise Stop(name, f"number is {number!r}", _FORM)
    return fuse, number


def _judged(name: str, fuse: bool, number: float, case: Case) -> Iterator[Finding]:
    near = case.number / case.factor <= number <= case.number * case.factor
    word = "fuse" if fuse else "leave it"
    if not near:
        low = "too low" if number < case.number else "too high"
        named = next((told for wrong, told in _NUMBERS[name] if _is(number, wrong)), "")
        says = "\n\n".join(filter(None, (named, f"{name}: {_HOW[name]}")))
        yield Finding(name, False, f"{number:.4g} is {low}", says)
    elif fuse != case.fuse:
        yield Finding(name, False, f"{number:.4g}, {word}: not what it says", f"{name}: {case.why}")
    else:
        yield Finding(name, True, f"{number:.4g}, {word}")
        yield Finding("", None, case.measured)


_FORM = "Keep the form of the starter: fuse is True or False, number is a number."
_HOW = {
    "chain": "write the chain as single operations and count as in exercise 1; then count what one "
    "kernel would read and write. If much less travels, fusing pays.",
    "gemm": "divide 2 · 1024³ operations by the bytes of three matrices of 1024 × 1024 floats. If "
    "it is far above what a processor can compute while a byte arrives (a few dozen), memory is "
    "not what the product waits for, and only arithmetic counts.",
    "launches": "with so few elements, the time of an operation is the time to start it. So count "
    "operations.",
    "tiny": "a gain cannot be larger than what the operations cost now. Add up the bytes of the "
    "row's two operations, and hold them against those of the 64 layers.",
    "attention": "what fusing could remove is a trip through memory between two operations. How "
    "many operations does PyTorch run here?",
}


def _is(number: float, wrong: float) -> bool:
    return abs(number - wrong) <= 0.01 * abs(wrong)


# Numbers that typical mistakes give, and the sentence for each.
_INTENSITY = 2 * 1024**3 / (3 * 1024**2 * 4)
_TINY = 100 * 5 / (64 * 4.5 * 1024)
_NUMBERS: dict[str, tuple[tuple[float, str], ...]] = {
    "chain": (
        (24 / 12, "x + y reads two tensors: 12 bytes, not 8. The other two operations have 8."),
        (28 / 8, "Fused it moves 12 bytes, not 8: it reads x and y, and writes the result."),
        (3, "That is the number of operations: count bytes."),
        (28, "That is the bytes of the separate way: divide them by those of the fused way."),
        (12 / 28, "That is the fused way by the separate: it is asked the other way round."),
    ),
    "gemm": (
        (_INTENSITY / 2, "A step is a product and a sum: two operations."),
        (4 * _INTENSITY, "That is operations per float, and a float has 4 bytes."),
        (1.5 * _INTENSITY, "The result is written, too: three matrices move, not two."),
    ),
    "launches": (
        (1, "One is what is left: it is asked how many there are before."),
        (2, "A sum, a product and an exp: x + y is an operation of its own."),
        (28 / 12, "That is the ratio of the bytes, which hardly count at 1,000 elements."),
    ),
    "tiny": (
        (_TINY / 100, "That is a fraction: in percent it is a hundred times that."),
        (64 * _TINY, "That is the share of one layer's bytes: there are 64 layers."),
    ),
    "attention": (
        (
            3,
            "Product, softmax, product would be three, with the scores written out in between: "
            "scaled_dot_product_attention is one operation.",
        ),
        (0, "One operation is dispatched, and does it all."),
    ),
}


# ---- the cases


def _chain(device: str) -> Case:
    x, y = (torch.randn(1 << 22, device=device) for _ in range(2))
    ratio, text = _gain(x, y, device, "cold" if device == "cuda" else "warm")
    why = (
        f"the separate way moves {ratio:.2f} times the bytes: as far as it waits for them, it pays."
    )
    return Case(ratio, ratio > _WORTH, text, why)


def _launches(device: str) -> Case:
    x, y = (torch.randn(1000, device=device) for _ in range(2))
    passes = count(lambda: OPS["add_mul_exp"].reference(x, y)).passes
    _, text = _gain(x, y, device, "wall")
    why = f"each of {passes} operations costs its start, whatever its size; one start is left."
    return Case(passes, passes > 1, text, why)


def _gain(x: Tensor, y: Tensor, device: str, clock: Any) -> tuple[float, str]:
    """Ratio of the bytes, and both times in words."""
    op = OPS["add_mul_exp"]
    ratio = count(lambda: op.reference(x, y)).bytes_moved / op.cost(x, y).bytes_moved
    if not activate():
        return ratio, "not measured: nothing can be fused here without a C++ compiler"
    taken = _times(device, clock, separate=lambda: op.reference(x, y), fused=lambda: op.fused(x, y))
    return ratio, f"separate {explain.seconds(taken['separate'])}, fused " + explain.seconds(
        taken["fused"]
    )


def _gemm(device: str) -> Case:
    """Who is faster is measured on matrices of 256 × 256, so that it does not take a minute."""
    intensity = 2 * 1024**3 / (3 * 1024**2 * 4)
    a, b = (torch.randn(256, 256) for _ in range(2))
    library = lambda: F.relu(a @ b)  # noqa: E731
    why = f"a product with {intensity:.0f} operations per byte waits for arithmetic. "
    if cpp.find() is None:
        large = torch.randn(1024, 1024, device=device)
        taken = _times(device, "warm", gemm=lambda: large @ large, relu=lambda: F.relu(large))
        share = taken["relu"] / (taken["gemm"] + taken["relu"])
        text = f"relu is {share:.0%} of product and relu: more cannot be gained"
        return Case(intensity, False, text, why + f"{text[0].upper()}{text[1:]}.")
    with roof.using(1):
        taken = _times("cpu", "warm", library=library, own=_own_gemm(a, b))
    ratio = taken["own"] / taken["library"]
    text = (
        f"256 × 256, one thread: library and relu {explain.seconds(taken['library'])}, three loops "
        f"with relu {explain.seconds(taken['own'])}, {ratio:.0f}× as long"
    )
    why += f"Three loops took {ratio:.0f} times as long as the library and a relu, just now."
    return Case(intensity, ratio < 1, text, why)


def _own_gemm(a: Tensor, b: Tensor) -> Callable[[], None]:
    source = Path(__file__).with_name("own_gemm.cpp").read_text(encoding="utf-8")
    run = ctypes.CDLL(str(build.cpu_object(source, "three loops"))).own_gemm_relu
    out = torch.empty_like(a)

    def call() -> None:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, out)]
        run(*pointers, ctypes.c_longlong(a.shape[0]))

    call()
    torch.testing.assert_close(out, F.relu(a @ b), rtol=1e-3, atol=1e-3)
    return call


def _tiny(device: str) -> Case:
    x = torch.randn(64, 1024, device=device)
    weights = [torch.randn(1024, 1024, device=device) / 32 for _ in range(8)]
    row, bias = (torch.randn(256, device=device) for _ in range(2))

    def layers() -> Tensor:
        out = x
        for i in range(64):
            out = torch.mm(out, weights[i % len(weights)])
        return out

    tiny = lambda: F.gelu(bias + row)  # noqa: E731
    percent = 100 * count(tiny).bytes_moved / count(layers).bytes_moved
    taken = _times(device, "wall", layers=layers, tiny=tiny)
    share = taken["tiny"] / (taken["tiny"] + taken["layers"])
    text = f"{percent:.4f} % of the bytes, {share:.1%} of the time: all that there is to gain"
    why = f"{text}, even if it took no time at all. Look where the rest goes."
    return Case(percent, percent > 100 * (_WORTH - 1), text, why, factor=2.0)


def _attention(device: str) -> Case:
    q, k, v = (torch.randn(1, 4, 512, 64, device=device) for _ in range(3))
    call = lambda: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    operations = [name for name in count(call).operations if "attention" in name]
    scores = lambda: torch.softmax(q @ k.transpose(-2, -1) / 8, -1) @ v  # noqa: E731
    taken = _times(device, "warm", library=call, scores=scores)
    text = (
        f"PyTorch's, already fused: {explain.seconds(taken['library'])}; with the matrix of scores "
        f"written out: {explain.seconds(taken['scores'])}"
    )
    why = (
        "PyTorch runs one operation, which never writes the matrix of scores. Nothing is left to "
        "fuse; a second one must first be as good."
    )
    return Case(len(operations), len(operations) > 1, text, why)


def _times(device: str, clock: Any, **calls: Callable[[], object]) -> dict[str, float]:
    """The best of each: whoever else runs on the machine only adds."""
    taken = compare(
        {name: lambda _, call=call: call() for name, call in calls.items()},  # type: ignore[misc]
        device=device,
        clock=clock,
        budget=0.05,
        rounds=3,
        warmup=1,
    )
    return {name: min(timing.samples) for name, timing in taken.items()}


_CASES: dict[str, Callable[[str], Case]] = {
    "chain": _chain,
    "gemm": _gemm,
    "launches": _launches,
    "tiny": _tiny,
    "attention": _attention,
}
