"""Compilers: found, told what to do, and quoted in full when they refuse."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
import os
import pickle
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from megafuse.runtime import cpp, nvrtc, progress, sources

needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")
needs_nvrtc = pytest.mark.skipif(nvrtc.problem() is not None, reason=str(nvrtc.problem()))
posix = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts and links")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# ---- finding a C++ compiler


def test_no_compiler_on_path_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert cpp.find() is None
    for call in (lambda: cpp.compile_shared("", tmp_path / "x.so"), cpp.kernel_flags):
        with pytest.raises(cpp.CompileError, match=r"no C\+\+ compiler found: .*apt install g\+\+"):
            call()


@posix
def test_the_first_on_path_that_runs_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "c++", "exit 1")
    works = script(tmp_path / "g++", "echo g++ 99.1; echo more")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert cpp.find() == cpp.Compiler(str(works), "g++ 99.1")


@posix
def test_cxx_may_hold_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = script(tmp_path / "launcher", 'echo "$@"')
    monkeypatch.setenv("CXX", f"{launcher} g++ -m64")
    found = cpp.find()
    assert found == cpp.Compiler(str(launcher), "g++ -m64 --version", ("g++", "-m64"))
    assert found.command == [str(launcher), "g++", "-m64"]


@posix
def test_cxx_may_be_a_path_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my tools").mkdir()
    path = script(tmp_path / "my tools" / "g++", "echo g++ 99.1")
    monkeypatch.setenv("CXX", str(path))
    assert cpp.find() == cpp.Compiler(str(path), "g++ 99.1")


@needs_compiler
@pytest.mark.parametrize("cxx", ["/does/not/exist", "'open quote", "false"])
def test_a_cxx_that_does_not_run_is_passed_over_aloud(
    cxx: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress.logger, "propagate", True)
    monkeypatch.delenv("CXX", raising=False)
    usual = cpp.find()
    cpp._find.cache_clear()  # so that it warns again if another test asked first
    monkeypatch.setenv("CXX", cxx)
    assert cpp.find() == usual
    assert "CXX=" in caplog.text


# ---- using it


@needs_compiler
def test_compile_shared_makes_a_library_that_loads(tmp_path: Path) -> None:
    (tmp_path / "four.h").write_text("#define FOUR 4.0\n")
    source = '#include <cmath>\n#include "four.h"\nextern "C" double two() { return sqrt(FOUR); }\n'
    out = tmp_path / "two.so"
    cpp.compile_shared(
        source, out, include=[tmp_path], flags=cpp.kernel_flags(), libraries=["m", "-lm"]
    )
    two = ctypes.CDLL(str(out)).two
    two.restype = ctypes.c_double
    assert two() == 2.0


@needs_compiler
def test_a_kernel_header_does_not_stand_in_for_a_system_one(kernels: Path, tmp_path: Path) -> None:
    (kernels / "math.h").write_text("#define OURS 1\n")
    source = (
        '#include <cmath>\n#include "math.h"\nstatic_assert(OURS, ""); double f = ::floor(1.5);'
    )
    cpp.compile_shared(source, tmp_path / "f.so", include=[sources.KERNELS])


@needs_compiler
def test_a_refused_source_is_quoted_and_kept(tmp_path: Path) -> None:
    with pytest.raises(cpp.CompileError) as caught:
        cpp.compile_shared("int f() { return nonsense; }", tmp_path / "x.so", flags=["-O1"])
    error = caught.value
    assert "nonsense" in error.stderr
    assert "-O1" in error.command
    assert error.source is not None
    assert error.source.read_text() == "int f() { return nonsense; }"
    for part in (error.stderr.splitlines()[0], "-shared", str(error.source)):
        assert part in str(error)
    assert not (tmp_path / "x.so").exists()
    shutil.rmtree(error.source.parent)


@posix
@pytest.mark.parametrize("how", ["it works", "it cannot be started", "no room for the source"])
def test_no_folder_is_left_unless_an_error_names_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = script(tmp_path / "works", "echo works 1.0")
    monkeypatch.setenv("CXX", str(works))
    assert cpp.find() is not None
    made: list[str] = []
    monkeypatch.setattr(cpp.tempfile, "mkdtemp", lambda prefix: made.append(_folder()) or made[0])

    def _folder() -> str:
        (tmp_path / "made").mkdir()
        return str(tmp_path / "made")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    if how == "it cannot be started":
        works.unlink()
    if how == "no room for the source":
        monkeypatch.setattr(Path, "write_text", full)
    with contextlib.nullcontext() if how == "it works" else pytest.raises((OSError, RuntimeError)):
        cpp.compile_shared("int f;", tmp_path / "f.so")
    assert made
    assert not Path(made[0]).exists()


@posix
@pytest.mark.parametrize(
    ("system", "expected"), [("darwin", ["-undefined", "dynamic_lookup"]), ("linux", [])]
)
def test_the_command_line_of_a_python_module(
    system: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS the linker wants every name found, and Python's are in the interpreter."""
    from megafuse.runtime import loader

    log = tmp_path / "arguments"
    monkeypatch.setenv("CXX", str(script(tmp_path / "clang++", f'echo "$@" > {log}; echo it 1.0')))
    assert cpp.find() is not None
    monkeypatch.setattr(sys, "platform", system)
    loader._compile(tmp_path / "host.so")
    told = log.read_text().split()
    assert {"-shared", "-fPIC", "-std=c++20", "-ltorch_python", "-ltorch_cpu", "-lc10"} <= set(told)
    assert [a for a in told if a in ("-undefined", "dynamic_lookup")] == expected
    assert told.index("-o") < told.index("-lc10"), "libraries after what needs them"


