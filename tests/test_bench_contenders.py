"""megafuse.bench.contenders: found by name, each what its name says."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from megafuse.bench import contenders
from megafuse.bench.contenders import Contender, Unknown, compiled, load, of_function, of_op
from megafuse.bench.spec import shape_of
from megafuse.ops import OPS
from megafuse.registry.sample import Draw
from megafuse.runtime import build

OP = OPS["gelu_scale"]


def double(x: Tensor) -> Tensor:
    return x + x


class Doubling:
    def __call__(self, x: Tensor) -> Tensor:
        return x + x


def names(found: list[Contender]) -> list[str]:
    return [c.name for c in found]


# ---- by name


def test_an_op_stands_first():
    found = of_op(OP, "cpu", ["eager", "compile", "compile-max", "compile-graphs"])
    assert names(found) == ["fused", "eager", "compile", "compile-max", "compile-graphs"]
    assert all(c.about for c in found)
    x = torch.randn(100)
    expected = OP.reference(x, 1.7)
    for contender in found[:2]:
        torch.testing.assert_close(contender.make()(x, 1.7), expected)
    assert found[0].make() is OP.fused
    assert found[1].make() is OP.reference


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_compile_gets_the_whole_op(name):
    """A reference that Dynamo cannot trace in one piece would make torch.compile look slow."""
    op = OPS[name]
    args = op.sample(Draw(shape_of(4096, op)))
    whole = torch.compile(op.reference, backend="eager", fullgraph=True, dynamic=False)
    results = op.listed(whole(*args))
    assert [t.shape for t in results] == [t.shape for t in op.listed(op.reference(*args))]
    torch._dynamo.reset()


def test_a_function_stands_first():
    found = of_function(double, ["eager"])
    assert names(found) == ["double", "eager"]
    assert found[0].make() is double
    assert found[1].make() is double


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("compile", None),
        ("compile-max", "max-autotune-no-cudagraphs"),
        ("compile-graphs", "max-autotune"),
    ],
)
def test_the_modes_of_compile(monkeypatch, name, mode):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: asked.append(how) or function)
    contender = of_function(double, [name])[1]
    assert asked == [], "it was compiled before anybody wanted it"
    contender.make()
    assert asked == [{"dynamic": False, "mode": mode}]
    assert contender.replays_graph == (name == "compile-graphs" and torch.cuda.is_available())


@pytest.mark.slow
def test_compile_gives_the_same_result():
    x = torch.randn(1000)
    made = of_op(OP, "cpu", ["compile"])[1].make()
    torch.testing.assert_close(made(x, 1.7, "tanh"), OP.reference(x, 1.7, "tanh"))


def test_callables():
    module = nn.Linear(2, 2)
    found = of_function(double, [torch.exp, Doubling(), module, lambda x: x])
    assert names(found) == ["double", "exp", "Doubling", "Linear", "<lambda>"]
    assert found[3].make() is module


def test_module_and_function():
    (_, found) = of_op(OP, "cpu", ["torch.nn.functional:silu"])
    assert found.name == "silu"
    assert found.about == "torch.nn.functional:silu"
    assert found.make() is nn.functional.silu
    assert load("torch:Tensor.exp") is Tensor.exp


def test_file_and_function(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Times:\n"
        "    factor: float\n"
        "    def __call__(self, x): return x * self.factor\n"
        "twice, thrice = Times(2.0), Times(3.0)\n"
    )
    (tmp_path / "other.py").write_text("def twice(x): return x * 4\n")
    found = of_op(OP, "cpu", [f"{tmp_path}/mine.py:twice", f"{tmp_path}/other.py:twice"])
    assert names(found) == ["fused", "twice", "twice-2"]
    assert [c.make()(1.0) for c in found[1:]] == [2.0, 4.0]


@pytest.mark.parametrize("names_", [["eager", "eager"], [double, Doubling().__call__, double]])
def test_names_are_told_apart(names_):
    """Samples are kept by name: two of one name would be timed as one."""
    found = names(of_function(double, names_))
    assert len(set(found)) == len(found)
    assert found[0] == "double"


def test_a_contender_is_not_taken_for_a_yardstick():
    """A row of an op has a copy of its own beside it."""
    found = of_op(OP, "cpu", ["copy:copy", "torch:clone"])
    assert names(found) == ["fused", "copy-2", "clone"]


# ---- not found


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("eagre", "there is no contender 'eagre': did you mean eager? There are eager, compile"),
        ("", "there is no contender ''"),
        ("no_such_module:f", "no_such_module:f: ModuleNotFoundError: No module named"),
        ("torch:no_such_function", "torch:no_such_function: AttributeError"),
        ("torch:", "torch:"),
        (":f", ":f"),
        ("torch:float32", "torch:float32 is a dtype, not a function"),
        ("no_such_file.py:f", "No such file"),
    ],
)
def test_unknown_names(name, says):
    with pytest.raises(Unknown) as unknown:
        of_op(OP, "cpu", [name])
    assert says in str(unknown.value)


@pytest.mark.parametrize("text", ["def f(:", "1 / 0", "import no_such_module", "raise SystemError"])
def test_a_file_that_does_not_run(tmp_path: Path, text):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(Unknown, match=r"bad\.py:f: [A-Z]"):
        load(f"{tmp_path}/bad.py:f")


def test_liger_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unknown, match="liger: not installed"):
        of_op(OPS["swiglu"], "cpu", ["liger"])
    assert contenders.installed_others("swiglu") == []


def test_liger_is_installed(monkeypatch):
    spec = importlib.machinery.ModuleSpec("liger_kernel", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert contenders.installed_others("swiglu") == ["liger"]
    assert contenders.installed_others("gelu_scale") == []
    with pytest.raises(Unknown, match="liger: has nothing like gelu_scale"):
        of_op(OP, "cpu", ["liger"])
    assert names(of_op(OPS["swiglu"], "cpu", ["liger"])) == ["fused", "liger"]


# ---- no compiler


@pytest.mark.parametrize("missing", ["runtime", "device"])
def test_without_a_compiler_it_is_called_the_reference(monkeypatch, missing):
    if missing == "runtime":
        monkeypatch.setattr(contenders, "activate", lambda: False)
    else:
        monkeypatch.setattr(build, "available", lambda device: False)
    first = of_op(OP, "cpu", ["eager"])[0]
    assert first.name == "reference"
    assert "without a compiler" in first.about


# ---- compile, many times


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """torch.compile that compiles nothing, and counts how often it should have."""
    graphs: list[torch.fx.GraphModule] = []
    real = torch.compile

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def fake(function: object, *, dynamic: bool, mode: str | None) -> object:
        return real(function, dynamic=dynamic, backend=backend)

    monkeypatch.setattr(torch, "compile", fake)
    return graphs


def test_many_shapes_of_one_function_are_all_compiled(counting):
    """Dynamo gives up on a code object after 8 shapes, and then runs it eagerly."""
    factor = 2.0

    def scaled(x: Tensor, more: float = 1.0, *, most: float = 1.0) -> Tensor:
        return x * (factor * more * most)

    for n in range(1, 13):
        made = compiled(scaled)
        for _ in range(2):
            assert torch.equal(made(torch.ones(n), 3.0), torch.full((n,), 6.0))
        assert len(counting) == n, "this shape ran eagerly, or was compiled twice"


def test_each_copy_has_its_own_cache(counting):
    """Else a call would first search what was compiled for the other rows."""
    first, second = compiled(double), compiled(double)
    x = torch.ones(3)
    for made in (first, second, first, second):
        made(x)
    assert len(counting) == 2
    double(x)
    assert len(counting) == 2


def test_defaults_survive(counting):
    def function(x: Tensor, a: float = 2.0, *, b: float = 3.0) -> Tensor:
        return x * a * b

    assert torch.equal(compiled(function)(torch.ones(2)), torch.full((2,), 6.0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.Linear(4, 4), torch.exp, Doubling(), Doubling().__call__])
def test_many_shapes_of_what_is_no_plain_function(counting, kind):
    """As several calls of mf.bench on the same module have them."""
    for n in range(1, 13):
        x = torch.ones(n, 4)
        torch.testing.assert_close(compiled(kind)(x), kind(x))
        assert len(counting) == n


def test_a_compiled_module_has_its_parameters(counting):
    module = nn.Linear(4, 4)
    made = compiled(module)
    assert [p is q for p, q in zip(made.parameters(), module.parameters(), strict=True)] == [
        True
    ] * 2
