"""One reason why a call is slow: the numbers that show it, what to do, and what that brings."""

from __future__ import annotations

from dataclasses import dataclass, field

from megafuse.diagnose.record import Record, Where

SURE = ("measured", "sure", "likely", "perhaps")


@dataclass(frozen=True)
class Evidence:
    """A number that shows it, with its name and unit: 2.1 % of the library's rate."""

    name: str  # "rate of the library's product"
    value: float
    unit: str  # "s", "B", "B/s", "FLOP/s", "×", "%", "" for a count


@dataclass
class Trial:
    """The change, tried: both ways checked and timed in turns."""

    what: str  # "megafuse.linear_relu in its place"
    before: float  # seconds, medians
    after: float
    low: float  # the ratio's spread
    high: float
    error: str = ""  # why there is no time: it was wrong, or could not be done
    accuracy: str = ""  # in words: how far from float64, and how far the original is
    part: str = "call"  # what was timed: the whole "call", or the "operations" of the finding

    @property
    def gain(self) -> float:
        """Seconds saved."""
        return self.before - self.after

    @property
    def times(self) -> float:
        return self.before / self.after if self.after else 0.0


@dataclass
class Finding:
    """What is slow and why. `gain` is predicted before anything is tried."""

    name: str  # "naive-product": one word for programs, as in docs/diagnose.md
    title: str  # one line for people, with the most telling number
    advice: str  # what to do, one sentence
    where: Where
    seconds: float  # of the call's time, what this is about
    gain: float  # seconds of a call that the change saves, as predicted
    sure: str  # of SURE
    evidence: list[Evidence] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)  # their indices in the record
    how: str = ""  # how the prediction was made, in words
    lines: list[Where] = field(default_factory=list)  # further lines with the same reason
    trial: Trial | None = None
    fix: str = ""  # a unified diff, where the change is a line or two
    call_gain: float = 0.0  # times that the whole call gets faster, as predicted

    def measured(self, record: Record) -> float | None:
        """Seconds of a call with the change, as it was tried; None where it was not, or failed.

        A trial of the operations changes their part of the call, and that has a share of the
        time between operations: Python and dispatch, which one call in place of many saves too.
        """
        trial = self.trial
        if trial is None or trial.error or not trial.before:
            return None
        changed = record.seconds
        if trial.part != "call":
            work = [op for op in record.operations if op.kind != "view"]
            outside = sum(call.seconds for call in record.host_calls)
            between = max(0.0, record.seconds - sum(op.seconds for op in work) - outside)
            share = min(1.0, len(self.operations) / max(1, len(work)))
            changed = min(record.seconds, self.seconds + share * between)
        return record.seconds - changed * (1 - trial.after / trial.before)

    def number(self, name: str) -> float | None:
        """The evidence of this name."""
        return next((e.value for e in self.evidence if e.name == name), None)
