"""The command `megafuse`: what it prints, its exit status, and its help."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import megafuse
from megafuse import cli
from megafuse.runtime import cpp


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_no_command_prints_help(capsys):
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed
    for command in ("doctor", "demo", "cache", "ops"):
        assert f"megafuse {command}" in printed


def test_help_fits_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (["--help"], *([command, "--help"] for command in cli.COMMANDS)):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"megafuse {megafuse.__version__}\n"


def test_unknown_command_suggests_one(capsys):
    assert cli.main(["dcotor"]) == 2
    said = capsys.readouterr().err
    assert "there is no command 'dcotor'" in said
    assert "megafuse doctor" in said
    assert cli.main(["xyzzy"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean" not in said
    listed = (
        "doctor, demo, tutorial, learn, bench, report, diagnose, fuse, new, generate, cache, ops"
    )
    assert listed in said


def test_unknown_option_is_an_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor", "--chekc"])
    assert stopped.value.code == 2
    assert "--chekc" in capsys.readouterr().err


def test_doctor_check_is_the_exit_status(capsys, monkeypatch, empty_cache):
    monkeypatch.setattr(cpp, "find", lambda: None)
    assert cli.main(["doctor"]) == 0
    assert cli.main(["doctor", "--check"]) == 1
    assert "fix:" in capsys.readouterr().out


def test_ops_lists_the_registry(capsys):
    assert cli.main(["ops"]) == 0
    printed = capsys.readouterr().out
    for name, op in megafuse.OPS.items():
        assert f"{name}(" in printed
        assert op.reference.__doc__.splitlines()[0] in printed
    assert 'gelu_scale(x, scale, approximate="tanh")' in printed
    assert "→ int8" in printed


def test_cache_shows_and_clears(capsys, empty_cache):
    entry = empty_cache / "ab" / ("ab" + "0" * 62)
    entry.mkdir(parents=True, mode=0o700)
    empty_cache.chmod(0o700)
    (entry / "kernel.so").write_bytes(b"x" * 1000)
    assert cli.main(["cache"]) == 0
    place, total, kinds = capsys.readouterr().out.splitlines()
    assert place == str(empty_cache)
    assert total == "1 entry, 0.0 MB (at most 2000.0 MB)"
    assert kinds.split()[:3] == ["CPU", "kernels", "1"]
    assert cli.main(["cache", "--clear"]) == 0
    assert "removed 1 entry" in capsys.readouterr().out
    assert not entry.exists()


def test_bad_cache_is_said_without_a_traceback(capsys, empty_cache):
    empty_cache.write_text("a file")
    assert cli.main(["cache"]) == 1
    assert "not a directory" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a pipe of the POSIX shell")
def test_module_runs_and_a_closed_pipe_is_no_error():
    command = f"'{sys.executable}' -m megafuse ops | head -n 1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert ran.stdout.strip()
    assert "Traceback" not in ran.stderr


# ---- one op


@pytest.mark.parametrize("name", megafuse.OPS)
def test_one_op_whole(capsys, name):
    """Formula, cost, code, and an example that runs."""
    op = megafuse.OPS[name]
    assert cli.main(["ops", name]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}(")
    for line in inspect.getdoc(op.reference).splitlines():
        assert line in printed
    for saved in op.autograd.saves:
        assert saved in printed
    assert "shapes: " in printed
    assert "bytes at least" in printed
    assert ("gradient of: " + (next(iter(op.autograd.grads), "none"))) in printed
    assert f"reference, megafuse/ops/{name}.py:" in printed
    assert f"def {name}(" in printed
    if op.functors is not None:
        assert f"functors, megafuse/kernels/{op.functors.header}:" in printed
        assert "#pragma once" in printed
    else:
        assert "program, megafuse/runtime/host/" in printed
    example = textwrap.dedent(printed.partition("\nexample:\n")[2])
    assert f"mf.{name}(" in example
    assert str(Path(megafuse.__file__).parent) not in printed


@pytest.mark.parametrize("name", ["gelu_scale", "dequantize_int8", "residual_layer_norm", "ffn"])
def test_the_example_of_an_op_runs(capsys, name):
    cli.main(["ops", name])
    example = textwrap.dedent(capsys.readouterr().out.partition("\nexample:\n")[2])
    made: dict[str, object] = {}
    exec(example, made)
    assert isinstance(made[megafuse.OPS[name].signature.returns[0]], torch.Tensor)


def test_an_unknown_op_suggests_one(capsys):
    assert cli.main(["ops", "sofmax"]) == 2
    assert "there is no op 'sofmax': did you mean softmax?" in capsys.readouterr().err


def test_an_unknown_option_suggests_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--chekc"])
    assert "--chekc: did you mean --check?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--xyzzy"])
    assert "did you mean" not in capsys.readouterr().err
