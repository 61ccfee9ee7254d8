"""The learner's ledger against what PyTorch's dispatcher and the fused op's cost say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from megafuse.bench import Ratio, compare, speedup
from megafuse.learn.exercises import roof
from megafuse.learn.exercises.findings import Finding, Stop
from megafuse.learn.exercises.work import Work
from megafuse.learn.ledger import count
from megafuse.learn.verdicts import exercises as verdicts
from megafuse.ops import OPS, Op
from megafuse.registry import activate

_FIELDS = ("operations", "separate", "fused")
_ROWS, _COLS = 4096, 1024


def check(work: Work) -> Iterator[Finding]:
    """One finding a chain; then what the machine says to it."""
    ledger = work.python().get("LEDGER")
    chains = _chains(work.device)
    all_right = True
    for name, args in chains.items():
        finding = _row(name, _given(ledger, name), _counted(name, args))
        all_right &= finding.ok is True
        yield finding
    if all_right:
        yield from _measured(chains, work.device)


def _chains(device: str) -> dict[str, tuple[Any, ...]]:
    x, up = (torch.randn(_ROWS, _COLS, device=device) for _ in range(2))
    w, b = (torch.randn(_COLS, device=device) for _ in range(2))
    return {"gelu_scale": (x, 1.7, "tanh"), "swiglu": (x, up), "scale_bias_sigmoid": (x, w, b)}


def _counted(name: str, args: tuple[Any, ...]) -> dict[str, int]:
    elements = args[0].numel()
    separate = count(lambda: OPS[name].reference(*args))
    return {
        "operations": separate.passes,
        "separate": round(separate.bytes_moved / elements),
        "fused": round(OPS[name].cost(*args).bytes_moved / elements),
    }


def _given(ledger: Any, name: str) -> dict[str, Any]:
    row = ledger.get(name) if isinstance(ledger, dict) else None
    if not isinstance(row, dict) or not set(_FIELDS) <= set(row):
        raise Stop(
            name,
            f"LEDGER has no row {name!r} with {', '.join(_FIELDS)}",
            "Keep the form of the starter, and change the numbers only.",
        )
    return row


def _row(name: str, given: dict[str, Any], counted: dict[str, int]) -> Finding:
    told = "{operations} operations, {separate} bytes, fused {fused}".format(**given)
    wrong = [field for field in _FIELDS if given[field] != counted[field]]
    if not any(given[field] for field in _FIELDS):
        return Finding(name, False, "not filled in yet", _HOW)
    return Finding(name, not wrong, told, " ".join(_why(name, f, given, counted) for f in wrong))


_HOW = (
    "Write the chain as single operations, one a line. For each, count 4 bytes for every large "
    "tensor that it reads and 4 for the one that it writes; the sum is `separate`. For `fused`, "
    "count only what comes in and what goes out of the whole chain. The difference is what "
    "fusing saves."
)


_RUNS = {
    "gelu_scale": "gelu is one, the product with a number is one.",
    "swiglu": "silu is one function, however it is computed inside, and the product is another.",
    "scale_bias_sigmoid": "A product, a sum and a function are one each.",
}


def _why(name: str, field: str, given: dict[str, Any], counted: dict[str, int]) -> str:
    value, start = given[field], f"{name}, {field}: {given[field]!r}"
    if not isinstance(value, int | float):
        return f"{start} is not a number."
    if value <= 0:
        return f"{name}, {field}: not filled in yet."
    if field == "operations":
        return f"{start} is not what PyTorch runs. {_RUNS[name]}"
    if value == counted[field] / 4:
        return f"{start} counts floats. Each has 4 bytes."
    if value >= 1000:
        return f"{start} is the count of a whole tensor. It is asked for one element."
    if name == "scale_bias_sigmoid" and value == counted[field] + 8:
        return (
            f"{start} has w and b in it. Each is a row, one element for thousands: leave them out."
        )
    if field == "separate" and value == counted["fused"]:
        return (
            f"{start} is the count of one pass. PyTorch writes each result out and reads it back."
        )
    if field == "fused" and value < counted[field]:
        return f"{start} is too few: one kernel still reads all large tensors of the chain once."
    if value < counted[field]:
        missing = counted[field] - value
        return (
            f"{start} is {missing} too few. For each operation, count 4 for every large tensor "
            "that it reads and 4 for the one that it writes."
        )
    if field == "fused":
        return f"{start} is too many: what lies between the operations stays in a register."
    return f"{start} is too many: each operation reads a tensor once and writes one result."


def _measured(chains: dict[str, tuple[Any, ...]], device: str) -> Iterator[Finding]:
    fused = activate()
    for name, args in chains.items():
        counted = _counted(name, args)
        foretold = f"{counted['separate'] / counted['fused']:.2f}× foretold by the bytes"
        if not fused:
            yield Finding(name, None, f"{foretold}; nothing can be fused here without a compiler")
            continue
        gain = _gain(OPS[name], args, device)
        ratio = counted["separate"] / counted["fused"]
        yield Finding(name, None, verdicts.counted(ratio, gain))
    if not fused:
        return
    x: Tensor = chains["gelu_scale"][0]
    yours, copy = roof.timed(lambda: OPS["gelu_scale"].fused(x, 1.7), 2 * x.nbytes, device)
    says = verdicts.waits(yours, copy)
    yield Finding("of the roof", None, verdicts.share(yours, copy), says)


def _gain(op: Op, args: tuple[Any, ...], device: str) -> Ratio:
    taken = compare(
        {"separate": lambda _: op.reference(*args), "fused": lambda _: op.fused(*args)},
        device=device,
        clock="cold" if device == "cuda" else "warm",
        budget=0.2,
        rounds=5,
    )
    return speedup(taken["separate"], taken["fused"])
