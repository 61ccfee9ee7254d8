"""First use: processes that race, entries that are damaged, a directory that is not safe."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.processes import cold_cache, environment, kernels, run, start

# Each starts a process of its own, and compiles.
pytestmark = pytest.mark.slow

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
SHOW = "from megafuse.runtime import progress\nprogress.show()\n"  # as the command line does
CALL = SHOW + 'right("gelu_scale", x, 1.7)\nright("swiglu", x, x)\nprint("right")\n'


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return cold_cache(tmp_path)


@pytest.mark.slow
def test_three_processes_race(cache: Path) -> None:
    children = [start(CALL, environment(cache)) for _ in range(3)]
    compiled = 0
    for child in children:
        out, err = child.communicate(timeout=180)
        assert child.returncode == 0, err
        assert out == "right\n"
        compiled += err.count("compiled")
    assert compiled == 2, "each of the two kernels is compiled once, by whoever came first"
    assert len(kernels(cache)) == 2
    left = [p.name for p in cache.rglob("*") if "tmp" in p.name]
    assert left == [], "temporary files left behind"
    assert "compiled" not in run(CALL, environment(cache))[1], "the next process finds them"


def _no_checksum(kernel: Path) -> None:
    kernel.with_name(kernel.name + ".sha256").unlink()


DAMAGE: list[Callable[[Path], object]] = [
    lambda kernel: kernel.write_bytes(kernel.read_bytes()[:-100]),
    lambda kernel: kernel.write_bytes(os.urandom(5000)),
    lambda kernel: kernel.write_bytes(b""),
    lambda kernel: kernel.unlink(),
    _no_checksum,
]


@pytest.mark.slow
def test_damaged_kernels_are_built_again(cache: Path) -> None:
    """Cut short, overwritten, emptied, removed, or without its checksum."""
    code = (
        SHOW
        + """
for kind in (torch.float32, torch.float64):
    right("add_mul_add", *[x.to(kind)] * 4)
    right("swiglu", *[x.to(kind)] * 2)
right("gelu_scale", x, 1.7)
print("right")
"""
    )
    run(code, environment(cache))
    found = kernels(cache)
    assert len(found) == len(DAMAGE)
    for kernel, damage in zip(found, DAMAGE, strict=True):
        damage(kernel)
    out, err = run(code, environment(cache))
    assert out == "right\n"
    assert err.count("compiled") == len(DAMAGE)
    assert "compiled" not in run(code, environment(cache))[1]


@posix
def test_a_cache_that_others_can_write_is_refused(cache: Path) -> None:
    """Nothing of it is loaded: one warning, and the reference runs."""
    cache.chmod(0o770)
    out, err = run(
        CALL + "from megafuse.runtime import loader; print(loader.loaded())", environment(cache)
    )
    assert out == "right\nFalse\n"
    assert err.count("unfused") == 1
    for part in (str(cache), "chmod 700", "MEGAFUSE_CACHE"):
        assert part in err


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_says_so(cache: Path) -> None:
    for folder in [cache, *(p for p in cache.rglob("*") if p.is_dir())]:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    out, err = run(CALL, environment(cache))
    assert out == "right\n"
    assert err.count("unfused") == 1
    assert "MEGAFUSE_CACHE" in err
    cache.chmod(0o700)


def test_a_file_in_the_place_of_the_cache(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a directory")
    out, err = run(CALL, environment(place))
    assert out == "right\n"
    assert err.count("unfused") == 1
    assert "is not a directory" in err


FULL = """
from megafuse.runtime import cache
def full(path):
    raise OSError(28, "No space left on device")
cache._settle = full
"""


def test_a_disk_that_fills_up_between_two_kernels(cache: Path) -> None:
    """The host runtime is there, kernels cannot be written: once said, and tried by the next."""
    quiet = CALL.removeprefix(SHOW)  # warnings alone: the second kernel's failure is information
    out, err = run(FULL + quiet + quiet, environment(cache))
    assert out == "right\nright\n"
    assert err.count("unfused") == 1
    assert "No space left on device" in err
    assert kernels(cache) == []
    assert "compiled" in run(CALL, environment(cache))[1]


def test_first_use_says_what_it_compiles_and_import_compiles_nothing(cache: Path) -> None:
    code = SHOW + 'print("imported", flush=True)\nright("gelu_scale", x, 1.7)'
    out, err = run(code, environment(cache))
    assert out == "imported\n"
    assert err.count("compil") == 1
    assert "megafuse: compiled gelu_scale, float32 (tanh) for this CPU in " in err
    before, _ = run("print(mf.OPS.keys())", environment(cache))
    assert "gelu_scale" in before


def test_a_child_of_fork_works(cache: Path) -> None:
    """After the parent has used the runtime and its threads."""
    code = """
import os
big = torch.randn(200_000)
right("gelu_scale", big, 1.7)
torch.set_num_threads(1)
child = os.fork()
if child == 0:
    right("gelu_scale", big, 1.7)
    right("swiglu", x, x)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("right")
"""
    if sys.platform == "win32":
        pytest.skip("no fork")
    assert run(code, environment(cache))[0] == "right\n"
