"""A schedule as text: one line for each kind of phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megafuse.decode.schedule import Schedule


def shown(schedule: Schedule) -> str:
    """At 80 columns: phase, how many, tiles, MB of weights, and µs and GB/s where measured."""
    from megafuse.decode.schedule import TITLES

    taken = schedule.microseconds()
    seen = schedule.positions / schedule.steps if schedule.steps else 0
    lines = [f"{'phase':<27}{'times':>6}{'tiles':>8}{'MB':>10}{'µs':>11}{'GB/s':>8}"]
    kinds = list(dict.fromkeys(phase.kind for phase in schedule))
    for kind in kinds:
        places = [i for i, phase in enumerate(schedule) if phase.kind == kind]
        size = sum(schedule[i].bytes + schedule[i].bytes_a_position * seen for i in places)
        spent = None if taken is None else sum(taken[i] for i in places)
        tiles = schedule[places[0]].tiles
        lines.append(_line(TITLES[kind], len(places), tiles, size, spent))
    whole = schedule.bytes + sum(phase.bytes_a_position for phase in schedule) * seen
    spent = None if taken is None else sum(taken)
    lines.append(_line("a step", len(schedule), None, whole, spent))
    if taken is None:
        lines.append("no token was made yet: µs are those of the clock inside the kernel")
    else:
        lines.append(f"mean of {schedule.steps} steps; cache of {seen:.0f} positions on average")
    return "\n".join(lines)


def _line(title: str, times: int, tiles: int | None, size: float, spent: float | None) -> str:
    line = f"{title:<27}{times:>6}{'' if tiles is None else tiles:>8}{size / 1e6:>10.3f}"
    if spent is None:
        return line
    rate = f"{size / spent / 1e3:>8.1f}" if spent > 0 and size else f"{'':>8}"
    return f"{line}{spent:>11.1f}{rate}".rstrip()