@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++")
def test_clang_compiles_and_keeps_arithmetic_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "clang++")
    flags = cpp.kernel_flags()
    assert {"-O3", "-std=c++17", "-ffp-contract=off"} <= set(flags)
    for headers in (
        ("layer_norm.h", "rows_cpu.h", "short_rows_cpu.h"),
        ("dropout_relu.h", "quantize_int8.h", "pointwise_cpu.h", "sum_cpu.h"),
        ("attention_cpu.h",),
    ):
        source = "".join(f'#include "{header}"\n' for header in headers)
        checked = [*flags, "-fsyntax-only"]
        cpp.compile_shared(source, tmp_path / "x.so", include=[sources.KERNELS], flags=checked)


def test_a_long_message_is_trimmed_and_an_error_pickles() -> None:
    stderr = "\n".join(f"line {i}" for i in range(100))
    error = cpp.CompileError(["c++", "-o", "a b"], stderr, Path("kept.cpp"))
    for one in (error, pickle.loads(pickle.dumps(error))):
        text = str(one)
        assert "line 39\n" in text
        assert "line 40" not in text
        assert "60 more lines" in text
        assert "c++ -o 'a b'" in text
        assert "kept.cpp" in text
        assert one.stderr == stderr


@needs_compiler
def test_hasty_kernels_differ_in_their_flags_and_so_in_their_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = cpp.kernel_flags()
    monkeypatch.setattr(cpp, "_hasty", False)  # and so after the test
    cpp.compile_hastily(True)
    assert cpp.HASTY in cpp.kernel_flags()
    assert "-O3" not in cpp.kernel_flags()
    cpp.compile_hastily(False)
    assert cpp.kernel_flags() == users


@needs_compiler
def test_kernel_flags_are_accepted_and_keep_arithmetic_as_written(tmp_path: Path) -> None:
    flags = cpp.kernel_flags()
    assert {"-O3", "-std=c++17", "-ffp-contract=off"} <= set(flags)
    assert not [flag for flag in flags if "fast" in flag]
    # a*b - a*b rounded is 0 when each product is rounded; contracted, it is the rounding error.
    source = 'extern "C" double f(double a, double b) { double p = a * b; return a * b - p; }'
    cpp.compile_shared(source, tmp_path / "f.so", flags=[*flags, "-Werror"])
    f = ctypes.CDLL(str(tmp_path / "f.so")).f
    f.restype, f.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_double]
    assert f(1 / 3, 1 / 7) == 0.0


