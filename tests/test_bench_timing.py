"""megafuse.bench.timing: contenders take turns, and the statistics are what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from megafuse.bench import Timing, compare, speedup
from megafuse.bench import timing as module

CLOCKS = ("cold", "warm", "wall", "host")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is one call that takes 1 s, however long it really took."""

    def sampler(contender: Callable[[int], object], *_: object) -> Callable[[int], float]:
        def sample(i: int) -> float:
            contender(i)
            return 1.0

        return sample

    monkeypatch.setattr(module, "_sampler", sampler)


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading past this machine's cache 10 times would take longer than all else here."""
    monkeypatch.setattr(module, "_flush_buffer", lambda device: torch.ones(1 << 10))


@pytest.mark.usefixtures("counted")
def test_contenders_take_turns_and_each_starts_as_often():
    called = []
    names = ("a", "b", "c")
    taken = compare(
        {name: lambda i, name=name: called.append((name, i)) for name in names},
        budget=0.0,
        warmup=0,
        rounds=6,
    )
    rounds = [called[at : at + 3] for at in range(0, len(called), 3)]
    assert ["".join(name for name, _ in r) for r in rounds] == ["abc", "bca", "cab"] * 2
    assert [{i for _, i in r} for r in rounds] == [{n} for n in range(6)]
    assert {name: t.n for name, t in taken.items()} == dict.fromkeys(names, 6)


@pytest.mark.usefixtures("counted")
def test_arguments_are_renewed_once_a_round_before_the_contenders():
    seen = []
    compare(
        {name: lambda i, name=name: seen.append((name, i)) for name in "ab"},
        refresh=lambda i: seen.append(("refresh", i)),
        budget=0.0,
        warmup=0,
        rounds=3,
    )
    assert " ".join(name for name, _ in seen) == "refresh a b refresh b a refresh a b"
    assert [i for _, i in seen] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.usefixtures("counted")
def test_warm_up_is_not_timed():
    called = []
    (taken,) = compare({"a": called.append}, budget=0.0, warmup=4, rounds=2).values()
    assert called == [0, 0, 0, 0, 0, 1]
    assert taken.n == 2


@pytest.mark.usefixtures("counted")
def test_stops_when_every_median_is_known():
    (taken,) = compare({"a": lambda i: None}, budget=3600.0).values()
    assert taken.n == 10
    assert taken.uncertainty == 0


def steps(monkeypatch: pytest.MonkeyPatch, samples: Iterator[float]) -> None:
    """Samples as given, on a clock that each of them moves by 1 s."""
    now = [0.0]

    def sample(i: int) -> float:
        now[0] += 1.0
        return next(samples)

    monkeypatch.setattr(module, "_sampler", lambda *_: sample)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])


def noise() -> Iterator[float]:
    while True:
        yield from (1.0, 3.0, 2.0, 5.0, 4.0)


def test_stops_when_the_budget_is_spent(monkeypatch):
    steps(monkeypatch, noise())
    (taken,) = compare({"a": lambda i: None}, budget=33.0, precision=0.003).values()
    assert taken.n == 33


def test_looks_at_the_spread_now_and_then(monkeypatch):
    steps(monkeypatch, noise())
    (taken,) = compare({"a": lambda i: None}, budget=1e9, precision=0.1).values()
    # 0.49·(high − low)/√n/median ≤ 0.1, looked at every 5 rounds.
    known = 0.49 * (taken.high - taken.low) / taken.median
    assert taken.n == 5 * math.ceil((known / 0.1) ** 2 / 5)
    assert taken.uncertainty <= 0.1


def test_takes_the_least_number_of_rounds_whatever_the_budget(monkeypatch):
    steps(monkeypatch, noise())
    (taken,) = compare({"a": lambda i: None}, budget=0.0, rounds=17).values()
    assert taken.n == 17


def test_one_noisy_contender_keeps_the_others_going(monkeypatch):
    noisy = noise()
    now = [0.0]

    def sampler(contender: Callable[[int], object], *_: object) -> Callable[[int], float]:
        def sample(i: int) -> float:
            now[0] += 1.0
            return 1.0 if contender(i) == "calm" else next(noisy)

        return sample

    monkeypatch.setattr(module, "_sampler", sampler)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    taken = compare({"calm": lambda i: "calm", "noisy": lambda i: "noisy"}, budget=60.0)
    assert [t.n for t in taken.values()] == [30, 30]


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("clock", CLOCKS)
def test_clocks_of_the_cpu(clock):
    x = torch.ones(100)
    (taken,) = compare({"add": lambda i: x + i}, clock=clock, budget=0.0).values()
    assert taken.n == 10
    assert 0 < taken.low <= taken.median <= taken.high


@pytest.mark.parametrize(("clock", "calls"), [("cold", 1), ("warm", 5), ("wall", 5), ("host", 5)])
def test_short_calls_share_a_sample_when_the_cache_is_warm(monkeypatch, clock, calls):
    """A call of 20 µs, and samples of 100 µs: five. Cold there can be only one."""
    now = [0.0]
    called = []
    flushed = []

    def call(i: int) -> None:
        called.append(i)
        now[0] += 20e-6

    def flush(device: str) -> Callable[[], None]:
        return lambda: flushed.append(len(called))

    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "Flush", flush)
    (taken,) = compare({"a": call}, clock=clock, budget=0.0, warmup=0, rounds=4).values()
    timed = [i for i in range(4) for _ in range(calls)]
    assert called[-len(timed) :] == timed
    assert taken.samples == pytest.approx([20e-6] * 4)
    assert flushed == ([0, 1, 2, 3] if clock == "cold" else [])


