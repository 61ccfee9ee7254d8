"""Solutions pass; starters fail, with the sentence that helps."""

from __future__ import annotations

import pytest

import megafuse
from exercises.checked import EACH, EXERCISES, NEEDS_COMPILER, check, failed
from megafuse.learn.exercises import runner
from megafuse.learn.exercises.findings import passed

# Each compiles, or starts a process of its own.
pytestmark = pytest.mark.slow


@EACH
def test_solution_passes(name, device):
    before = dict(megafuse.OPS)
    found = check(name, EXERCISES[name].solution, device)
    assert passed(found), found
    assert any(finding.what == "of the roof" for finding in found)
    if name in TIMED or (device == "cuda" and EXERCISES[name].starter.suffix == ".cu"):
        runs = [finding.run for finding in found if finding.run is not None]
        assert bool(runs) == (name != "transpose")  # which computes nothing
        assert all(run.sound for run in runs)
    assert dict(megafuse.OPS) == before  # the learner's functor is no op of the library


# Those that get a place on the certificate's roofline on a CPU.
TIMED = {
    *("functor", "walk", "fuse_chain", "cut_a_pass", "stable_sums", "backward"),
    *("in_a_model", "your_own"),
}
TEACHES = {
    "count_bytes": "count 4 bytes for every large tensor that it reads",
    "functor": "The result should be x * sigmoid",
    "walk": "Let the inner loop step from one float to the next",
    "fuse_chain": "one op for act(x + bias)",
    "cut_a_pass": "can one loop collect all that mean and variance need",
    "stable_sums": "Sum squares of distances from something near the mean",
    "backward": "gate would never learn",
    "fuse_or_not": "count as in exercise 1",
    "cuda_index": "must come from blockIdx.x",
    "grid_2d": "some threads have a row that does not exist",
    "stage": "every third float",
    "transpose": "rows of 33 words",
    "warp_sum": "lane 0's own sum alone",
    "block_sum": "a barrier at every level",
    "wide_loads": "A float4 is 16 bytes with one instruction",
    "online_softmax": "x is read three times",
    "norm_forward": "take mean, variance and result from",
    "norm_backward": "g alone would be the gradient of a plain scale",
    "gemm_tile": "use each float 16 times",
    "grid_barrier": "Blocks do not wait for each other by themselves",
    "megakernel": "every block computes all of h for itself",
    "in_a_model": "go through model.modules()",
    "your_own": "Put something of yours in its place",
}


@EACH
def test_starter_fails_and_teaches(name):
    found = check(name, EXERCISES[name].starter)
    assert not passed(found)
    assert TEACHES[name] in failed(found).says


@NEEDS_COMPILER
def test_starters_of_wrong_numerics_name_both_mistakes():
    found = check("stable_sums", EXERCISES["stable_sums"].starter)
    wrong = {finding.what: finding for finding in found if finding.ok is False}
    assert set(wrong) == {"around 10,000", "up to 400", "below 0", "at full speed"}
    assert "inf / inf is nan" in wrong["up to 400"].says


@pytest.mark.parametrize("name", ["count_bytes", "fuse_or_not"])
def test_python_exercises_need_none(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    report = runner.check(EXERCISES[name], EXERCISES[name].solution, "cpu")
    assert report.passed, report
    assert not report.printed
