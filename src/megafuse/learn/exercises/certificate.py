"""What a learner has done, as a page of their own numbers: `megafuse learn --certificate PAGE`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from megafuse.bench.report import panel
from megafuse.bench.report.frame import framed, part, save
from megafuse.bench.result import Roofs
from megafuse.learn import figures
from megafuse.learn.exercises import climbed
from megafuse.learn.exercises.catalog import FIRST_TRY, Exercise
from megafuse.learn.exercises.folder import Folder, State
from megafuse.learn.explain import seconds
from megafuse.learn.figures import Figure

_REPORT = "megafuse.bench.report"
_TELLING = 1.2  # a ratio below this may be noise, and is not praised


@dataclass(frozen=True)
class Gain:
    """The first number of a unit that was found, and the best; what the first one is of."""

    unit: str
    first: float
    best: float
    against: str = FIRST_TRY

    @property
    def ratio(self) -> float:
        return self.first / self.best if self.best else 1.0

    @property
    def tells(self) -> bool:
        """Whether it is more than noise."""
        return self.ratio >= _TELLING

    @property
    def says(self) -> str:
        """94× as fast as your first try; 2.5 times fewer bytes asked for"""
        times = f"{self.ratio:.0f}" if self.ratio >= 10 else f"{self.ratio:.2g}"
        if self.unit == "s":
            return f"{times}× as fast as {self.against}"
        return f"{times} times fewer {self.unit} than {self.against}"

    def shown(self, value: float) -> str:
        if self.unit == "s":
            return seconds(value)
        unit = self.unit.replace("passes", "pass") if value == 1 else self.unit
        return f"{value:,.0f} {unit}"


@dataclass(frozen=True)
class Done:
    """One exercise in the learner's folder."""

    exercise: Exercise
    state: State
    gain: Gain | None
    hints: int


def done(exercises: Sequence[Exercise], folder: Folder) -> list[Done]:
    return [
        Done(exercise, folder.state(exercise), gain(folder, exercise), folder.hints_seen(exercise))
        for exercise in exercises
    ]


def gain(folder: Folder, exercise: Exercise) -> Gain | None:
    """That of the unit which became smallest; time, where there is one that tells."""
    found = [
        Gain(unit, float(each["first"]), float(each["best"]), exercise.against)
        for unit, each in folder.numbers(exercise).items()
        if each.keys() >= {"first", "best"}
    ]
    return max(found, key=lambda gain: gain.ratio, default=None)


def write(
    path: Path,
    exercises: Sequence[Exercise],
    folder: Folder,
    name: str = "",
    roofs: Mapping[str, Roofs] | None = None,
) -> None:
    """One file, which loads nothing. `roofs` are those of the devices that are here."""
    drawn = [
        climbed.figure(tries, device, roof)
        for device, roof in (roofs or {}).items()
        if (tries := climbed.tries(exercises, folder, device))
    ]
    asked = climbed.counted(exercises, folder)
    save(page(done(exercises, folder), name, [*drawn, *([asked] if asked else [])]), path)


def page(all_of_them: Sequence[Done], name: str = "", rooflines: Sequence[Figure] = ()) -> str:
    """The whole HTML text."""
    finished = [each for each in all_of_them if each.state == "done"]
    heading = "Kernel fusion, by hand" + (f": {name}" if name else "")
    return framed(
        title=heading,
        heading=heading,
        style=part("page.css", _REPORT) + _STYLE,
        script=part("dom.js", _REPORT) + part("frame.js", _REPORT) + _SCRIPT,
        data={},
        main=_summary(all_of_them, finished)
        + _section("roof", "Roofline", rooflines)
        + _section("gains", "Gains", _gains(finished))
        + _table(all_of_them)
        + _pictures(finished),
    )


def _summary(all_of_them: Sequence[Done], finished: Sequence[Done]) -> str:
    best = max(_telling(finished), key=_praise, default=None)
    cuda = sum(each.exercise.starter.suffix == ".cu" for each in finished)
    hints = sum(each.hints for each in finished)
    headline = ""
    if best is not None and best.gain is not None:
        first, last = best.gain.shown(best.gain.first), best.gain.shown(best.gain.best)
        headline = (
            f'<p class="headline">{escape(best.gain.says)}</p>\n'
            f'<p class="soft">{escape(best.exercise.title)}: from {escape(first)} to '
            f"{escape(last)}.</p>\n"
        )
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    whole = len(finished) == len(all_of_them)
    words = "all" if whole else f"{len(finished)} of"
    return (
        f'<section id="certificate" data-short="Certificate">\n{headline}'
        f"<p>{words} {len(all_of_them)} exercises solved, {cuda} of them CUDA kernels, with "
        f"{hints} hint{'s' * (hints != 1)}; {today}.</p>\n"
        + ("" if finished else "<p>Nothing is solved yet: <code>megafuse learn</code>.</p>\n")
        + "</section>\n"
    )


