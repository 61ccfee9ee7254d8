"""Builds that fail are remembered, and said once with their fix; what the keys depend on."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch

from megafuse.runtime import build, cache, cpp, fallback, loader, nvrtc, sources
from megafuse.runtime.cpp import CompileError

needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")
KEY = cache.key("a source")
REFUSED = CompileError(["g++", "-c"], "a.cpp:1:2: error: expected ';'", Path("kept.cpp"))


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, nothing said and nothing remembered, and the rule that users have."""
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fallback, "_here", {})
    monkeypatch.setattr(fallback, "_told", {})
    monkeypatch.setattr(fallback, "_strict", False)
    logger = logging.getLogger("megafuse")
    monkeypatch.setattr(logger, "propagate", True)  # as it is where no command line was run
    monkeypatch.setattr(logger, "handlers", [])


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_here", {})
    monkeypatch.setattr(fallback, "_told", {})


class Build:
    """Counts its calls; raises, or writes a file."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.calls = error, 0

    def __call__(self, path: Path) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        path.write_bytes(b"code")


# ---- remembering


def test_a_refused_source_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Build(REFUSED)
    for _ in range(2):
        with pytest.raises(CompileError, match="expected ';'"):
            fallback.get(KEY, "kernel.so", refusing)
    assert refusing.calls == 1
    another_process(monkeypatch)
    with pytest.raises(CompileError) as caught:
        fallback.get(KEY, "kernel.so", refusing)
    assert refusing.calls == 1
    for name in ("command", "stderr", "source"):
        assert getattr(caught.value, name) == getattr(REFUSED, name)


def test_another_key_and_a_cleared_cache_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError):
        fallback.get(KEY, "kernel.so", Build(REFUSED))
    assert fallback.get(cache.key("newer compiler"), "kernel.so", Build()).is_file()
    another_process(monkeypatch)
    cache.clear()
    assert fallback.get(KEY, "kernel.so", Build()).is_file()


def test_forgetting_has_it_tried_again() -> None:
    with pytest.raises(CompileError):
        fallback.get(KEY, "kernel.so", Build(REFUSED))
    kept = cache.get(cache.key("a kernel"), "kernel.so", Build())
    assert fallback.forget() == 1
    assert fallback.forget() == 0
    assert fallback.get(KEY, "kernel.so", Build()).is_file()
    assert kept.is_file(), "it forgets failures alone"


@pytest.mark.parametrize(
    "error",
    [
        CompileError(["g++"], "/tmp/x.s: fatal error: No space left on device"),
        CompileError(["g++"], "g++: fatal error: Killed signal terminated program cc1plus"),
        CompileError(["g++"], "virtual memory exhausted: Cannot allocate memory"),
        CompileError([], "cuda-core, which compiles the GPU kernels, is missing: pip install it"),
        OSError(28, "No space left on device"),
        cache.CacheError("cannot write the kernel cache"),
    ],
)
def test_what_may_pass_is_tried_again_by_the_next_process(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error)):
        fallback.get(KEY, "kernel.so", Build(error))
    another_process(monkeypatch)
    assert fallback.get(KEY, "kernel.so", Build()).is_file()


# ---- saying


def test_one_warning_for_many_kernels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the first one's source, in the folder that the warning names; the others' are removed,
    and nothing else."""
    caplog.set_level(logging.INFO, "megafuse")
    folders = [tmp_path / name for name in ("megafuse-1", "megafuse-2", "somebody's")]
    for folder in folders:
        folder.mkdir()
        (folder / "source.cpp").touch()
        with pytest.raises(fallback.Unbuildable), fallback.reference_instead("gelu_scale, float32"):
            raise CompileError(["g++"], "error: expected ';'", folder / "source.cpp")
    assert [folder.exists() for folder in folders] == [True, False, True]
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO", "INFO"]
    said = caplog.records[0].getMessage()
    first = str(folders[0])
    for part in ("gelu_scale, float32", "reference", "expected ';'", "megafuse doctor", first):
        assert part in said


