"""Typical mistakes fail with a sentence that names the mistake."""

from __future__ import annotations

import pytest

from exercises import (
    mistakes_in_barriers,
    mistakes_in_cpp,
    mistakes_in_memory,
    mistakes_in_norms,
    mistakes_in_python,
    mistakes_in_sums,
)
from exercises.checked import (
    EACH,
    EXERCISES,
    NEEDS_COMPILER,
    Texts,
    check,
    checking,
    failed,
    written,
)
from megafuse.learn.exercises.findings import passed
from megafuse.runtime import nvrtc

# Each compiles, or starts a process of its own.
pytestmark = pytest.mark.slow


MISTAKES = {
    **mistakes_in_python.MISTAKES,
    **mistakes_in_cpp.MISTAKES,
    **mistakes_in_memory.MISTAKES,
    **mistakes_in_sums.MISTAKES,
    **mistakes_in_norms.MISTAKES,
    **mistakes_in_barriers.MISTAKES,
}


def test_every_exercise_has_three_mistakes_that_are_named():
    assert set(MISTAKES) == set(EXERCISES)
    for name, mistakes in MISTAKES.items():
        assert len({says for *_, says in mistakes.values()}) >= 3, name
        assert all(len(says) > 8 for *_, says in mistakes.values()), f"{name}: a sentence for each"


def _parts(texts: Texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts


@EACH
def test_typical_mistakes(name, tmp_path):
    """Each fails where it should, with its own sentence: one for all would name none of them."""
    text = EXERCISES[name].solution.read_text(encoding="utf-8")
    told = {}
    for mistake, (right, wrong, what, says) in MISTAKES[name].items():
        if what == "for the GPU" and nvrtc.problem() is not None:
            continue
        mistaken = text
        for part, other in zip(*map(_parts, (right, wrong)), strict=True):
            assert part in mistaken, f"{mistake}: the solution has changed"
            mistaken = mistaken.replace(part, other)
        found = failed(checking(name, written(name, mistaken, tmp_path)))
        assert (found.what, says in found.says) == (what, True), (mistake, found)
        assert "Traceback" not in found.found + found.says
        told[mistake] = found.says
    assert len(set(told.values())) >= 3, told


@NEEDS_COMPILER
def test_right_and_uncoalesced(tmp_path):
    """Four neighbours a thread: right everywhere, and four times the sectors."""
    source = """extern "C" __global__ void axpy(Input x, Input y, Output out, float a, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  for (int i = first; i < first + 4 && i < n; ++i) out[i] = a * x[i] + y[i];
}"""
    found = check("cuda_index", written("cuda_index", source, tmp_path))
    wrong = [finding for finding in found if finding.ok is False]
    assert [finding.what for finding in wrong] == ["bytes moved"]
    assert "480,000 asked for, goal 120,000" in wrong[0].found
    assert "16 sectors" in wrong[0].says
    assert "█···█···" in wrong[0].drawn


def test_a_saved_result_is_counted(tmp_path):
    text = EXERCISES["backward"].solution.read_text(encoding="utf-8")
    for right, wrong in (
        ("return mf.swiglu(gate, up)", "return out"),
        ("ctx.save_for", "out = mf.swiglu(gate, up)\n        ctx.save_for"),
        ("ctx.save_for_backward(gate, up)", "ctx.save_for_backward(gate, up, out)"),
        ("gate, up = ctx", "gate, up, _ = ctx"),
    ):
        assert right in text
        text = text.replace(right, wrong)
    found = failed(check("backward", written("backward", text, tmp_path)))
    assert (found.what, found.found[:8]) == ("saved", "12 bytes")
    assert "stays in memory until the backward has run" in found.says


@NEEDS_COMPILER
def test_sums_that_cancel_pass_with_a_word(tmp_path):
    """Sum and sum of squares cut the pass; that they lose digits far from 0 is told."""
    text = EXERCISES["cut_a_pass"].solution.read_text(encoding="utf-8")
    path = written("cut_a_pass", text.replace("first = row[0]", "first = 0"), tmp_path)
    found = check("cut_a_pass", path)
    assert passed(found), found
    (told,) = [finding for finding in found if finding.what == "far from 0"]
    assert "Exercise 6" in told.says
