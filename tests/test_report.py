"""`megafuse report`: the page holds the results, loads nothing, and no text in it becomes code."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import bench_results as made
import pytest

from megafuse.bench import report
from megafuse.bench.result import NotAResult, Result

HOSTILE = "</script><!--<script><img src=x onerror=\"alert('&')\">\u2028\u2029"


class Parsed(HTMLParser):
    """Every element of a page, with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def held(text: str) -> list[dict]:
    """The results that a page holds."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def results() -> Result:
    return made.result([made.row(), made.row("add_mul_exp", 100_000, mode="forward+backward")])


def written(tmp_path: Path, result: Result, name: str = "results.json") -> Path:
    path = tmp_path / name
    result.write(path)
    return path


def command(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args([str(a) for a in arguments]))


# ---- what the page holds


def test_holds_every_number(tmp_path: Path) -> None:
    """The data is what the results file says, digit for digit."""
    path = written(tmp_path, results())
    report.write([path], tmp_path / "page.html")
    (data,) = held((tmp_path / "page.html").read_text("utf-8"))
    assert data.pop("name") == "results"
    assert data == json.loads(path.read_text("utf-8"))


def test_several_files_keep_their_order_and_names() -> None:
    here, there = results(), made.result([], gpu="", commit="")
    data = held(report.page([here, there], ["here", "there"]))
    assert [d["name"] for d in data] == ["here", "there"]
    assert [len(d["rows"]) for d in data] == [2, 0]


def test_names_that_would_be_the_same_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    one, two = written(tmp_path, results()), written(tmp_path / "a", results())
    report.write([one, two, two], tmp_path / "page.html")
    names = [d["name"] for d in held((tmp_path / "page.html").read_text("utf-8"))]
    assert names == [f"{tmp_path.name}/results", "a/results (1)", "a/results (2)"]


def test_what_was_not_measured_is_null() -> None:
    result = results()
    entry = result.rows[0].entries[1]
    entry.accuracy = None
    entry.times.clear()
    entry.flop_per_second = math.nan
    result.roofs = None
    (data,) = held(report.page([result], ["x"]))
    shown = data["rows"][0]["entries"][1]
    assert shown["accuracy"] is None
    assert shown["times"] == {}
    assert shown["flop_per_second"] is None
    assert data["roofs"] is None


# ---- self-contained, and safe


def test_loads_nothing() -> None:
    text = report.page([results()], ["x"])
    page = Parsed(text)
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base"), tag
        assert attributes.get("src") is None
        if tag == "link":
            assert attributes["href"] == "data:,"
    outside = re.findall(r"https?://[^\s\"']+|url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}  # a name, never loaded


def test_the_policy_allows_this_script_and_style_only() -> None:
    text = report.page([results()], ["x"])
    page = Parsed(text)
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    plain = [tag for tag, _ in Parsed(report.page([results()], ["x"])).elements]
    result = made.result([made.failing(made.row(op=HOSTILE, dtype=HOSTILE), "eager", HOSTILE)])
    result.machine = {"cpu": HOSTILE, HOSTILE: HOSTILE}
    result.commit = result.command = result.date = result.suite = HOSTILE
    result.rows[0].warnings = [HOSTILE]
    result.rows[0].entries[0].kernels = [HOSTILE]
    text = report.page([result], [HOSTILE])
    assert [tag for tag, _ in Parsed(text).elements] == plain
    (data,) = held(text)
    assert data["name"] == data["command"] == HOSTILE
    assert data["rows"][0]["entries"][1]["error"] == HOSTILE
    assert "\u2028" not in text.split('id="data">')[1].split("</script>")[0]


def test_dollars_are_no_placeholders() -> None:
    (data,) = held(report.page([results()], ["$script ${data} $$"]))
    assert data["name"] == "$script ${data} $$"


# ---- the command


def test_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert command(written(tmp_path, results()), "-o", page) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "results.json"]


def test_the_default_is_report_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, results())
    monkeypatch.chdir(tmp_path)
    assert command(path) == 0
    assert (tmp_path / "report.html").exists()


def test_open_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    page = tmp_path / "a page.html"
    assert command(written(tmp_path, results()), "-o", page, "--open") == 0
    assert shown == [page.resolve().as_uri()]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("{", "is not JSON"),
        ("[]", "is not a results file"),
        ('{"format": "megafuse-bench", "version": 99}', "version 99"),
        ('{"format": "megafuse-bench", "version": 1}', "is damaged"),
    ],
)
def test_a_bad_file_is_named_and_nothing_written(
    content: str | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, page = written(tmp_path, results()), tmp_path / "bad.json", tmp_path / "page.html"
    page.write_text("the page before")
    if content is not None:
        bad.write_text(content)
    assert command(good, bad, "-o", page) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"megafuse: {bad}")
    assert reason in said
    assert said.count("\n") == 1
    assert page.read_text() == "the page before"
    with pytest.raises(NotAResult):
        report.write([bad], page)


@pytest.mark.parametrize("place", ["no such folder/page.html", "."])
def test_a_page_that_cannot_be_written(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, results())
    assert command(path, "-o", tmp_path / place) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"megafuse: cannot write {tmp_path / place}: ")
    assert said.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]
