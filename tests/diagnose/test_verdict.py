"""The verdict: what binds, and "leave it" with the number of what takes the most time."""

from __future__ import annotations

import pytest

from diagnose.samples import FAST_CPU, GPU, MACHINES, Calls, tensor
from megafuse.diagnose import rank, roofline, verdict
from megafuse.diagnose.diagnosis import Diagnosis, Verdict
from megafuse.diagnose.findings import Case
from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import HostCall, Record, Where

SIZE = 1 << 26


def judged(record: Record, machine: Machine) -> Verdict:
    roofline.fill(record, machine)
    findings = rank.found(Case(record, machine))
    return verdict.verdict(record, machine, findings)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_at_the_roof_of_memory(machine: Machine) -> None:
    """Ten operations at 80 %: they are told together."""
    calls = Calls(machine)
    for i in range(10):
        moved = [tensor(2 * i, SIZE)], [tensor(2 * i + 1, SIZE)]
        calls.add("aten.exp_.default", "pointwise", 8 * SIZE / (0.8 * machine.copy), *moved)
    found = judged(calls.record(), machine)
    assert found.leave_it
    assert found.binds == "memory"
    assert found.roof_share == pytest.approx(0.8, abs=0.01)
    assert "exp_ takes 100 % of the time" in found.sentence
    assert "80 % of what this machine's memory can" in found.sentence


def test_at_the_roof_of_arithmetic() -> None:
    calls = Calls(GPU)
    a, b, out = (tensor(i, 8192, 8192, dtype="bfloat16") for i in range(3))
    flops = 2 * 8192**3
    calls.add("aten.mm.default", "product", flops / 675e12, [a, b], [out], flops=flops)
    found = judged(calls.record(), GPU)
    assert found.leave_it
    assert "675 GFLOP/s" not in found.sentence
    assert "90 % of what this machine's arithmetic can" in found.sentence


def test_where_python_takes_the_time_no_operation_is_blamed() -> None:
    calls = Calls(FAST_CPU)
    moved = [tensor(0, SIZE)], [tensor(1, SIZE)]
    calls.add("aten.exp.default", "pointwise", 8 * SIZE / FAST_CPU.copy, *moved)
    found = judged(calls.record(seconds=10 * calls.now), FAST_CPU)
    assert found.binds == "host"
    assert "Python and launching (90 %)" in found.sentence
    assert "exp" not in found.sentence


def test_a_finding_comes_first() -> None:
    calls = Calls(FAST_CPU)
    moved = [tensor(0, SIZE)], [tensor(1, SIZE)]
    calls.add("aten.exp.default", "pointwise", 8 * SIZE / FAST_CPU.copy, *moved)
    waits = HostCall("DataLoader", "data loader", Where("train.py", 3), 0.0, 9 * calls.now)
    record = calls.record(seconds=10 * calls.now, host_calls=[waits])
    found = judged(record, FAST_CPU)
    assert not found.leave_it
    assert found.binds == "data"
    assert "90 % of the step is waiting" in found.sentence


def test_at_80_columns() -> None:
    calls = Calls(FAST_CPU)
    for i in range(6):
        moved = [tensor(i, SIZE)], [tensor(i + 1, SIZE)]
        calls.add("aten.mul.Tensor", "pointwise", 8 * SIZE / FAST_CPU.copy, *moved)
    record = calls.record(notes=["a word " * 40])
    roofline.fill(record, FAST_CPU)
    findings = rank.found(Case(record, FAST_CPU))
    text = str(Diagnosis(record, FAST_CPU, verdict.verdict(record, FAST_CPU, findings), findings))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "1. fusable, model.py:1" in text
