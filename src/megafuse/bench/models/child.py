"""A contender's process: `python -m megafuse.bench.models.child ORDER`, started by worker.py.

    prepare    makes the model, changes it, takes its first step and a few more      → "ready"
    wait       until told to go: nobody else prepares or measures then               ← "go"
    measure                                                             → "measured", "profiled"

A line of JSON each; whatever else prints to stdout goes to stderr.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, TextIO, TypeVar

import torch

from megafuse.bench.honesty import told
from megafuse.bench.models import measure, room, samples
from megafuse.bench.models.case import Case
from megafuse.bench.models.contenders import CONTENDERS, Contender, Skipped
from megafuse.bench.models.order import REFERENCE, Order
from megafuse.bench.models.work import Work, work_of
from megafuse.runtime import loader

# Steps after the first: CUDA graphs are made in the second or third, then replayed.
WARM_UP = {"cuda": 4, "cpu": 1}
Result = TypeVar("Result")


def main(text: str) -> int:
    # Libraries print: they get stderr, and the pipe is ours alone.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    told_to_go = _watch_the_command()
    order = Order.from_json(json.loads(text))
    try:
        if order.contender == REFERENCE:
            _reference(order, pipe)
        else:
            _contender(order, pipe, told_to_go)
    except Skipped as why:
        _say(pipe, "skipped", str(why))
    except Exception as error:  # a compiler can fail in any way
        logging.getLogger(__name__).exception("%s failed", order.contender)
        _say(pipe, "error", told(error))
    return 0


def _say(pipe: TextIO, kind: str, what: Any) -> None:
    print(json.dumps({kind: what}), file=pipe, flush=True)


def _watch_the_command() -> Event:
    """Set when it says "go". When the command is gone, so is this process: else it would compile on
    beside whatever is measured next."""
    go = Event()

    def watch() -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                go.set()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
    return go


# ---- a contender


def _contender(order: Order, pipe: TextIO, told_to_go: Event) -> None:
    case, who = order.case, CONTENDERS[order.contender]
    dtype: torch.dtype = getattr(torch, case.dtype)
    _start(case)
    room.refuse(case, dtype.itemsize, optimizes=True)
    remarks = _listen()
    work = work_of(case)
    _synchronize(case)
    _fresh_cache(order)
    step, results = work.step, work.results
    if who.marks_steps:
        step, results = _marked(step), _marked(results)
    first = _first(case, who, work, step)
    if not order.only_first:
        for _ in range(WARM_UP[case.device]):
            step()
        if order.samples:  # of a step like those that are timed: a graph that is replayed, say
            torch.save(results(), order.samples)
        work.learn()
        step()
    _synchronize(case)
    if case.device == "cuda":
        torch.cuda.empty_cache()  # others prepare beside it
    _say(pipe, "ready", {"first": first, "remarks": remarks})
    if order.only_first:
        return
    told_to_go.wait()
    _say(pipe, "measured", measure.times_and_memory(step, who, case.device, order.budget))
    # Last, and in words of its own: where the profiler fails, the times stand.
    _say(pipe, "profiled", measure.profiled(work, step, who, case.device))


def _start(case: Case) -> None:
    """What every program has done before its first step: it is no part of that."""
    torch.backends.cudnn.allow_tf32 = False  # convolutions; products of matrices have no TF32
    loader.load()
    x = torch.ones(64, 64, device=case.device)
    (x @ x).sum().item()


def _listen() -> list[str]:
    """What megafuse warns of while it compiles: a graph that is not fused, say."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage().splitlines()[0].removeprefix("megafuse: ")
            if line not in heard:
                heard.append(line)

    logging.getLogger("megafuse").addHandler(Ear(logging.WARNING))
    return heard


def _fresh_cache(order: Order) -> None:
    """Ours; torch's was set when the process began. The host runtime is loaded already."""
    if order.cache:
        os.environ["MEGAFUSE_CACHE"] = order.cache


def _first(case: Case, who: Contender, work: Work, step: Callable[[], None]) -> float:
    """Seconds from the plain model to the end of its first step."""
    begun = time.perf_counter()
    who.apply(work.model)
    step()
    _synchronize(case)
    return time.perf_counter() - begun


def _marked(call: Callable[[], Result]) -> Callable[[], Result]:
    def marked() -> Result:
        torch.compiler.cudagraph_mark_step_begin()
        return call()

    return marked


def _synchronize(case: Case) -> None:
    if case.device == "cuda":
        torch.cuda.synchronize()


# ---- float64


def _reference(order: Order, pipe: TextIO) -> None:
    """The row's results in float64; float32 for a 16-bit row that is too large for that."""
    case, dtype = order.case, torch.float64
    try:
        room.refuse(case, dtype.itemsize, optimizes=False)
    except room.NoRoom:
        if case.dtype == "float32":
            raise
        dtype = torch.float32
        room.refuse(case, dtype.itemsize, optimizes=False)
    work = work_of(case, dtype)
    with samples.reference_mode(dtype):
        found = work.results()
    torch.save(found, order.samples)
    _say(pipe, "ready", {"against": str(dtype).removeprefix("torch.")})


if __name__ == "__main__":
    ended = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(ended)  # the thread that watches stdin would be in the way of an orderly end
