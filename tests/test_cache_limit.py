"""The cache stays below its size: what was not used for longest goes first."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from megafuse.runtime import cache, cache_limit

KEYS = [cache.key("kernel", str(i)) for i in range(5)]
SIZE = 1000
WHOLE = SIZE + 64  # with the checksum beside it


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("MEGAFUSE_CACHE", str(path))
    monkeypatch.setattr(cache_limit, "_built", 0)
    return path


def build(path: Path) -> None:
    path.write_bytes(b"x" * SIZE)


def filled(hours: list[float]) -> None:
    """An entry for each, last used so many hours ago."""
    for key, ago in zip(KEYS, hours, strict=False):
        path = cache.get(key, "kernel.so", build)
        for file in path.parent.iterdir():
            os.utime(file, (time.time() - ago * 3600,) * 2)


def there() -> list[bool]:
    return [cache.folder(key).exists() for key in KEYS]


def test_the_longest_unused_go_first() -> None:
    filled([5, 1, 4, 2, 3])
    assert cache_limit.sweep(4 * WHOLE) == 2  # room is made for the next ones
    assert there() == [False, True, False, True, True]


def test_nothing_goes_while_there_is_room() -> None:
    filled([5, 1, 4, 2, 3])
    assert cache_limit.sweep(5 * WHOLE) == 0
    assert all(there())


def test_a_use_is_remembered() -> None:
    filled([5, 1, 4, 2, 3])
    assert cache.find(KEYS[0], "kernel.so") is not None
    cache_limit.sweep(WHOLE * 2)
    assert there()[0]


def test_what_is_in_use_stays_whatever_the_size() -> None:
    filled([0, 0, 5, 0, 0])
    assert cache_limit.sweep(1) == 1
    assert there() == [True, True, False, True, True]


def test_what_is_being_built_stays() -> None:
    filled([5, 4, 3, 2, 1])
    with cache._locked(cache.folder(KEYS[0])):
        assert cache_limit.sweep(1) == 4
    assert there() == [True, False, False, False, False]


def test_a_build_sweeps(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("MEGAFUSE_CACHE_SIZE", "none")
    filled([5, 4, 3])
    monkeypatch.setenv("MEGAFUSE_CACHE_SIZE", str(2 * WHOLE))
    cache.get(KEYS[3], "kernel.so", build)
    assert there() == [False, False, False, True, False]
    # The next one does not look again so soon, unless this process built many.
    filled([5, 4, 3])
    cache.get(KEYS[4], "kernel.so", build)
    assert all(there())
    monkeypatch.setattr(cache_limit, "_built", 1000)
    cache.get(cache.key("one more"), "kernel.so", build)
    assert there() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 2_000_000_000), ("none", None), ("500MB", 500_000_000), ("1.5 g", 1_500_000_000)],
)
def test_the_size_is_set(text: str, size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFUSE_CACHE_SIZE", text)
    assert cache_limit.limit() == size


def test_no_size_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MEGAFUSE_CACHE_SIZE", "much")
    monkeypatch.setattr(cache_limit, "_told", set())
    with caplog.at_level("WARNING", logger="megafuse"):
        assert cache_limit.limit() == cache_limit.limit() == cache_limit.DEFAULT
    assert len([r for r in caplog.records if "'much'" in r.getMessage()]) == 1
