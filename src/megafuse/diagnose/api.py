"""`mf.diagnose`: why is a function or a module slow, what to do, and what that brings."""

from __future__ import annotations

import time
from datetime import date
from typing import Any

from megafuse.diagnose import (
    fix,
    rank,
    roofline,
    roofs,
    trial_model,
    trial_optimizer,
    trials,
    verdict,
)
from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.diagnose.finding import Finding, Trial
from megafuse.diagnose.findings import Case, optimizer
from megafuse.diagnose.keep import Keep
from megafuse.diagnose.live import Products
from megafuse.diagnose.observe import observed
from megafuse.diagnose.replay import Tape
from megafuse.diagnose.subject import Subject, subject
from megafuse.runtime import loader

_WORTH = 1.05  # times faster: what was tried and is less is no finding
_FIRST = 2  # findings that are tried where nobody asked for it


def diagnose(
    function: Any,
    *args: Any,
    mode: str = "forward",
    seconds: float = 30.0,
    attempt: bool | None = None,
    device: str | None = None,
    **kwargs: Any,
) -> Diagnosis:
    """Calls `function(*args, **kwargs)` some times, and says where the time goes.

        print(mf.diagnose(model, batch))
        print(mf.diagnose(step, mode="backward"))       also the backward of what it returns
        mf.diagnose(step).write("slow.json")

    `seconds` limits the calls. `attempt` says whether to try the changes that megafuse can make by
    itself: by default those that are quick. What calls change is put back: tensors, gradients,
    buffers, train and eval, random generators, optimizers. A function with arguments of these names
    is wrapped: `mf.diagnose(lambda: f(x, mode="a"))`.
    """
    return of(subject(function, args, kwargs, mode, device), seconds, attempt)


def of(
    what: Subject, seconds: float, attempt: bool | None = None, or_exit: bool = False
) -> Diagnosis:
    """The diagnosis of a subject."""
    begun = time.perf_counter()
    keep = Keep(what.function, (what.args, what.kwargs))
    try:
        record, tape = observed(what, keep, seconds, or_exit)
    finally:
        keep.restore()
    machine = roofs.raised(roofs.machine(what.device), record)
    roofline.fill(record, machine)
    case = Case(record, machine, Products(what.device))
    findings = rank.found(case)
    if tape is not None and attempt is not False:
        _try(what, case, findings, tape, seconds, attempt is True)
    fix.add_fixes(findings)
    keep.restore_random()
    return Diagnosis(
        record,
        machine,
        verdict.verdict(record, machine, findings),
        findings,
        time.perf_counter() - begun,
        date.today().isoformat(),
    )


def _try(
    what: Subject,
    case: Case,
    findings: list[Finding],
    tape: Tape,
    seconds: float,
    all_of: bool,
) -> None:
    """The most important ones, as long as there is time."""
    if all_of:
        loader.load()  # megafuse's runtime, which may have to be compiled first
    end = time.perf_counter() + seconds
    for finding in list(findings if all_of else findings[:_FIRST]):
        if time.perf_counter() < end:
            finding.trial = _one(what, case, finding, tape, all_of)
        trial = finding.trial
        if trial is not None and not trial.error and trial.times < _WORTH:
            findings.remove(finding)
            case.record.notes.append(
                f"{finding.name} at {finding.where} is left out: predicted "
                f"{finding.call_gain:.2g}×, but {trial.what} was {trial.times:.2g}× as fast there"
            )


def _one(what: Subject, case: Case, finding: Finding, tape: Tape, all_of: bool) -> Trial | None:
    if finding.name == optimizer.NAME:
        return trial_optimizer.tried(what)
    if all_of and finding.name in trial_model.HELPS:  # it may compile for minutes: only if asked
        whole = trial_model.tried(what)
        if whole is not None:
            return whole
    return trials.tried(case, finding, tape)
