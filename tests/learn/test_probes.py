"""The probes: they measure what they say, and say what the machine told them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
import torch

from megafuse.learn import probes
from megafuse.learn.ladder import launch
from megafuse.learn.probes import Level, Probes
from megafuse.runtime import cpp, sources

needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")


@pytest.fixture(params=["compiled", "by torch alone"])
def measured(request, monkeypatch, device):
    if request.param == "by torch alone":
        monkeypatch.setattr(probes, "can_compile", lambda device: False)
    elif not probes.can_compile(device):
        pytest.skip("needs a compiler")
    return probes.measure(device, quick=True)


def test_measured(measured):
    """Within what any machine that runs this could do; the order is physics."""
    assert 1e8 < measured.arithmetic < 1e16
    assert 1e7 < measured.copy < 1e14
    assert 1e-8 < measured.call < 1.0
    for level in measured.levels:
        assert 1e7 < level.bandwidth < 1e16
        assert level.latency is None or 1e-10 < level.latency < 1e-4
    assert measured.memory.name == "memory"
    assert measured.operations_per_float > 0


def test_operations_per_float():
    made = Probes("cpu", 8e9, (Level("memory", 1, 1e9),), copy=2e9, call=1e-6)
    assert made.operations_per_float == 32  # 8 bytes take 4 ns, and 4 ns are 32 operations


@pytest.mark.parametrize("apart", [64, 128])
def test_circle_goes_through_every_place_once(apart):
    places = 101
    memory = probes.circle(places, apart, "cpu").view(torch.int64)
    seen, at = set(), 0
    for _ in range(places):
        assert at % apart == 0
        seen.add(at)
        at = int(memory[at // 8])
    assert at == 0
    assert len(seen) == places


@needs_compiler
def test_nothing_is_optimised_away():
    """Ten times the work must take longer: a loop that the compiler dropped would not."""
    x = torch.ones(1 << 18)
    out = torch.zeros_like(x)

    def best(times: int) -> float:
        return probes._time(lambda: probes.work(x, out, times), "cpu", "warm", 0.05).low

    assert best(2000) > 3 * best(200)


@needs_compiler
def test_multiply_adds_are_all_that_the_loop_of_registers_does(tmp_path):
    """Assembly of the loops that add: on ARM a move beside each fmla made the rate 2.9 times too
    low, since both go through the same units."""
    compiler = cpp.find()
    source, out = tmp_path / "probes.cpp", tmp_path / "probes.s"
    source.write_text(launch.source("probes", "cpu"), encoding="utf-8")
    flags = [flag for flag in cpp.kernel_flags() if flag not in ("-shared", "-fPIC")]
    command = [*compiler.command, *flags, f"-I{sources.KERNELS}", "-S", "-o", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    loops = list(loops_with(re.compile(r"\s(fmla|vfn?madd\w+ps)\s"), out.read_text("utf-8")))
    if not loops:
        pytest.skip("this processor has no multiply-add for vectors of float32")
    tightest = [min(loop, key=len) for loop in loops]
    assert tightest
    for loop in tightest:
        moved = [line for line in loop if re.search(r"\sv?mov\w*\s+(v\d|%[xyz]mm)", line)]
        loaded = [line for line in loop if re.search(r"\sldp?r?\s+q|\sst[rp]\s+q|\(%(?!rip)", line)]
        assert not moved
        assert not loaded


def loops_with(instruction: re.Pattern[str], assembly: str) -> Iterator[list[list[str]]]:
    """For each function, its loops (label to the branch back) that hold such instructions."""
    for name in ("arithmetic", "work"):
        body = re.search(rf"^{name}:(?:[ \t].*?)?\n(.*?)^\s+\.size\s+{name}", assembly, re.S | re.M)
        if body is None:
            continue
        lines = [re.split(r"\s+(?://|#)", line)[0] for line in body[1].splitlines()]
        found = []
        labels = {line[:-1]: at for at, line in enumerate(lines) if re.fullmatch(r"\S+:", line)}
        for at, line in enumerate(lines):
            target = re.search(r"\s[bj]\S*\s+(?:\S+,\s*)?(\.\S+)$", line)
            begin = labels.get(target[1], at) if target else at
            inside = lines[begin:at]
            if begin < at and sum(bool(instruction.search(each)) for each in inside) >= 8:
                found.append(inside)
        if found:
            yield found


@needs_compiler
def test_work_computes(device):
    x, out = torch.rand(1 << 12, device=device), torch.zeros(1 << 12, device=device)
    probes.work(x, out, 3)
    expected = x.double()
    for _ in range(3):
        expected = expected + 0.999 * 0.001
    whole = int(out.count_nonzero())  # the last floats, less than a vector, are left out
    assert whole > 3000
    torch.testing.assert_close(out[:whole].double(), expected[:whole], rtol=1e-6, atol=1e-6)


def cache(folder, name: str, **files: str) -> None:
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


def test_caches_that_the_system_tells(tmp_path):
    cache(tmp_path, "index0", level="1", type="Data", size="32K")
    cache(tmp_path, "index1", level="1", type="Instruction", size="64K")
    cache(tmp_path, "index2", level="2", type="Unified", size="1M")
    cache(tmp_path, "index3", level="3", type="Unified", size="512M")
    told = dict(probes._cpu_caches(tmp_path))
    assert told["L1 cache"] == 1 << 15
    assert told["L2 cache"] == 1 << 20
    assert told["L3 cache"] == min((512 << 20) // torch.get_num_threads(), 16 << 20)


def test_a_core_whose_share_of_l3_is_no_larger_than_its_l2(tmp_path):
    cache(tmp_path, "index2", level="2", type="Unified", size="1M")
    cache(tmp_path, "index3", level="3", type="Unified", size="1M")
    assert "L3 cache" not in dict(probes._cpu_caches(tmp_path))


def test_caches_that_the_system_does_not_tell(tmp_path):
    assert [name for name, _ in probes._cpu_caches(tmp_path)] == ["first cache", "second cache"]
