"""A wrong result in words: where it is wrong, and how."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megafuse.learn.exercises import patterns, tensors

EXACT = torch.linspace(1, 2, 96, dtype=torch.float64).reshape(8, 12)


def says(result: Tensor, exact: Tensor = EXACT) -> str:
    found = tensors.close("here", result.float(), exact, torch.float32, 1e-5, "The task.")
    assert found.ok is False
    assert found.says.endswith("The task.")
    return found.says.removesuffix("The task.").strip()


def changed(where: object, value: object) -> Tensor:
    result = EXACT.float()
    result[where] = value
    return result


UNWRITTEN = patterns.blank(1)[0]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (changed(3, UNWRITTEN), "Never written: row 3 of 0 to 7. The others are right."),
        (
            changed((slice(None), slice(0, None, 2)), UNWRITTEN),
            "Never written: every 2nd column, 0, 2, … of 0 to 11. The others are right.",
        ),
        (patterns.blank(8, 12), "Never written: all of it."),
        (
            changed((slice(2, None), 1), 7.0),
            "Wrong: 6 of 96 elements, the first at [2, 1]. The others are right.",
        ),
        (
            changed((0, 0), torch.nan),
            "Wrong: 1 of 96 elements, the first at [0, 0]. The others are "
            "right. nan comes out of 0 / 0, inf - inf and inf / inf.",
        ),
        (changed(1, 0.0), "Wrong: row 1 of 0 to 7. The others are right. They are 0."),
        (torch.where(EXACT > 1.05, EXACT**2, EXACT), "Hardly any element is right."),
        (2 * EXACT, "No element is right. Each is 2 times what it should be."),
        (
            1.00005 * EXACT,
            "No element is right. Each is right in its first digits, and not in the last.",
        ),
        (EXACT - 0.5, "No element is right. Each is too small by 0.5."),
        (EXACT.flip(0), "No element is right. The values are right, but stand in other places."),
    ],
)
def test_where_and_how(result, told):
    assert says(result) == told


def test_a_stretch_and_every_fourth():
    exact = torch.linspace(1, 2, 512, dtype=torch.float64)
    short, fourth = exact.float(), exact.float()
    short[384:] = UNWRITTEN
    fourth[1::4] = 0
    assert says(short, exact).startswith("Never written: elements 384 to 511 of 0 to 511.")
    assert says(fourth, exact).startswith("Wrong: every 4th element, 1, 5, … of 0 to 511.")


@pytest.mark.parametrize("width", [8, 33])  # of the larger one hardly any element is right
def test_rows_and_columns_changed_places(width):
    exact = torch.linspace(1, 2, width * width, dtype=torch.float64).reshape(width, width)
    assert "rows and columns have changed places" in says(exact.t(), exact)


def test_a_known_mistake_is_called_by_its_name():
    known = [("Squared.", EXACT**2), ("Doubled.", 2 * EXACT)]
    found = tensors.close("", (2 * EXACT).float(), EXACT, torch.float32, 1e-5, "The task.", known)
    assert found.says == "Doubled.\n\nThe task."


def test_one_number_has_no_pattern():
    assert says(torch.ones(1), torch.zeros(1, dtype=torch.float64)) == ""


def test_a_factor_holds_for_all_of_them():
    """Where the right ones are 0, a quotient says nothing: these are not 0 times anything."""
    exact = torch.linspace(-1, 1, 96, dtype=torch.float64).clamp(min=0)
    told = says(torch.linspace(-1, 1, 96).clamp(max=0), exact)
    assert "times" not in told
