"""simple_demo.py as a person runs it: in a terminal of any width, piped, without a compiler."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import as_a_person
import pytest
import torch

from megafuse.bench import Ratio, Timing
from megafuse.learn import demo, explain, terminal
from megafuse.learn.ledger import Ledger, count
from megafuse.learn.verdicts import demo as verdicts
from megafuse.runtime import cpp

# Most run the whole demo in a process of its own.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str, command: tuple[str, ...] = ("simple_demo.py",), **changes: str):
    return as_a_person.run(*command, "--quick", "--device", "cpu", *arguments, **changes)


@pytest.fixture
def no_compiler(tmp_path):
    return {"PATH": str(tmp_path), "CXX": ""}


@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("columns", [80, 40])
def test_piped(columns):
    ran = run(COLUMNS=str(columns))
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= columns
    words = " ".join(ran.stdout.split())
    for part in ("2 operations, 16 bytes per float", "1 operation, 8 bytes per float"):
        assert part in words
    for size in ("1 Ki", "16 Ki", "256 Ki"):
        assert size in words
    assert "Both are right." in words
    assert "speed-up" in words
    assert "Compiled on first use" in words
    assert words.index("Prediction") < words.index("Both are right.") < words.index("speed-up")
    assert "Your guess" not in words
    path = (
        "│ gelu │──▶│ memory │──▶│ mul │──▶│ memory │" if columns == 80 else "gelu ─▶ memory ─▶ mul"
    )
    assert path in ran.stdout
    assert "│ gelu, mul │──▶│ memory │" in ran.stdout
    for next_step in ("tutorial_mega_kernel.py", "megafuse learn", "LEARN.md"):
        assert next_step in words


@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_from_the_command_line():
    ran = run(command=("-m", "megafuse", "demo"))
    assert ran.returncode == 0, ran.stderr
    assert "1 operation, 8 bytes per float" in " ".join(ran.stdout.split())


def test_without_a_compiler_both_columns_are_the_same(no_compiler):
    ran = run(**no_compiler)
    assert ran.returncode == 0, ran.stderr
    words = " ".join(ran.stdout.split())
    assert "reference" in words
    assert "Both columns are the same code" in words
    assert "Both are right." in words
    assert "no C++ compiler" in ran.stderr


def test_terminal_without_unicode(no_compiler):
    ran = run(PYTHONIOENCODING="ascii", **no_compiler)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()
    assert "| gelu |-->| memory |-->| mul |-->| memory |" in ran.stdout
    assert "2.0x" not in ran.stdout  # nothing is fused here
    assert "?" not in ran.stdout


@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
@pytest.mark.skipif(sys.platform == "win32", reason="modes are not what guards a folder there")
def test_bad_cache_is_said_without_a_traceback(tmp_path):
    tmp_path.chmod(0o777)
    """It runs the reference, says so, and says how to mend it."""
    ran = run(MEGAFUSE_CACHE=str(tmp_path))
    assert ran.returncode == 0
    assert "chmod 700" in " ".join((ran.stdout + ran.stderr).split())
    assert "ran its PyTorch reference" in " ".join(ran.stdout.split())
    assert "Traceback" not in ran.stdout + ran.stderr


def options(**changes: object) -> argparse.Namespace:
    usual = {"device": "cpu", "quick": True, "no_ask": False, "html": None}
    return argparse.Namespace(**{**usual, **changes})


def test_a_wrong_result_stops_the_demo(capsys):
    assert demo.run(options(), fused=lambda x: demo.separate(x) + 1e-3) == 1
    assert "WRONG" in capsys.readouterr().out


def test_page_holds_figures_and_results(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert demo.run(options(html=str(page))) == 0
    text = page.read_text("utf-8")
    assert re.findall("<h3>(.*?)</h3>\n<svg", text) == [
        "The way of the data",
        "Time for 256 Ki floats, warm cache",
        "Speed-up in the demo, warm cache",
        "Roofline of the demo, 256 Ki floats, warm cache",
    ]
    # No chart of the results has the title of a figure: those are cold.
    headings = re.findall("<h[23][^>]*>(.*?)</h[23]>", text)
    assert len(set(headings)) == len(headings)
    # Fused and separate have the colours that the charts give to fused and eager.
    bars = re.findall(r'<g class="(\w+)"><rect class="fill"', text)
    assert bars == ["s1", "s0", "soft"]
    held = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert [row["elements"] for row in held[0]["rows"]] == list(demo.QUICK_SIZES)
    # The page's times are those of the screen.
    said = capsys.readouterr().out
    for time in re.findall(r"<text[^>]*>([\d.]+ [µm]s), predicted", text):
        assert time in said


@pytest.mark.parametrize("place", ["no such folder/page.html", "."])
def test_a_page_that_cannot_be_written_is_said_at_once(place, tmp_path, capsys):
    assert demo.run(options(html=str(tmp_path / place))) == 2
    assert "cannot be written" in " ".join(capsys.readouterr().out.split())


# ---- the guess


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_a_terminal_is_asked():
    import pty

    controller, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "simple_demo.py", "--quick", "--device", "cpu"]
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **streams) as process:
        os.close(terminal)
        os.write(controller, b"2,5x\n")
        said = b""
        with contextlib.suppress(OSError):  # the terminal is gone when the process is
            while part := os.read(controller, 4096):
                said += part
        os.close(controller)
    assert process.returncode == 0
    words = " ".join(said.decode().split())
    assert "Your guess (Enter for none)" in words
    assert "your guess 2.5×" in words


@pytest.mark.parametrize(
    ("typed", "guess"), [("", None), ("2.5", 2.5), (" 3x", 3), ("many", None), ("0", None)]
)
def test_guess(typed, guess, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: typed)
    assert demo._ask(demo.Console(quiet=True), 1024) == guess


def test_ledger_counts_what_pytorch_runs():
    x = torch.ones(100)
    counted = count(lambda: demo.separate(x))
    assert counted.operations == ("gelu", "mul")
    assert counted.bytes_moved == 4 * x.nbytes
    assert count(lambda: x.clone()).bytes_moved == 2 * x.nbytes
    assert count(lambda: x.view(-1, 1).detach()).operations == ()
    assert count(lambda: torch.cat([x, x])).bytes_moved == 4 * x.nbytes


# ---- the words follow the numbers (more of them: tests/learn/test_verdicts.py)


TWO = Ledger(("gelu", "mul"), 16 << 24)
ONE = Ledger(("gelu_scale",), 8 << 24)


def test_prediction_is_bytes_over_the_rate_of_a_copy():
    text = verdicts.prediction(1 << 24, 36e-6, TWO, ONE, "fused")
    assert "takes 36.0 µs here: 3728.3 GB/s" in text
    assert "268 MB take 72.0 µs" in text
    assert "134 MB of fused 36.0 µs" in text
    assert "So fused should be 2.0× as fast, if arithmetic costs nothing." in text
    assert "So both should take as long" in verdicts.prediction(1024, 1e-6, TWO, TWO, "reference")


@pytest.mark.parametrize(("guess", "closer"), [(None, False), (2.9, True), (9.0, False)])
def test_a_guess_beside_the_outcome(guess, closer):
    taken = tuple(Timing.of([t] * 5) for t in (90e-6, 30e-6))
    text = verdicts.outcome((72e-6, 36e-6), taken, Ratio(3.0, 3.0, 3.0), guess)
    assert (f"your guess {guess:g}×" in text) if guess else ("your guess" not in text)
    assert ("You were closer than the ledger." in text) == closer


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2.00 s"),
        (1.5e-3, "1.50 ms"),
        (4.25e-5, "42.5 µs"),
        (2e-7, "200 ns"),
        (1.89e-12, "1.89 ps"),
        (0.0, "0.00 ps"),
    ],
)
def test_seconds(value, text):
    assert explain.seconds(value) == text


@pytest.mark.parametrize(("size", "text"), [(1, "1"), (1 << 10, "1 Ki"), (1 << 24, "16 Mi")])
def test_amount(size, text):
    assert explain.amount(size) == text


# ---- drawings


def test_path_fits_or_is_a_line():
    stops = ("x", "gelu", "memory")
    assert terminal.path(stops, 40) == [
        "┌───┐   ┌──────┐   ┌────────┐",
        "│ x │──▶│ gelu │──▶│ memory │",
        "└───┘   └──────┘   └────────┘",
    ]
    assert terminal.path(stops, 25) == ["x ─▶ gelu ─▶ memory"]
    assert max(map(len, terminal.path(stops * 4, 20))) <= 20


def test_bars_are_as_long_as_their_values():
    shown = [terminal.Bar("a", 4.0, "4 ms"), terminal.Bar("bc", 1.0, "1 ms")]
    assert terminal.bars(shown, 18) == ["a   ████████  4 ms", "bc  ██        1 ms"]
    assert terminal.bars([terminal.Bar("a", 0.0, "0")], 10) == ["a  ▌     0"]
