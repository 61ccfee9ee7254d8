"""What a CUDA exercise tells of its run on a GPU: its place on a roofline. The GPU is made up."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from exercises.checked import EXERCISES
from megafuse.learn.exercises import cuda, gpu, roof
from megafuse.learn.exercises.emulator.run import Counted, Line

CUDA = [name for name, exercise in EXERCISES.items() if exercise.starter.suffix == ".cu"]


def task(name: str) -> cuda.Task:
    return import_module(f"megafuse.learn.exercises.{name}.check").TASK


@pytest.mark.parametrize("name", CUDA)
def test_operations_are_counted_for_the_timed_size(name):
    least, operations = task(name).least(task(name).large), task(name).operations(task(name).large)
    if name == "transpose":  # it computes nothing, and has no place on a roofline
        assert operations == 0
    else:
        assert 0.05 < operations / least < 1000


class Graphics:
    """Computes y = 1.5 x + y, as the exercise's kernel should."""

    def __init__(self, cubin: bytes, name: str) -> None:
        assert (cubin, name) == (b"cubin", "axpy")

    def launch(self, grid, block, x, y, out, a, n) -> None:
        out.copy_(a * x + y)


def test_bytes_are_those_of_the_emulator_at_the_timed_size(monkeypatch):
    """Twice the bytes that are needed there are twice those that are needed here."""
    monkeypatch.setattr(gpu, "Kernel", Graphics)
    given = {}

    def share(call, least, device, **more):
        call()
        given.update(more, least=least, device=device)

    monkeypatch.setattr(roof, "share", share)
    made = task("cuda_index")
    here = replace(made, make=lambda size, device: made.make(size, "cpu"), large=(1000,))
    least = made.least(made.cases[-1].size)
    counted = Counted({8: Line(sectors=2 * least // 32)}, ())
    found = list(cuda._on_the_gpu(here, b"cubin", counted, ""))
    assert found[0].ok, found
    assert given["device"] == "cuda"
    assert given["least"] == 12_000
    assert given["operations"] == 2000
    assert given["moved"] == pytest.approx(24_000)
