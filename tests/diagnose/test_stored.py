"""A diagnosis is the same after it was written and read; what is no diagnosis is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.samples import FAST_CPU, GPU, Calls, tensor
from megafuse.diagnose.diagnosis import Diagnosis, NotADiagnosis, Verdict
from megafuse.diagnose.finding import Evidence, Finding, Trial
from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import HostCall, Where


def diagnosis(machine: Machine) -> Diagnosis:
    calls = Calls(machine)
    calls.add("aten.relu.default", "pointwise", 2e-4, [tensor(0, 64, 64)], [tensor(1, 64, 64)])
    record = calls.record(host_calls=[HostCall("print", "print", Where(), 0.0, 1e-3)])
    finding = Finding(
        "pointwise-chain", "slow", "fuse it", record.operations[0].where, 2e-4, 1e-4, "likely",
        [Evidence("bytes", 32768.0, "B")], [0], trial=Trial("fuse", 2e-4, 1e-4, 1.9, 2.1),
    )  # fmt: skip
    return Diagnosis(record, machine, Verdict(False, "memory", 0.5, "It is slow."), [finding])


@pytest.mark.parametrize("machine", [GPU, FAST_CPU], ids=["gpu", "cpu"])
def test_written_and_read(machine: Machine, tmp_path: Path) -> None:
    made = diagnosis(machine)
    made.write(tmp_path / "a.json")
    again = Diagnosis.read(tmp_path / "a.json")
    assert again.to_dict() == made.to_dict()
    assert again.record.operations[0].reads[0].shape == (64, 64)
    assert isinstance(again.findings[0].trial, Trial)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "megafuse-bench"}, "not a diagnosis"),
        ({"version": 99}, "version 99"),
        ({"record": None}, "damaged"),
        ({"findings": [{"name": 3}]}, "damaged"),
    ],
)
def test_something_else_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(NotADiagnosis, match=says):
        Diagnosis.from_dict(diagnosis(GPU).to_dict() | change)


def test_a_later_version_may_have_more() -> None:
    data = diagnosis(GPU).to_dict()
    data["record"]["new"] = 1
    assert Diagnosis.from_dict(data).record.name == "sample"


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotADiagnosis, match="No such file"):
        Diagnosis.read(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(NotADiagnosis, match="not JSON"):
        Diagnosis.read(tmp_path / "text.json")
