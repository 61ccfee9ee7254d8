"""README.md and the other guides do what they say: their code runs, their commands exist."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from contract import rules

import megafuse
from megafuse import cli

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "README": ROOT / "README.md",
    "LEARN": ROOT / "LEARN.md",
    "CONTRIBUTING": ROOT / "CONTRIBUTING.md",
    **{file.stem: file for file in sorted((ROOT / "docs").glob("*.md"))},
}
GUIDES = {name: file.read_text(encoding="utf-8") for name, file in FILES.items()}
README, CONTRIBUTING = GUIDES["README"], GUIDES["CONTRIBUTING"]
FOLDERS = {GUIDES[name]: file.parent for name, file in FILES.items()}
EACH = pytest.mark.parametrize("text", GUIDES.values(), ids=GUIDES)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def code(text: str) -> list[str]:
    """Lines of shell blocks, and what stands `like this` in the prose."""
    shell = [line for block in blocks(text, "bash") for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return shell + re.findall(r"`([^`]+)`", prose)


def run(*arguments: str | Path, package: Path) -> str:
    """Runs Python in a process that imports megafuse from the folder `package`."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


# ---- what is written


def test_docs_have_the_table_that_the_command_prints(capsys):
    assert cli.main(["ops", "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert printed in GUIDES["ops"], "put what `megafuse ops --markdown` prints into docs/ops.md"
    assert set(re.findall(r"^\| `(\w+)\(", GUIDES["ops"], re.M)) == set(megafuse.OPS)


def test_readme_is_short_and_names_every_op():
    assert len(README.splitlines()) < 250
    listed = README.partition("## The ops")[2].partition("## ")[0]
    rows = [line for line in listed.splitlines() if line.startswith("| ")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(megafuse.OPS)


def test_every_exception_to_the_rule_is_told():
    table = rules.exceptions()
    assert table in GUIDES["contract"], (
        f"put this into docs/contract.md, which has another table:\n{table}"
    )
    assert (
        f"| all but 1 in 1000 | {rules.MOST} times eager's error + {rules.FLOOR} ulp |"
        in (GUIDES["contract"])
    )
    assert (
        f"| the worst | {rules.WORST} times eager's worst + {rules.FLOOR} ulp |"
        in (GUIDES["contract"])
    )
    assert "docs/contract.md#exceptions" in README


@EACH
def test_commands_exist(text):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([\w-]+):", makefile, re.M), ".venv"}
    made = {m[1] for line in code(text) if (m := re.match(r"make (\S+)", line))}
    assert made <= targets
    called = {m[1] for line in code(text) if (m := re.match(r"megafuse (\w+)", line))}
    assert called or text is not README
    assert called <= set(cli.COMMANDS)


@EACH
def test_options_of_our_command_exist(text, capsys):
    lines = [line.split("#")[0].split() for line in code(text) if line.startswith("megafuse ")]
    for _, command, *options in lines:
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        named = {option for option in options if option.startswith("-")}
        assert named <= set(re.findall(r"[-\w]+", capsys.readouterr().out))


@pytest.mark.slow
@EACH
def test_scripts_and_their_options_exist(text):
    """`python file.py --option`: the file is there, and its help knows the option."""
    named: dict[str, set[str]] = {}
    for line in code(text):
        if call := re.match(r"python (\S+\.py)(.*)", line.split("#")[0]):
            named.setdefault(call[1], set()).update(re.findall(r"(?<!\S)--[\w-]+", call[2]))
    assert not {script for script in named if not (ROOT / script).is_file()}
    for script, options in named.items():
        if options:
            said = run(ROOT / script, "--help", package=ROOT / "src")
            assert options <= set(re.findall(r"--[\w-]+", said)), script


@EACH
def test_files_and_links_exist(text):
    named = [word for line in code(text) for word in line.split()]
    places = {w for w in named if re.match(r"(src|tests|examples|\.ci)/", w)}
    paths = {place.partition(":")[0] for place in places}  # of file.py:function the file
    links = set(re.findall(r"\]\((?!http)([^)#]+)\)", text))
    folder = FOLDERS[text]
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert not {link for link in links if not (folder / link).exists()}
    assert missing <= {path for path, _ in walk()}


def test_readme_quick_start_is_two_commands():
    first = blocks(README, "bash")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=[] if name == "README" else pytest.mark.slow)
        for name, text in GUIDES.items()
    ],
)
def test_python_runs(text, tmp_path):
    script = tmp_path / "blocks.py"
    script.write_text(
        "\n".join(block for block in blocks(text, "python") if "@op(" not in block),
        encoding="utf-8",
    )
    run(script, package=ROOT / "src")


