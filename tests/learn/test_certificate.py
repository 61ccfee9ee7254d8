"""The certificate and the handbook: the learner's own numbers, and every picture, on a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from megafuse import cli
from megafuse.learn.exercises import catalog, certificate, handbook
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.folder import Folder
from megafuse.runtime import cpp

ROOT = Path(__file__).resolve().parent.parent.parent
EXERCISES = {exercise.name: exercise for exercise in catalog.exercises()}


def solved(folder: Folder, name: str, *numbers: tuple[float, str]) -> None:
    """As if it had been checked with these numbers, and passed."""
    exercise = EXERCISES[name]
    folder.begin(exercise)
    for number, unit in numbers:
        folder.remember_numbers(exercise, [Finding("x", None, "", number=number, unit=unit)])
    folder.remember_passed(exercise)


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
    known["numbers"] = {"walk": {"s": 3}, "stage": [1]}
    path.write_text(json.dumps(known))
    assert "23 exercises" in certificate.page(certificate.done(catalog.exercises(), folder))


@pytest.mark.slow
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_docs_have_what_the_command_prints():
    page = (ROOT / "docs" / "exercises.md").read_text(encoding="utf-8")
    made = handbook.text(catalog.exercises())
    assert made == page, "put what `megafuse learn --markdown` prints into docs/exercises.md"
    for exercise in catalog.exercises():
        assert exercise.picture in page
