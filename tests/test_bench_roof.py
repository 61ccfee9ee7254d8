"""megafuse.bench.roof: measured once a machine, kept, and measured again on demand."""

from __future__ import annotations

import math
from datetime import date

import pytest
import torch

from megafuse.bench import machine, roof
from megafuse.bench.result import Roofs
from megafuse.bench.timing import Timing


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MEGAFUSE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """The devices that were measured; each time finds twice the speed."""
    devices: list[str] = []

    def measure(device: str) -> Roofs:
        devices.append(device)
        speed = 2.0 ** len(devices)
        return Roofs(speed, 3 * speed, {"float32": 4 * speed}, None, "2026-01-01")

    monkeypatch.setattr(roof, "measure", measure)
    return devices


@pytest.mark.usefixtures("empty_cache")
def test_measured_once(measured):
    first = roof.roofs("cpu")
    assert first == Roofs(2.0, 6.0, {"float32": 8.0}, None, "2026-01-01")
    assert roof.roofs("cpu") == first
    assert measured == ["cpu"]


@pytest.mark.usefixtures("empty_cache")
def test_measured_again_on_demand(measured):
    roof.roofs("cpu")
    assert roof.roofs("cpu", again=True).copy == 4.0
    assert roof.roofs("cpu").copy == 4.0, "the new one was not kept"
    assert measured == ["cpu"] * 2


@pytest.mark.usefixtures("empty_cache")
def test_measured_again_although_there_is_none_yet(measured):
    assert roof.roofs("cpu", again=True).copy == 2.0


@pytest.mark.usefixtures("empty_cache")
def test_another_machine_has_its_own(measured, monkeypatch):
    """A home directory may be shared; so may a container with other limits."""
    roof.roofs("cpu")
    about = machine.about("cpu")
    for change in ({"cpu": "another"}, {"threads": about["threads"] + 1}):
        monkeypatch.setattr(machine, "about", lambda device, c=change: about | c)
        roof.roofs("cpu")
    monkeypatch.setattr(machine, "about", lambda device: about)
    assert roof.roofs("cpu").copy == 2.0
    assert measured == ["cpu"] * 3


@pytest.mark.usefixtures("empty_cache")
def test_a_failed_measurement_is_not_kept(measured, monkeypatch):
    good = roof.measure
    monkeypatch.setattr(roof, "measure", lambda device: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        roof.roofs("cpu")
    monkeypatch.setattr(roof, "measure", good)
    assert roof.roofs("cpu").copy == 2.0


def test_the_arithmetic(monkeypatch):
    """Every call takes 1 ms, the fastest tenth of them: a copy reads and writes, a read reads."""
    called = []

    def compare(contenders, **how):
        ((name, call),) = contenders.items()
        called.append(call(0))
        return {name: Timing(5e-3, 1e-3, 9e-3, ())}

    monkeypatch.setattr(roof, "compare", compare)
    monkeypatch.setattr(roof, "_SIDES", {"cpu": {"float32": 100, "float64": 10}})
    found = roof.measure("cpu")
    assert found.read == pytest.approx(called[0].nbytes / 1e-3)
    assert found.copy == pytest.approx(2 * found.read)
    assert found.gemm == pytest.approx({"float32": 2e6 / 1e-3, "float64": 2e3 / 1e-3})
    assert found.launch is None
    assert found.date == date.today().isoformat()
    assert [c.dtype for c in called[2:]] == [torch.float32, torch.float64]
    assert called[0].amax() == 1, "nothing was copied"


@pytest.mark.usefixtures("empty_cache")
def test_real_numbers(monkeypatch):
    """Small matrices and no more than the least rounds: a second instead of ten."""
    monkeypatch.setattr(roof, "_BUDGET", 0.0)
    monkeypatch.setattr(roof, "_SIDES", {"cpu": {"float32": 64, "bfloat16": 64}})
    found = roof.roofs("cpu")
    numbers = [found.copy, found.read, *found.gemm.values()]
    assert all(math.isfinite(n) and n > 0 for n in numbers)
    assert 1e8 < found.copy < 1e14, "bytes a second"
    assert set(found.gemm) == {"float32", "bfloat16"}
    assert roof.roofs("cpu") == found


def test_slow_products_are_measured_small(monkeypatch):
    """One of 1024 a side would take 2 s at this rate, one of 512 a quarter of a second."""
    sides = []
    monkeypatch.setattr(roof, "_seconds", lambda a, b: 2.0 / (1024 / len(a)) ** 3)
    monkeypatch.setattr(roof, "_best", lambda call, device: sides.append(len(call(0))) or 1.0)
    rate = roof._gemm("cpu", "float32", 1024)
    assert sides == [512]
    assert rate == 2.0 * 512**3


def test_which_gemm_bounds_a_dtype():
    found = Roofs(1.0, 1.0, {"float32": 10.0, "bfloat16": 80.0, "float64": 5.0})
    assert found.matching("float32") == 10.0
    assert found.matching("bfloat16") == 10.0, "arithmetic is done in float32"
    assert found.matching("bfloat16", gemm=True) == 80.0
    assert found.matching("float64") == 5.0
    assert found.matching("float16", gemm=True) == 10.0, "not measured here"


@pytest.mark.parametrize(("float16", "rate"), [(90.0, 30.0), (24.0, 10.0)])
def test_float32_products_as_three_of_float16(float16, rate):
    """Only where that is faster, and only for matrix products."""
    found = Roofs(1.0, 1.0, {"float32": 10.0, "float16": float16})
    assert found.matching("float32", gemm=True) == rate
    assert found.matching("float32") == 10.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_device_has_float32(device):
    """What Roofs.matching falls back to."""
    assert "float32" in roof._SIDES[device]


@pytest.mark.cuda
@pytest.mark.usefixtures("empty_cache")
def test_a_launch_takes_time(monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    monkeypatch.setattr(roof, "_BUDGET", 0.01)
    monkeypatch.setattr(roof, "_SIDES", {"cuda": {"float32": 256}})
    found = roof.roofs("cuda")
    assert found.launch is not None
    assert found.launch > 0
    assert found.copy > 1e9
