"""The certificate and the handbook: the learner's own numbers, and every picture, on a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from megafuse import cli
from megafuse.bench import roof
from megafuse.bench.result import Roofs
from megafuse.learn.exercises import catalog, certificate, climbed, handbook
from megafuse.learn.exercises.findings import Finding, Run
from megafuse.learn.exercises.folder import Folder
from megafuse.runtime import cpp

ROOT = Path(__file__).resolve().parent.parent.parent
EXERCISES = {exercise.name: exercise for exercise in catalog.exercises()}


ROOFS = Roofs(copy=10e9, read=12e9, gemm={"float32": 1e11})


def solved(folder: Folder, name: str, *numbers: tuple[float, str]) -> None:
    """As if it had been checked with these numbers, and passed."""
    exercise = EXERCISES[name]
    folder.begin(exercise)
    for number, unit in numbers:
        found = Finding("x", None, "", number=number, unit=unit)
        folder.remember_numbers(exercise, [found], passed=True)
    folder.remember_passed(exercise)


def timed(folder: Folder, name: str, *runs: Run, passed: bool = True) -> None:
    """As if it had been timed."""
    for run in runs:
        found = Finding("of the roof", None, "", run=run)
        folder.remember_numbers(EXERCISES[name], [found], passed)


# 16 times the bytes of the best, which runs at 80 % of the copy beside it.
FIRST = Run("cpu", 1e6, 128e6, 25.6e-3, copy=10e9, threads=1)
BEST = Run("cpu", 1e6, 8e6, 1e-3, copy=10e9, threads=1)


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path / "megafuse-exercises")
    solved(made, "walk", (0.107, "s"), (0.00114, "s"), (0.5, "s"))
    solved(made, "stage", (81920, "bytes asked for"), (32768, "bytes asked for"))
    solved(made, "count_bytes")
    made.begin(EXERCISES["functor"])
    return made


def test_the_first_number_and_the_best_are_kept(folder):
    assert folder.numbers(EXERCISES["walk"]) == {"s": {"first": 0.107, "best": 0.00114}}
    (gain,) = [d.gain for d in certificate.done(catalog.exercises(), folder) if d.gain][:1]
    assert gain.says == "94× as fast as your first try"


def test_page(folder):
    page = certificate.page(certificate.done(catalog.exercises(), folder), "Ada <b>")
    assert "94× as fast as your first try" in page
    assert "from 107 ms to 1.14 ms" in page
    assert "3 of 23 exercises solved, 1 of them CUDA kernels" in page
    assert "81,920 bytes asked for" in page
    assert "2.5" in page
    assert "Ada &lt;b&gt;" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    for name in ("walk", "stage", "count_bytes"):
        assert EXERCISES[name].learn.split(":")[0] in page
    assert page.count("<tr class=") == len(EXERCISES)


def test_a_try_that_failed_is_never_the_best(tmp_path):
    """A kernel that computes something else may be as fast as it likes."""
    made = Folder(tmp_path)
    timed(made, "walk", replace(FIRST, seconds=1e-6), passed=False)
    assert made.runs(EXERCISES["walk"], "cpu") is None
    timed(made, "walk", BEST, FIRST)
    timed(made, "walk", replace(FIRST, seconds=1e-7), passed=False)
    assert made.runs(EXERCISES["walk"], "cpu") == (replace(FIRST, seconds=1e-6), BEST)
    for seconds, passed in ((3.0, False), (2.0, True), (1.0, False)):
        found = Finding("of the roof", None, "", number=seconds, unit="s")
        made.remember_numbers(EXERCISES["walk"], [found], passed)
    assert made.numbers(EXERCISES["walk"]) == {"s": {"first": 3.0, "best": 2.0}}
    assert made.runs(EXERCISES["walk"], "cuda") is None


def test_what_is_timed_beside_pytorch_is_no_first_try(tmp_path):
    """Both numbers are of one check; the function of an earlier one may have been another."""
    made = Folder(tmp_path)
    for eager, fused in ((9.0, 8.0), (1.0, 0.25)):
        found = [
            Finding("PyTorch", None, "", number=eager, unit="s"),
            Finding("mf.fuse", None, "", number=fused, unit="s"),
        ]
        made.remember_numbers(EXERCISES["your_own"], found, True)
    assert made.numbers(EXERCISES["your_own"]) == {"s": {"first": 1.0, "best": 0.25}}
    gain = certificate.gain(made, EXERCISES["your_own"])
    assert gain is not None
    assert gain.says == "4× as fast as PyTorch"


def test_roofline_of_the_tries(folder, tmp_path):
    timed(folder, "walk", FIRST, BEST)
    timed(folder, "functor", BEST)
    timed(folder, "stage", replace(BEST, device="cuda"))
    page = tmp_path / "page.html"
    certificate.write(page, catalog.exercises(), folder, roofs={"cpu": ROOFS})
    text = page.read_text(encoding="utf-8")
    assert "Under the roof of your CPU" in text
    assert "your GPU" not in text  # there is none here
    walk = "3 Walk along the rows: 25.6× as fast, 16× the operations per byte; now 80% of the roof"
    assert f"<li>{walk}</li>" in text
    assert "<li>2 Fill in a functor: 0.125 per byte, 1 GFLOP/s, 80% of the roof</li>" in text
    assert "Dashed: a copy in one thread, 10 GB/s." in text
    assert text.count('class="first"') == 1  # the functor passed at once
    assert "came from a cache" not in text


def test_cuda_kernels_that_were_counted(tmp_path):
    """stage must move 16 bytes for each of 2,048 pixels."""
    made = Folder(tmp_path / "megafuse-exercises")
    assert climbed.counted(catalog.exercises(), made) is None
    solved(made, "stage", (81920.0, climbed.ASKED), (32768.0, climbed.ASKED))
    solved(made, "walk", (1.0, climbed.ASKED))  # is no CUDA exercise
    drawn = climbed.counted(catalog.exercises(), made)
    assert "11 Fetch for each other 40%, then 100%" in drawn.svg
    assert drawn.svg.count('class="fill"') == 1
    page = tmp_path / "page.html"
    certificate.write(page, catalog.exercises(), made)
    assert "How near the roof your CUDA kernels may come" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "odd", [{"seconds": 0}, {"bytes_moved": "many"}, {"operations": -1}, {"what": 1}]
)
def test_odd_runs_are_not_drawn(folder, odd, tmp_path):
    timed(folder, "walk", FIRST, BEST)
    path = folder.path / "progress.json"
    known = json.loads(path.read_text())
    known["runs"]["walk"]["cpu"]["best"] |= odd
    path.write_text(json.dumps(known))
    certificate.write(tmp_path / "a.html", catalog.exercises(), folder, roofs={"cpu": ROOFS})
    assert "Under the roof" not in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_roof_is_measured_where_something_was_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(roof, "roofs", lambda device: ROOFS)
    assert cli.main(["learn", "--certificate"]) == 0
    page = tmp_path / "certificate.html"
    assert "Under the roof" not in page.read_text(encoding="utf-8")
    made = Folder(tmp_path / "megafuse-exercises")
    solved(made, "walk")
    timed(made, "walk", FIRST, BEST)
    assert cli.main(["learn", "--certificate"]) == 0
    assert "Under the roof of your CPU" in page.read_text(encoding="utf-8")


def test_praise_is_for_time_first(folder):
    solved(folder, "transpose", (3200.0, "passes a request"), (1.0, "passes a request"))
    page = certificate.page(certificate.done(catalog.exercises(), folder))
    assert '<p class="headline">94× as fast as your first try</p>' in page
    assert "<td>1 pass a request</td>" in page


def test_noise_is_not_praised(tmp_path):
    made = Folder(tmp_path)
    solved(made, "walk", (1.1e-3, "s"), (1.0e-3, "s"))
    assert "your first try</p>" not in certificate.page(certificate.done(catalog.exercises(), made))


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["learn", "--certificate"]) == 0
    assert "0 of 23 solved: certificate.html" in capsys.readouterr().out
    assert "Nothing is solved yet" in (tmp_path / "certificate.html").read_text(encoding="utf-8")
    assert cli.main(["learn", "--certificate", "no/page.html"]) == 2


def test_odd_progress_does_no_harm(folder):
    path = folder.path / "progress.json"
    known = json.loads(path.read_text())
    known["numbers"] = {
        "walk": {"s": 3},
        "stage": [1],
        "functor": {"s": {"first": "x", "best": None}},
        "warp_sum": {climbed.ASKED: {"first": 0, "best": 0}},
    }
    path.write_text(json.dumps(known))
    assert "23 exercises" in certificate.page(certificate.done(catalog.exercises(), folder))
    assert climbed.counted(catalog.exercises(), folder) is None


@pytest.mark.slow
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_docs_have_what_the_command_prints():
    page = (ROOT / "docs" / "exercises.md").read_text(encoding="utf-8")
    made = handbook.text(catalog.exercises())
    assert made == page, "put what `megafuse learn --markdown` prints into docs/exercises.md"
    for exercise in catalog.exercises():
        assert exercise.picture in page
