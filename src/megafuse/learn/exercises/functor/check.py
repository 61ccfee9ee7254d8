"""The learner's functor as an op of megafuse: checked, counted, launched on this device."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from megafuse.codegen import render
from megafuse.codegen.variant import Operand, Variant
from megafuse.learn.exercises import roof, tensors
from megafuse.learn.exercises.emulator.source import without_comments
from megafuse.learn.exercises.findings import Finding, Stop
from megafuse.learn.exercises.native import compile_stop
from megafuse.learn.exercises.work import Work
from megafuse.learn.ledger import count
from megafuse.registry import OPS, Op, Pointwise, op
from megafuse.runtime import loader, nvrtc, sources
from megafuse.runtime.cpp import CompileError

_SCALE, _SHIFT = 1.3, -0.4
_FORMULA = (
    "The result should be x * sigmoid(1.3 * x - 0.4) for the numbers that the check gives. At 0 "
    "that is 0, far on the right it is x, far on the left it goes to 0."
)


_NARROW = (
    "Right to seven digits, the digits of a float. Something in the functor is a `float`, so that "
    "a double is cut down on its way through. F is the type to compute in: float, or double for "
    "float64. Write F, and F(1) for a number."
)
_RETURNS = (
    "operator() ends without `return`: what comes out is whatever lies in a register. It returns "
    "the element of the result."
)


def separate(x: Tensor, scale: float, shift: float) -> Tensor:
    """x·sigmoid(scale·x + shift) as PyTorch does it."""
    return x * torch.sigmoid(scale * x + shift)


def check(work: Work) -> Iterator[Finding]:
    """Result in each dtype, launches, bytes, the GPU's compiler, the roof."""
    work.stage("your functor was compiled and run")
    if not re.search(r"\breturn\b", without_comments(work.path.read_text(encoding="utf-8"))):
        raise Stop("returns", "nothing is returned", _RETURNS)
    made = op_of(work.path)
    x = torch.linspace(-6, 6, 1021 * 7, device=work.device).reshape(1021, 7)
    for dtype, tolerance in ((torch.float32, 3e-6), (torch.float64, 1e-12), (torch.bfloat16, 8e-3)):
        name = str(dtype).removeprefix("torch.")
        yield _result(work, made, f"{name}", x.to(dtype), tolerance)
    yield _result(work, made, "transposed", x.t(), 3e-6)
    yield from _cost(made, work)
    yield _for_the_gpu(made, work)
    large = torch.randn(1 << 22, device=work.device)
    cost = made.cost(large, _SCALE, _SHIFT)
    call = lambda: made.fused(large, _SCALE, _SHIFT)  # noqa: E731
    yield roof.share(call, cost.bytes_moved, work.device, operations=cost.flops)