def test_spread_is_from_the_10th_to_the_90th_percentile():
    taken = Timing.of([float(n) for n in reversed(range(101))])
    assert (taken.low, taken.median, taken.high, taken.n) == (10.0, 50.0, 90.0, 101)
    assert taken.samples[0] == 100.0
    once = Timing.of([7.0])
    assert (once.low, once.median, once.high, once.n) == (7.0, 7.0, 7.0, 1)
    assert once.uncertainty == 0


def test_spreads_that_touch_are_ambiguous():
    def timing(low: float, high: float) -> Timing:
        return Timing((low + high) / 2, low, high, ())

    base = timing(2.0, 3.0)
    for other in (timing(2.5, 2.6), timing(1.0, 2.0), timing(3.0, 9.0), timing(0.0, 9.0)):
        assert base.overlaps(other)
        assert other.overlaps(base)
    for other in (timing(1.0, 1.9), timing(3.1, 4.0)):
        assert not base.overlaps(other)
        assert not other.overlaps(base)


def test_speedup_is_taken_round_by_round():
    # The machine became twice as slow half way: the ratio does not care.
    gain = speedup(Timing.of([2.0, 2.0, 4.0, 4.0]), Timing.of([1.0, 1.0, 2.0, 2.0]))
    assert (gain.low, gain.median, gain.high) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        speedup(Timing.of([2.0, 2.0]), Timing.of([1.0]))


def test_nothing_to_compare():
    assert compare({}) == {}


# ---- the cache


def test_the_flush_reads_more_than_the_cache_holds():
    """Written ones: zeros that nobody wrote are one page of the system, which stays cached."""
    buffer = module._flush_buffer(torch.device("cpu"))
    assert buffer.nbytes >= module.cache_bytes("cpu")
    assert buffer.amin() == 1.0
    assert buffer.amax() == 1.0
    assert module.Flush("cpu")._buffer is buffer, "a second buffer would be waste"


def test_the_flush_reads_all_of_it_and_writes_nothing():
    flush = module.Flush("cpu")
    before = flush._buffer._version
    with torch.profiler.profile(record_shapes=True) as seen:
        flush()
    shapes = [e.input_shapes[0] for e in seen.events() if e.name == "aten::amax"]
    assert [math.prod(shape) for shape in shapes] == [flush._buffer.numel()]
    assert flush._buffer._version == before


def cache_tree(root: Path, instances: list[tuple[int, int, str, str, str]]) -> Path:
    """sysfs as Linux has it: (cpu, index, level, size, shared_cpu_list)."""
    for cpu, index, level, size, shared in instances:
        folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")
    return root


def test_caches_are_counted_once(tmp_path):
    """Two cores, each with an L1 and an L2, and an L3 that they share."""
    tree = cache_tree(
        tmp_path,
        [
            *((cpu, 0, "1", "48K", str(cpu)) for cpu in (0, 1)),
            *((cpu, 2, "2", "2048K", str(cpu)) for cpu in (0, 1)),
            *((cpu, 3, "3", "30M", "0-1") for cpu in (0, 1)),
        ],
    )
    assert module._cpu_cache_bytes(tree) == 2 * (2048 << 10) + (30 << 20)


def test_an_l3_for_each_half_of_the_cores(tmp_path):
    tree = cache_tree(tmp_path, [(c, 3, "3", "1G", "0-1" if c < 2 else "2-3") for c in range(4)])
    assert module._cpu_cache_bytes(tree) == 2 << 30


def test_sizes_in_bytes_and_what_cannot_be_read(tmp_path):
    tree = cache_tree(tmp_path, [(0, 2, "2", "65536", "0"), (1, 2, "2", "unknown", "1")])
    (tmp_path / "cpu2" / "cache" / "index2").mkdir(parents=True)  # no files in it
    (tmp_path / "cpufreq").mkdir()
    assert module._cpu_cache_bytes(tree) == 65536


def test_a_system_that_does_not_tell(tmp_path):
    assert module._cpu_cache_bytes(tmp_path / "nowhere") == 32 << 20


# ---- CUDA


@pytest.mark.cuda
@pytest.mark.parametrize("clock", CLOCKS)
def test_cuda_clocks(clock):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    x = torch.ones(1 << 20, device="cuda")
    (taken,) = compare({"add": lambda i: x + i}, device="cuda", clock=clock, budget=0.1).values()
    assert 0 < taken.low <= taken.median <= taken.high


@pytest.mark.cuda
def test_the_flush_is_larger_than_the_l2():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    buffer = module._flush_buffer(torch.device("cuda"))
    assert buffer.nbytes >= torch.cuda.get_device_properties(0).L2_cache_size
    assert buffer.is_cuda


@pytest.mark.cuda
def test_events_time_the_device_and_not_the_host():
    """A call that keeps the host busy for 20 ms and the device hardly at all."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    x = torch.ones(1, device="cuda")

    def slow_host(i: int) -> object:
        module.time.sleep(0.02)
        return x.add_(0)

    (device,) = compare({"a": slow_host}, device="cuda", clock="warm", budget=0.0).values()
    (host,) = compare({"a": slow_host}, device="cuda", clock="host", budget=0.0, rounds=1).values()
    assert host.median >= 0.02, "the host was asleep for that long"
    assert device.median < 0.02, "the head start did not hide the host"


@pytest.mark.parametrize(("took", "calls"), [(5e-6, 60), (1e-3, 10), (5e-3, 5), (1.0, 5)])
def test_long_calls_are_queued_less_often(took, calls):
    assert module._queued(took) == calls
