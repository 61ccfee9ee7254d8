"""Kernels' precompiled header: made once, used where it helps, and never why a build fails."""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import re
import shutil
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from megafuse import cli
from megafuse.runtime import build, cache, cpp, precompiled, sources

pytestmark = pytest.mark.skipif(not precompiled.is_gcc(), reason="no GCC")

SOURCE = '#include "math.h"\nextern "C" int answer() { return int(mf::max(41.0f, 42.0f)); }\n'
NOT_FOR_CPUS = ("_cuda", "_mma", "gemm_sm90", "split_mend", "split_most", "split_columns")


@pytest.fixture(autouse=True)
def _anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was built, and there is little to parse."""
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(precompiled, "HEADERS", ("math.h",))
    monkeypatch.setattr(precompiled, "_off", False)
    for seen in (precompiled._missed, precompiled._tried, precompiled._found):
        seen.clear()  # of other caches


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the compiler was called with."""
    told: list[list[str]] = []
    run = cpp._started

    def started(command: list[str]) -> object:
        told.append(command)
        return run(command)

    monkeypatch.setattr(cpp, "_started", started)
    return told


def compiled(out: Path, text: str = SOURCE) -> int:
    precompiled.compile_kernel(text, out, cpp.kernel_flags())
    return int(ctypes.CDLL(str(out)).answer())


def header() -> Path | None:
    return cache.find(precompiled._key(cpp.kernel_flags()), precompiled.FILE)


def test_it_is_made_when_it_pays_and_then_used(tmp_path: Path, commands: list[list[str]]) -> None:
    for number in range(precompiled.WORTH - 1):
        assert compiled(tmp_path / f"{number}.so") == 42
    assert header() is None
    assert not any("-include" in command for command in commands)
    assert compiled(tmp_path / "worth.so") == 42
    assert "c++-header" in commands[-2]
    assert "-include" in commands[-1]
    assert header() is not None
    assert compiled(tmp_path / "next.so") == 42
    assert "-include" in commands[-1], "and not made again"
    assert "c++-header" not in commands[-2]


def test_the_host_runtime_brings_it(commands: list[list[str]]) -> None:
    precompiled.make_ahead()
    assert header() is not None
    precompiled.make_ahead()
    assert sum("c++-header" in command for command in commands) == 1


def test_what_it_is_made_from_is_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("math.h", "portable.h"):
        shutil.copy(sources.KERNELS / name, folder)
    monkeypatch.setattr(sources, "KERNELS", folder)
    keys = {precompiled._key(["-O3"]), precompiled._key(["-O1"])}
    deep = folder / "portable.h"  # which math.h includes
    deep.write_text(deep.read_text() + "// edited\n")
    keys.add(precompiled._key(["-O3"]))
    monkeypatch.setattr(cpp, "find", lambda: cpp.Compiler("g++", "g++ (GCC) 99.0"))
    keys.add(precompiled._key(["-O3"]))
    assert len(keys) == 4


def test_an_edited_header_is_not_read_from_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setattr(sources, "KERNELS", folder)
    for answer in (1, 2):
        (folder / "math.h").write_text(f"#pragma once\ninline int ours() {{ return {answer}; }}\n")
        precompiled.make_ahead()
        text = '#include "math.h"\nextern "C" int answer() { return ours(); }\n'
        assert compiled(tmp_path / f"{answer}.so", text) == answer
    assert not precompiled._off


def _in_a_process(start: Barrier, out: Path, flags: Sequence[str]) -> None:
    start.wait()
    precompiled.make_ahead()
    precompiled.compile_kernel(SOURCE, out, flags)


def test_two_processes_make_one(tmp_path: Path) -> None:
    forked = multiprocessing.get_context("fork")
    flags, start = cpp.kernel_flags(), forked.Barrier(2)
    outs = [tmp_path / "a.so", tmp_path / "b.so"]
    both = [forked.Process(target=_in_a_process, args=(start, out, flags)) for out in outs]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert [ctypes.CDLL(str(out)).answer() for out in outs] == [42, 42]
    assert len(cache.entries_with(precompiled.FILE)) == 1