def test_strict_raises_what_went_wrong() -> None:
    with fallback.strict(), pytest.raises(CompileError), fallback.reference_instead("gelu_scale"):
        raise REFUSED
    with pytest.raises(fallback.Unbuildable), fallback.reference_instead("gelu_scale"):
        raise REFUSED


def test_a_mistake_of_ours_is_not_hidden() -> None:
    with pytest.raises(KeyError), fallback.reference_instead("gelu_scale"):
        raise KeyError("resid")


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("m.cpp:3:10: fatal error: Python.h: No such file or directory", "python3-dev"),
        ("m.cpp:3:10: fatal error: 'Python.h' file not found", "python3-dev"),
        ("g++: error: unrecognized command-line option '-std=c++20'", "newer compiler"),
        (
            "g++: fatal error: cannot execute 'cc1plus': No such file or directory",
            "apt install g++",
        ),
        ("x.cpp:1:10: fatal error: 'cmath' file not found", "apt install g++"),
        ("/usr/bin/ld: cannot find Scrt1.o: No such file or directory", "libc6-dev"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "memory"),
        ("/tmp/a.s: No space left on device", "make room"),
        ("x.cpp:3:1: error: 'Edge' has no member named 'function'", "None"),
        ("In file included from /usr/include/python3/Python.h:1: error: x", "None"),
    ],
)
def test_the_fix_is_named(said: str, fix: str) -> None:
    error = CompileError(["g++"], said)
    assert fix in str(error.fix)
    words = fallback.first_words(error)
    assert said in words
    assert (fix in words) == (fix != "None")


def test_the_reason_is_quoted_not_the_way_to_it() -> None:
    way = "\n".join(f"In file included from h{i}.h:1," for i in range(30))
    words = fallback.first_words(CompileError(["g++"], f"{way}\na.h:1: error: the reason\nnote"))
    assert "error: the reason" in words
    assert "h3.h" not in words
    assert len(words.splitlines()) < 10


# ---- loading the host runtime


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> None:
    """`loader.load` forgets for one test whether it has loaded."""
    monkeypatch.setattr(loader, "load", loader.load.__wrapped__)


@pytest.mark.usefixtures("load")
@pytest.mark.parametrize("kind", ["noexec", "full", "unsafe", "refused"])
def test_a_runtime_that_cannot_be_had_is_none_and_said(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cpp, "find", lambda: cpp.Compiler("g++", "g++ 99"))
    monkeypatch.setattr(loader, "_compile", Build(REFUSED if kind == "refused" else None))
    said = {"noexec": "noexec", "full": "No space left", "unsafe": "chmod 700", "refused": "';'"}
    if kind == "noexec":

        def refuse(path: Path) -> None:
            raise ImportError(f"{path}: failed to map segment from shared object")

        monkeypatch.setattr(loader, "_import", refuse)
    if kind == "full":

        def full(path: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache, "_settle", full)
    if kind == "unsafe":
        cache.directory().chmod(0o777)
    assert loader.load() is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for part in ("every op", "reference", said[kind], "megafuse doctor"):
        assert part in record.getMessage()
    if kind != "refused":
        assert "MEGAFUSE_CACHE" in record.getMessage()


@pytest.mark.usefixtures("load")
def test_on_windows_the_reference_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert cpp.find() is None
    assert loader.load() is None
    (record,) = caplog.records
    assert "Linux and macOS" in record.getMessage()


def test_an_untested_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, named in (("2.9.1+cpu", False), ("2.13.0", False), ("2.14.0a0", True)):
        monkeypatch.setattr(torch, "__version__", version)
        assert (version in loader.untested()) == named


# ---- keys


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "find", lambda: cpp.Compiler("/usr/bin/g++", "g++ 12"))


