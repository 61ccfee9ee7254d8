"""`megafuse bench --suite models`, from its options to its exit status."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from megafuse.bench import machine, options, refusal
from megafuse.bench.models import merge, show
from megafuse.bench.models.case import DTYPES, MODES, Case, cases
from megafuse.bench.models.contenders import CONTENDERS
from megafuse.bench.models.run import Plan, Run
from megafuse.bench.models.zoo import MODELS
from megafuse.bench.refusal import Refused, unknown
from megafuse.bench.result import Result
from megafuse.bench.stopping import stopping_when_told

# Options that mean nothing for whole models.
_OTHERS = ("shape", "elements", "features", "set", "against", "visits", "html")
LIMIT, BUDGET = 300.0, 2.0
RESULTS = Path("benchmarks/results")


def run(parsed: argparse.Namespace) -> int:
    """Exit status 0; 1: a contender of ours failed; 2: refused; 130: Ctrl-C."""
    device = options.device(parsed.device)
    _refuse(parsed, device)
    asked = _cases(parsed, device)
    plan = Plan(
        asked,
        _named(parsed.contender, "contender", CONTENDERS),
        shlex.join(["megafuse", *typed(parsed)]),
        jobs=parsed.jobs or 1,
        limit=parsed.limit or LIMIT,
        budget=parsed.budget or BUDGET,
        seconds=parsed.seconds,
        warm=parsed.warm,
        accuracy=not parsed.no_accuracy,
    )
    about = machine.about(device)
    path = parsed.json or _default_path(parsed, about)
    before = merge.earlier(parsed.json, about) if parsed.add else None
    print("\n".join(show.announced(asked, list(plan.contenders), plan.jobs)), flush=True)
    running = Run(plan, _say, lambda each: _keep(each.result(), before, parsed.json))
    interrupted = False
    try:
        with stopping_when_told():
            running.all()
    except KeyboardInterrupt:
        interrupted = True
    result = merge.added(before, running.result())
    print("\n" + show.text(result))
    if path and (parsed.json or not result.stopped):
        result.write(path)
        print(f"written: {path}")
    if interrupted:
        return 130
    return int(any(e.error for r in result.rows for e in r.entries if e.name == r.subject))


def _say(words: str) -> None:
    print(words, flush=True)


def _keep(result: Result, before: Result | None, path: str | None) -> None:
    """After each batch: a run that is killed leaves what it has."""
    if path:
        merge.added(before, result).write(path)


def _default_path(parsed: argparse.Namespace, about: dict[str, object]) -> str | None:
    """benchmarks/results/models-nvidia-h200.json: of the whole suite, in a checkout."""
    chosen = (parsed.model, parsed.dtype, parsed.mode, parsed.contender, parsed.seconds)
    if any(c is not None for c in chosen) or parsed.tiny or not RESULTS.is_dir():
        return None
    name = about.get("gpu") or f"{about['architecture']} {about['cores']} cores"
    return str(RESULTS / f"models-{str(name).lower().replace(' ', '-')}.json")


def typed(parsed: argparse.Namespace) -> list[str]:
    """The options again, so that the file says how it was made."""
    words = ["bench", "--suite", "models"]
    for name in ("device", "model", "dtype", "mode", "contender", "jobs", "limit", "budget"):
        value = getattr(parsed, name)
        if value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return words + [
        f"--{n.replace('_', '-')}" for n in ("warm", "no_accuracy", "tiny") if getattr(parsed, n)
    ]


# ---- what is asked for


def _cases(parsed: argparse.Namespace, device: str) -> list[Case]:
    modes = _named(parsed.mode, "mode", MODES)
    found = cases(
        _models(parsed), _named(parsed.dtype, "dtype", DTYPES), modes, device, parsed.tiny
    )
    if not found:
        raise Refused("only causal language models decode: gpt2, llama, qwen3")
    return found


def _models(parsed: argparse.Namespace) -> list[str]:
    """Those that are named, which must be there; else all that can be made here."""
    names = _named(parsed.model, "model", MODELS)
    missing = {name: MODELS[name].missing for name in names if MODELS[name].missing}
    if missing and (parsed.model or len(missing) == len(names)):
        raise Refused(f"{', '.join(missing)}: {next(iter(missing.values()))}")
    if missing:
        print(f"left out, {', '.join(missing)}: {next(iter(missing.values()))}", file=sys.stderr)
    return [name for name in names if name not in missing]


def _named(text: str | None, what: str, known: Iterable[str]) -> list[str]:
    """a,b,… of those that there are, in their order; all of them without."""
    names = list(known)
    if text is None or text == "all":
        return names
    asked = options.split(what, text)
    for name in asked:
        if name not in names:
            raise Refused(unknown(what, name, names))
    return [name for name in names if name in asked]


def _refuse(parsed: argparse.Namespace, device: str) -> None:
    if parsed.ops:
        raise Refused(f"the suite models has no ops: --model {','.join(parsed.ops)}?")
    for name in _OTHERS:
        if getattr(parsed, name) is not None:
            raise Refused(f"--{name} is no option of the suite models")
    for name in ("counters", "measure_roofs"):
        if getattr(parsed, name):
            raise Refused(f"--{name.replace('_', '-')} is no option of the suite models")
    if parsed.add and not parsed.json:
        raise Refused("--add adds to a file: name it with --json")
    refusal.unwritable(parsed.json)
    refusal.narrower_float32(device)
