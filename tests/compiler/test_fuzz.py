"""The fuzzer itself: its programs are right, it finds what is planted, and it shrinks that."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from selection import often

from compiler.judged import are_right
from megafuse.codegen import expression
from megafuse.compiler.fuzz import Argument, Program, record, trial
from megafuse.compiler.fuzz.__main__ import main
from megafuse.compiler.fuzz.child import Child
from megafuse.compiler.fuzz.grammar import generate
from megafuse.compiler.fuzz.noise import Noise
from megafuse.compiler.fuzz.report import Finding, summary, test_case
from megafuse.compiler.fuzz.shrink import shrunk
from megafuse.compiler.fuzz.trial import Outcome
from megafuse.runtime import loader

SEED, PROGRAMS, MORE = 0, 15, 60  # ranges of thousands are run by hand: CONTRIBUTING.md

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("third", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_programs_are_right(third: int) -> None:
    are_right(generate, SEED, range(third, PROGRAMS, 3))


@pytest.mark.slow
@pytest.mark.parametrize("part", often(range(4), [0, 1]))
def test_more_programs_are_right(part: int) -> None:
    are_right(generate, SEED, range(PROGRAMS + part, PROGRAMS + MORE, 4))


def test_the_same_seed_gives_the_same_programs() -> None:
    assert generate(3, 5) == generate(3, 5)
    assert generate(3, 5) != generate(3, 6)


def test_a_program_is_its_source() -> None:
    program = generate(SEED, 2)
    again = Program.of_source(program.source, program.arguments, program.seed)
    assert again == program
    assert Program.of_json(program.as_json()) == program


# ---- what is planted is found

ARGUMENTS = [
    Argument("a0", "float32", ((7, 33), (5, 64))),
    Argument("a1", "float32", ((33,), (64,))),
]
PLANTED = """
    def program(a0, a1):
        v0 = a0.tanh() + a1
        v1 = v0.cos()
        v2 = v1 * a1
        v3 = v2.amax(-1, keepdim=True)
        v4 = v1 - v3
        return v4, v0
"""


@pytest.fixture
def wrong_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated kernels take the sine for the cosine, and are compiled anew."""
    host = loader.load()
    assert host is not None
    written = expression.expression

    def planted(term, args, slots, rounds):  # type: ignore[no-untyped-def]
        made = written(term, args, slots, rounds)
        return dataclasses.replace(made, code=made.code.replace("cos(", "sin("))

    monkeypatch.setattr("megafuse.codegen.scope.expression", planted)


@pytest.mark.slow
def test_a_wrong_kernel_is_found_and_shrunk(wrong_cosine: None) -> None:
    program = Program.of_source(PLANTED, ARGUMENTS)
    outcome = trial(program)
    assert outcome.verdict == "wrong", outcome
    small = shrunk(program, outcome, trial)
    assert [s.text.split(" = ")[1] for s in small.statements] == [f"{_only(small)}.cos()"]
    assert "def test_program_7" in test_case(Finding(7, small, outcome))


def _only(program: Program) -> str:
    (argument,) = program.arguments
    return argument.name


def test_a_right_program_passes() -> None:
    assert trial(Program.of_source(PLANTED, ARGUMENTS)).verdict == "right"


@pytest.mark.slow
def test_a_crash_is_a_finding_and_the_next_program_runs() -> None:
    child = Child()
    crash = Program.of_source(
        "def program(a0):\n    v0 = a0 if a0.is_cuda else __import__('os').abort()\n    return v0,",
        ARGUMENTS[:1],
    )
    try:
        outcome = child.trial(crash)
        assert (outcome.verdict, outcome.message) == ("crash", "SIGABRT")
        assert child.trial(Program.of_source(PLANTED, ARGUMENTS)).verdict == "right"
    finally:
        child.close()


def test_noise_leaves_alone_what_rounds_nothing() -> None:
    """Else no element would be equal to amax, and its gradient NaN: right by any rule."""
    x = torch.randn(5, 40, requires_grad=True)
    with Noise():
        (gradient,) = torch.autograd.grad(x.amax(1).sum(), x)
        noisy = x.exp()
    torch.testing.assert_close(gradient.sum(1), torch.ones(5))
    assert not torch.equal(noisy, x.exp())
    torch.testing.assert_close(noisy, x.exp())


def test_summary_counts() -> None:
    outcomes = [
        Outcome("right", kernels=2, calls={"aten.mm.default": 1}, captures=1),
        Outcome("refused", "no 5"),
    ]
    text = summary(outcomes)
    assert "2 programs: 1 right, 1 refused" in text
    assert "aten.mm.default" in text
    assert "no #" in text


# ---- ranges that add up


def outcomes(first: int, verdicts: str) -> dict[int, Outcome]:
    known = {
        "r": Outcome("right"),
        "n": Outcome("refused", "no 5"),
        "w": Outcome("wrong", "by 1.5"),
    }
    return {first + i: known[letter] for i, letter in enumerate(verdicts)}


def test_a_range_as_a_record() -> None:
    made = record.record(3, 10, outcomes(10, "rrnnwr"))
    assert (made["seed"], made["first"], made["programs"], made["right"]) == (3, 10, 6, 3)
    assert made["refused"] == {"no #": [12, 13]}
    assert made["failed"] == {"14": "wrong: by #"}
    assert made["commit"]
    assert made["versions"]["torch"]


def test_records_add_up(tmp_path: Path) -> None:
    file = tmp_path / "fuzz.jsonl"
    for first, verdicts in ((0, "rrwr"), (4, "rrrn"), (2, "rr")):  # the third mended the first
        record.append(file, record.record(0, first, outcomes(first, verdicts)))
    assert record.total(file).startswith("8 programs: 0 failed, 1 (12.5%) refused; at ")


@pytest.mark.slow
def test_two_jobs_and_no_kernel_left_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGAFUSE_COMMIT", "abc")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = tmp_path / "fuzz.jsonl"
    words = f"--programs 4 --first 2 --jobs 2 --record {file}".split()
    assert main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["fuzz.jsonl"]
    (line,) = file.read_text().splitlines()
    assert json.loads(line) == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads(line)["programs"] == 4
