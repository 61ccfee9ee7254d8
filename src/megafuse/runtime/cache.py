"""Machine code on disk, found by what it was made from: <directory>/<key[:2]>/<key>/<filename>.

Next to each file lies `<filename>.sha256`, written last: a file without a matching one is
damaged and is built again. So a crash, a full disk or a killed compiler at any point costs a
rebuild and nothing else. The directory is code that will run, so only its owner may write it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from megafuse.runtime import cache_limit


class CacheError(RuntimeError):
    """The cache directory cannot be used; the message says why and what to do."""


_KEY = re.compile(r"[0-9a-f]{64}")
_CHECKSUM = ".sha256"
_TEMPORARY = "tmp-"
_MARKED_ANEW = 60.0  # seconds after which a use is worth a write
_SET = "set MEGAFUSE_CACHE to a directory that you can write"
_ELSEWHERE = "or set MEGAFUSE_CACHE to one that only you can write"


def directory() -> Path:
    """$MEGAFUSE_CACHE, else `megafuse` in the user's cache folder; made (0700) when not there.

    Raises CacheError when it cannot be made, or when others than its owner could put code in it.
    """
    path = _place()
    try:
        found = path.stat()
    except FileNotFoundError:
        found = _create(path)
    except OSError as error:
        raise CacheError(f"cannot read the kernel cache {path}: {error}; {_SET}") from error
    _refuse_unsafe(path, found)
    return path


def key(*parts: str | bytes) -> str:
    """sha256 over the parts, each with its type and length, so that no two lists collide."""
    digest = hashlib.sha256()
    for part in parts:
        kind, data = (b"b", part) if isinstance(part, bytes) else (b"s", _encoded(part))
        digest.update(kind + len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def get(key: str, filename: str, build: Callable[[Path], None]) -> Path:
    """The path of `filename` under `key`; on a miss, `build(path)` writes it, once for everyone.

    Threads and processes that want the same key wait for the one that builds it. A build that
    raises leaves nothing behind, and its exception comes through.
    """
    _check_names(key, filename)
    place = directory()
    entry = place / key[:2] / key
    path = entry / filename
    if _intact(path):
        return path
    with _locked(entry):
        if not _intact(path):
            _build(entry, path, build)
    cache_limit.after_build(place)
    return path


def find(key: str, filename: str) -> Path | None:
    """The path of `filename` under `key` if it is there and whole; builds nothing."""
    _check_names(key, filename)
    path = directory() / key[:2] / key / filename
    return path if _intact(path) else None


def entries_with(filename: str) -> list[str]:
    """The keys of all entries that hold a file of this name."""
    return [entry.name for entry in folders() if (entry / filename).is_file()]


def folder(key: str) -> Path:
    """Where the entry of this key is, if it is."""
    _check_names(key, "entry")
    return directory() / key[:2] / key


def remove(key: str) -> bool:
    """Removes one entry, unless somebody builds it at this moment; whether it did."""
    entry = folder(key)
    with contextlib.suppress(Timeout), _locked(entry, timeout=0):
        shutil.rmtree(entry, ignore_errors=True)
        return not entry.exists()
    return False


def size() -> tuple[int, int]:
    """(entries, bytes) in the cache."""
    entries = list(folders())
    files = (file for entry in entries for file in entry.rglob("*"))
    return len(entries), sum(_bytes(file) for file in files)


def clear() -> int:
    """Removes every entry that nobody is building at this moment; returns how many.

    Lock files, which are empty, stay: removing one that is waited for would split the lock.
    """
    return sum(remove(entry.name) for entry in list(folders()))


# ---- the directory


def _place() -> Path:
    chosen = os.environ.get("MEGAFUSE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser().absolute() / "megafuse"
    except RuntimeError as error:  # no HOME and no passwd entry: some containers
        raise CacheError(f"this user has no home directory for the kernel cache; {_SET}") from error


def _create(path: Path) -> os.stat_result:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        return path.stat()
    except OSError as error:
        raise CacheError(f"cannot make the kernel cache {path}: {error}; {_SET}") from error


def _refuse_unsafe(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"the kernel cache {path} is not a directory; remove it, {_ELSEWHERE}")
    if sys.platform == "win32":  # per-user by the ACL that %LOCALAPPDATA% hands down
        return
    me = os.geteuid()
    link_owner = path.lstat().st_uid  # the directory's own, unless the path is a link
    if found.st_uid != me or link_owner not in (me, 0):
        other = found.st_uid if found.st_uid != me else link_owner
        raise CacheError(
            f"the kernel cache {path} belongs to user {other}, not to you (user {me}), and code "
            f"from it would run as you; remove it so that a fresh one is made, {_ELSEWHERE}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"the kernel cache {path} has mode {stat.S_IMODE(found.st_mode):04o}, so others can "
            f"put code in it that would run as you; `chmod 700 {path}`, {_ELSEWHERE}"
        )


# ---- one entry


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # file names may hold lone surrogates


def _check_names(key: str, filename: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"cache key {key!r} is not 64 hex digits; make it with cache.key(...)")
    plain = Path(filename).name == filename and filename not in ("", ".", "..")
    if not plain or filename.startswith(_TEMPORARY) or filename.endswith(_CHECKSUM):
        raise ValueError(
            f"cache filename {filename!r} must be a plain name, not start with {_TEMPORARY!r} and "
            f"not end with {_CHECKSUM!r}, which the cache uses itself"
        )


def _beside(path: Path) -> Path:
    return path.with_name(path.name + _CHECKSUM)


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()


def _intact(path: Path) -> bool:
    """Also marks it as used, before it is looked at: a sweep then leaves it (cache_limit.py)."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _MARKED_ANEW:
            os.utime(path)
    try:
        return _beside(path).read_bytes() == _digest(path)
    except OSError:  # missing, unreadable, or a directory in its place
        return False