def _praise(each: Done) -> tuple[bool, float]:
    """Time before counts, the largest gain of them."""
    return (each.gain.unit == "s", each.gain.ratio) if each.gain else (False, 0.0)


def _telling(finished: Sequence[Done]) -> list[Done]:
    return [each for each in finished if each.gain is not None and each.gain.tells]


def _section(name: str, short: str, drawn: Sequence[Figure]) -> str:
    if not drawn:
        return ""
    panels = "\n".join(map(panel, drawn))
    return f'<section id="{name}" data-short="{short}">{panels}</section>\n'


def _gains(finished: Sequence[Done]) -> list[Figure]:
    telling = _telling(finished)
    if not telling:
        return []
    drawn = figures.bars(
        "How far you came",
        "Your first try over your best: time where it was measured, else what was counted. In the "
        "last two exercises it is PyTorch's way, timed beside yours.",
        [
            figures.Bar(each.exercise.title, each.gain.ratio, f"{each.gain.ratio:.3g}×")
            for each in telling
            if each.gain is not None
        ],
        "×",
    )
    return [drawn]


def _table(all_of_them: Sequence[Done]) -> str:
    rows = "".join(_row(each) for each in all_of_them)
    return (
        '<section id="exercises" data-short="Exercises"><h2>Exercise by exercise</h2>\n'
        '<div class="cells"><table><thead><tr><th></th><th>exercise</th><th>first</th>'
        f"<th>best</th></tr></thead><tbody>\n{rows}</tbody></table></div></section>\n"
    )


def _row(each: Done) -> str:
    first = best = ""
    if each.gain is not None:
        first, best = each.gain.shown(each.gain.first), each.gain.shown(each.gain.best)
    mark = {
        "done": '<span role="img" aria-label="solved">✓</span>',
        "open": '<span role="img" aria-label="begun">…</span>',
        "new": "",
    }[each.state]
    cells = (f"{each.exercise.number}. {each.exercise.title}", first, best)
    return (
        f'<tr class="{each.state}"><td>{mark}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>\n"
    )


def _pictures(finished: Sequence[Done]) -> str:
    """What was learned with each, drawn."""
    if not finished:
        return ""
    drawn = "".join(
        f"<details><summary>{escape(each.exercise.title)}</summary>\n"
        f"<p>{escape(each.exercise.learn)}</p>\n<pre>{escape(each.exercise.picture)}</pre></details>\n"
        for each in finished
    )
    heading = "<h2>What you know now</h2>"
    return f'<section id="pictures" data-short="Pictures">{heading}\n{drawn}</section>'


_SCRIPT = "\nbuildContents();\nbuildTheme();\n"
_STYLE = """
.headline { font-size: clamp(1.8rem, 1.2rem + 3.5vw, 3.4rem); line-height: 1.1; font-weight: 700;
    letter-spacing: -0.02em; color: var(--accent); margin: 0 0 0.4rem; text-wrap: balance; }
figure.panel + figure.panel { margin-top: 1.2rem; }
.cells { overflow-x: auto; }
.cells table { border-collapse: collapse; font-size: 0.92rem; min-width: 100%; }
.cells th, .cells td { text-align: left; padding: 0.3rem 1rem 0.3rem 0.2rem;
    border-bottom: 1px solid var(--line); }
.cells th:first-child, .cells td:first-child { width: 1.4rem; padding-right: 0.3rem; }
.cells th:nth-child(n + 3), .cells td:nth-child(n + 3) { text-align: right; padding-right: 0.2rem; }
tr.new td { color: var(--soft); }
tr.done td:first-child { color: var(--accent); font-weight: 700; }
details { border-bottom: 1px solid var(--line); padding: 0.5rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { font: 0.8rem/1.35 var(--mono); overflow-x: auto; padding: 0.6rem 0.8rem; border-radius: 8px;
    background: var(--sunk); }
@media print { #theme, nav { display: none; } }
"""