def op_of(path: Path) -> Op:
    """Declared as any op is, under a name of its own; the library's list stays as it was."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]

    def exercise(x: Tensor, scale: float, shift: float) -> Tensor:
        return separate(x, scale, shift)

    exercise.__name__ = f"exercise_{digest}"
    exercise.__doc__ = separate.__doc__
    if exercise.__name__ not in _MADE:
        op(
            kernel=Pointwise("SwishGate<{F}>", header=path.resolve().as_posix()),
            flops=(12, 0),
            sample=lambda draw: (draw.full(), _SCALE, _SHIFT),
        )(exercise)
        _MADE[exercise.__name__] = OPS.pop(exercise.__name__)
    return _MADE[exercise.__name__]


_MADE: dict[str, Op] = {}


def _result(work: Work, made: Op, what: str, x: Tensor, tolerance: float) -> Finding:
    exact = separate(x.double(), _SCALE, _SHIFT)
    try:
        result = made.fused(x, _SCALE, _SHIFT)
    except CompileError as error:
        raise compile_stop(error, work.path) from None
    finding = tensors.close(what, result, exact, x.dtype, tolerance, _FORMULA, _known(x.double()))
    if not finding.ok:
        if x.dtype == torch.float64 and float((result - exact).abs().max()) < 1e-5:
            raise Stop(what, finding.found, _NARROW)
        told = "it returns x itself, as in the starter" if torch.equal(result, x) else finding.found
        raise Stop(what, told, finding.says)
    return finding


def _known(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    inner = _SCALE * x + _SHIFT
    yield "The shift is left out: that is x * sigmoid(scale * x).", separate(x, _SCALE, 0.0)
    yield "The scale is left out: that is x * sigmoid(x + shift).", separate(x, 1.0, _SHIFT)
    yield "The product with x is missing: that is the sigmoid alone.", inner.sigmoid()
    yield "The sigmoid is missing: that is x * (scale * x + shift).", x * inner
    yield "That is x * tanh(scale * x + shift): the gate is a sigmoid.", x * inner.tanh()
    told = "That is x * silu(scale * x + shift): silu is v * sigmoid(v), and has a factor too many."
    yield told, x * inner * inner.sigmoid()
    yield "That is x * relu(scale * x + shift): the gate is a sigmoid.", x * inner.relu()
    told = "The sigmoid is turned round: it is 1 / (1 + exp(-v)), with a minus."
    yield told, x * (-inner).sigmoid()
    told = "scale and shift stand outside: they belong into the sigmoid, with x."
    yield told, x * (_SCALE * x.sigmoid() + _SHIFT)
    yield "x is added to the gate: it is multiplied by it.", x + inner.sigmoid()
    told = "x is multiplied by scale in front of the gate, too: it belongs into the sigmoid alone."
    yield told, _SCALE * x * inner.sigmoid()
    yield "The gate is multiplied by itself: it is multiplied by x.", inner.sigmoid().square()
    yield "The shift is subtracted: it is added.", separate(x, _SCALE, -_SHIFT)
    told = "The shift is multiplied too: that is scale * (x + shift) in the sigmoid."
    yield told, separate(x, _SCALE, _SCALE * _SHIFT)
    swapped = separate(x, _SHIFT, _SCALE)
    yield "scale and shift have changed places: scale comes first, scalars[0].", swapped


def _cost(made: Op, work: Work) -> Iterator[Finding]:
    x = torch.randn(1 << 16, device=work.device)
    host = loader.load()
    assert host is not None  # the kernel ran
    before = host.launch_count()
    made.fused(x, _SCALE, _SHIFT)
    launches = host.launch_count() - before
    plain = count(lambda: separate(x, _SCALE, _SHIFT))
    yield Finding("launches", launches == 1, f"{launches}, instead of {plain.passes} operations")
    least = made.cost(x, _SCALE, _SHIFT).bytes_moved / x.numel()
    found = f"{least:.0f} an element, instead of {plain.bytes_moved / x.numel():.0f}"
    yield Finding("bytes moved", True, found)


def _for_the_gpu(made: Op, work: Work) -> Finding:
    """The same struct through NVRTC, where a kernel for a GPU can be compiled without one."""
    if work.device == "cuda":
        return Finding("for the GPU", None, "that is where it ran")
    problem = nvrtc.problem()
    if problem is not None:
        return Finding("for the GPU", None, f"not compiled here: {problem}")
    assert made.functors is not None
    operand = Operand("Float", "c")
    variant = Variant(
        op=made.name,
        family="forward",
        choices={},
        device="cuda",
        common="Float",
        double=False,
        dims=1,
        vector=4,
        wide_index=False,
        outputs=1,
        operands=(operand, replace(operand)),
    )
    source = render.source(made.functors, variant)
    try:
        cubin = nvrtc.compile_cubin(source, "sm_90", [sources.KERNELS])
    except CompileError as error:
        stop = compile_stop(error, work.path)
        raise Stop("for the GPU", stop.finding.found, _NO_LIBRARY) from None
    found = f"the same struct, compiled for sm_90: {len(cubin)} bytes of machine code"
    return Finding("for the GPU", True, found)


_NO_LIBRARY = (
    "It runs on the CPU, but the GPU's compiler refused it. NVRTC has no system headers: no "
    "<cmath>, no std::. The functions that the task names are there on both."
)