@pytest.mark.slow
def test_what_fuse_prints_is_what_the_page_shows(tmp_path):
    """docs/how_it_works.md has a function, its source, and what `explain` says of it."""
    page = GUIDES["how_it_works"]
    (script,) = [block for block in blocks(page, "python") if "@mf.fuse" in block]
    (source,), (told,) = blocks(page, "cpp"), blocks(page, "text")
    file = tmp_path / "block.py"
    file.write_text(script, encoding="utf-8")
    printed = run(file, package=ROOT / "src")
    assert source in printed
    assert told in printed


# ---- the walk: add a pointwise op


def walk() -> list[tuple[str, str]]:
    """(path, text) of the two files that CONTRIBUTING.md tells to write."""
    return re.findall(r"^`(src/megafuse/\S+)`:\n\n```\w+\n(.*?)^```", CONTRIBUTING, re.M | re.S)


CHECK = """
import math
import sys

import torch

import megafuse as mf
from megafuse.runtime import cpp, loader

assert mf.__file__.startswith(sys.argv[1]), mf.__file__
fused, reference = mf.hardswish_scale, mf.reference.hardswish_scale
assert "hardswish_scale" in mf.OPS

for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
    x = (torch.randn(37, 29) * 3).to(dtype)
    torch.testing.assert_close(fused(x, 1.7), reference(x, 1.7))
assert loader.loaded() == (cpp.find() is not None)

special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3.0, -3.0, 1e-40])
torch.testing.assert_close(fused(special, 1.7), reference(special, 1.7), equal_nan=True)

# Away from the kinks at -3 and 3, where a difference quotient means nothing.
smooth = torch.linspace(-5.05, 5.05, 41, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda t: fused(t, 1.7), (smooth,))
assert torch.autograd.gradgradcheck(lambda t: fused(t, 1.7), (smooth,))
inside = torch.randn(5, 7, requires_grad=True)
torch.library.opcheck(torch.ops.megafuse.hardswish_scale.default, (inside, 1.7))
"""


@pytest.mark.slow
def test_walk_adds_an_op(tmp_path):
    files = walk()
    assert [Path(path).suffix for path, _ in files] == [".h", ".py"]
    stems = {Path(path).stem for path, _ in files}
    assert stems == {"hardswish_scale"}
    assert not stems & set(megafuse.OPS), "the example must be an op that is not there yet"

    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    for path, text in files:
        (tmp_path / path).write_text(text, encoding="utf-8")
    script = tmp_path / "check.py"
    script.write_text(CHECK, encoding="utf-8")
    run(script, tmp_path / "src", package=tmp_path / "src")
    assert "hardswish(x)·scale" in run("-m", "megafuse", "ops", package=tmp_path / "src")


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="needs ruff")
def test_walk_is_formatted(tmp_path):
    (_, source), *_ = [file for file in walk() if file[0].endswith(".py")]
    file = tmp_path / "hardswish_scale.py"
    file.write_text(source, encoding="utf-8")
    settings = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(file)]
    for command in (["check"], ["format", "--check"]):
        ran = subprocess.run([sys.executable, "-m", "ruff", *command, *settings], check=False)
        assert ran.returncode == 0


def test_pages_show_the_results_files():
    """`python benchmarks/readme_results.py` brings README, LEARN and docs/results.md up to date."""
    script = ROOT / "benchmarks" / "readme_results.py"
    ran = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert ran.returncode == 0, "a page and benchmarks/results disagree: run the script"
