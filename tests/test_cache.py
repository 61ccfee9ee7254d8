"""The cache builds once, never hands out a damaged file, and refuses an unsafe directory."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megafuse.runtime import cache

KEY = cache.key("a kernel")
CONTENT = b"machine code" * 1000

# Children only touch files, and forking spares each of them the import of torch.
PROCESSES = multiprocessing.get_context("spawn" if sys.platform == "win32" else "fork")
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions and fork")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("MEGAFUSE_CACHE", str(path))
    return path


def write(path: Path) -> None:
    path.write_bytes(CONTENT)


def never(path: Path) -> None:
    raise AssertionError("built again what is there")


def files(place: Path) -> set[str]:
    """Every file but the lock files, which stay."""
    return {p.name for p in place.rglob("*") if p.is_file() and p.suffix != ".lock"}


def in_process(work: Callable[..., None], *arguments: object) -> int | None:
    child = PROCESSES.Process(target=work, args=arguments)
    child.start()
    child.join(20)
    assert not child.is_alive(), "the child hangs"
    return child.exitcode


# ---- hit and miss


def test_miss_builds_and_hit_does_not(place: Path) -> None:
    path = cache.get(KEY, "kernel.so", write)
    assert path == place / KEY[:2] / KEY / "kernel.so"
    assert path.read_bytes() == CONTENT
    assert cache.get(KEY, "kernel.so", never) == path
    assert files(place) == {"kernel.so", "kernel.so.sha256"}


def test_one_key_holds_several_files() -> None:
    first = cache.get(KEY, "a.cubin", write)
    second = cache.get(KEY, "b.cubin", write)
    assert first.parent == second.parent
    assert cache.get(KEY, "a.cubin", never) == first


def test_size_and_clear(place: Path) -> None:
    assert cache.size() == (0, 0)
    cache.get(KEY, "kernel.so", write)
    cache.get(cache.key("another"), "kernel.so", write)
    assert cache.size() == (2, 2 * (len(CONTENT) + 64))
    assert cache.clear() == 2
    assert cache.size() == (0, 0)
    assert files(place) == set()
    cache.get(KEY, "kernel.so", write)


def test_find_and_remove(place: Path) -> None:
    other = cache.key("another")
    assert cache.find(KEY, "kernel.so") is None
    path = cache.get(KEY, "kernel.so", write)
    cache.get(other, "note.json", write)
    assert cache.find(KEY, "kernel.so") == path
    assert cache.find(KEY, "note.json") is None
    assert cache.entries_with("note.json") == [other]
    assert cache.remove(other)
    assert cache.entries_with("note.json") == []
    assert cache.find(KEY, "kernel.so") == path
    truncate(path)
    assert cache.find(KEY, "kernel.so") is None, "a damaged file is not found"


def test_clear_leaves_what_is_being_built() -> None:
    def build(path: Path) -> None:
        path.write_bytes(b"half")
        assert cache.clear() == 0
        path.write_bytes(CONTENT)

    assert cache.get(KEY, "kernel.so", build).read_bytes() == CONTENT


@pytest.mark.parametrize("key", ["", "abc", "../" * 21 + "x", KEY.upper(), KEY + "\n"])
def test_a_key_that_is_no_digest_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"cache\.key"):
        cache.get(key, "kernel.so", write)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "tmp-a", "a.sha256"])
def test_a_filename_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        cache.get(KEY, name, write)


# ---- damage


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def put_a_directory_there(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


@pytest.mark.parametrize("suffix", ["", ".sha256"], ids=["file", "checksum"])
@pytest.mark.parametrize(
    "damage", [flip_a_bit, truncate, empty, Path.unlink, put_a_directory_there]
)
def test_a_damaged_entry_is_built_again(damage: Callable[[Path], None], suffix: str) -> None:
    path = cache.get(KEY, "kernel.so", write)
    damage(path.with_name(path.name + suffix))
    builds = []
    again = cache.get(KEY, "kernel.so", lambda made: (builds.append(1), write(made))[-1])
    assert (builds, again) == ([1], path)
    assert path.read_bytes() == CONTENT
    assert cache.get(KEY, "kernel.so", never) == path


@pytest.mark.parametrize("depth", [0, 1], ids=["entry", "prefix"])
def test_a_file_in_place_of_a_folder_is_replaced(place: Path, depth: int) -> None:
    folder = [place / KEY[:2] / KEY, place / KEY[:2]][depth]
    folder.parent.mkdir(parents=True, mode=0o700)
    place.chmod(0o700)
    folder.write_bytes(b"")
    assert cache.get(KEY, "kernel.so", write).read_bytes() == CONTENT


# ---- builds that fail


@pytest.mark.parametrize("error", [RuntimeError("no"), OSError("no"), KeyboardInterrupt()])
def test_a_build_that_raises_leaves_nothing(place: Path, error: BaseException) -> None:
    def build(path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    with pytest.raises(type(error)) as caught:
        cache.get(KEY, "kernel.so", build)
    assert caught.value is error
    assert files(place) == set()
    assert cache.size() == (0, 0)
    assert cache.get(KEY, "kernel.so", write).read_bytes() == CONTENT


def test_a_build_that_raises_keeps_the_other_files_of_the_key() -> None:
    cache.get(KEY, "a.cubin", write)
    with pytest.raises(AssertionError):
        cache.get(KEY, "b.cubin", never)
    cache.get(KEY, "a.cubin", never)


def test_a_build_that_writes_nothing_is_an_error(place: Path) -> None:
    with pytest.raises(cache.CacheError, match="wrote no file"):
        cache.get(KEY, "kernel.so", lambda path: None)
    assert files(place) == set()


def test_a_place_that_cannot_be_written_serves_hits_and_explains_misses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = cache.get(KEY, "kernel.so", write)

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cache, "_make_folder", read_only)
    assert cache.get(KEY, "kernel.so", never) == path
    with pytest.raises(cache.CacheError, match="set MEGAFUSE_CACHE"):
        cache.get(cache.key("another"), "kernel.so", write)


# ---- crashes


def die_while_building() -> None:
    def build(path: Path) -> None:
        path.write_bytes(b"half")
        os._exit(9)

    cache.get(KEY, "kernel.so", build)


def die_at_rename(number: int) -> None:
    """Ends the process just before its `number`-th rename."""
    rename, left = os.replace, [number]

    def replace(source: Path, target: Path) -> None:
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)
        rename(source, target)

    os.replace = replace  # type: ignore[assignment]
    cache.get(KEY, "kernel.so", lambda path: (path.write_bytes(b"new code"), None)[-1])


@posix
def test_a_killed_builder_neither_blocks_nor_corrupts(place: Path) -> None:
    assert in_process(die_while_building) == 9
    assert cache.get(KEY, "kernel.so", write).read_bytes() == CONTENT
    assert files(place) == {"kernel.so", "kernel.so.sha256"}, "the half-written file is gone"


@posix
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("before", ["nothing", "a damaged entry"])
def test_a_crash_between_the_renames_is_detected(before: str, number: int) -> None:
    if before != "nothing":
        truncate(cache.get(KEY, "kernel.so", write))
    assert in_process(die_at_rename, number) == 9
    assert cache.get(KEY, "kernel.so", write).read_bytes() == CONTENT
    cache.get(KEY, "kernel.so", never)


# ---- races


def build_and_count(counter: Path) -> Callable[[Path], None]:
    """A build that adds one byte to `counter`, and takes long enough to be raced."""

    def build(path: Path) -> None:
        with counter.open("ab") as file:
            file.write(b".")
        path.write_bytes(CONTENT[:100])
        threading.Event().wait(0.2)
        write(path)

    return build


def race(barrier: threading.Barrier, counter: Path) -> None:
    barrier.wait()
    assert cache.get(KEY, "kernel.so", build_and_count(counter)).read_bytes() == CONTENT


def test_processes_that_race_build_once(tmp_path: Path) -> None:
    counter, barrier = tmp_path / "builds", PROCESSES.Barrier(8)
    children = [PROCESSES.Process(target=race, args=(barrier, counter)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0] * 8
    assert counter.read_bytes() == b"."


def test_threads_that_race_build_once(tmp_path: Path) -> None:
    counter, barrier = tmp_path / "builds", threading.Barrier(8)
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda: (race(barrier, counter), done.append(1)), daemon=True)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(done) == 8
    assert counter.read_bytes() == b"."


@posix
def test_a_child_forked_while_a_thread_builds_gets_the_file() -> None:
    started, finish = threading.Event(), threading.Event()

    def build(path: Path) -> None:
        started.set()
        finish.wait(20)
        write(path)

    thread = threading.Thread(target=cache.get, args=(KEY, "kernel.so", build), daemon=True)
    thread.start()
    assert started.wait(20)
    child = PROCESSES.Process(target=cache.get, args=(KEY, "kernel.so", never))
    child.start()
    finish.set()
    child.join(20)
    thread.join(20)
    assert child.exitcode == 0


# ---- the directory


def test_the_directory_is_made_and_private(place: Path) -> None:
    assert cache.directory() == place
    path = cache.get(KEY, "kernel.so", write)
    if sys.platform != "win32":
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for file in place.rglob("*.*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_the_default_is_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEGAFUSE_CACHE")
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / name))
    folder = {"win32": "LOCALAPPDATA", "darwin": "HOME/Library/Caches"}
    assert cache.directory() == tmp_path / folder.get(sys.platform, "XDG_CACHE_HOME") / "megafuse"


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    cache.directory().chmod(mode)
    with pytest.raises(cache.CacheError) as caught:
        cache.get(KEY, "kernel.so", write)
    assert f"chmod 700 {place}" in str(caught.value)
    assert "MEGAFUSE_CACHE" in str(caught.value)


@posix
def test_a_directory_that_others_can_only_read_is_used() -> None:
    cache.directory().chmod(0o755)
    cache.directory()


@posix
def test_a_link_to_an_unsafe_directory_is_refused(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    place.symlink_to(target)
    assert cache.directory() == place
    target.chmod(0o777)
    with pytest.raises(cache.CacheError, match="chmod 700"):
        cache.directory()


@posix
@pytest.mark.parametrize("what", ["directory", "link"])
def test_a_directory_of_another_user_is_refused(place: Path, tmp_path: Path, what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    if what == "directory":
        os.chown(cache.directory(), 1, -1)
    else:
        (tmp_path / "target").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "target")
        os.chown(place, 1, -1, follow_symlinks=False)
    with pytest.raises(cache.CacheError, match=r"belongs to user 1, .*MEGAFUSE_CACHE"):
        cache.directory()


def test_a_file_in_place_of_the_directory_is_refused(place: Path) -> None:
    place.write_bytes(b"")
    with pytest.raises(cache.CacheError, match=r"not a directory.*MEGAFUSE_CACHE"):
        cache.directory()


def test_a_directory_that_cannot_be_made_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.delenv("MEGAFUSE_CACHE")
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "file" / "below"))
    with pytest.raises(cache.CacheError, match="set MEGAFUSE_CACHE"):
        cache.directory()


# ---- keys

PARTS = st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=4)


def test_a_key_does_not_run_parts_together() -> None:
    lists = [(), ("",), ("", ""), ("ab",), ("a", "b"), ("b", "a"), (b"ab",), ("ab", ""), ("", "ab")]
    assert len({cache.key(*parts) for parts in lists}) == len(lists)


@given(PARTS, PARTS)
def test_keys_are_equal_exactly_when_the_parts_are(
    one: list[str | bytes], other: list[str | bytes]
) -> None:
    assert (cache.key(*one) == cache.key(*other)) == (one == other)


@given(st.text(st.characters(exclude_categories=()), max_size=8))
def test_any_text_makes_a_key(text: str) -> None:
    assert len(cache.key(text)) == 64
