"""A page of ours in a real browser, for the tests that click through it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextlib.contextmanager
def started() -> Iterator[playwright.Browser]:
    """The system's Chromium; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on PATH")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Shown:
    """A page in the browser, and everything it complained about or asked the network for."""

    def __init__(self, browser: playwright.Browser, path: Path, width: int, theme: str) -> None:
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
        )
        self.page.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)

    def settle(self) -> None:
        """Waits for two frames: what a click unfolds is measured in the one and drawn then, and
        on a busy machine that is later than the click's return."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def find(self, selector: str) -> playwright.Locator:
        """What matches once the page has settled."""
        self.settle()
        return self.page.locator(selector)

    def all(self, selector: str) -> list[str]:
        return [text.replace("\u202f", " ") for text in self.find(selector).all_inner_texts()]

    def drawn(self, selector: str) -> list[str]:
        """As `all`, of text in a picture."""
        found = self.find(selector).all_text_contents()
        return [text.replace("\u202f", " ") for text in found]

    def text(self, selector: str) -> str:
        return self.find(selector).first.inner_text().replace("\u202f", " ")

    def values(self, selector: str) -> list[float]:
        found = self.find(selector).evaluate_all("all => all.map(e => e.dataset.value)")
        return [float(v) for v in found if v is not None]

    def choose(self, control: str, value: str) -> None:
        self.page.locator(f"select[name={control}]").select_option(value)

    @property
    def tip(self) -> str | None:
        tip = self.find("#tip")
        return tip.inner_text().replace("\u202f", " ") if tip.is_visible() else None

    @property
    def hash(self) -> str:
        return self.page.evaluate("location.hash")

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        self.settle()
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")

    def check(self) -> None:
        assert self.complaints == []
        outside = [url for url in self.requests if url.split("#")[0] != self.url]
        assert [url for url in outside if not url.startswith("data:")] == []
