"""Results files as one HTML page that needs nothing else: `megafuse report FILE… -o PAGE.html`.

    frame.py     ── makes one file of them, which loads nothing
    page.html    ── the head and the frame
    results.html ── the headings, and a place for every part that shows results
    page.css     ── how it looks: light, dark, phone, paper
    *.js         ── draw the parts from the results, which the page holds as JSON

A page may also hold figures, drawn already (megafuse.learn.figures), beside results or alone.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Protocol

from megafuse.bench.report.frame import framed, part, save
from megafuse.bench.result import NotAResult, Result, read

__all__ = ["Figure", "add_arguments", "page", "panel", "run", "save", "write"]

# One script in the page: what is shared first, then a file for each part, the page itself last.
_SCRIPTS = (
    *("format.js", "dom.js", "frame.js", "marks.js", "results.js", "choice.js"),
    *("charts.js", "bars.js", "speedup.js", "tables.js", "roofs.js", "roofline.js", "compare.js"),
    *("details.js", "machine.js", "summary.js", "controls.js", "page.js"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `megafuse report`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="what `bench --json` wrote")
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="PAGE.html", help="default: report.html"
    )
    parser.add_argument("--open", action="store_true", help="show it in the browser")


def run(parsed: argparse.Namespace) -> int:
    """Writes the page. The exit status is 0, 1 for a page not written, 2 for a bad results file."""
    try:
        write(parsed.files, parsed.output)
    except NotAResult as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        reason = error.strerror or error
        print(f"megafuse: cannot write {parsed.output}: {reason}", file=sys.stderr)
        return 1
    print(f"wrote {parsed.output}")
    if parsed.open:
        webbrowser.open(Path(parsed.output).resolve().as_uri())
    return 0


def write(files: Sequence[str | Path], output: str | Path) -> None:
    """Reads results files and writes their page.

    Raises NotAResult for a file that cannot be read, OSError where the page cannot be written.
    """
    save(page([read(file) for file in files], _names([Path(file) for file in files])), output)


class Figure(Protocol):
    """A picture: SVG that is drawn with presentation attributes and the classes of page.css."""

    @property
    def title(self) -> str: ...
    @property
    def caption(self) -> str: ...
    @property
    def svg(self) -> str: ...
    @property
    def legend(self) -> Sequence[str]: ...


def page(
    results: Sequence[Result],
    names: Sequence[str],
    figures: Sequence[Figure] = (),
    heading: str = "Figures",
) -> str:
    """The whole HTML text. `names` tell the files apart on it; one that comes again is numbered.

    `heading` stands above the figures. On a page without results it is the page's own.
    """
    names = [
        f"{name} ({list(names[: i + 1]).count(name)})" if list(names).count(name) > 1 else name
        for i, name in enumerate(names)
    ]
    held = [{"name": name, **result.to_json()} for name, result in zip(names, results, strict=True)]
    alone = not results and bool(figures)
    parts = [_section(figures, None if alone else heading)] if figures else []
    return framed(
        title=heading if alone else f"megafuse benchmarks: {', '.join(names)}",
        heading=heading if alone else "What fusion gave, and what is left",
        style=part("page.css"),
        script="\n".join(part(name) for name in _SCRIPTS),
        data=held,
        controls="" if alone else _CONTROLS,
        main="".join(parts if alone else [*parts, part("results.html")]),
    )


_CONTROLS = '<form id="controls" aria-label="What to show" autocomplete="off"></form>\n'


def _section(figures: Sequence[Figure], heading: str | None) -> str:
    """The figures in panels; no heading where the page has it already."""
    title = f'<h2 id="figures-title">{escape(heading)}</h2>\n' if heading else ""
    named = 'aria-labelledby="figures-title"' if heading else 'aria-label="Figures"'
    panels = "\n".join(map(panel, figures))
    return (
        f'<section id="figures" data-short="Figures" {named}>\n{title}'
        f'<div class="panels">\n{panels}\n</div>\n</section>\n'
    )


def panel(figure: Figure) -> str:
    """A picture with its title, its legend and its caption."""
    legend = "".join(f"<li>{escape(line)}</li>" for line in figure.legend)
    return (
        f'<figure class="panel"><h3>{escape(figure.title)}</h3>\n{figure.svg}\n'
        + (f'<ul class="told">{legend}</ul>' if legend else "")
        + (f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else "")
        + "</figure>"
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """Each file's stem, with its folder where two have the same."""
    stems = [path.stem for path in paths]
    return [
        f"{path.resolve().parent.name}/{path.stem}" if stems.count(path.stem) > 1 else path.stem
        for path in paths
    ]
