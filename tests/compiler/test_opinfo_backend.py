"""Some of torch's own samples through the backend; opinfo.py has all of them, and the rule."""

from __future__ import annotations

import warnings

import pytest

from compiler.opinfo import judged, operators
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("anew"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]

EVERY = 16


@pytest.mark.parametrize("name", operators()[::EVERY])
def test_operator(name: str, device: str) -> None:
    warnings.simplefilter("ignore")
    for verdict, why in judged(name, device):
        assert verdict in ("right", "refused"), why


def test_what_has_effects_runs_unfused() -> None:
    """torch checks values in the backward: an operation around an operation, which is no ATen's;
    up to 2.11 one without the check."""
    warnings.simplefilter("ignore")
    found = list(judged("linalg.eigvals"))
    assert {verdict for verdict, _ in found} == {"refused"}
    reasons = ("with_effects", "would not check what it is given")
    assert all(any(reason in why for reason in reasons) for _, why in found)


def test_sizes_alone_are_no_graph() -> None:
    assert {verdict for verdict, _ in judged("broadcast_shapes")} <= {"right"}
