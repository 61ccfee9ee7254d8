"""Result in float64's light, then what the dispatcher sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn import explain
from megafuse.learn.exercises import roof, tensors
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work
from megafuse.learn.ledger import count

_GOAL = 2  # operations
_BYTES = 20  # an element: bias_act reads one large tensor and writes one, add_mul_add 2 and 1

_OPERATIONS = 16  # an element: 13 for gelu(x + bias), 3 for (h + residual)·scale + shift


def separate(x: Tensor, bias: Tensor, residual: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """What the starter computes."""
    return (F.gelu(x + bias) + residual) * scale + shift


def check(work: Work) -> Iterator[Finding]:
    """Result, operations, bytes, roof."""
    block = work.function("block")
    for rows, cols in ((33, 7), (512, 768)):
        args = _arguments(rows, cols, work.device)
        exact = separate(*(t.double() for t in args))
        result = block(*args)
        known = _known(*(t.double() for t in args))
        what = f"{rows} × {cols}"
        finding = tensors.close(what, result, exact, torch.float32, 1e-5, _SAME, known)
        yield finding
        if not finding.ok:
            return
    counted = count(lambda: block(*args))
    each = counted.bytes_moved / args[0].numel()
    few = counted.passes <= _GOAL
    yield Finding(
        "operations", few, explain.listed(counted.operations), "" if few else _MANY.format(counted)
    )
    yield Finding(
        "bytes moved",
        each <= 1.02 * _BYTES,
        f"{each:.1f} an element, goal {_BYTES}",
        "" if each <= 1.02 * _BYTES else _why(each),
    )
    large = _arguments(4096, 1024, work.device)
    least = _BYTES * large[0].numel()
    yield roof.share(
        lambda: block(*large),
        least,
        work.device,
        operations=_OPERATIONS * large[0].numel(),
        moved=each * large[0].numel(),
    )


def _arguments(rows: int, cols: int, device: str) -> tuple[Tensor, ...]:
    x, residual = (torch.randn(rows, cols, device=device) for _ in range(2))
    bias, scale, shift = (torch.randn(cols, device=device) for _ in range(3))
    return x, bias, residual, scale, shift


def _known(
    x: Tensor, bias: Tensor, residual: Tensor, scale: Tensor, shift: Tensor
) -> Iterator[tuple[str, Tensor]]:
    activations: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
    }
    for name, act in activations.items():
        wrong = (act(x + bias) + residual) * scale + shift
        yield f'The activation is {name}: bias_act takes it by its name, "gelu" here.', wrong
    tanh = (F.gelu(x + bias, approximate="tanh") + residual) * scale + shift
    yield 'That is gelu\'s tanh form, "gelu_tanh": F.gelu means the other one, "gelu".', tanh
    h = F.gelu(x + bias)
    yield "The residual is left out.", h * scale + shift
    yield "The residual comes after the scale: it belongs before it.", h * scale + shift + residual
    yield "The bias is left out.", (F.gelu(x) + residual) * scale + shift
    yield "scale and shift have changed places.", (h + residual) * shift + scale
    told = "scale is added and residual is the factor: add_mul_add(x, y, z, w) is (x + y)·z + w."
    yield told, (h + scale) * residual + shift
    told = (
        "bias and residual have changed places: bias goes into the gelu, residual comes after it."
    )
    yield told, (F.gelu(x + residual) + bias) * scale + shift
    told = "The gelu is left out: the second op takes h, the first one's result, and not x."
    yield told, (x + residual) * scale + shift
    yield "The shift is left out.", (h + residual) * scale
    yield "The scale is left out.", h + residual + shift
    told = "The bias is in it twice: bias_act adds it already."
    yield told, (F.gelu(x + 2 * bias) + residual) * scale + shift
    told = "The residual went into the gelu: it is added after it."
    yield told, (F.gelu(x + bias + residual) + residual) * scale + shift
    yield told, F.gelu(x + bias + residual) * scale + shift


_SAME = "It must compute what the starter does: (gelu(x + bias) + residual)·scale + shift."
_MANY = (
    "{0.passes} operations are {0.passes} launches and as many trips of the data through memory. "
    "`megafuse ops` has one op for act(x + bias) and one for (x + y)·z + w."
)


def _why(each: float) -> str:
    return (
        f"{each:.0f} bytes travel for each element, and {_BYTES} would do: 8 to read x and write "
        "h, 12 to read h and residual and write y. All that is more is a result which one "
        "operation wrote for the next to read. The rows count for next to nothing."
    )
