"""No C++ compiler: one warning, and the reference runs, with the same checks and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.cases import ONE_EACH
from contract.processes import environment, run


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    nothing = tmp_path / "empty"
    nothing.mkdir()
    return environment(tmp_path / "cache", PATH=str(nothing), CXX=None, CC=None)


CALLS = """
import sys
from megafuse.registry.sample import Draw
def dims(op): return max(sum(map(str.isupper, op.arguments[0].shape)), 2)
for op in mf.OPS.values():
    torch.manual_seed(1)
    args = op.sample(Draw((2, 2, 4, 6)[-dims(op) :], requires_grad=True))
    for call in (op.fused, op._namespace["traced"]):
        torch.manual_seed(2)
        got = call(*args)
        torch.manual_seed(2)
        expected = op.reference(*args)
        assert all(map(torch.equal, op.listed(got), op.listed(expected))), op.name
        if op.grads:
            inputs = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
            ours, theirs = (
                torch.autograd.grad(sum(t.sum() for t in op.listed(out)), inputs)
                for out in (got, expected)
            )
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs)), op.name
print(len(mf.OPS))
"""


def test_one_warning_and_right_results(env: dict[str, str]) -> None:
    out, err = run(CALLS, env)
    assert int(out) == len(ONE_EACH)
    warnings = [line for line in err.splitlines() if "no C++ compiler" in line]
    assert len(warnings) == 1, err
    assert "CXX" in warnings[0]


COMPILED = """
for name, args in [("gelu_scale", (1.7,)), ("swiglu", (x,)), ("bias_act", (x, "silu"))]:
    fused, reference = getattr(mf, name), getattr(mf.reference, name)
    model = torch.compile(lambda t: fused(t, *args) + 1, fullgraph=True, backend="aot_eager")
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = model(a), reference(b, *args) + 1
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
print("right")
"""


def test_compile(env: dict[str, str]) -> None:
    assert run(COMPILED, env)[0] == "right\n"


BAD = """
for bad in (None, 1.0, torch.ones(3, dtype=torch.int32), "x"):
    try:
        mf.swiglu(bad, x)
    except TypeError as error:
        assert "megafuse.swiglu: argument 'gate' must be a Tensor" in str(error), error
    else:
        raise AssertionError("no error")
try:
    mf.swiglu(x, x[:7])
except ValueError as error:
    assert "must broadcast" in str(error)
print("right")
"""


def test_bad_input_gets_the_same_words(env: dict[str, str]) -> None:
    assert run(BAD, env)[0] == "right\n"
