"""The certificate and the start page's animation in a browser: wide, narrow, light, dark, still."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Shown, started
from test_certificate import BEST, FIRST, ROOFS, solved, timed

from megafuse.learn import figures
from megafuse.learn.exercises import catalog, certificate
from megafuse.learn.exercises.emulator.run import Request
from megafuse.learn.exercises.folder import Folder
from megafuse.learn.figures import Point
from megafuse.learn.pictures import access, rung, timeline

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def browser():
    with started() as running:
        yield running


@pytest.fixture
def page(tmp_path):
    """A certificate of some exercises."""
    folder = Folder(tmp_path / "megafuse-exercises")
    solved(folder, "walk", (0.107, "s"), (0.00114, "s"))
    solved(folder, "stage", (81920, "bytes asked for"), (32768, "bytes asked for"))
    solved(folder, "megakernel", (112640, "bytes asked for"), (41984, "bytes asked for"))
    for name in ("walk", "functor", "fuse_chain", "cut_a_pass"):
        timed(folder, name, FIRST, BEST)
    path = tmp_path / "certificate.html"
    certificate.write(path, catalog.exercises(), folder, "Ada", {"cpu": ROOFS})
    return path


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_certificate(browser, page, width, theme):
    shown = Shown(browser, page, width, theme)
    assert shown.text("h1") == "Kernel fusion, by hand: Ada"
    assert shown.text(".headline") == "94× as fast as your first try"
    assert shown.overflow() <= 0
    assert len(shown.all("#exercises tbody tr")) == len(catalog.exercises())
    assert len(shown.all("#exercises tr.done")) == 3
    bars = shown.page.locator("#gains .fill").evaluate_all("all => all.map(e => e.getBBox().width)")
    assert max(bars) / min(bars) > 30
    told = shown.all("#roof .told li")
    assert "3 Walk along the rows: 25.6× as fast" in " ".join(told)
    # Four exercises stand in the same place: their numbers stand side by side, inside the plot.
    boxes = shown.page.locator("#roof .mark").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(b => [b.left, b.top, b.right])"
    )
    assert len({(round(left / 10), round(top / 10)) for left, top, _ in boxes}) == 4
    assert max(right for *_, right in boxes) <= width
    for summary in shown.page.locator("#pictures summary").all():
        summary.click()
    assert shown.overflow() <= 0
    assert "block 0" in shown.text("#pictures details:last-of-type pre")
    background = "getComputedStyle(document.body).backgroundColor"
    before = shown.page.evaluate(background)
    shown.page.locator("#theme").click()
    assert shown.page.evaluate(background) != before
    shown.check()


@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_of_accesses_fit(browser, tmp_path, width):
    places = tuple(range(0, 128, 4))
    request = Request(6, "x", False, False, 1, places)
    path = tmp_path / "pictures.html"
    figures.write(path, [access.figure(request, "Four apart")], "Pictures")
    shown = Shown(browser, path, width, "light")
    assert shown.overflow() <= 0
    assert shown.page.locator("svg.figure line").count() == 32
    assert "16 sectors of 32 bytes, 25% of them used" in shown.text("figcaption")
    shown.check()


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (390, "light")])
def test_pictures_of_a_ladder_fit(browser, tmp_path, width, theme):
    points = [Point("naive", 0.75, 2e9), Point("coalesced", 0.75, 6e9), Point("fused", 1.5, 12e9)]
    launches = {"naive": ["gelu", "scale"], "fused": ["gelu_scale"]}
    path = tmp_path / "ladder.html"
    drawn = [
        rung.figure("gelu_scale/1_naive", "What waits"),
        timeline.figure("Launches", "", launches),
        figures.roofline("Under the roof", "", 14e9, 3e11, points, trail=True),
    ]
    figures.write(path, drawn, "A ladder")
    shown = Shown(browser, path, width, theme)
    assert shown.overflow() <= 0
    assert "each load of a warp" in shown.text(".drawing")
    boxes = shown.page.locator(".kernel").evaluate_all("all => all.map(e => e.getBBox().width)")
    assert boxes[0] == pytest.approx(boxes[2], abs=1)
    assert shown.page.locator(".move").count() == 2
    colours = shown.page.locator(".move").evaluate_all(
        "all => all.map(e => getComputedStyle(e).stroke)"
    )
    assert len(set(colours)) == 2
    assert shown.all(".told li")[-1] == "3 fused: 1.5 per byte, 12 GFLOP/s, 57% of the roof"
    shown.check()


def test_a_long_command_is_no_wider_than_a_phone(browser, tmp_path):
    """The site's style sheet: in a sentence it breaks, a block of code scrolls inside itself."""
    path = tmp_path / "page.html"
    command = "megafuse fuse model.py:gated_norm --shape 512x768 --shape 512x768 --arch sm_90"
    style = (ROOT / "docs" / "site.css").read_text(encoding="utf-8")
    path.write_text(
        '<!doctype html><html><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><style>{style}</style>'
        f"<p>Then <code>{command}</code> prints it.</p><pre><code>{command}</code></pre>"
        f"<table><tr><td><code>{command}</code></td></tr></table>",
        encoding="utf-8",
    )
    shown = Shown(browser, path, 390, "light")
    assert shown.overflow() <= 0
    lines = "e => e.getClientRects().length"
    assert shown.page.locator("p code").evaluate(lines) > 1
    assert shown.page.locator("pre code").evaluate(lines) == 1
    shown.check()


def start(folder: Path) -> Path:
    """The fragment as the docs site has it, below a first paragraph."""
    path = folder / "start.html"
    fragment = (ROOT / "docs" / "fusion.html").read_text(encoding="utf-8")
    head = '<!doctype html><html data-bs-theme="light"><link rel="icon" href="data:,">'
    path.write_text(f"{head}<h1>megafuse</h1><p>One launch.</p>{fragment}", encoding="utf-8")
    return path


def test_animation_moves_and_plays_again(browser, tmp_path):
    shown = Shown(browser, start(tmp_path), 390, "light")
    shown.page.emulate_media(reduced_motion="no-preference")
    at = """all => all.map(e => new DOMMatrix(getComputedStyle(e).transform).f)"""
    heights = set()
    for _ in range(12):
        heights |= {round(y) for y in shown.page.locator(".mf-floats").evaluate_all(at)}
        shown.page.wait_for_timeout(150)
    assert len(heights) > 4, "the floats travel"
    ends = "all => all.map(e => e.getAnimations()[0].effect.getComputedTiming().duration)"
    assert shown.page.locator(".mf-floats").evaluate_all(ends) == [10000, 10000]
    shown.page.wait_for_timeout(500)
    shown.page.get_by_role("button", name="Again").click()
    now = "all => all.map(e => e.getAnimations()[0].currentTime)"
    assert max(shown.page.locator(".mf-floats").evaluate_all(now)) < 400
    assert shown.overflow() <= 0
    shown.check()


def test_animation_stands_still_for_those_who_want_it(browser, tmp_path):
    shown = Shown(browser, start(tmp_path), 1280, "dark")  # its motion is reduced
    still = "all => all.map(e => e.getAnimations().length)"
    assert shown.page.locator(".mf-floats").evaluate_all(still) == [0, 0]
    assert not shown.page.get_by_role("button", name="Again").is_visible()
    assert "16 bytes a float" in shown.page.locator(".mf-start").inner_text()
    assert "8 bytes a float" in shown.page.locator(".mf-start").inner_text()
    shown.check()