@posix
def test_a_compiler_that_refuses_everything_says_nothing_about_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no compiler without flags: nothing is remembered of it."""
    broken = 'case "$*" in *--version) echo broken 1.0; exit;; esac; echo no cc1plus >&2; exit 1'
    path = script(tmp_path / "broken", broken)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(cpp.CompileError, match="no cc1plus"):
        cpp.kernel_flags()
    script(path, "echo broken 1.0")  # it is mended: g++ was installed beside gcc
    assert "-O3" in cpp.kernel_flags()


@needs_compiler
def test_kernel_flags_are_remembered_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = cpp.kernel_flags()
    cpp._kernel_flags.cache_clear()
    monkeypatch.setattr(cpp, "_accepts", lambda *_: pytest.fail("probed again"))
    assert cpp.kernel_flags() == flags


@posix
def test_flags_that_a_compiler_refuses_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = script(
        tmp_path / "picky",
        'case "$*" in *openmp*|*native*|*512*) exit 1;; esac; echo picky 1.0',
    )
    monkeypatch.setenv("CXX", str(refusing))
    flags = cpp.kernel_flags()
    assert "-O3" in flags
    assert not [flag for flag in flags if re.search("openmp|native|512", flag)]


def test_cpu_features_name_the_machine_on_one_line() -> None:
    features = cpp.cpu_features()
    assert features.startswith(platform.machine())
    assert len(features) > len(platform.machine()) + 4
    assert "\n" not in features
    assert "MHz" not in features, "the clock changes, the key must not"


# ---- NVRTC

SCALE = """
#include "factor.h"
extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR; }
"""


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_compile_cubin_makes_machine_code_without_a_gpu(tmp_path: Path, arch: str) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 2.0f\n")
    cubin = nvrtc.compile_cubin(SCALE, arch, [tmp_path])
    assert cubin.startswith(b"\x7fELF")
    assert b"scale" in cubin


@needs_nvrtc
def test_a_header_in_the_working_directory_is_not_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in (("here", "#error wrong one"), ("kernels", "#define FACTOR 2.0f")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "factor.h").write_text(text + "\n")
    monkeypatch.chdir(tmp_path / "here")
    nvrtc.compile_cubin(SCALE, "sm_90", [tmp_path / "kernels"])


@needs_nvrtc
def test_a_refused_cuda_source_is_quoted_and_kept(tmp_path: Path) -> None:
    source = "__global__ void f() { nonsense; }"
    with pytest.raises(cpp.CompileError) as caught:
        nvrtc.compile_cubin(source, "sm_90", [tmp_path])
    error = caught.value
    assert "\x00" not in str(error)
    for part in ('identifier "nonsense" is undefined', "sm_90", str(tmp_path), str(error.source)):
        assert part in str(error)
    assert error.source is not None
    assert error.source.read_text() == source
    shutil.rmtree(error.source.parent)


@needs_nvrtc
def test_an_architecture_that_nvrtc_does_not_know_is_explained() -> None:
    with pytest.raises(cpp.CompileError, match=r"NVRTC \d+\.\d+ does not know sm_20") as caught:
        nvrtc.compile_cubin("", "sm_20", [])
    assert caught.value.source is not None
    shutil.rmtree(caught.value.source.parent)


@needs_nvrtc
def test_version_is_a_pair() -> None:
    found = nvrtc.version()
    assert found is not None
    assert found >= (12, 0)


@needs_nvrtc
def test_bindings_for_another_cuda_than_torchs_are_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "11.8")
    assert 'pip install "cuda-bindings==11.*"' in str(nvrtc.problem())
    with pytest.raises(cpp.CompileError, match="built for CUDA 11"):
        nvrtc.compile_cubin("", "sm_90", [])


@needs_nvrtc
@pytest.mark.parametrize(
    ("torchs", "found", "fix"),
    [
        ("12.8", (13, 0), "pip uninstall nvidia-cuda-nvrtc && pip install nvidia-cuda-nvrtc-cu12"),
        ("13.0", (12, 9), ': pip install "nvidia-cuda-nvrtc==13.*"'),
        ("13.0", (13, 2), "None"),
    ],
)
def test_an_nvrtc_of_another_cuda_than_torchs_is_a_problem(
    torchs: str, found: tuple[int, int], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", torchs)
    monkeypatch.setattr(nvrtc, "_bindings_version", lambda: torchs)
    monkeypatch.setattr(nvrtc, "version", lambda: found)
    assert str(nvrtc.problem()).endswith(fix)


# A site-packages without some of its packages, and a torch that is no more than its version.
PROBLEM = """
import site, sys, types
site.getsitepackages = lambda: [{site!r}]
sys.modules["torch"] = types.SimpleNamespace(version=types.SimpleNamespace(cuda={cuda!r}))
from megafuse.runtime import nvrtc
print(nvrtc.version() is None, nvrtc.problem())
"""


def problem_without(missing: str, cuda: str, folder: Path) -> str:
    site = Path(sysconfig.get_path("platlib"))
    (folder / "cuda").mkdir(parents=True)
    for path in [*site.iterdir(), *site.glob("cuda/*")]:
        name = path.relative_to(site)
        if name.parts[0] not in ("torch", "megafuse") and name.as_posix() not in ("cuda", missing):
            (folder / name).symlink_to(path)
    code = PROBLEM.format(cuda=cuda, site=str(folder))
    ran = subprocess.run(
        [sys.executable, "-S", "-c", _without_the_package(code)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def _without_the_package(code: str) -> str:
    """`code` that may import megafuse.runtime modules without running megafuse/__init__.py."""
    package = str(Path(sources.__file__).parents[1])
    stub = f'import sys, types\nm = types.ModuleType("megafuse")\nm.__path__ = [{package!r}]\n'
    return stub + 'sys.modules["megafuse"] = m\n' + code


@posix
@needs_nvrtc
@pytest.mark.parametrize(
    ("missing", "fix"),
    [
        (".", "None"),
        ("cuda/core", "pip install {extra}"),
        ("cuda/bindings", 'pip install "cuda-bindings=={major}.*"'),
        ("nvidia", "pip install {nvrtc}"),
    ],
)
def test_what_is_missing_is_named_with_its_fix(tmp_path: Path, missing: str, fix: str) -> None:
    major = (nvrtc.version() or (0, 0))[0]
    said = problem_without(missing, f"{major}.0", tmp_path / "site")
    if missing == "nvidia" and said == "False None":
        pytest.skip("this system has its own libnvrtc")
    package = "nvidia-cuda-nvrtc-cu12" if major == 12 else f'"nvidia-cuda-nvrtc=={major}.*"'
    # The subprocess has the symlinked site, in which megafuse itself may not be installed.
    extra = nvrtc._extra() if said.endswith(nvrtc._extra()) else "cuda-core"
    assert said.endswith(fix.format(major=major, nvrtc=package, extra=extra))
    assert said.startswith("False" if missing in (".", "cuda/core") else "True"), said


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="nothing to import")
def test_importing_the_module_imports_no_cuda() -> None:
    code = "import megafuse.runtime.nvrtc\nprint([m for m in sys.modules if m.startswith('cuda')])"
    ran = subprocess.run(
        [sys.executable, "-c", _without_the_package(code)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "[]"


# ---- kernel sources


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kernels"
    (folder / "deep").mkdir(parents=True)
    texts = {
        "base.h": "#pragma once\nint base();\n",
        "op.h": '#pragma once\n  #  include "base.h"\n#include <cmath>\nint op();\n',
        "other.h": '#pragma once\n#include "base.h"\nint other();',
        "deep/inner.h": '#pragma once\n#include "beside.h"\n#include "base.h"\nint inner();\n',
        "deep/beside.h": "#pragma once\nint beside();\n",
        "loop.h": '#pragma once\n#include "loop.h"\nint loop();\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (tmp_path / "outside.h").write_text("int outside();\n")
    monkeypatch.setattr(sources, "KERNELS", folder)
    return folder


def declared(text: str) -> list[str]:
    return re.findall(r"int (\w+)\(\);", text)


def test_closure_reaches_headers_of_headers_once(kernels: Path) -> None:
    text = sources.closure('#include "op.h"\n#include "other.h"\n#include "deep/inner.h"\n')
    assert declared(text) == ["op", "base", "other", "inner", "beside"]
    assert sources.closure("int f();\n") == ""
    assert declared(sources.closure('#include "loop.h"')) == ["loop"]


def test_system_headers_are_left_to_the_compiler(kernels: Path) -> None:
    source = '#include <base.h>\n#include "cuda_fp16.h"\n'
    assert sources.closure(source + '// #include "op.h"\n') == ""
    assert sources.flatten(source) == source


def test_closure_reaches_headers_outside_and_flatten_leaves_them(kernels: Path) -> None:
    outside = kernels.parent / "outside.h"
    outside.write_text('int outside();\n#include "base.h"\n#include "next.h"\n')
    (kernels.parent / "next.h").write_text("int next();\n")
    for name in ("../outside.h", outside.as_posix()):
        source = f'#include "{name}"\n'
        assert declared(sources.closure(source)) == ["outside", "base", "next"]
        assert sources.flatten(source) == source
        assert not sources.ships(name)
    assert sources.ships("op.h")
    assert sources.ships("deep/inner.h")
    assert not sources.ships("none.h")


def test_an_edit_changes_the_closure_of_what_includes_it_alone(kernels: Path) -> None:
    sources_of = ['#include "op.h"\n', '#include "other.h"\n']
    before = [sources.closure(source) for source in sources_of]
    (kernels / "op.h").write_text("#pragma once\nint edited();\n")
    after = [sources.closure(source) for source in sources_of]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_closure_tells_text_from_name(kernels: Path) -> None:
    (kernels / "base.h").write_text("int a();\n")
    both = sources.closure('#include "base.h"\n#include "loop.h"')
    (kernels / "base.h").write_text(both.partition("\n")[2])
    assert sources.closure('#include "base.h"') != both


def test_flatten_pastes_each_header_once(kernels: Path) -> None:
    text = sources.flatten('#include "other.h"\n#include "op.h"\n#include "deep/inner.h"\nint f();')
    assert declared(text) == ["base", "other", "op", "beside", "inner", "f"]
    assert "#pragma once" not in text
    assert '#include "' not in text
    assert "#include <cmath>" in text
    assert "#ifndef" not in text, "no guards where none is needed"


@needs_compiler
@pytest.mark.parametrize("gpu", [0, 1])
def test_flatten_keeps_the_meaning_of_conditional_includes(
    kernels: Path, tmp_path: Path, gpu: int
) -> None:
    (kernels / "base.h").write_text("#pragma once\nstruct Base { int x; };\n")
    (kernels / "gpu.h").write_text('#pragma once\n#include "base.h"\nBase gpu();\n')
    source = '#if GPU\n#include "gpu.h"\n#endif\n#include "base.h"\n#include "gpu.h"\nBase base;\n'
    flat = sources.flatten(source)
    cpp.compile_shared(flat, tmp_path / "flat.so", flags=[f"-DGPU={gpu}", "-fsyntax-only"])


def test_the_shipped_kernels_flatten() -> None:
    headers = sorted(path.name for path in sources.KERNELS.glob("*.h"))
    assert headers, f"no kernel headers in {sources.KERNELS}"
    for name in headers:
        source = f'#include "{name}"\n'
        missing = re.findall(r'^#include "(.+)"', sources.flatten(source), re.MULTILINE)
        assert missing == [], f"{name} includes kernel headers that are not there"
        assert sources.closure(source)


# ---- progress


@pytest.fixture
def _at_info(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the command line has it."""
    level = progress.logger.level
    monkeypatch.setattr(progress.logger, "handlers", [])
    monkeypatch.setattr(progress.logger, "propagate", True)
    progress.logger.setLevel("NOTSET")
    progress.show()
    yield
    progress.logger.setLevel(level)


