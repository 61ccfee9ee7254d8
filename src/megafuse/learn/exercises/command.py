"""The command `megafuse learn`."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from pathlib import Path

from megafuse.bench.result import Roofs
from megafuse.learn.exercises import catalog, certificate, climbed, runner
from megafuse.learn.exercises.catalog import Exercise, exercises
from megafuse.learn.exercises.findings import Refused
from megafuse.learn.exercises.folder import NAME, Folder
from megafuse.learn.exercises.screen import Screen

_EXAMPLES = """in this order:
  megafuse learn                  the exercises, and which are done
  megafuse learn walk             one of them: the task, and where your file is
  megafuse learn walk --check     what is wrong with your file, and why
  megafuse learn walk --hint      a push; again for the next one
  megafuse learn walk --solution  ours, compared with your file
  megafuse learn --certificate    how far you came, in numbers, as a page
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `megafuse learn`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Exercises, checked as you solve them; none needs a GPU."
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "exercise",
        nargs="?",
        metavar="NAME|N",
        help="an exercise, by name or number; default: list them all",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="check it; without NAME, check all")
    what.add_argument("--hint", action="store_true", help="the next hint")
    what.add_argument("--solution", action="store_true", help="ours, compared with your file")
    what.add_argument("--restart", action="store_true", help="the starter again; yours is kept")
    parser.add_argument(
        "--certificate",
        nargs="?",
        const="certificate.html",
        metavar="PAGE",
        help="what you have done, as a page (default: certificate.html)",
    )
    parser.add_argument("--markdown", action="store_true", help="all of them, as docs/exercises.md")
    parser.add_argument("--name", default="", help="yours, for the certificate")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--folder", type=Path, default=Path(NAME), help=f"default: ./{NAME}")


def run(options: argparse.Namespace) -> int:
    """The exit status is 0, 1 where a check failed, 2 for a name that does not exist."""
    try:
        return _run(options, Screen(), Folder(options.folder))
    except Refused as error:
        return _refuse(str(error))
    except OSError as error:
        where = error.filename or options.folder
        return _refuse(f"cannot use {where}: {error.strerror}. --folder names another place.")


def _run(options: argparse.Namespace, screen: Screen, folder: Folder) -> int:
    if options.exercise is not None and not options.certificate:
        return _one(catalog.find(options.exercise), options, screen, folder)
    if options.check:
        return _check_all(options, screen, folder)
    if options.markdown:
        from megafuse.learn.exercises import handbook  # imports torch and every check

        print(handbook.text(exercises()), end="")
        return 0
    if options.certificate:
        return _certificate(Path(options.certificate), options.name, screen, folder)
    if options.hint or options.solution or options.restart:
        raise Refused("of which exercise? `megafuse learn` lists them.")
    screen.listing(exercises(), folder)
    return 0


def _certificate(page: Path, name: str, screen: Screen, folder: Folder) -> int:
    certificate.write(page, exercises(), folder, name, _roofs(screen, folder))
    solved = sum(folder.state(exercise) == "done" for exercise in exercises())
    screen.line(f"{solved} of {len(exercises())} solved: {page}")
    return 0


def _roofs(screen: Screen, folder: Folder) -> dict[str, Roofs]:
    """Of each device that is here and that something was timed on; measured once a machine."""
    if not any(climbed.tries(exercises(), folder, device) for device in climbed.DEVICES):
        return {}
    import torch

    from megafuse.bench import roof

    here = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    with screen.working("measuring what this machine can do at best, once"):
        return {
            device: roof.roofs(device)
            for device in here
            if climbed.tries(exercises(), folder, device)
        }


def _one(exercise: Exercise, options: argparse.Namespace, screen: Screen, folder: Folder) -> int:
    file = folder.file(exercise)
    if options.check:
        return _check(exercise, options, screen, folder)
    if options.hint:
        screen.hint(exercise, folder.next_hint(exercise))
    elif options.solution:
        screen.solution(exercise, file)
    else:
        if options.restart:
            kept = folder.restart(exercise)
            if kept is not None:
                screen.line(f"Your file is kept as {kept}.")
                screen.line()
        begun = folder.begin(exercise) or options.restart
        screen.task(exercise, file, begun)
    return 0


def _check(exercise: Exercise, options: argparse.Namespace, screen: Screen, folder: Folder) -> int:
    file = folder.file(exercise)
    if folder.begin(exercise):
        screen.line(f"There was no {file.name} yet; this checks the starter.")
    passed = _checked(exercise, options, screen, folder)
    left = [e for e in exercises() if e != exercise and folder.state(e) != "done"]
    later = [e for e in left if e.number > exercise.number] or left
    gain = certificate.gain(folder, exercise)
    praise = gain.says if gain is not None and gain.tells else ""
    screen.verdict(exercise, passed, later[0] if later else None, praise)
    return 0 if passed else 1


def _check_all(options: argparse.Namespace, screen: Screen, folder: Folder) -> int:
    """One after the other; those without a file are only named."""
    passed = 0
    for exercise in exercises():
        if folder.state(exercise) == "new":
            screen.line(f"{exercise.number}. {exercise.title}: not begun", "dim")
            screen.line()
            continue
        passed += _checked(exercise, options, screen, folder)
    screen.line(f"{passed} of {len(exercises())} pass.", "bold")
    return 0 if passed == len(exercises()) else 1


def _checked(
    exercise: Exercise, options: argparse.Namespace, screen: Screen, folder: Folder
) -> bool:
    device = _device(options.device)
    with screen.working(f"checking {folder.file(exercise).name}"):
        report = runner.check(exercise, folder.file(exercise), device)
    screen.report(exercise, folder.file(exercise), report)
    folder.remember_numbers(exercise, report.findings, report.passed)
    if report.passed:
        folder.remember_passed(exercise)
    return report.passed


def _device(chosen: str | None) -> str:
    import torch

    found = torch.cuda.is_available()
    if chosen == "cuda" and not found:
        raise Refused("torch sees no CUDA device here; `megafuse doctor` says why.")
    return chosen or ("cuda" if found else "cpu")


def _refuse(why: str) -> int:
    width = shutil.get_terminal_size().columns
    for line in f"megafuse learn: {why}".splitlines():
        print(textwrap.fill(line, width, break_on_hyphens=False), file=sys.stderr)
    return 2
