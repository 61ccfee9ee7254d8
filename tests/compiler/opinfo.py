"""torch's own samples for its operators through our backend, forward and backward.

    python tests/compiler/opinfo.py [--device cuda] [--record FILE]

Of each operator the first sample in float32 is captured with fixed sizes and the second with free
ones, and judged as the fuzzer judges. Prints what is not right or runs unfused, and why.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from graph.test_opinfo import NAMES, exceptions, op_db
from torch.utils import _pytree as pytree

from megafuse.compiler.backend import watched
from megafuse.compiler.compile import Compiled
from megafuse.compiler.fuzz.exact import Exact, widened
from megafuse.compiler.fuzz.judge import Results, Yardstick, wrong
from megafuse.compiler.fuzz.noise import Noise
from megafuse.runtime import cpp, fallback, progress, provenance

SAMPLES = 2
Call = tuple[tuple[Any, ...], dict[str, Any]]


def operators() -> list[str]:
    """All but those that are random, read values or leave memory unwritten: test_opinfo.py."""
    return [name for name in NAMES if name not in exceptions()]


def judged(name: str, device: str = "cpu") -> Iterator[tuple[str, str]]:
    """(verdict, why) of each sample: right, refused (it runs, unfused), wrong or error."""
    for op in (op for op in op_db if op.name == name):
        if torch.float32 not in op.supported_dtypes(device):
            continue
        wanted = bool(op.supports_autograd)
        samples = op.sample_inputs(device, torch.float32, requires_grad=wanted)
        for at, sample in enumerate(itertools.islice(samples, SAMPLES)):
            call = (sample.input, *sample.args), sample.kwargs
            try:
                eager = run(op.op, call)
            except Exception:
                continue  # not eager's either
            yield _judged(op.op, call, eager, dynamic=at > 0)


def _judged(function: Any, call: Call, eager: Results, dynamic: bool) -> tuple[str, str]:
    parts: list[Any] = []
    torch._dynamo.reset()

    def taken(args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def backend(module: Any, inputs: Any) -> Any:
        return watched(module, inputs, lambda _, part: parts.append(part))

    ours = torch.compile(taken, backend=backend, dynamic=dynamic)
    try:
        with fallback.strict():
            mine = run(lambda *args, **kwargs: ours(args, kwargs), call)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}".partition("\n\n")[0]
    try:
        exact = run(function, call, widened, Exact())
    except Exception:
        exact = eager  # it knows no float64

    def noisy(noise: Noise) -> Results:
        return run(function, call, noise.argument, noise)

    names = [f"result or gradient {at}" for at in range(len(eager))]
    found = wrong(names, mine, Yardstick(eager, exact, noisy))
    if found:
        return "wrong", found
    refused = [str(part) for part in parts if not isinstance(part, Compiled)]
    return ("refused", "; ".join(refused)) if refused else ("right", "")


def run(
    function: Callable[..., Any],
    call: Call,
    change: Callable[[Any], Any] = lambda value: value,
    mode: Any = None,
) -> Results:
    """Results, then gradients for cotangents that are the same in every run."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, functools.partial(_copy, change), call)
    wanted = [t for t in pytree.tree_leaves((args, kwargs)) if getattr(t, "requires_grad", False)]
    with mode or nullcontext():
        results = [t for t in pytree.tree_leaves(function(*args, **kwargs)) if _is_dense(t)]
        given = [t for t in results if t.requires_grad]
        torch.manual_seed(0)
        cotangents = [torch.randn_like(t) for t in given]
        gradients = (
            torch.autograd.grad(given, wanted, cotangents, allow_unused=True) if given else ()
        )
    return [None if t is None else _real(t) for t in (*results, *gradients)]


def _copy(change: Callable[[Any], Any], value: torch.Tensor) -> Any:
    return change(value.detach().clone().requires_grad_(value.requires_grad))


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--record", type=Path, help="a file for what was found, as JSON")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch._logging.set_logs(all=logging.CRITICAL)
    progress.logger.setLevel(logging.CRITICAL)
    cpp.compile_hastily(True)
    counts: dict[str, int] = {}
    others: dict[str, list[str]] = {}
    for name in operators():
        for verdict, why in judged(name, asked.device):
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict != "right":
                print(f"{name}: {verdict}: {why}", flush=True)
                others.setdefault(name, []).append(f"{verdict}: {why}"[:300])
    commit, changed = provenance.commit()
    made = {"device": asked.device, "samples": counts, "not right": others}
    made |= {"left out": exceptions(), "commit": commit, "changed": changed}
    made |= {"versions": provenance.versions()}
    if asked.record:
        asked.record.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(counts))
    return int(bool(counts.keys() & {"wrong", "error"}))


if __name__ == "__main__":
    sys.exit(main())
