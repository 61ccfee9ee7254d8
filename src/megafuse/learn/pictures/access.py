"""Thread → address → sector, or bank: one request of a warp, as text and as a figure.

    line 6 reads x: 128 bytes wanted, 512 fetched (16 sectors), 25% used
    thread   0 1 2  3  4  5  6  7 …
    float    0 4 8 12 16 20 24 28 …
    memory  █···█··· █···█··· █···█··· █···█···

Requests come from a run on the exercises' emulator: what is drawn is what was touched.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from megafuse.learn import figures
from megafuse.learn.figures import Figure

if TYPE_CHECKING:
    from megafuse.learn.exercises.emulator.run import Counted, Request
    from megafuse.learn.exercises.findings import Finding

_SECTOR = 8  # floats
_BANKS = 32
_SHOWN = 8  # sectors in a line of the terminal


def of(finding: Finding, counted: Counted) -> str:
    """The request that a finding is about: the worst of global memory, or of shared memory."""
    shared = finding.what == "shared banks"
    about = [r for r in counted.requests if r.shared == shared]
    if not about or finding.what not in ("shared banks", "bytes moved", "requests"):
        return ""
    return text(max(about, key=waste))


def waste(request: Request) -> float:
    """How many times as much as is needed: sectors, or passes over the banks."""
    if request.shared:
        return float(passes(request))
    touched = sectors(request)
    wanted = len({place for place in request.places if place is not None}) * request.width
    return len(touched) * _SECTOR / max(wanted, 1)


def sectors(request: Request) -> list[int]:
    """In order, each once."""
    return sorted({place // _SECTOR for place in _places(request)})


def passes(request: Request) -> int:
    """As many as the fullest bank has different words."""
    return max(Counter(word % _BANKS for word in set(_places(request))).values(), default=0)


def _places(request: Request) -> list[int]:
    """Every float that some lane touched, also those in the middle of a float4."""
    return [
        place + k for place in request.places if place is not None for k in range(request.width)
    ]


def text(request: Request) -> str:
    """At most 80 columns."""
    return "\n".join(_banks(request) if request.shared else _sectors(request))


def _head(request: Request) -> str:
    return f"line {request.line} {'writes' if request.writes else 'reads'} {request.array}"


def _who(request: Request) -> str:
    """Which lane takes which float, as many as fit."""
    lanes = [lane for lane, place in enumerate(request.places) if place is not None]
    threads, places = "thread  ", "float   "
    for lane in lanes:
        pair = (str(lane), str(request.places[lane]))
        width = max(map(len, pair)) + 1
        if len(threads) + width > 74:
            return f"{threads} …\n{places} …"
        threads += pair[0].rjust(width)
        places += pair[1].rjust(width)
    return f"{threads}\n{places}"


def _sectors(request: Request) -> list[str]:
    wanted = set(_places(request))
    touched = sectors(request)
    share = len(wanted) / (len(touched) * _SECTOR)
    many = "sectors" if len(touched) > 1 else "sector"
    head = (
        f"{_head(request)}: {4 * len(wanted)} bytes wanted, {32 * len(touched)} fetched "
        f"({len(touched)} {many}), {share:.0%} used"
    )
    drawn = " ".join(
        "".join("█" if sector * _SECTOR + k in wanted else "·" for k in range(_SECTOR))
        for sector in touched[:_SHOWN]
    )
    left = len(touched) - _SHOWN
    more = f"        … and {left} more" if left > 0 else ""
    return [line for line in (head, _who(request), f"memory  {drawn}", more) if line]


def _banks(request: Request) -> list[str]:
    words = Counter(word % _BANKS for word in set(_places(request)))
    took = passes(request)
    head = f"{_head(request)} (shared): {took} pass{'es' * (took > 1)} over the banks"
    row = " ".join(_count(words[bank]) for bank in range(_BANKS))
    return [
        head,
        _who(request),
        "bank    0 … 31, words each must give, one at a time",
        f"        {row}",
    ]


def _count(words: int) -> str:
    return "·" if not words else str(words) if words < 10 else "#" if words > 31 else "+"


# ---- for a page


def figure(request: Request, title: str) -> Figure:
    """Lanes above, memory below, a line from each lane to its float; sectors in boxes."""
    if request.shared:
        words = Counter(word % _BANKS for word in set(_places(request)))
        return figures.bars(
            title,
            f"{_head(request)}, shared memory: {passes(request)} passes. A bank gives one word "
            "at a time.",
            [
                figures.Bar(f"bank {bank}", float(words[bank]), f"{words[bank]} words")
                for bank in range(0, _BANKS, 4)
            ],
            "words",
        )
    touched = sectors(request)
    drawing, height = _lanes_to_sectors(request, touched)
    share = len(set(_places(request))) / (len(touched) * _SECTOR)
    caption = (
        f"{_head(request)}: {len(touched)} sectors of 32 bytes, {share:.0%} of them used. Filled: "
        "what a thread asked for; empty: what came with it."
    )
    return figures.drawn(title, caption, drawing, height, caption)


def _lanes_to_sectors(request: Request, touched: list[int]) -> tuple[str, int]:
    """Percent across, pixels down."""
    wanted = set(_places(request))
    at = {}
    cells = []
    width = 100 / len(touched)
    top, size = 96, 14
    for number, sector in enumerate(touched):
        left = width * number
        cells.append(
            f'<rect x="{left + 0.15:.3f}%" y="{top - 3}" width="{width - 0.3:.3f}%" '
            f'height="{size + 6}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
        )
        for k in range(_SECTOR):
            place = sector * _SECTOR + k
            x = left + width * (k + 0.5) / _SECTOR
            at[place] = x
            opacity = 0.9 if place in wanted else 0.12
            cells.append(
                f'<g class="s0"><rect x="{x - 0.4 * width / _SECTOR:.3f}%" y="{top}" '
                f'width="{0.8 * width / _SECTOR:.3f}%" height="{size}" fill="currentColor" '
                f'fill-opacity="{opacity}"/></g>'
            )
    lines = []
    for lane, first in enumerate(request.places):
        if first is None:
            continue
        x = 100 * (lane + 0.5) / 32
        lines.append(
            f'<g class="s1"><rect x="{x - 1.2:.3f}%" y="22" width="2.4%" height="10" '
            'fill="currentColor"/>'
            f'<line x1="{x:.3f}%" y1="34" x2="{at[first]:.3f}%" y2="{top - 5}" '
            'stroke="currentColor" stroke-opacity="0.6"/></g>'
        )
    text = (
        '<text x="0" y="13" fill="currentColor">threads 0 to 31 of a warp</text>'
        f'<text x="0" y="{top + size + 22}" fill="currentColor">{len(touched)} sectors of memory, '
        "32 bytes each</text>"
    )
    return text + "".join(cells + lines), top + size + 30
