"""`megafuse learn` on the command line: what it prints and remembers, and what it never touches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from megafuse import cli
from megafuse.learn.exercises import catalog, runner
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.folder import Folder
from megafuse.runtime import cpp

EXERCISES = {exercise.name: exercise for exercise in catalog.exercises()}


@pytest.fixture
def learner(tmp_path, monkeypatch):
    """An empty folder to learn in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "megafuse-exercises"


def test_list(learner, capsys):
    assert cli.main(["learn"]) == 0
    printed = capsys.readouterr().out
    assert not learner.exists()
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    for exercise in EXERCISES.values():
        assert f"{exercise.number:2}  {exercise.name}" in printed
        assert f"{exercise.language:<6} {exercise.title}" in printed
    assert "0 of 23 done. Begin: `megafuse learn count_bytes`." in printed


@pytest.mark.parametrize("name", EXERCISES)
def test_task_and_hints_fit(name, learner, capsys):
    exercise = EXERCISES[name]
    assert cli.main(["learn", str(exercise.number)]) == 0
    for _ in exercise.hints:
        assert cli.main(["learn", name, "--hint"]) == 0
    assert cli.main(["learn", name, "--solution"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    code = [line for text in (exercise.task, *exercise.hints) for line in text.splitlines()]
    for line in code:  # code stays as it is, also where a hint begins with it
        assert not line.startswith("    ") or f"\n{line}\n" in printed, line
    assert (learner / exercise.file).read_bytes() == exercise.starter.read_bytes()


def test_nothing_of_the_learner_is_overwritten(learner, capsys):
    assert cli.main(["learn", "walk"]) == 0
    file = learner / "walk.cpp"
    for text in ("mine", "mine again"):
        file.write_text(text)
        for option in ([], ["--hint"], ["--solution"]):
            assert cli.main(["learn", "walk", *option]) == 0
            assert file.read_text() == text
        assert cli.main(["learn", "walk", "--restart"]) == 0
        assert file.read_bytes() == EXERCISES["walk"].starter.read_bytes()
    assert (learner / "walk.backup1.cpp").read_text() == "mine"
    assert (learner / "walk.backup2.cpp").read_text() == "mine again"
    assert cli.main(["learn", "walk", "--restart"]) == 0  # nothing to keep
    assert not (learner / "walk.backup3.cpp").exists()
    assert "walk.backup1.cpp" in capsys.readouterr().out


def test_hints_come_one_by_one(learner, capsys):
    hints = EXERCISES["walk"].hints
    for at in (0, 1, 1):
        assert cli.main(["learn", "walk", "--hint"]) == 0
        printed = capsys.readouterr().out
        assert f"hint {at + 1} of {len(hints)}" in printed
        assert hints[at].split()[:4] == printed.split("\n\n")[1].split()[:4]
    (learner / "progress.json").write_text("{ not JSON")
    assert cli.main(["learn", "walk", "--hint"]) == 0
    assert "hint 1 of" in capsys.readouterr().out


def test_solution_is_a_diff(learner, capsys):
    assert cli.main(["learn", "walk", "--solution"]) == 0
    assert "our solution" in capsys.readouterr().out
    assert cli.main(["learn", "walk"]) == 0
    capsys.readouterr()
    assert cli.main(["learn", "walk", "--solution"]) == 0
    printed = capsys.readouterr().out
    assert "-  for (long c = 0; c < cols; ++c) {" in printed
    assert "+  for (long r = 0; r < rows; ++r) {" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wlak"], "Did you mean `megafuse learn walk`?"),
        (["24"], "their numbers 1 to 23"),
        (["xyzzy", "--check"], "there is no exercise 'xyzzy'"),
        (["--hint"], "of which exercise?"),
    ],
)
def test_what_does_not_exist(arguments, said, learner, capsys):
    assert cli.main(["learn", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in " ".join(error.split())
    assert max(map(len, error.splitlines())) <= 80
    assert not learner.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_gpu_that_is_not_there(learner, capsys):
    assert cli.main(["learn", "walk", "--check", "--device", "cuda"]) == 2
    assert "sees no CUDA device" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="modes are not what guards a folder there")
def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("megafuse-exercises").write_text("a file")
    assert cli.main(["learn", "walk"]) == 2
    assert "--folder names another place" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_check_is_remembered_until_the_file_changes(learner, capsys):
    learner.mkdir()
    file = learner / "walk.cpp"
    file.write_bytes(EXERCISES["walk"].solution.read_bytes())
    assert cli.main(["learn", "--check"]) == 1  # the others are not begun
    printed = capsys.readouterr().out
    assert "1 of 23 pass." in printed
    assert "Fuse a chain: not begun" in printed
    assert max(map(len, printed.splitlines())) <= 80
    folder = Folder(learner)
    assert folder.state(EXERCISES["walk"]) == "done"
    file.write_text(file.read_text() + "\n")
    assert folder.state(EXERCISES["walk"]) == "open"
    assert folder.state(EXERCISES["functor"]) == "new"


@pytest.mark.slow
def test_check_as_a_person_runs_it(tmp_path):
    """Piped, in a process of its own; a missing file is the starter, and fails."""
    command = [sys.executable, "-m", "megafuse", "learn", "count_bytes", "--check"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, encoding="utf-8", env=runner._environment()
    )
    assert ran.returncode == 1, ran.stderr
    assert "\x1b" not in ran.stdout
    assert "this checks the starter" in ran.stdout
    assert "Not yet. megafuse learn count_bytes --hint" in ran.stdout


def test_help_names_the_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["learn", "--help"])
    printed = capsys.readouterr().out
    for option in ("--check", "--hint", "--solution", "--restart", "--device", "--folder"):
        assert option in printed
    assert "megafuse learn walk --check" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("tries", "said"),
    [((0.107, 0.00114), "Solved, 94× as fast as your first try."), ((1.1, 1.0), "Solved.\n")],
)
def test_a_gain_is_told_when_it_is_made(learner, capsys, monkeypatch, tries, said):
    reports = [
        runner.Report([Finding("of the roof", ok, "", number=seconds, unit="s")])
        for ok, seconds in zip((False, True), tries, strict=True)
    ]
    monkeypatch.setattr(runner, "check", lambda *_: reports.pop(0))
    assert cli.main(["learn", "walk", "--check"]) == 1
    assert "Not yet." in capsys.readouterr().out
    assert cli.main(["learn", "walk", "--check"]) == 0
    assert said in capsys.readouterr().out


def test_the_last_one_leads_back_to_what_is_left(learner, capsys, monkeypatch):
    right = runner.Report([Finding("result", True, "")])
    monkeypatch.setattr(runner, "check", lambda *_: right)
    assert cli.main(["learn", "your_own", "--check"]) == 0
    assert "megafuse learn count_bytes" in capsys.readouterr().out
    assert cli.main(["learn"]) == 0
    assert "1 of 23 done. Next: `megafuse learn count_bytes`." in capsys.readouterr().out
    for name in EXERCISES:
        assert cli.main(["learn", name, "--check"]) == 0
    assert "That was the last: megafuse learn --certificate" in capsys.readouterr().out


def test_cpp_exercises_say_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cpp, "find", lambda: None)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["learn", "walk", "--check"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "no C++ compiler is found here" in said
    assert "apt install g++" in said
    assert cli.main(["learn"]) == 0
    assert "2, 3, 5, 6, 9, 10," in " ".join(capsys.readouterr().out.split())
