"""tutorial_mega_kernel.py as a person runs it, its answers, its sources and its page."""

from __future__ import annotations

import sys
from pathlib import Path

import as_a_person
import pytest
import torch

from megafuse.bench import Timing
from megafuse.learn.ladder import LADDERS, launch
from megafuse.learn.tutorial import classic, command, draw, kernel, plain, pointwise, tour
from megafuse.learn.tutorial.screen import Screen, Stopped
from megafuse.runtime import cpp, nvrtc
from megafuse.runtime.fp32_matmul import get_fp32_matmul

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = ("--quick", "--no-pause", "--device", "cpu")
needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")


def run(*arguments: str, command: tuple[str, ...] = ("tutorial_mega_kernel.py",), **changes: str):
    return as_a_person.run(*command, *arguments, **changes)


def joined(text: str) -> str:
    return " ".join(text.split())


# ---- as it is run


@pytest.mark.slow
@needs_compiler
def test_all_steps_piped():
    ran = run(*QUICK)
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    text = joined(ran.stdout)
    for number, step in enumerate(command.STEPS, 1):
        assert f"Step {number} of 9: {step.TITLE}" in text
    first = "gelu_scale" if "gelu(x)·scale, where x has" in text else "bias_act"
    for rung in LADDERS[first].rungs + LADDERS["layer_norm"].rungs:
        assert rung.name in text
    assert "At that rate you should see" in text
    assert "of the library's rate" in text


@pytest.mark.slow
def test_without_a_compiler(tmp_path):
    ran = run(*QUICK, PATH=str(tmp_path), CXX="")
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert max(map(len, ran.stdout.splitlines())) <= 80
    text = joined(ran.stdout)
    assert "The rungs cannot be compiled here" in text
    assert "gelu's result stays in the cache" in text
    assert "Measured with PyTorch's own sum" in text


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("number", range(1, 10))
def test_each_step_alone(number, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert command.main([*QUICK, "--step", str(number)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert f"Step {number} of 9" in out
    assert f"Step {number % 9 + 1} of 9" not in out
    if number < 9:
        assert f"Next: --step {number + 1}" in joined(out)


@pytest.mark.parametrize("step", ["0", "10", "two", "-1"])
def test_a_step_that_is_not_there(step, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main([f"--step={step}"])
    assert stopped.value.code == 2
    assert "1 to 9" in capsys.readouterr().err


def test_list(capsys):
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{n}  {step.TITLE}" for n, step in enumerate(command.STEPS, 1)]


@pytest.mark.slow
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
@pytest.mark.parametrize("number", range(1, 10))
def test_each_step_on_the_gpu(number, capsys):
    assert command.main(["--quick", "--no-pause", "--device", "cuda", "--step", str(number)]) == 0
    assert f"Step {number} of 9" in capsys.readouterr().out


@pytest.mark.slow
@needs_compiler
def test_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert command.main([*QUICK, "--step", "4", "--html", str(page)]) == 0
    assert "8 figures in" in joined(capsys.readouterr().out)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 7
    assert text.count('class="drawing"') == 5  # what each rung reuses, and what waits
    assert "Launches, rung by rung" in text
    assert text.count('class="move"') >= 3  # under the roof, from rung to rung
    for rung in LADDERS["gelu_scale"].rungs[:-1]:
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


@pytest.mark.parametrize("name", ["gelu_scale", "layer_norm", "linear_relu"])
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


# ---- what a ladder climbs with, and which product is measured


@pytest.mark.parametrize(
    ("fused", "device", "name"),
    [(1.4e-3, "cpu", "gelu_scale"), (8.9e-3, "cpu", "bias_act"), (8.9e-3, "cuda", "gelu_scale")],
)
def test_the_first_ladder_has_a_chain_that_the_machine_has_arithmetic_for(
    fused, device, name, monkeypatch, capsys
):
    """gelu where it runs at a copy's rate; relu(x + bias) where its arithmetic takes longer."""
    timings = {"copy": Timing.of([1.1e-3] * 5), "fused": Timing.of([fused] * 5)}
    monkeypatch.setattr(tour.Tour, "time", lambda *_: timings)
    made = tour.Tour(Screen(pause=False), device, quick=True)
    made.__dict__["compiles"] = True
    assert pointwise._chosen(made).ladder.name == name
    said = joined(capsys.readouterr().out)
    assert ("takes 8.90 ms at its best, and a copy of x 1.10 ms" in said) == (name == "bias_act")


def test_products_are_the_librarys_while_they_are_compared():
    """A split float32 product reached 225 % of the library's, above a line that praised it."""
    before = get_fp32_matmul()
    with tour.ieee_products():
        assert get_fp32_matmul() == "ieee"
    assert get_fp32_matmul() == before
