"""No C++ compiler, or one that fails: one warning, and the reference runs, with the same checks and
gradients. What failed is not tried again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from contract.cases import ONE_EACH
from contract.processes import cold_cache, environment, kernels, run
from megafuse.runtime import cpp

# Each starts a process of its own, and compiles.
pytestmark = pytest.mark.slow


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    nothing = tmp_path / "empty"
    nothing.mkdir()
    return environment(tmp_path / "cache", PATH=str(nothing), CXX=None, CC=None)


CALLS = """
import sys
from megafuse.registry.sample import Draw
def dims(op): return max(sum(map(str.isupper, op.arguments[0].shape)), 2)
for op in mf.OPS.values():
    torch.manual_seed(1)
    args = op.sample(Draw((2, 2, 4, 6)[-dims(op) :], requires_grad=True))
    for call in (op.fused, op._namespace["traced"]):
        torch.manual_seed(2)
        got = call(*args)
        torch.manual_seed(2)
        expected = op.reference(*args)
        assert all(map(torch.equal, op.listed(got), op.listed(expected))), op.name
        if op.autograd.grads:
            inputs = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
            ours, theirs = (
                torch.autograd.grad(sum(t.sum() for t in op.listed(out)), inputs)
                for out in (got, expected)
            )
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs)), op.name
print(len(mf.OPS))
"""


def test_one_warning_and_right_results(env: dict[str, str]) -> None:
    out, err = run(CALLS, env)
    assert int(out) == len(ONE_EACH)
    warnings = [line for line in err.splitlines() if "no C++ compiler" in line]
    assert len(warnings) == 1, err
    assert "CXX" in warnings[0]
    assert "reference" in warnings[0]


COMPILED = """
for name, args in [("gelu_scale", (1.7,)), ("swiglu", (x,)), ("bias_act", (x, "silu"))]:
    fused, reference = getattr(mf, name), getattr(mf.reference, name)
    model = torch.compile(lambda t: fused(t, *args) + 1, fullgraph=True, backend="aot_eager")
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = model(a), reference(b, *args) + 1
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
print("right")
"""


def test_compile(env: dict[str, str]) -> None:
    assert run(COMPILED, env)[0] == "right\n"


BAD = """
for bad in (None, 1.0, torch.ones(3, dtype=torch.int32), "x"):
    try:
        mf.swiglu(bad, x)
    except TypeError as error:
        assert "megafuse.swiglu: argument 'gate' must be a Tensor" in str(error), error
    else:
        raise AssertionError("no error")
try:
    mf.swiglu(x, x[:7])
except ValueError as error:
    assert "must broadcast" in str(error)