@pytest.mark.usefixtures("key")
def test_the_host_runtimes_key_is_that_of_any_environment_with_this_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two environments: torch, its list of files, and Python's headers lie elsewhere."""
    here = loader._key()
    other = tmp_path / "other" / "site-packages"
    (other / "torch").mkdir(parents=True)
    (other / "torch-1.dist-info").mkdir()
    (other / "torch-1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 1\n")
    record = "\n".join(loader._record())
    if "torch/include/" not in record:
        pytest.skip("this torch was not installed by pip")
    moved = record.replace("../../../bin/torchrun,sha256=", "../../../bin/torchrun,sha256=other")
    (other / "torch-1.dist-info" / "RECORD").write_text(moved)
    monkeypatch.setattr(torch, "__file__", str(other / "torch" / "__init__.py"))
    monkeypatch.syspath_prepend(str(other))
    assert loader._record() == moved.splitlines()
    assert loader._key() == here
    (other / "torch-1.dist-info" / "RECORD").write_text(
        moved.replace("torch/include/ATen/core/Tensor.h,sha256=", "torch/include/x.h,sha256=")
    )
    assert loader._key() != here, "other headers"


@pytest.mark.usefixtures("key")
def test_the_host_runtimes_key_has_what_decides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {loader._key()}
    monkeypatch.setattr(cpp, "find", lambda: cpp.Compiler("/elsewhere/g++", "g++ 12"))
    assert {loader._key()} == keys, "the same compiler elsewhere"
    monkeypatch.setattr(cpp, "find", lambda: cpp.Compiler("/elsewhere/g++", "g++ 12", ("-m32",)))
    keys.add(loader._key())
    monkeypatch.setattr(cpp, "find", lambda: cpp.Compiler("/elsewhere/g++", "g++ 13"))
    keys.add(loader._key())
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    keys.add(loader._key())
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    keys.add(loader._key())
    monkeypatch.setattr(loader, "_python_headers", lambda: tmp_path)
    keys.add(loader._key())
    assert len(keys) == 6


def cuda_key(source: str, arch: str, contract: bool = False) -> str:
    keys: list[str] = []

    def get(key: str, filename: str, build: object) -> Path:
        keys.append(key)
        return Path(__file__)

    build.cuda_binary(source, arch, "a kernel", contract, get)
    return keys[0]


def test_nvrtcs_options_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cuda_key("x", "sm_90"), cuda_key("x", "sm_80"), cuda_key("x", "sm_90", True)}
    assert len(keys) == 3
    options = nvrtc.options
    monkeypatch.setattr(nvrtc, "options", lambda *a: {**options(*a), "std": "c++20"})
    assert cuda_key("x", "sm_90") not in keys


def test_a_header_from_anywhere_is_in_the_key(tmp_path: Path) -> None:
    """Its own text, that of what lies beside it, and of what that includes."""
    header, beside = tmp_path / "mine.h", tmp_path / "deep" / "beside.h"
    beside.parent.mkdir()
    texts = {header: '#include "deep/beside.h"\n#include "math.h"\n', beside: "// 1\n"}
    for path, text in texts.items():
        path.write_text(text)
    source = f'#include "{header}"\n'
    keys = {cuda_key(source, "sm_90")}
    beside.write_text("// 2\n")
    keys.add(cuda_key(source, "sm_90"))
    header.write_text(texts[header] + "// edited\n")
    keys.add(cuda_key(source, "sm_90"))
    assert len(keys) == 3
    assert "namespace mf" in sources.closure(source), "and what it includes of ours"


@needs_compiler
def test_an_edited_header_outside_the_package_is_compiled_again(tmp_path: Path) -> None:
    import ctypes

    header = tmp_path / "mine.h"
    source = f'#include "{header}"\nextern "C" int answer() {{ return kAnswer; }}\n'
    for answer in (1, 2):
        header.write_text(f"constexpr int kAnswer = {answer};\n")
        library = build.cpu_object(source, "a test")
        assert ctypes.CDLL(str(library)).answer() == answer
