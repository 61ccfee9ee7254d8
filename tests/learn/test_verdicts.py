"""No verdict contradicts its numbers: those of a GPU, a fast CPU, a slow CPU and a noisy machine.

Each claim that a verdict can make stands here with what its numbers must show, written apart from
the code that chooses it. Where they show it, or do not, on any of the machines, the verdict must
say so, or must not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from megafuse.bench import Ratio, Timing, speedup
from megafuse.learn.ladder import LADDERS
from megafuse.learn.ledger import Ledger
from megafuse.learn.measure import Calls, Measured
from megafuse.learn.probes import Level, Probes
from megafuse.learn.tutorial.climb import Climb, Climbed
from megafuse.learn.verdicts import (
    demo,
    exercises,
    ladder,
    machine,
    own_function,
    product,
    rightness,
    rule,
)

TWO = Ledger(("gelu", "mul"), 16 << 24)
ONE = Ledger(("gelu_scale",), 8 << 24)


def taken(median: float, noise: float = 0.02) -> Timing:
    """Ten rounds around a median, as wide as `noise` either way."""
    factors = [1 + noise * (i - 4.5) / 4.5 for i in range(10)]
    return Timing.of([median * factor for factor in factors])


@dataclass(frozen=True)
class Machine:
    """What the demo and the tutorial measured on it."""

    name: str
    device: str
    copy: float  # seconds, 16 Mi floats
    clone: float
    separate: float
    fused: float
    in_cache: float | None  # seconds of the fused way for as many floats out of the cache
    calls: Calls
    probes: Probes
    work: list[float]  # seconds of a copy with 0, 4, 16, 64 operations a float
    rungs: list[tuple[float, float, float]]  # MB asked for, MB from memory, seconds
    products: tuple[float, float, float]  # of the library: naive, tiled, shipped
    noise: float = 0.02
    floats: dict[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> Measured:
        times = (self.separate, self.fused, self.copy, self.clone)
        wobble = [1.0, -1.0, 0.5, -0.5]  # rounds of two ways do not swing together
        made = []
        for median, sign in zip(times, wobble, strict=True):
            made.append(taken(median, self.noise * sign))
        return Measured(1 << 24, *made)

    @property
    def predicted(self) -> tuple[float, float]:
        return 2 * self.clone, self.clone

    @property
    def climb(self) -> Climb:
        rate = 2 * (1 << 26) / self.copy  # bytes a second
        rungs = LADDERS["layer_norm"].on(self.device)
        made = []
        for (asked, memory, seconds), rung in zip(self.rungs, rungs, strict=True):
            counted = Ledger(("layer_norm",), round(asked * 1e6), round(memory * 1e6))
            sign = 1 if len(made) % 2 else -1
            timing = taken(seconds, sign * self.noise)
            made.append(Climbed(rung, counted, counted.from_memory / rate, timing, 1e-6))
        return Climb(tuple(made), rate)


def probes(device: str, arithmetic: float, near: float, memory: float, copy: float) -> Probes:
    levels = (Level("L1 cache", 1 << 15, near, 2e-9), Level("memory", 1 << 26, memory, 1e-7))
    return Probes(device, arithmetic, levels, copy, 5e-6)


# H200: copy 4.28 TB/s, gelu_scale 16 Mi 36.8 µs fused and 72.3 eager; rungs as measured and as
# reckoned. Fast CPU: near its copy. Slow CPU: 105 ms where 10 were predicted, since instructions
# bind. Noisy: speed-ups of one run from 0.44 to 6.86.
MACHINES = [
    Machine(
        "gpu",
        "cuda",
        *(31.3e-6, 36.4e-6, 72.3e-6, 36.8e-6),
        in_cache=None,
        calls=Calls(1024, 9.1e-6, 4.9e-6, 9.3e-6, 5.0e-6),
        probes=probes("cuda", 60e12, 30e12, 4.4e12, 4.28e12),
        work=[31e-6, 31e-6, 32e-6, 33e-6],
        rungs=[
            (1074, 1074, 1.90e-3),
            (1074, 537, 251e-6),
            (1074, 537, 180e-6),
            (537, 537, 136e-6),
            (537, 537, 130e-6),
            (537, 537, 129e-6),
        ],
        products=(0.08, 0.14, 0.99),
    ),
    Machine(
        "fast cpu",
        "cpu",
        *(2.4e-3, 2.5e-3, 5.2e-3, 2.7e-3),
        in_cache=0.9e-3,
        calls=Calls(1024, 5e-6, 2e-6, 6e-6, 3e-6, 6e-6),
        probes=probes("cpu", 1500e9, 900e9, 60e9, 57e9),
        work=[2.4e-3, 2.4e-3, 2.5e-3, 2.9e-3],
        rungs=[
            (134, 134, 300e-3),
            (134, 134, 6e-3),
            (134, 67.1, 2.6e-3),
            (67.1, 67.1, 2.5e-3),
            (67.1, 67.1, 2.4e-3),
        ],
        products=(0.02, 0.2, 0.95),
    ),
    Machine(
        "slow cpu",
        "cpu",
        *(5.0e-3, 5.1e-3, 105e-3, 52e-3),
        in_cache=50e-3,
        calls=Calls(1024, 5e-6, 3e-6, 40e-6, 20e-6, 12e-6),
        probes=probes("cpu", 11e9, 66e9, 19e9, 31e9),
        work=[5e-3, 7e-3, 16e-3, 60e-3],
        rungs=[
            (134, 67.1, 194e-3),
            (134, 67.1, 34.8e-3),
            (134, 67.1, 9.59e-3),
            (67.1, 67.1, 9.0e-3),
            (67.1, 67.1, 8.7e-3),
        ],
        products=(0.6, 0.6, 2.25),
    ),
    Machine(
        "noisy",
        "cpu",
        *(10e-3, 10.2e-3, 20.4e-3, 10.2e-3),
        in_cache=5e-3,
        calls=Calls(1024, 5e-6, 3e-6, 30e-6, 9e-6, 29e-6),
        probes=probes("cpu", 40e9, 60e9, 15e9, 13e9),
        work=[10e-3, 11e-3, 12e-3, 30e-3],
        rungs=[
            (134, 134, 20e-3),
            (134, 134, 20e-3),
            (134, 67.1, 10e-3),
            (67.1, 67.1, 10e-3),
            (67.1, 67.1, 10e-3),
        ],
        products=(0.02, 0.2, 0.95),
        noise=0.8,
    ),
]
EACH = pytest.mark.parametrize("on", MACHINES, ids=lambda on: on.name)
Claims = dict[str, bool]


def holds(text: str, claims: Claims) -> None:
    for said, proven in claims.items():
        assert (said in text) == proven, f"{said!r} {'' if proven else 'not '}proven by:\n{text}"


def quarter(a: float, b: float) -> bool:
    return 0.75 <= a / b <= 1.25


def tight(timing: Timing | Ratio) -> bool:
    return timing.high / timing.low <= 1.25


def test_the_noisy_machine_is_as_noisy_as_the_one_that_was_seen():
    gain = MACHINES[-1].measured.gain
    assert gain.low < 0.5
    assert gain.high > 6


# ---- the demo


@EACH
def test_outcome(on):
    m = on.measured
    text = demo.outcome(on.predicted, (m.separate, m.fused), m.gain, None)
    both = quarter(m.separate.median, on.predicted[0]) and quarter(m.fused.median, on.predicted[1])
    steady = tight(m.gain) and tight(m.separate) and tight(m.fused)
    holds(
        text,
        {
            "Counting bytes was enough": both and steady,
            "proves nothing either way": not tight(m.gain),
            "The ratio came as predicted, but the times did not": on.name == "slow cpu",
            "105 ms where 10.2 ms were predicted": on.name == "slow cpu",
        },
    )


@EACH
def test_small(on):
    calls = on.calls
    text = demo.small(calls, TWO, on.device)
    started = calls.separate_one / calls.separate >= 0.5
    woken = calls.separate_alone is not None and calls.separate_alone < 0.8 * calls.separate
    holds(
        text,
        {
            "Small work is about the number of calls": started,
            "waking other threads": not started and woken,
            "counts more than calls do": not started and not woken,
            "launches included": on.device == "cuda",
        },
    )


@EACH
def test_roof(on):
    m = on.measured
    text = demo.roof(m, TWO, on.in_cache)
    steady = tight(m.clone) and tight(m.fused)
    at_copy = m.fused.median <= 1.25 * m.clone.median
    holds(
        text,
        {
            "hides behind the memory": steady and at_copy,
            "memory alone is not what it waits for": steady and not at_copy,
            "the processor's instructions bind": on.name == "slow cpu",
            "so memory does not explain all of it": on.name == "slow cpu",
            "fusing lost": False,
        },
    )


@EACH
def test_bytes(on):
    m = on.measured
    fresh = m.clone.median >= 1.3 * m.copy.median and m.clone.low > m.copy.high
    holds(demo.bytes_moved(m, TWO, ONE), {"the price of fresh memory": fresh})
    assert "268 MB" in demo.bytes_moved(m, TWO, ONE)


def test_fresh_memory_has_a_price_where_it_was_measured():
    m = Measured(1 << 24, taken(31e-3), taken(18e-3), taken(2.4e-3), taken(6e-3))
    assert "3.60 ms is the price of fresh memory" in demo.bytes_moved(m, TWO, ONE)


def test_fusing_that_lost_is_said():
    m = Measured(1 << 24, taken(1e-3), taken(2e-3), taken(1e-3), taken(1e-3))
    assert "fusing lost" in demo.roof(m, TWO, None)


# ---- the machine


@EACH
def test_budget(on):
    free = on.probes.arithmetic * 8 / on.probes.copy
    holds(
        machine.budget(on.probes, 12),
        {
            "That is why fusing works": free >= 24,
            "It fits, barely": 12 <= free < 24,
            "takes longer than its bytes": free < 12,
        },
    )


@EACH
def test_hierarchy(on):
    ratio = on.probes.levels[0].bandwidth / on.probes.memory.bandwidth
    holds(machine.hierarchy(on.probes), {"hardly a difference": ratio < 1.5})
    assert rule.times(ratio) in machine.hierarchy(on.probes)


@EACH
def test_work(on):
    added, free = [0, 4, 16, 64], on.probes.operations_per_float
    timings = [taken(seconds, on.noise) for seconds in on.work]
    text = machine.work(added, timings, free)
    grown = next(
        (k for k, t in zip(added, timings, strict=True) if t.low > 1.5 * timings[0].low), 0
    )
    before = max([k for k in added if k < grown], default=0)
    at = timings[added.index(grown)]
    told = bool(grown) and 0.8 * before <= free <= 1.25 * grown and tight(at) and tight(timings[0])
    holds(
        text,
        {
            "hardly grew": not grown,
            "counting was enough": told,
            "scatter too much": bool(grown) and on.noise > 0.5,
        },
    )


# ---- the ladders


@EACH
def test_steps(on):
    climbed = on.climb
    pairs = zip(climbed.rungs, climbed.rungs[1:], strict=False)
    for (below, above), text in zip(pairs, ladder.steps(climbed), strict=True):
        gain = speedup(below.timing, above.timing)
        saved = below.ledger.from_memory / above.ledger.from_memory
        asked = below.ledger.bytes_moved / above.ledger.bytes_moved
        holds(
            text,
            {
                "as fast as": gain.low > 1 or tight(gain),
                "as long as": False,
                "about as fast as": gain.low <= 1 and tight(gain),
                "no clear difference": gain.low <= 1 and not tight(gain),
                "from memory instead of": saved > 1.05,
                "but a cache held the difference": saved <= 1.05 < asked,
                "are the time that it saves": (
                    saved > 1.05
                    and gain.low > 1
                    and all(
                        tight(c.timing) and quarter(c.seconds, c.predicted) for c in (below, above)
                    )
                ),
                "Not how much is moved": gain.low > 1 and gain.median >= 1.5 and saved <= 1.05,
                "not memory that the one below waited for": (
                    saved > 1.05 and gain.low <= 1 and tight(gain)
                ),
            },
        )


def test_a_rung_that_is_slower_is_said_to_be():
    made = MACHINES[1].climb.rungs
    (text,) = ladder.steps(Climb((made[4], made[1]), 1e10))
    assert "2.5× as long as megafuse.layer_norm" in text


@EACH
def test_predictions(on):
    climbed = on.climb
    text = ladder.predictions(climbed, on.device)
    told = text.partition(":")[2].partition(".")[0] if "to within a quarter, the" in text else ""
    named = [name.strip() for name in told.split(",")] if told else []
    for c in climbed.rungs:
        fits = tight(c.timing) and quarter(c.seconds, c.predicted)
        assert (c.rung.name in named) == (fits and "megafuse" not in c.rung.name) or (
            "megafuse" in c.rung.name
        ), text
        off = c.seconds / c.predicted
        if tight(c.timing) and off > 1.25:
            assert f"{c.rung.name} takes {rule.times(off)} its prediction" in text
    holds(
        text,
        {
            "of the 32 bytes that come from each it uses 4": on.device == "cuda",
            "Too scattered": on.noise > 0.5,
            "none of them": not any(
                tight(c.timing) and quarter(c.seconds, c.predicted) for c in climbed.rungs
            ),
        },
    )


@EACH
def test_top(on):
    climbed = on.climb
    last = climbed.rungs[-1]
    share = last.ledger.from_memory / last.seconds / climbed.roof
    steady = tight(last.timing)
    holds(
        ladder.top(climbed),
        {
            "is left to gain": steady and share >= 0.8,
            "its bytes explain": steady and share < 0.8,
            "these numbers do not say": steady and share < 0.8,
            "proves nothing": not steady,
        },
    )


# ---- products, errors, exercises


@EACH
def test_mistake(on):
    shares = [Ratio(p, p * (1 - on.noise), p * (1 + on.noise)) for p in on.products]
    naive, tiled, shipped = on.products
    steady = on.noise < 0.1
    holds(
        product.mistake(*shares),
        {
            "proves nothing": not steady,
            "looks perfect": steady and naive < 0.5,
            "no disaster": steady and naive >= 0.5,
            "do not make it faster": steady and tiled < 1.2 * naive,
            "the library has.": steady and tiled < 0.9,
            "not the same product": steady and shipped > 1.1,
            "it calls the library": steady and shipped <= 1.1,
        },
    )
    holds(
        product.advice(shares[1]),
        {
            "leave the product to the library": steady and tiled < 0.9,
            "shows nothing": not steady,
        },
    )
    assert "leave the product" not in product.advice(Ratio(2.25, 2.2, 2.3))


@pytest.mark.parametrize("most", [1.01, 1.6])
@pytest.mark.parametrize(
    "gain",
    [Ratio(2.85, 2.8, 2.9), Ratio(1.01, 0.99, 1.02), Ratio(1.5, 0.44, 6.86), Ratio(0.5, 0.4, 0.6)],
    ids=lambda gain: str(gain.median),
)
def test_worth(most, gain):
    beyond = gain.low > 1 and gain.median > 1.1 * most
    holds(
        product.worth("relu", most, gain, True),
        {
            "hardly anything to gain": most < 1.1 and not beyond and gain.high < 2 * gain.low,
            "the ceiling was none": beyond,
            "it lost": gain.high < 1,
            "about no difference": gain.median == 1.01,
            "no clear difference": gain.high > 2 * gain.low,
        },
    )
    assert "gained" not in product.worth("relu", most, gain, False)


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Ratio(2.0, 1.9, 2.1), "not by fusing"),
        (Ratio(1.0, 0.9, 1.1), "About the same"),
        (Ratio(0.5, 0.4, 0.6), "keep it"),
        (Ratio(1.5, 0.4, 3.0), "no clear difference"),
    ],
)
def test_already(gain, said):
    assert said in product.already(gain, True)
    assert "the same code" in product.already(gain, False)


@pytest.mark.parametrize(
    ("median", "spread", "said", "unsaid"),
    [
        (3.44, 0.01, "are the time", "than the bytes say"),  # the H200
        (1.9, 0.05, "less than the bytes say", "more than"),
        (6.0, 0.05, "more than the bytes say", "less than"),
        (0.7, 0.02, "does not pay", "bytes say"),
        (1.0, 0.05, "no difference", "bytes say"),
        (3.3, 0.6, "proves nothing", "are the time"),
    ],
)
def test_own_function(median, spread, said, unsaid):
    gain = Ratio(median, median * (1 - spread), median * (1 + spread))
    text = own_function.gained(3.3, gain, fuses=True)
    assert said in text
    assert unsaid not in text
    assert "at most" not in text, "3.44 times is more than 3.3"
    assert "no compiler" in own_function.gained(3.3, gain, fuses=False)


def test_product_by_hand():
    assert "reuse of each float" in product.product_by_hand(0.01)
    assert "gains little" in product.product_by_hand(0.8)


@pytest.mark.parametrize(
    ("differ", "theirs", "ours", "fused", "said"),
    [
        (0.5, 1e-6, 1e-6, True, "No: 50% of the floats differ"),
        (0.5, 1e-6, 1e-6, True, "errs no more than PyTorch's"),
        (0.5, 1e-6, 2e-6, True, "errs 2.0× as much"),
        (0.5, 1e-6, 1e-3, True, "please report"),
        (1e-4, 1e-6, 1e-6, True, "a few floats differ"),
        (0.0, 1e-6, 1e-6, True, "Here they are"),
        (0.0, 1e-6, 1e-6, False, "the same code"),
    ],
)
def test_bits(differ, theirs, ours, fused, said):
    assert said in rightness.bits(differ, theirs, ours, fused)


def test_orders():
    assert "all orders agree" in rightness.orders([1.0, 1.0], 1.0)
    assert "2 different results" in rightness.orders([1.0, 1.5, 1.0], 1.0)


@pytest.mark.parametrize(
    ("fused", "really", "said"),
    [
        (1e-3, True, "2.0× as accurate"),
        (2e-3, True, "about the same"),
        (4e-3, True, "worse"),
        (2e-3, False, "runs as two operations"),
    ],
)
def test_rounding(fused, really, said):
    assert said in rightness.rounding(2e-3, fused, really)


@pytest.mark.parametrize(("wrong", "passes"), [(0.035, True), (0.2, False)])
def test_too_lax(wrong, passes):
    holds(rightness.too_lax(wrong, 1e-6), {"let it pass": passes, "just catch it": not passes})


@pytest.mark.parametrize(("first", "said"), [(7e-6, "nearer to the truth"), (1e-6, "as much")])
def test_sums(first, said):
    rungs = MACHINES[0].climb.rungs
    bottom = Climbed(rungs[0].rung, rungs[0].ledger, 1.0, rungs[0].timing, first)
    assert said in ladder.sums(Climb((bottom, rungs[-1]), 1e10))


@EACH
def test_exercises(on):
    m = on.measured
    steady = tight(m.fused) and tight(m.clone)
    at_copy = m.fused.median <= 1.25 * m.clone.median
    holds(
        exercises.waits(m.fused, m.clone),
        {
            "it waits for memory": steady and at_copy,
            "for its arithmetic too": steady and not at_copy,
            "scatter": not steady,
        },
    )
    holds(exercises.share(m.fused, m.clone), {"scatter": not steady})
    holds(exercises.counted(2.0, m.gain), {"too scattered": not tight(m.gain)})


@pytest.mark.parametrize(
    ("guess", "said"), [(None, "12×"), (10, "well guessed"), (2, "more than"), (100, "less than")]
)
def test_guessed(guess, said):
    assert said in ladder.guessed(guess, 12.0)


@EACH
def test_a_chain_is_chosen_by_what_was_measured(on):
    m = on.measured
    assert machine.hidden(m.fused, m.copy) == (m.fused.low <= 1.5 * m.copy.low)
    assert machine.hidden(m.fused, m.copy) == (on.name != "slow cpu")
    if on.name == "slow cpu":
        assert "in one pass takes 51.2 ms" in machine.chain(m.fused, m.copy)


VERDICTS: list[Callable[[Machine], str]] = [
    lambda on: demo.outcome(
        on.predicted, (on.measured.separate, on.measured.fused), on.measured.gain, 3.0
    ),
    lambda on: demo.small(on.calls, TWO, on.device),
    lambda on: demo.roof(on.measured, TWO, on.in_cache),
    lambda on: " ".join(ladder.steps(on.climb)),
    lambda on: ladder.predictions(on.climb, on.device),
]


@EACH
@pytest.mark.parametrize("number", range(len(VERDICTS)))
def test_no_sentence_is_left_unfilled(on, number):
    text = VERDICTS[number](on)
    assert not any(word in text for word in ("{", "}", "None", "nan", "inf "))
    assert text.rstrip().endswith(".")


def test_bytes_that_are_the_time():
    """Both times as foretold, and half of the bytes: only then are bytes said to be the time."""
    below, above = MACHINES[1].climb.rungs[1:3]
    for seconds, said in ((2 * above.predicted, True), (4 * above.predicted, False)):
        slow = Climbed(below.rung, below.ledger, below.predicted, taken(seconds), 1e-6)
        fast = Climbed(above.rung, above.ledger, above.predicted, taken(seconds / 2), 1e-6)
        (text,) = ladder.steps(Climb((slow, fast), 1e10))
        holds(text, {"are the time that it saves": said, "2.0× as fast": True})
