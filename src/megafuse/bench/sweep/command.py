"""`megafuse bench --sweep`, from its options to its exit status."""

from __future__ import annotations

import argparse
import itertools
import shlex
import time
import warnings

import torch

from megafuse.bench import machine, options, refusal
from megafuse.bench.contenders import fused
from megafuse.bench.refusal import Refused
from megafuse.bench.stopping import stopping_when_told
from megafuse.bench.sweep import result, show
from megafuse.bench.sweep.draw import Drawing
from megafuse.bench.sweep.hunt import Watcher, hunt
from megafuse.bench.sweep.known import known
from megafuse.ops import OPS

SECONDS, SEED = 600.0, 0
# Options that a sweep has no use for: it draws what they would fix.
_FIXING = ("suite", *options.DESCRIBING, "against", "budget", "visits", "html")


def run(parsed: argparse.Namespace) -> int:
    """Exit status 0: nothing is behind; 1: something is, or failed; 2: refused; 130: Ctrl-C."""
    device = options.device(parsed.device)
    _refuse(parsed, device)
    ops = tuple(parsed.ops) or tuple(OPS)
    seconds = parsed.seconds or SECONDS
    seed = SEED if parsed.seed is None else parsed.seed
    if parsed.threads:
        torch.set_num_threads(parsed.threads)
    screen = show.Screen(seconds)
    watcher = Watcher(screen.at, screen.found, screen.failed)
    about = machine.about(device)
    begun = time.perf_counter()
    cases = itertools.chain(known(device, ops), Drawing(ops, device, seed))
    with warnings.catch_warnings(), stopping_when_told():
        # torch.compile would have float32 be TF32; oneDNN tells of each product that it fails at.
        warnings.simplefilter("ignore")
        found = hunt(cases, device, seconds, watcher)
    screen.clear()
    taken = time.perf_counter() - begun
    made = result.of(found, about, shlex.join(["megafuse", *typed(parsed)]), seed, seconds, taken)
    print(show.text(made))
    if parsed.json:
        made.write(parsed.json)
        print(f"written: {parsed.json}")
    if found.stopped:
        return 130
    return int(bool(found.losers or found.failed))


def typed(parsed: argparse.Namespace) -> list[str]:
    """The options again, so that the file says how it was made."""
    words = ["bench", *parsed.ops, "--sweep"]
    for name in ("seconds", "device", "seed", "threads"):
        value = getattr(parsed, name)
        if value is not None:
            words += [f"--{name}", f"{value:g}" if name == "seconds" else str(value)]
    return words


def _refuse(parsed: argparse.Namespace, device: str) -> None:
    refusal.unknown_ops(parsed.ops)
    refusal.unwritable(parsed.json)
    given = [name for name in _FIXING if getattr(parsed, name) is not None]
    given += [name for name in ("counters", "measure_roofs") if getattr(parsed, name)]
    if given:
        raise Refused(f"--sweep draws its cases itself: leave out --{given[0].replace('_', '-')}")
    refusal.narrower_float32(device)
    if fused(next(iter(OPS.values())), device).name != "fused":
        raise Refused("there are no kernels here to compare: see `megafuse doctor`")
