"""megafuse.bench.accuracy: the errors are the ones that a hand computes, and wrong is wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from megafuse.bench import accuracy
from megafuse.bench.accuracy import in_float64, leaves, measure, wrong

NAN, INF = math.nan, math.inf


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- measure


def test_errors_by_hand():
    """Errors 0, 0.5, 1, 2 of results 1, 2, 4, 0: the last has no relative error."""
    found = measure([doubles(1.0, 2.5, 3.0, 2.0)], [doubles(1.0, 2.0, 4.0, 0.0)])
    assert found is not None
    assert found.max_abs == 2.0
    assert found.mean_abs == pytest.approx(3.5 / 4)
    assert found.max_rel == 0.25
    assert found.mean_rel == pytest.approx((0 + 0.25 + 0.25) / 3)
    assert found.exact == 0.25
    assert found.rel_percentiles == {"50": 0.25, "99": 0.25, "99.9": 0.25}


def test_errors_over_several_results():
    found = measure([doubles(1.0), doubles(9.0, 10.0, 12.0)], [doubles(2.0), doubles(9.0, 10, 10)])
    assert found is not None
    assert (found.max_abs, found.mean_abs) == (2.0, 0.75)
    assert found.max_rel == 0.5
    assert found.exact == 0.5


def test_percentiles_by_hand():
    """The relative errors are 0, 0.001, …, 0.999."""
    errors = torch.arange(1000, dtype=torch.float64) / 1000
    found = measure([1 + errors[torch.randperm(1000)]], [torch.ones(1000, dtype=torch.float64)])
    assert found is not None
    assert found.rel_percentiles == pytest.approx({"50": 0.5, "99": 0.99, "99.9": 0.999})


def test_pieces_are_as_large_as_one_thread_works_on():
    """2 threads that wait for each other thousands of times took 15 times as long on a machine that
    was busy with something else; torch splits what is larger."""
    pieces = [len(piece) for (piece,) in accuracy._pieces(torch.ones(3 << 15, 2))]
    assert sum(pieces) == 3 << 16
    assert max(pieces) <= 1 << 15


def test_a_large_result_is_sampled_for_its_percentiles(monkeypatch):
    """Every third of 100; its extremes are still of all of them."""
    monkeypatch.setattr(accuracy, "_RANKED", 40)
    got = torch.ones(100, dtype=torch.float64)
    got[::3] = 1.5
    got[1] = 9.0
    found = measure([got], [torch.ones(100, dtype=torch.float64)])
    assert found is not None
    assert found.rel_percentiles == {"50": 0.5, "99": 0.5, "99.9": 0.5}
    assert found.max_rel == 8.0
    assert found.mean_rel == pytest.approx((34 * 0.5 + 8) / 100)


def test_exact_is_after_rounding_to_the_dtype():
    exact = doubles(1 / 3, 2 / 3, 0.1)
    got = exact.to(torch.bfloat16)
    found = measure([got], [exact])
    assert found is not None
    assert found.exact == 1.0
    assert 0 < found.max_rel <= 2**-8
    got[0] = 0.5
    assert measure([got], [exact]).exact == pytest.approx(2 / 3)


def test_integers():
    got = torch.tensor([-128, 0, 5, 127], dtype=torch.int8)
    found = measure([got], [torch.tensor([-128, 0, 4, 127], dtype=torch.int8)])
    assert found is not None
    assert (found.max_abs, found.mean_abs, found.max_rel, found.exact) == (1.0, 0.25, 0.25, 0.75)


def test_booleans():
    found = measure([torch.tensor([True, False])], [torch.tensor([True, True])])
    assert found is not None
    assert (found.exact, found.max_abs) == (0.5, 1.0)


def test_nothing_to_measure():
    assert measure([], []) is None
    assert measure([torch.empty(0)], [torch.empty(0)]) is None
    found = measure([torch.empty(0), doubles(1.0)], [torch.empty(0), doubles(1.0)])
    assert found is not None
    assert found.exact == 1.0


def test_all_zeros_have_no_relative_error():
    found = measure([doubles(0.0, 0.5)], [doubles(0.0, 0.0)])
    assert found is not None
    assert (found.max_abs, found.max_rel, found.mean_rel) == (0.5, 0.0, 0.0)
    assert found.rel_percentiles == {"50": 0.0, "99": 0.0, "99.9": 0.0}


def test_nan_and_infinity_are_no_errors_but_can_be_exact():
    """A float32 that overflows is what float64 rounds to; NaN for NaN is right too."""
    got = torch.tensor([NAN, INF, -INF, 1.0, INF])
    found = measure([got], [doubles(NAN, INF, -1e300, 1.5, 3.0)])
    assert found is not None
    assert (found.max_abs, found.mean_abs) == (0.5, 0.5)
    assert found.exact == 3 / 5
    assert measure([torch.tensor([NAN])], [doubles(NAN)]) is None


def test_more_or_fewer_results_than_expected():
    with pytest.raises(ValueError, match=r"longer|shorter"):
        measure([doubles(1.0)], [])


# ---- wrong: what a result is


def test_right():
    x = torch.randn(100)
    assert wrong([x], [x], [x.double()]) is None
    assert wrong([x], [x], None) is None
    assert wrong([], [], []) is None
    assert wrong([torch.empty(0, 3)], [torch.empty(0, 3)], [torch.empty(0, 3)]) is None


@pytest.mark.parametrize(
    ("got", "says"),
    [
        ([], "returns 0 tensors, expected 1"),
        ([torch.ones(2, 3)] * 2, "returns 2 tensors, expected 1"),
        ([torch.ones(2, 3).half()], "wrong dtype: float16, expected float32"),
        ([torch.ones(3, 2)], "wrong shape: (3, 2), expected (2, 3)"),
        ([torch.ones(6)], "wrong shape: (6,), expected (2, 3)"),
        ([torch.ones(2, 3, device="meta")], "wrong device: meta, expected cpu"),
    ],
)
def test_another_kind_of_result(got, says):
    expected = [torch.ones(2, 3)]
    assert wrong(got, expected, [expected[0].double()]) == says
    assert wrong(got, expected, None, random=True) == says


def test_which_of_several_results_is_wrong():
    right = [torch.ones(4), torch.ones(4)]
    problem = wrong([torch.ones(4), torch.zeros(4)], right, [t.double() for t in right])
    assert str(problem).startswith("result 2: wrong result: 4 of 4 elements")


def test_an_empty_result_of_another_shape():
    assert "wrong shape" in str(wrong([torch.empty(0, 2)], [torch.empty(0, 3)], None))


# ---- wrong: floating point


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_an_error_that_assert_close_allows(dtype):
    relative, absolute = accuracy._TOLERANCE[dtype]
    exact = torch.full((5,), 3.0, dtype=torch.float64)
    eager = exact.to(dtype)
    torch.testing.assert_close((exact + 0.5 * (3 * relative + absolute)).to(dtype), eager)
    assert wrong([(exact + 0.5 * (3 * relative + absolute)).to(dtype)], [eager], [exact]) is None
    far = (exact + 4 * (3 * relative + absolute)).to(dtype)
    assert "5 of 5 elements are further from float64" in str(wrong([far], [eager], [exact]))


def test_four_times_the_error_of_eager():
    """Eager itself is off by 0.1 somewhere, so 0.4 is allowed and 0.41 is not."""
    exact = torch.ones(1000, dtype=torch.float64)
    eager = exact.float()
    eager[7] = 1.1
    got = eager.clone()
    got[3] = 0.61
    assert wrong([got], [eager], [exact]) is None
    got[4] = 1.41
    problem = str(wrong([got], [eager], [exact]))
    assert "1 of 1,000 elements" in problem
    assert "eager's worst error (0.1)" in problem
    assert "off by 0.41" in problem


def test_without_float64_eager_is_the_measure():
    eager = torch.ones(10)
    assert wrong([eager + 5e-6], [eager], None) is None
    assert "10 of 10 elements" in str(wrong([eager + 5e-5], [eager], None))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_not_finite_where_eager_is(value):
    eager = torch.ones(10)
    got = eager.clone()
    got[4] = value
    problem = str(wrong([got], [eager], [eager.double()]))
    assert "1 of 10 elements" in problem
    assert str(value) in problem


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_finite_where_eager_is_not(value):
    eager = torch.ones(10)
    eager[4] = value
    assert wrong([eager.clone()], [eager], [eager.double()]) is None
    assert "1 of 10 elements" in str(wrong([torch.ones(10)], [eager], [eager.double()]))
    other = eager.clone()
    other[4] = INF if value != INF else -INF
    assert wrong([other], [eager], [eager.double()]) is not None


def test_finite_where_only_eager_overflows():
    """exp(x)/exp(x): eager gives NaN for a large x, float64 does not, and a kernel need not."""
    eager = torch.tensor([NAN, 1.0])
    assert wrong([torch.tensor([1.0, 1.0])], [eager], [doubles(1.0, 1.0)]) is None
    assert wrong([eager.clone()], [eager], [doubles(1.0, 1.0)]) is None
    assert wrong([torch.tensor([2.0, 1.0])], [eager], [doubles(1.0, 1.0)]) is not None


# ---- wrong: integers


def integers(n: int, off: int = 0, by: int = 1) -> tuple[Tensor, Tensor]:
    expected = torch.randint(-100, 100, (n,), dtype=torch.int8)
    got = expected.clone()
    got[:off] += by
    return got, expected


def test_one_integer_in_a_thousand_may_be_off_by_one():
    got, expected = integers(2000, off=2)
    assert wrong([got], [expected], None) is None
    got, expected = integers(2000, off=3)
    assert "3 of 2,000 elements are off by 1" in str(wrong([got], [expected], None))


def test_no_integer_may_be_off_by_two():
    got, expected = integers(100_000, off=1, by=2)
    assert "1 of 100,000 elements are off by up to 2" in str(wrong([got], [expected], None))


def test_integers_may_be_those_of_float64():
    """torch.compile keeps more digits than eager does on the way from bfloat16."""
    got, eager = integers(2000, off=500)
    assert accuracy.wrong([got], [eager], [got.clone()]) is None
    assert "off by 1" in str(accuracy.wrong([got], [eager], [eager.clone()]))


def test_integers_that_wrap():
    """127 and −128 are 255 apart, not 1."""
    got, expected = (torch.full((10_000,), n, dtype=torch.int8) for n in (127, -128))
    assert "off by up to 255" in str(wrong([got], [expected], None))


def test_booleans_may_differ_as_rarely():
    expected = torch.ones(1000, dtype=torch.bool)
    got = expected.clone()
    got[0] = False
    assert wrong([got], [expected], None) is None
    got[1] = False
    assert "2 of 1,000" in str(wrong([got], [expected], None))


def test_complex_numbers_are_two_numbers_each():
    expected = torch.randn(100, dtype=torch.complex64)
    exact = expected.to(torch.complex128)
    assert wrong([expected.clone()], [expected], [exact]) is None
    assert "100 of 200 elements" in str(wrong([expected + 0.01j], [expected], [exact]))
    assert "100 of 200 elements" in str(wrong([expected.conj()], [expected], [exact]))
    found = measure([expected + 4j], [exact])
    assert found is not None
    assert found.max_abs == pytest.approx(4.0, rel=1e-5)
    assert found.exact == 0.5


# ---- wrong: random


def test_the_same_distribution():
    a, b = (nn.functional.dropout(torch.ones(100_000), 0.3) for _ in range(2))
    assert wrong([a], [b], None, random=True) is None


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.ones(100_000), "mean square"),  # does not drop anything
        (lambda: nn.functional.dropout(torch.ones(100_000), 0.3) * 0.7, "mean"),  # no rescaling
        (lambda: nn.functional.dropout(torch.ones(100_000), 0.5), "mean square"),
        (lambda: torch.zeros(100_000), "mean"),
        (lambda: torch.full((100_000,), NAN), "mean"),
    ],
)
def test_another_distribution(make, what):
    expected = nn.functional.dropout(torch.ones(100_000), 0.3)
    assert f"its {what} is" in str(wrong([make()], [expected], None, random=True))


def test_a_mean_that_is_off_by_a_twentieth():
    """Of a hundred thousand numbers the mean is known to 0.003."""
    noise = torch.randn(100_000)
    problem = wrong([torch.randn(100_000) + 0.05], [noise], None, random=True)
    assert "its mean is" in str(problem)


def test_a_few_random_numbers_tell_nothing():
    """A loss after dropout is one number: another one is no sign of a mistake."""
    assert wrong([torch.tensor(1.0)], [torch.tensor(2.0)], None, random=True) is None
    assert wrong([torch.zeros(3)], [torch.full((3,), 2.0)], None, random=True) is None


# ---- float64


def test_float64_is_of_the_same_values():
    x = torch.randn(10, requires_grad=True)
    indices = torch.tensor([1, 2])

    def function(t: Tensor, where: Tensor, factor: float) -> dict[str, Tensor]:
        assert where.dtype == torch.int64
        return {"a": t[where] * factor, "b": t}

    picked, whole = in_float64(function, [x, indices, 2.0])
    assert picked.dtype == whole.dtype == torch.float64
    assert torch.equal(whole, x.double())
    assert whole.requires_grad
    assert x.dtype == torch.float32


def test_casts_do_not_round_in_float64() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.exp(x.bfloat16().float() / 3).to(torch.float16)

    x = torch.randn(1000)
    (exact,) = in_float64(function, [x])
    assert exact.dtype == torch.float64
    assert torch.equal(exact, torch.exp(x.double() / 3))


def test_a_module_is_widened_and_left_alone():
    module = nn.Linear(4, 4)
    wide = accuracy.widened(module)
    assert wide.weight.dtype == torch.float64
    assert module.weight.dtype == torch.float32
    assert accuracy.widened(torch.exp) is torch.exp


def test_leaves():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    found = leaves((a, [b, None, 3.0], {"c": c, "d": "text"}))
    assert [t.numel() for t in found] == [1, 2, 3]
    assert leaves(None) == []
