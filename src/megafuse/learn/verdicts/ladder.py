"""Verdicts on a ladder: what each rung gained, whether bytes foretold it, how near the top is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megafuse.bench import Ratio, speedup
from megafuse.learn.explain import megabytes, seconds
from megafuse.learn.verdicts import rule
from megafuse.learn.verdicts.rule import times

if TYPE_CHECKING:
    from megafuse.learn.tutorial.climb import Climb, Climbed

_FEWER = 1.05  # times the bytes: what counts as fewer


def guessed(guess: float | None, came: float) -> str:
    """The reader's guess beside what came."""
    text = f"The last rung is {times(came)} as fast as the first."
    if guess is None or guess <= 0:
        return text
    if max(guess / came, came / guess) < 1.5:
        return text + f" You said {guess:g}: well guessed."
    return text + f" You said {guess:g}: {'more' if came > guess else 'less'} than you thought."


def steps(climbed: Climb) -> list[str]:
    """What each rung gained over the one below it."""
    pairs = zip(climbed.rungs, climbed.rungs[1:], strict=False)
    return [_step(below, above) for below, above in pairs]


def _step(below: Climbed, above: Climbed) -> str:
    name, under = above.rung.name, below.rung.name
    saved = below.ledger.from_memory / above.ledger.from_memory
    gain = speedup(below.timing, above.timing)
    text = f"{name}: {_bytes(below, above, saved)}, "
    if rule.faster(gain):
        return text + f"{times(gain.median)} as fast as {under}." + _why(below, above, gain)
    if rule.slower(gain):
        text += f"and {times(1 / gain.median)} as long as {under}."
        return text + (" What it saves costs more than it brings here." if saved > _FEWER else "")
    if rule.same(gain):
        text += f"about as fast as {under}."
        waited = " So it was not memory that the one below waited for."
        return text + (waited if saved > _FEWER else "")
    return text + f"and {rule.unclear(gain)} to {under}."


def _bytes(below: Climbed, above: Climbed, saved: float) -> str:
    """Those from memory; and those asked for, where only they became fewer."""
    if saved > _FEWER:
        now, before = (megabytes(c.ledger.from_memory) for c in (above, below))
        return f"{now} from memory instead of {before}"
    if below.ledger.bytes_moved > _FEWER * above.ledger.bytes_moved:
        now, before = (megabytes(c.ledger.bytes_moved) for c in (above, below))
        return f"it asks for {now} instead of {before}, but a cache held the difference"
    return "the same bytes"


def _why(below: Climbed, above: Climbed, gain: Ratio) -> str:
    saved = below.ledger.from_memory / above.ledger.from_memory
    told = all(rule.foretold(each.predicted, each.timing) for each in (below, above))
    if saved <= _FEWER and gain.median >= 1.5:
        return " Not how much is moved, but how."
    if saved > _FEWER and told:
        return " The bytes that it saves are the time that it saves."
    return ""


def predictions(climbed: Climb, device: str) -> str:
    """Where counting bytes foretold the time, and where not."""
    told = [c for c in climbed.rungs if rule.foretold(c.predicted, c.timing)]
    loose = [c for c in climbed.rungs if not rule.narrow(c.timing)]
    rest = [c for c in climbed.rungs if c not in told and c not in loose]
    parts = []
    if told:
        names = ", ".join(c.rung.name for c in told)
        parts.append(f"The bytes foretold, to within a quarter, the time of: {names}.")
    else:
        parts.append("The bytes foretold the time of none of them to within a quarter.")
    parts += [_unforetold(each, device) for each in rest]
    if loose:
        names = ", ".join(c.rung.name for c in loose)
        parts.append(f"Too scattered to say: {names}.")
    return " ".join(parts)


def _unforetold(each: Climbed, device: str) -> str:
    off = each.seconds / each.predicted
    if off < 1:
        return (
            f"{each.rung.name} needs {off:.0%} of its prediction: memory cannot have delivered "
            f"more than {megabytes(round(each.predicted_rate * each.seconds))} in that time, so a "
            "cache served the rest."
        )
    waits = each.rung.waits_for(device)
    text = f"{each.rung.name} takes {times(off)} its prediction"
    return f"{text}: {waits}." if waits else f"{text}."


def top(climbed: Climb) -> str:
    """How near the last rung comes to the roof."""
    last = climbed.rungs[-1]
    share = climbed.share(last)
    text = f"{last.rung.name} reaches {share:.0%} of the copy's rate"
    if not rule.narrow(last.timing):
        return f"{text}, but {rule.scattered('its time', last.timing)}"
    if share >= 0.8:
        return text + (
            f": in one pass over memory at most {max(1 / share, 1.0):.2f}× is left to gain."
        )
    return text + (
        f": its bytes explain {seconds(last.predicted)} of its {seconds(last.seconds)}. What the "
        "rest is, these numbers do not say."
    )


def sums(climbed: Climb) -> str:
    """How the order of additions shows in the errors."""
    first, last = climbed.rungs[0], climbed.rungs[-1]
    text = f"Look at the errors: {first.error:.1e} at the bottom, {last.error:.1e} at the top. "
    if first.error > 1.5 * last.error:
        return text + (
            "One sum that grows and grows rounds off more of each small number; many short sums, "
            "joined at the end, come nearer to the truth."
        )
    return text + "Here both orders of adding err by about as much."