def test_a_truncated_one_is_made_again(tmp_path: Path, commands: list[list[str]]) -> None:
    precompiled.make_ahead()
    path = header()
    assert path is not None
    path.write_bytes(path.read_bytes()[:100_000])
    assert compiled(tmp_path / "a.so") == 42
    assert "-include" not in commands[-1]
    precompiled.make_ahead()
    assert compiled(tmp_path / "b.so") == 42
    assert "-include" in commands[-1]


@pytest.mark.parametrize("kept", [0, 8, 100_000])
def test_one_that_gcc_cannot_read_fails_no_build(kept: int, tmp_path: Path) -> None:
    """Its checksum is right, as where a disk lied or another GCC of the same name made it."""
    precompiled.make_ahead()
    path = header()
    assert path is not None
    path.write_bytes(path.read_bytes()[:kept])
    path.with_name(path.name + ".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    assert compiled(tmp_path / "a.so") == 42
    assert header() is None, "the next process makes it anew"
    assert compiled(tmp_path / "b.so") == 42


def test_an_error_is_that_of_the_plain_command(tmp_path: Path) -> None:
    precompiled.make_ahead()
    with pytest.raises(cpp.CompileError, match="nonsense") as caught:
        compiled(tmp_path / "a.so", "int f() { return nonsense; }")
    error = caught.value
    assert "-include" not in error.command
    assert error.source is not None
    error.discard_source()
    assert header() is not None, "it is not the header's fault"
    assert not precompiled._off


def test_a_header_that_cannot_be_made_fails_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompiled, "HEADERS", ("no_such.h",))
    monkeypatch.setattr(precompiled, "WORTH", 1)
    assert compiled(tmp_path / "a.so") == 42
    assert header() is None


def test_another_compiler_compiles_the_plain_way(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[str]], tmp_path: Path
) -> None:
    real = cpp.find()
    assert real is not None
    other = cpp.Compiler(real.path, "Debian clang version 14.0.6", real.arguments)
    monkeypatch.setattr(cpp, "find", lambda: other)
    precompiled.make_ahead()
    assert compiled(tmp_path / "a.so") == 42
    assert not any("-include" in command or "-pipe" in command for command in commands)


def test_only_what_ships_is_compiled_so(commands: list[list[str]]) -> None:
    """A header from outside may have names that ours have too."""
    precompiled.make_ahead()
    build.cpu_object(SOURCE, "a test")
    assert "-include" not in commands[-1]
    build.cpu_object(SOURCE + "// ours\n", "a test", ships=True)
    assert "-include" in commands[-1]


def test_the_cache_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    precompiled.make_ahead()
    assert cli.main(["cache"]) == 0
    assert "headers            1" in capsys.readouterr().out


def with_all_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.undo()
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))
    assert precompiled._made(cpp.kernel_flags()) is not None
    included = precompiled._included(cpp.kernel_flags())
    assert included
    return included


def test_every_header_of_the_cpu_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [*cpp.kernel_flags(), *with_all_headers(tmp_path, monkeypatch), "-fsyntax-only"]
    names = sorted(path.name for path in sources.KERNELS.glob("*.h"))
    names = [name for name in names if not any(part in name for part in NOT_FOR_CPUS)]
    text = "".join(f'#include "{name}"\n' for name in names)
    cpp.compile_shared(text, tmp_path / "none", include=[sources.KERNELS], flags=flags)


def test_machine_code_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    included = with_all_headers(tmp_path, monkeypatch)
    plain, quick = tmp_path / "plain.s", tmp_path / "quick.s"
    for out, more in ((plain, []), (quick, included)):
        flags = [*cpp.kernel_flags(), *more, "-S"]
        cpp.compile_shared(KERNEL, out, include=[sources.KERNELS], flags=flags)
    assert instructions(plain) == instructions(quick)


def instructions(assembly: Path) -> list[str]:
    """Without labels, whose numbers differ."""
    return [line for line in assembly.read_text().splitlines() if re.match(r"\t\w", line)]


KERNEL = """
#include "gelu_scale.h"
#include "pointwise_cpu.h"

using Kernel = mf::Kernel<mf::GeluScale<float, mf::GeluTanh>, float, 1,
    mf::Operands<mf::Operand<float, 'c', 0>>, mf::Operands<mf::Operand<float, 'c'>>>;

extern "C" void megafuse_test(const mf::u64* words, mf::i64 begin, mf::i64 end) {
  mf::PointwiseCpu<Kernel, false>(words).run(begin, end);
}
"""
