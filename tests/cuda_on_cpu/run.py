"""Runs cases in the emulator: `python tests/cuda_on_cpu/run.py rows:softmax-4 pointwise --sm 80`.

Each case runs with the threads of a block in three orders. The results must have the same bits in
all of them, and be right by the fuzzer's rule. `hand_written` are the registry's ops, `decode` the
decode megakernel, `decode:NAME` that with a mistake in it (decode_mistakes.py), `optimizers` their
steps, and `fuzz:20:50` the fuzzer's programs 20 to 49.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_on_cpu import hand_written, plans
from cuda_on_cpu.cases import GROUPS, Case
from cuda_on_cpu.gpu import ORDERS, Gpu
from megafuse.compiler import fuse
from megafuse.compiler.fuzz import trial
from megafuse.compiler.fuzz.exact import Exact, widened
from megafuse.compiler.fuzz.grammar import generate
from megafuse.compiler.fuzz.judge import Yardstick, wrong
from megafuse.compiler.fuzz.noise import Noise
from megafuse.runtime import fallback, loader


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", help="group or group:case")
    parser.add_argument("--sm", default="80", help="compute capability, without the dot")
    options = parser.parse_args()
    gpu = Gpu(options.sm)
    logging.getLogger("megafuse").setLevel(logging.ERROR)
    failed = count = 0
    for name, problem in found(gpu, options.what):
        print(f"FAIL {name}: {problem}" if problem else f"ok {name}")
        failed += bool(problem)
        count += 1
    print(f"{count - failed} of {count} are right")
    return int(failed > 0)


def found(gpu: Gpu, what: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The name of each that was run, and what is wrong with it."""
    for each in what:
        group, _, name = each.partition(":")
        if group == "hand_written":
            yield from hand_written.problems()
        elif group == "decode":
            from cuda_on_cpu import decoding  # brings transformers

            if name:
                yield each, decoding.planted(gpu, name)
            else:
                yield from decoding.problems(gpu)
        elif group == "optimizers":
            from cuda_on_cpu import stepping

            yield from stepping.problems(gpu)
        elif group == "plans":
            yield from plans.problems(gpu)
        elif group == "fuzz":
            first, _, end = name.partition(":")
            for index in range(int(first), int(end)):
                yield f"fuzz {index}", fuzzed(gpu, index)
        else:
            cases = [case for case in GROUPS[group] if name in ("", case.name)]
            assert cases, f"no case {each}"
            for case in cases:
                yield f"{group}:{case.name}", tried(gpu, case)


def fuzzed(gpu: Gpu, index: int) -> str:
    gpu.order(ORDERS[index % len(ORDERS)])
    program = generate(0, index)
    outcome = trial(program, "cuda")
    return f"{outcome.message}\n{program.source}" if outcome.is_finding else ""


def tried(gpu: Gpu, case: Case) -> str:
    """What is wrong, or nothing."""
    host: Any = loader.load()
    host.poison_outputs(True)
    try:
        return checked(gpu, case)
    except Exception as error:
        return "".join(traceback.format_exception(error)[-4:])
    finally:
        host.poison_outputs(False)


def checked(gpu: Gpu, case: Case) -> str:
    torch.manual_seed(zlib.crc32(case.name.encode()))
    given = [_ready(value, case.gradients) for value in case.draw()]
    host: Any = loader.load()
    fused = fuse(case.function)
    runs = []
    for order in ORDERS:
        gpu.order(order)
        before = host.launch_count()
        with fallback.strict():
            runs.append(results(fused, _on_gpu(case, given)))
        if (host.launch_count() > before) != case.fused:
            return "no kernel was launched" if case.fused else "it was fused"
    elsewhere = _devices(fused, case, given) != _devices(case.function, case, given)
    if elsewhere:
        return "a result is on another device than in eager"
    for order, run in zip(ORDERS[1:], runs[1:], strict=True):
        for at, (one, other) in enumerate(zip(runs[0], run, strict=True)):
            if one is not None and not _same_bits(one, other):
                return f"result {at} depends on the order of threads: {ORDERS[0]} and {order}"
    exact = results(case.function, [widened(value) for value in given], Exact())
    yardstick = Yardstick(
        results(case.function, given), exact, lambda noise: noisy(case, given, noise)
    )
    names = [f"result {at}" for at in range(len(runs[0]))]
    return wrong(names, runs[0], yardstick) or ""


def results(
    function: Any, given: list[Any], mode: TorchDispatchMode | None = None
) -> list[Tensor | None]:
    """What it returns, then the gradients of its arguments."""
    within = mode or nullcontext()
    with within:
        made = [t for t in pytree.tree_leaves(function(*given)) if isinstance(t, Tensor)]
    wanted = [v for v in given if isinstance(v, Tensor) and v.requires_grad]
    found: list[Tensor | None] = [t.detach().cpu() for t in made]
    if wanted:
        at = [t for t in made if t.requires_grad]
        along = [torch.linspace(-1, 1, t.numel()).view(t.shape).to(t.device, t.dtype) for t in at]
        if isinstance(mode, Noise):  # what the backward is given
            along = [mode.argument(each) for each in along]
        with within:
            gradients = torch.autograd.grad(at, wanted, along)
        found += [g if g is None else g.cpu() for g in gradients]
    return found


def noisy(case: Case, given: list[Any], noise: Noise) -> list[Tensor | None]:
    return results(case.function, [noise.argument(value) for value in given], noise)


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _ready(value: Any, gradients: bool) -> Any:
    return value.requires_grad_(gradients) if _floats(value) else value


def _on_gpu(case: Case, given: list[Any]) -> list[Any]:
    moved = [_copied(value, case.apart) if isinstance(value, Tensor) else value for value in given]
    return [*moved[:-1], given[-1]] if case.hosted else moved


def _copied(value: Tensor, apart: int) -> Tensor:
    """With the same strides, as far from an address that is a multiple of 16."""
    if apart:
        strides = (apart, *value.stride()[1:])
        far = torch.empty_strided(value.shape, strides, dtype=value.dtype, device="cuda")
        return far.copy_(value)
    whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to("cuda")
    there = whole.as_strided(value.shape, value.stride(), value.storage_offset())
    return there.detach().requires_grad_(value.requires_grad)


def _devices(function: Any, case: Case, given: list[Any]) -> list[torch.device]:
    made = pytree.tree_leaves(function(*_on_gpu(case, given)))
    return [t.device for t in made if isinstance(t, Tensor)]


def _same_bits(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    mine, theirs = (t.contiguous().flatten().view(torch.uint8) for t in (one, other))
    return bool(torch.equal(mine, theirs))


if __name__ == "__main__":
    sys.exit(main())
