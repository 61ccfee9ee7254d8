"""megafuse.bench: contenders take turns, and the statistics are what they say."""

from __future__ import annotations

from itertools import groupby

import pytest

from megafuse.bench import Timing, compare, speedup
from megafuse.bench import timing as module


def test_contenders_take_turns(monkeypatch):
    monkeypatch.setattr(module, "_calls", lambda *_: 1)
    called = []
    taken = compare(
        {"a": lambda i: called.append(("a", i)), "b": lambda i: called.append(("b", i))},
        budget=0.0,
        warmup=0,
    )
    assert [name for name, _ in called] == ["a", "b"] * 10
    assert [i for name, i in called if name == "b"] == list(range(10))
    assert {t.n for t in taken.values()} == {10}


def test_short_calls_share_a_sample():
    called = []
    (taken,) = compare({"a": called.append}, budget=0.0, warmup=0).values()
    assert len(called) > 10 * taken.n
    runs = [len(list(group)) for _, group in groupby(j - i for i, j in enumerate(called[3:]))]
    assert runs == [len(called) - 3]  # the repeat index never stops or jumps


def test_stops_when_the_median_is_known(monkeypatch):
    monkeypatch.setattr(module, "_sampler", lambda *_: lambda contender, first, calls: 1.0)
    (taken,) = compare({"a": lambda i: None}, budget=3600.0).values()
    assert taken.n == 10
    assert taken.uncertainty == 0


def test_quartiles():
    taken = Timing.of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (taken.low, taken.median, taken.high, taken.n) == (2.0, 3.0, 4.0, 5)
    assert Timing.of([7.0]).high == 7.0


def test_speedup_is_taken_round_by_round():
    # The machine became twice as slow half way: the ratio does not care.
    gain = speedup(Timing.of([2.0, 2.0, 4.0, 4.0]), Timing.of([1.0, 1.0, 2.0, 2.0]))
    assert (gain.low, gain.median, gain.high) == (2.0, 2.0, 2.0)


def test_nothing_to_compare():
    assert compare({}) == {}


@pytest.mark.cuda
@pytest.mark.parametrize("clock", ["device", "wall"])
def test_cuda_clocks(clock):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    x = torch.ones(1 << 20, device="cuda")
    (taken,) = compare({"add": lambda i: x + i}, device="cuda", clock=clock, budget=0.1).values()
    assert 0 < taken.low <= taken.median <= taken.high
