"""tutorial_mega_kernel.py as a person runs it, and its sentences against made-up numbers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import as_a_person
import pytest
import torch

from megafuse.bench import Ratio, Timing
from megafuse.learn.ladder import LADDERS, launch
from megafuse.learn.ledger import Ledger
from megafuse.learn.probes import Level, Probes
from megafuse.learn.tutorial import classic, command, draw, kernel, plain, words
from megafuse.learn.tutorial.climb import Climb, Climbed
from megafuse.learn.tutorial.screen import Screen, Stopped
from megafuse.runtime import cpp, nvrtc

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = ("--quick", "--no-pause", "--device", "cpu")
needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")


def run(*arguments: str, command: tuple[str, ...] = ("tutorial_mega_kernel.py",), **changes: str):
    return as_a_person.run(*command, *arguments, **changes)


def joined(text: str) -> str:
    return " ".join(text.split())


# ---- as it is run


@needs_compiler
def test_all_steps_piped():
    ran = run(*QUICK)
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    text = joined(ran.stdout)
    for number, step in enumerate(command.STEPS, 1):
        assert f"Step {number} of 8: {step.TITLE}" in text
    for rung in LADDERS["gelu_scale"].rungs + LADDERS["layer_norm"].rungs:
        assert rung.name in text
    assert "At that rate you should see" in text
    assert "of the library's rate" in text


def test_without_a_compiler(tmp_path):
    ran = run(*QUICK, PATH=str(tmp_path), CXX="")
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert max(map(len, ran.stdout.splitlines())) <= 80
    text = joined(ran.stdout)
    assert "The rungs cannot be compiled here" in text
    assert "gelu's result stays in the cache" in text
    assert "Measured with PyTorch's own sum" in text


@needs_compiler
@pytest.mark.parametrize("number", range(1, 9))
def test_each_step_alone(number, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert command.main([*QUICK, "--step", str(number)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert f"Step {number} of 8" in out
    assert f"Step {number % 8 + 1} of 8" not in out
    if number < 8:
        assert f"Next: --step {number + 1}" in joined(out)


@pytest.mark.parametrize("step", ["0", "9", "two", "-1"])
def test_a_step_that_is_not_there(step, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main([f"--step={step}"])
    assert stopped.value.code == 2
    assert "1 to 8" in capsys.readouterr().err


def test_list(capsys):
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{n}  {step.TITLE}" for n, step in enumerate(command.STEPS, 1)]


def test_from_the_command_line_with_an_ascii_terminal():
    ran = run(
        "--step", "7", *QUICK, command=("-m", "megafuse", "tutorial"), PYTHONIOENCODING="ascii"
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()
    assert "bit for bit" in ran.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there(capsys):
    assert command.main(["--device", "cuda"]) == 2
    assert "megafuse doctor" in capsys.readouterr().out


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("number", range(1, 9))
def test_each_step_on_the_gpu(number, capsys):
    assert command.main(["--quick", "--no-pause", "--device", "cuda", "--step", str(number)]) == 0
    assert f"Step {number} of 8" in capsys.readouterr().out


@needs_compiler
def test_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert command.main([*QUICK, "--step", "4", "--html", str(page)]) == 0
    assert "2 figures in" in joined(capsys.readouterr().out)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 2
    for rung in LADDERS["gelu_scale"].rungs:
        assert rung.name in text


@pytest.mark.parametrize("place", ["no/page.html", "."])
def test_page_that_cannot_be_written(tmp_path, capsys, monkeypatch, place):
    monkeypatch.setattr(command, "STEPS", (Drawn,))
    assert command.main([*QUICK, "--html", str(tmp_path / place)]) == 1
    assert "cannot write" in joined(capsys.readouterr().out)


def test_step_without_a_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "STEPS", (Undrawn,))
    assert command.main([*QUICK, "--html", str(tmp_path / "page.html")]) == 0
    assert "draws no figure" in joined(capsys.readouterr().out)


class Undrawn:
    TITLE = "nothing to see"

    @staticmethod
    def run(tour) -> None:
        tour.screen.say("nothing")


class Drawn(Undrawn):
    @staticmethod
    def run(tour) -> None:
        tour.draw(lambda: draw.shares("a figure", {"one": 0.5}, "a machine"))


def test_threads_are_given_back_on_a_busy_machine(monkeypatch, capsys):
    monkeypatch.setattr(command.machine, "load", lambda: 1000.0)
    during = []
    monkeypatch.setattr(command, "_steps", lambda *_: during.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert command.main(list(QUICK)) == 0
        assert during == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert "this run uses 1 thread." in joined(capsys.readouterr().out)


# ---- a reader who answers


@pytest.fixture
def answers(monkeypatch):
    """A terminal at which these answers are typed."""

    def typed(*lines: str) -> Screen:
        waiting = list(lines)

        def answer(prompt: str) -> str:
            if not waiting:
                raise EOFError
            return waiting.pop(0)

        monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
        monkeypatch.setattr("builtins.input", answer)
        return Screen(pause=True)

    return typed


def test_guess(answers):
    screen = answers("12", " 3,5 ×", "many", "")
    assert [screen.guess("how many?") for _ in range(5)] == [12, 3.5, None, None, None]


def test_pause(answers):
    screen = answers("", "q")
    screen.pause()
    with pytest.raises(Stopped):
        screen.pause()


def test_pause_at_the_end_of_input_does_not_stop(answers):
    answers().pause()


def test_no_pause_asks_nothing(answers, monkeypatch):
    answers()
    monkeypatch.setattr("builtins.input", None)
    screen = Screen(pause=False)
    screen.pause()
    assert screen.guess("how many?") is None


# ---- the source on screen


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_line_of_the_kernel_is_explained(device):
    lines = kernel.explained(device)
    source = [line for line in launch.source(kernel.FILE, device).splitlines() if line.strip()]
    assert [line for line, _ in lines] == source
    said = {text for _, text in lines if text}
    assert said == {text for text in kernel.MEANINGS[device].values() if text}, "one fits no line"


@pytest.mark.skipif(nvrtc.problem() is not None, reason="needs NVRTC")
def test_the_classic_source_compiles(tmp_path):
    """The kernel's part of what load_inline gets; torch's headers for CUDA are not here."""
    from megafuse.runtime import sources

    text = sources.flatten(launch.source("gelu_scale/4_fused", "cuda"))
    assert '#include "' not in text
    assert nvrtc.compile_cubin(text, "sm_90", [])
    assert "gelu_scale<<<" in classic._LAUNCHER


def test_what_the_classic_way_lacks(monkeypatch):
    monkeypatch.setattr(classic, "nvcc", lambda: None)
    assert "no nvcc" in classic.missing()
    monkeypatch.setattr(classic, "nvcc", lambda: "nvcc")
    monkeypatch.setattr(classic.shutil, "which", lambda name, path=None: None)
    assert "no ninja" in classic.missing()


# ---- PyTorch alone


@pytest.mark.parametrize("name", LADDERS)
def test_ladders_of_pytorch_alone_are_right(name):
    args = {
        "gelu_scale": (torch.randn(1 << 16), 1.7),
        "layer_norm": (torch.randn(100, 1024), torch.randn(1024), torch.randn(1024), 1e-5),
        "linear_relu": (torch.randn(9, 33), torch.randn(17, 33), torch.randn(17)),
    }[name]
    exact = LADDERS[name].exact(*args)
    for rung in getattr(plain, name)():
        torch.testing.assert_close(rung.run(*args).double(), exact, rtol=1e-4, atol=1e-4)
        assert rung.ledger(*args).bytes_moved >= args[0].nbytes


# ---- the words follow the numbers


def steady(seconds: float) -> Timing:
    return Timing.of([seconds] * 10)


def climbed(*rungs: tuple[int, float, float], noise: float = 0.0) -> Climb:
    """Rungs of (MB, predicted, measured)."""
    made = []
    for (moved, predicted, seconds), rung in zip(rungs, LADDERS["gelu_scale"].rungs, strict=False):
        samples = [seconds * (1 + noise * (-1) ** (i + len(made))) for i in range(10)]
        timing = Timing(seconds, min(samples), max(samples), tuple(samples))
        made.append(Climbed(rung, Ledger(("x",), moved * 10**6), predicted, timing, 1e-6))
    return Climb(tuple(made), 1e10)


@pytest.mark.parametrize(
    ("above", "said"),
    [
        ((10, 1, 0.5), "2.0× as fast as naive. Not how much is moved, but how."),
        ((10, 1, 1.0), "the same bytes, about as fast as naive."),
        ((10, 1, 2.0), "and 2.0× as long as naive."),
        ((5, 0.5, 0.5), "5.00 MB instead of 10.0 MB, 2.0× as fast as naive. The bytes that"),
        ((5, 0.5, 1.0), "about as fast as naive. Memory was not what that one waited for"),
        ((5, 0.5, 2.0), "What it saves costs more"),
    ],
)
def test_step(above, said):
    (sentence,) = words.steps(climbed((10, 1, 1.0), above))
    assert said in sentence


def test_step_on_a_machine_too_busy_to_tell():
    (sentence,) = words.steps(climbed((10, 1, 1.0), (5, 0.5, 0.8), noise=0.6))
    assert "no clear difference" in sentence


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (1.0, "The bytes foretold the time of: naive."),
        (5.0, "naive takes 5.0× its prediction"),
        (0.3, "naive needs 30% of its prediction"),
    ],
)
def test_predictions(measured, said):
    assert said in words.predictions(climbed((10, 1.0, measured)))


@pytest.mark.parametrize(
    ("seconds", "said"), [(1e-3, "next to nothing"), (2e-3, "the rest is"), (1e-2, "not memory")]
)
def test_top(seconds, said):
    assert said in words.top(climbed((10, 1, seconds)))


def machine(arithmetic: float, near: float = 1e11, latency: float | None = 1e-7) -> Probes:
    levels = (Level("L1 cache", 1, near, 1e-9), Level("memory", 1, 1e10, latency))
    return Probes("cpu", arithmetic, levels, copy=8e9, call=1e-6)


@pytest.mark.parametrize(
    ("arithmetic", "said"),
    [(100e9, "12% of the budget"), (15e9, "It fits, barely"), (5e9, "arithmetic, not memory")],
)
def test_budget(arithmetic, said):
    assert said in words.budget(machine(arithmetic), 12)


def test_hierarchy():
    text = words.hierarchy(machine(1e11))
    assert "10× as fast as from memory" in text
    assert "10,000 multiplications" in text
    assert "100× as long" in text
    assert "hardly a difference" in words.hierarchy(machine(1e11, near=1.1e10))
    assert "One load" not in words.hierarchy(machine(1e11, latency=None))


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ([1.0, 1.0, 1.1], "hardly grew"),
        ([1.0, 1.0, 2.0], "The budget said 100: counting was enough"),
        ([1.0, 9.0, 90.0], "another share of its rate"),
    ],
)
def test_work(taken, said):
    assert said in words.work([0, 2, 128], taken, free=100)


def test_mistake():
    text = words.mistake(0.02, 0.2, 0.97)
    assert "2.0% of the library" in text
    assert "looks perfect" in text
    assert "10× as fast, 20.0% of the library" in text
    assert "97% of the product alone, with bias" in text
    text = words.mistake(0.8, 0.8, 0.5)
    assert "no disaster" in text
    assert "do not make it faster" in text
    assert "are the rest" in text


@pytest.mark.parametrize(
    ("differ", "theirs", "ours", "fused", "said"),
    [
        (0.5, 1e-6, 1e-6, True, "No: 50% of the floats differ"),
        (0.5, 1e-6, 2e-6, True, "as near to the truth as float32"),
        (0.5, 1e-6, 1e-3, True, "please report"),
        (1e-4, 1e-6, 1e-6, True, "a few floats differ"),
        (0.0, 1e-6, 1e-6, True, "Here they are"),
        (0.0, 1e-6, 1e-6, False, "the same code"),
    ],
)
def test_bits(differ, theirs, ours, fused, said):
    assert said in words.bits(differ, theirs, ours, fused)


def test_orders():
    assert "all orders agree" in words.orders([1.0, 1.0], 1.0)
    assert "2 different results" in words.orders([1.0, 1.5, 1.0], 1.0)


@pytest.mark.parametrize(
    ("fused", "really", "said"),
    [
        (1e-3, True, "2.0× as accurate"),
        (2e-3, True, "about the same"),
        (4e-3, True, "worse"),
        (2e-3, False, "runs as two operations"),
    ],
)
def test_rounding(fused, really, said):
    assert said in words.rounding(2e-3, fused, really)


@pytest.mark.parametrize(
    ("most", "gain", "said"),
    [
        (1.02, Ratio(1.01, 0.99, 1.03), "hardly worth anyone's time. It made no clear difference"),
        (1.5, Ratio(1.4, 1.3, 1.5), "something to gain. It gained 1.40×."),
        (1.1, Ratio(1.5, 1.4, 1.6), "more than that"),
        (1.0, Ratio(0.5, 0.4, 0.6), "it lost: 0.50×"),
    ],
)
def test_worth(most, gain, said):
    assert said in words.worth("relu", most, gain, True)
    assert "gained" not in words.worth("relu", most, gain, False)


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Ratio(2.0, 1.9, 2.1), "not by fusing"),
        (Ratio(1.0, 0.9, 1.1), "About the same"),
        (Ratio(0.5, 0.4, 0.6), "keep it"),
        (Ratio(1.5, 0.4, 3.0), "no clear difference"),
    ],
)
def test_already(gain, said):
    assert said in words.already(gain, True)
    assert "the same code" in words.already(gain, False)


@pytest.mark.parametrize(
    ("guess", "said"), [(None, "12×"), (10, "well guessed"), (2, "more than"), (100, "less than")]
)
def test_guessed(guess, said):
    assert said in words.guessed(guess, 12.0)


def test_no_sentence_is_left_unfilled():
    text = " ".join(words.steps(climbed((10, 1, 1.0), (10, 1, 0.5), (5, 0.5, 0.4))))
    assert not re.search(r"[{}]|None|nan", text)