print("right")
"""


def test_bad_input_gets_the_same_words(env: dict[str, str]) -> None:
    assert run(BAD, env)[0] == "right\n"


# ---- a compiler that runs but fails

posix = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")
needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")


class Failing:
    """A compiler that answers --version, and fails on sources that hold any of some words."""

    def __init__(self, folder: Path, said: str, words: tuple[str, ...] = ("",)) -> None:
        self.count = folder / "count"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.script = folder / "compiler"
        real = cpp.find()
        tests = " ".join(f"-e '{word}'" for word in words)
        self.script.write_text(
            "#!/bin/sh\n"
            + ("" if real else 'case "$*" in *--version) echo broken 1.0; exit;; esac\n')
            + 'for file; do case "$file" in */source.cpp)\n'
            f'  echo >> "{self.count}"\n'
            f'  if grep -q {tests} "$file"; then echo "{said}" >&2; exit 1; fi;;\n'
            "esac; done\n" + (f'exec {" ".join(real.command)} "$@"\n' if real else "exit 1\n")
        )
        self.script.chmod(0o755)

    def environment(self, cache: Path) -> dict[str, str]:
        return environment(cache, CXX=str(self.script), TMPDIR=str(self.temporary))

    @property
    def compiles(self) -> int:
        return len(self.count.read_text().splitlines()) if self.count.exists() else 0

    @property
    def left(self) -> set[str]:
        """Folders of ours that are left in the temporary one."""
        return {p.name for p in self.temporary.iterdir() if p.name.startswith("megafuse-")}


NO_PYTHON = "module.cpp:1:10: fatal error: Python.h: No such file or directory"


@posix
def test_a_runtime_that_does_not_compile(tmp_path: Path) -> None:
    """One warning a process with the compiler's words and the fix, one try for all processes, and
    no folder but the one that is named."""
    failing = Failing(tmp_path, NO_PYTHON)
    env = failing.environment(tmp_path / "cache")
    for process in ("first", "second"):
        out, err = run(CALLS, env)
        assert int(out) == len(ONE_EACH), process
        assert err.count("every op of megafuse runs its PyTorch reference") == 1, err
        for part in (NO_PYTHON, "apt install python3-dev", "megafuse doctor"):
            assert part in err
        assert failing.compiles == 1, f"{process}: what failed was tried again"
        named = re.search(r"kept at (.*)/source\.cpp", err)
        assert named is not None
        assert failing.left == {Path(named[1]).name}


@posix
def test_doctor_tries_again_and_names_what_is_missing(tmp_path: Path) -> None:
    failing = Failing(tmp_path, NO_PYTHON, ("module.cpp", "Python.h"))
    env = failing.environment(tmp_path / "cache")
    run("mf.gelu_scale(x, 1.7)", env)
    tried = failing.compiles
    out, _ = run("report = mf.doctor()\nprint(report)\nprint(report.ok)", env)
    assert failing.compiles > tried
    assert "apt install python3-dev" in " ".join(out.split())
    assert "reference: plain PyTorch" in out
    assert out.endswith("False\n")


# What needs no kernel of ours goes the fused way still, and rounds as that does; a random op has
# drawn a seed before its kernel turns out to be missing.
SOME = """
def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    return True
""" + CALLS.replace("torch.equal", "close").replace(
    "in mf.OPS.values():", "in [op for op in mf.OPS.values() if not op.random]:"
)


@posix
@needs_compiler
def test_kernels_that_do_not_compile(tmp_path: Path) -> None:
    failing = Failing(tmp_path, "source.cpp:7:1: error: no such instruction")
    env = failing.environment(cold_cache(tmp_path))
    _, err = run(SOME, env)
    assert err.count("unfused") == 1, err
    assert "error: no such instruction" in err
    tried = failing.compiles
    assert tried > 5
    assert len(failing.left) == 1, "the first one's source is kept, and named"
    assert failing.left.pop() in err
    out, err = run(SOME + "print(mf.doctor().cpu)", env)
    assert err.count("unfused") == 1, err
    assert "C++ cannot be compiled and run" in out
    assert failing.compiles == tried + 1, "only doctor compiles again"


# The forward has a kernel and the backward none, or the other way round: what one keeps for the
# other must not be read where it was never written. Directly, and through the dispatcher.
HALF = """
for name, args in [
    ("layer_norm", (torch.randn(7, 64), torch.randn(64), torch.randn(64))),
    ("residual_rms_norm", (torch.randn(7, 64), torch.randn(7, 64), torch.randn(64))),
    ("bias_act", (torch.randn(7, 64), torch.randn(64))),
    ("ffn", (torch.randn(7, 8), torch.randn(16, 8), torch.randn(16), torch.randn(8, 16), None)),
]:
    op = mf.OPS[name]
    full = list(args) + [a.default for a in op.arguments[len(args):]]
    inputs = [a.requires_grad_() for a in args if a is not None]
    for call in (op._namespace["traced"], op.fused, op._namespace["traced"]):
        ours, theirs = (
            torch.autograd.grad(sum((t * t).sum() for t in op.listed(f(*full))), inputs)
            for f in (call, op.reference)
        )
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
print("right")
"""


@posix
@needs_compiler
@pytest.mark.parametrize(
    "words",
    [
        ("_norm(const", "bias_act(const", "epilogue(const"),
        ("_backward(const", "_sum_columns(const"),
    ],
    ids=["forward", "backward"],
)
def test_only_half_of_an_op_compiles(tmp_path: Path, words: tuple[str, ...]) -> None:
    failing = Failing(tmp_path, "source.cpp:7:1: error: no such instruction", words)
    cache = cold_cache(tmp_path)
    out, err = run(HALF, failing.environment(cache))
    assert out == "right\n"
    assert "no such instruction" in err
    if "_norm(const" not in words:
        assert kernels(cache), "the forward compiled"


RANDOM = """
op = mf.OPS["dropout_relu"]
x.requires_grad_()
for call in (op.fused, op._namespace["traced"]):
    try:
        out = call(x, 0.5, True)
        out.sum().backward()
    except RuntimeError as error:
        assert "only the forward pass had a kernel" in str(error), error
        print("refused")
    else:  # the reference, forward and backward: the gradient is where the output is
        assert torch.equal(x.grad != 0, out != 0)
        print("reference")
    x.grad = None
"""


@posix
@needs_compiler
@pytest.mark.parametrize(
    ("word", "ends"), [("_relu(const", "reference"), ("_relu_backward(const", "refused")]
)
def test_random_numbers_are_never_drawn_anew(tmp_path: Path, word: str, ends: str) -> None:
    failing = Failing(tmp_path, "source.cpp:7:1: error: no such instruction", (word,))
    out, _ = run(RANDOM, failing.environment(cold_cache(tmp_path)))
    assert out.split() == [ends] * 2


AUTHORS = """
from megafuse.registry import Pointwise, op
from megafuse.runtime.cpp import CompileError
def mine(x: torch.Tensor) -> torch.Tensor:
    return x * 2
kernel = Pointwise("Mine<{F}>", header=HEADER)
mine = op(kernel=kernel, flops=(1, 0), sample=lambda d: (d.full(),))(mine)
try:
    print(mine(torch.ones(2)).tolist())
except CompileError as error:
    print("raised", error)
"""
FUNCTOR = """
#pragma once
#include "pointwise.h"
namespace mf {
template <class F>
struct Mine : Scalars<0> {
  MF_INLINE explicit Mine(const F*) {}
  MF_INLINE F operator()(F x) const { return x * F(TIMES); }
};
}
"""


@posix
@needs_compiler
def test_an_authors_header_is_read_each_time_and_its_mistakes_raise(tmp_path: Path) -> None:
    header, cache = tmp_path / "mine.h", cold_cache(tmp_path)
    code = f"HEADER = {str(header)!r}\n" + AUTHORS
    for times, expected in (("2", "[2.0, 2.0]"), ("3", "[3.0, 3.0]"), ("nonsense", "raised")):
        header.write_text(FUNCTOR.replace("TIMES", times))
        out, _ = run(code, environment(cache))
        assert out.startswith(expected)
    assert "nonsense" in out