def _build(entry: Path, path: Path, build: Callable[[Path], None]) -> None:
    """Called under the entry's lock; afterwards the entry is whole, or as if never begun."""
    token = secrets.token_hex(4)
    made = entry / f"{_TEMPORARY}{token}-{path.name}"
    checksum = _beside(made)
    try:
        with _explained(entry):
            _make_folder(entry)
            for leftover in entry.glob(_TEMPORARY + "*"):  # of a builder that was killed
                _remove(leftover)
            made.touch()  # a folder that cannot be written fails here, not somewhere in `build`
            made.unlink()
        build(made)
        if not made.is_file():
            raise CacheError(f"the build function returned but wrote no file at {made}")
        with _explained(entry):
            _settle(made)
            checksum.write_bytes(_digest(made))
            _settle(checksum)
            _rename(made, path)
            _rename(checksum, _beside(path))  # last, because it vouches for the file
            _sync(entry)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(made)
            _remove(checksum)
            entry.rmdir()  # stays when it holds other files
        raise


@contextlib.contextmanager
def _explained(entry: Path) -> Iterator[None]:
    """Turns what the file system refuses into a CacheError that says what to do."""
    try:
        yield
    except Timeout:  # an OSError too, but no failure
        raise
    except OSError as error:
        raise CacheError(f"cannot write the kernel cache {entry}: {error}; {_SET}") from error


def _make_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        path.unlink()
    path.mkdir(mode=0o700, exist_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _rename(source: Path, target: Path) -> None:
    if target.is_dir():
        _remove(target)
    os.replace(source, target)


def _settle(path: Path) -> None:
    """Readable to the user alone, and on disk before its name is."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    if sys.platform == "win32":  # no handle to a directory there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- locks

_threads: dict[str, threading.Lock] = {}
if hasattr(os, "register_at_fork"):  # a child must not wait for a thread it does not have
    os.register_at_fork(after_in_child=_threads.clear)


@contextlib.contextmanager
def _locked(entry: Path, timeout: float = -1) -> Iterator[None]:
    """Alone with this entry among all threads and processes; a dead owner's lock is free.

    The thread lock is for file systems (NFS) whose file locks are per process.
    """
    file = str(entry) + ".lock"
    thread_lock = _threads.setdefault(file, threading.Lock())
    if not thread_lock.acquire(timeout=timeout):
        raise Timeout(file)
    try:
        process_lock = FileLock(file, mode=0o600)
        with _explained(entry):
            _make_folder(entry.parent)
            _acquire(process_lock, timeout)
        try:
            yield
        finally:
            process_lock.release()
    finally:
        thread_lock.release()


def _acquire(lock: BaseFileLock, timeout: float) -> None:
    try:
        lock.acquire(timeout=timeout)
    except NotImplementedError as error:
        raise CacheError(
            f"the file system of the kernel cache has no file locks ({lock.lock_file}); "
            f"{_SET}, on a local disk"
        ) from error


# ---- the whole cache


def folders() -> Iterator[Path]:
    """That of every entry."""
    for two in directory().iterdir():
        if len(two.name) == 2 and two.is_dir():
            yield from (entry for entry in two.iterdir() if _KEY.fullmatch(entry.name))


def _bytes(file: Path) -> int:
    try:
        found = file.lstat()
    except FileNotFoundError:  # replaced while we looked
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