def test_importing_leaves_logging_to_the_program(tmp_path: Path) -> None:
    code = (
        "import logging, megafuse\nlog = logging.getLogger('megafuse')\n"
        "print(log.handlers, log.propagate, log.level, logging.getLogger().handlers)\n"
        "from megafuse.runtime import progress\nprogress.logger.warning('told')\n"
        "progress.logger.info('kept')"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sources.__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert ran.stdout == "[] True 0 []\n", ran.stderr
    assert ran.stderr == "told\n", "Python's handler of last resort has warnings, no more"


@pytest.mark.usefixtures("_at_info")
def test_showing_twice_says_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress.show()
    progress.logger.info("it")
    assert capsys.readouterr().err == "megafuse: it\n"


@pytest.mark.usefixtures("_at_info")
def test_progress_is_one_line_after_short_work_and_two_around_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.compiling("gelu_scale for sm_90"):
        assert capsys.readouterr().err == ""
    after = r"megafuse: compiled gelu_scale for sm_90 in \d+\.\d s\n"
    assert re.fullmatch(after, capsys.readouterr().err)
    with progress.compiling("the host runtime", "once, about 30 s"):
        before = capsys.readouterr().err
        assert before == "megafuse: compiling the host runtime (once, about 30 s)\n"
    assert re.fullmatch(
        r"megafuse: compiled the host runtime in \d+\.\d s\n", capsys.readouterr().err
    )


@pytest.mark.usefixtures("_at_info")
def test_failed_work_logs_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), progress.compiling("it", "long"):
        raise ValueError("no")
    assert "compiled" not in capsys.readouterr().err


@pytest.mark.usefixtures("_at_info")
def test_progress_is_silenced_by_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("megafuse").setLevel("WARNING")
    with progress.compiling("it"):
        pass
    assert capsys.readouterr().err == ""
    logging.getLogger("megafuse").setLevel("ERROR")
    with progress.compiling("it", "long"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_at_info")
def test_no_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    progress.logger.warning("nobody hears this")
