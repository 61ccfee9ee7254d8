"""Roofs are measured once; again where something else ran beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.samples import FAST_CPU
from megafuse.diagnose import roofs


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """The bandwidths that are measured, one after the other; the cache is empty."""
    rates = [1e9, 3e9, 2e9, 5e9]
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(roofs, "measure", lambda device: replace(FAST_CPU, copy=rates.pop(0)))
    monkeypatch.setattr(roofs, "_measured", set())
    return rates


def beside(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(roofs._Others, "__exit__", lambda self, *_: setattr(self, "share", share))


def in_another_process() -> None:
    roofs._measured.clear()


def test_measured_once(measured: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch, 0.01)
    assert {roofs.machine("cpu").copy for _ in range(3)} == {1e9}
    in_another_process()
    assert roofs.machine("cpu").copy == 1e9
    assert len(measured) == 3


def test_measured_again_while_others_disturb(
    measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside(monkeypatch, 0.5)
    assert [roofs.machine("cpu").copy for _ in range(2)] == [1e9, 1e9], "once a process"
    assert roofs.machine("cpu").disturbed == 1
    in_another_process()
    assert roofs.machine("cpu").copy == 3e9, "the better of two"
    in_another_process()
    beside(monkeypatch, 0.0)
    found = roofs.machine("cpu")
    assert (found.copy, found.disturbed) == (3e9, 0), "2e9 was no better"
    in_another_process()
    assert roofs.machine("cpu") == found
    assert measured == [5e9]


def test_not_for_ever(measured: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch, 0.5)
    for _ in range(8):
        in_another_process()
        roofs.machine("cpu")
    assert not measured


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not say")
def test_what_others_take_is_seen() -> None:
    burn = "import time; end = time.time() + 2\nwhile time.time() < end: pass"
    with roofs._Others() as others:
        subprocess.run([sys.executable, "-c", burn], check=True)
    assert others.share > 0.3 / (os.cpu_count() or 1)


def test_what_this_process_takes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "_busy", time.process_time)  # nobody else was busy
    with roofs._Others() as others:
        end = time.time() + 0.2
        while time.time() < end:
            pass
    assert others.share < 0.01
