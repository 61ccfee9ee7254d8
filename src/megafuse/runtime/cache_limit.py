"""The cache stays below a size: what was not used for longest is removed.

$MEGAFUSE_CACHE_SIZE is the size: 500MB, 2GB (the default), or `none`. An entry's last use is the
time of its newest file, which cache.get and cache.find set. Nothing that was used within GRACE is
removed, so that no process loses a file between finding and loading it: for as long the cache may
be larger than its size.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from megafuse.runtime.progress import logger

DEFAULT = 2_000_000_000
GRACE = 600.0  # seconds
_PAUSE = 600.0  # between two sweeps, whoever does them: a sweep looks at every file
_BUILDS = 64  # of one process, after which it sweeps all the same
_ROOM = 0.9  # of the size is left by a sweep, so that the next build needs none
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)B?", re.IGNORECASE)

_built = 0  # by this process, since its last sweep
_told: set[str] = set()  # which settings were complained of


@dataclass(frozen=True)
class Entry:
    """One folder of the cache."""

    key: str
    files: tuple[str, ...]
    bytes: int
    used: float  # seconds since 1970


def limit() -> int | None:
    """Bytes, or None without a limit. A setting that is no size is said once, and not followed."""
    text = os.environ.get("MEGAFUSE_CACHE_SIZE", "").strip()
    if not text:
        return DEFAULT
    if text.lower() == "none":
        return None
    found = _NUMBER.fullmatch(text)
    if found:
        return int(float(found[1]) * _UNITS[found[2].upper()])
    if text not in _told:
        _told.add(text)
        logger.warning(
            "megafuse: MEGAFUSE_CACHE_SIZE is %r, expected a size like 500MB or 2GB, or none; "
            "the cache is kept below 2 GB.",
            text,
        )
    return DEFAULT


def after_build(place: Path) -> None:
    """Sweeps where it is time to. Whatever goes wrong here fails no build."""
    global _built
    _built += 1
    size, stamp = limit(), place / "sweep.lock"
    try:
        if size is None or (_built < _BUILDS and _age(stamp) < _PAUSE):
            return
        _built = 0
        with FileLock(str(stamp), timeout=0, mode=0o600):
            os.utime(stamp)
            sweep(size)
    except Timeout:  # another process does
        return
    except OSError as error:
        logger.debug("megafuse: the cache could not be swept: %s", error)


def sweep(size: int, grace: float = GRACE) -> int:
    """Removes the entries that were not used for longest until the rest is below `size`; how many.

    What is being built stays, and so does what was used meanwhile.
    """
    from megafuse.runtime import cache

    entries = sorted(listed(), key=lambda entry: entry.used)
    total = sum(entry.bytes for entry in entries)
    if total <= size:
        return 0
    removed = 0
    for entry in entries:
        if total <= size * _ROOM or time.time() - _entry(cache.folder(entry.key)).used < grace:
            break
        if cache.remove(entry.key):
            total -= entry.bytes
            removed += 1
    return removed


def listed() -> Iterator[Entry]:
    """Every entry of the cache."""
    from megafuse.runtime import cache

    return (_entry(folder) for folder in cache.folders())


def _entry(folder: Path) -> Entry:
    names, size, used = [], 0, 0.0
    for file in _files(folder):
        try:
            found = file.lstat()
        except FileNotFoundError:  # replaced while we looked
            continue
        names.append(file.name)
        size += found.st_size
        used = max(used, found.st_mtime)
    if not names and folder.exists():  # a build has begun
        used = folder.stat().st_mtime
    return Entry(folder.name, tuple(names), size, used)


def _files(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.rglob("*") if file.is_file()]
    except FileNotFoundError:
        return []


def _age(stamp: Path) -> float:
    try:
        return time.time() - stamp.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
