"""mf.explain of a model tells the truth, and leaves no traces."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.nn import functional as F

import megafuse as mf
from compiler.blocks import WIDTH, Block
from compiler.placed import here
from megafuse.compiler import recorded
from megafuse.runtime import cpp, generated

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]
ROWS = 6


def blocks() -> nn.Module:
    return nn.Sequential(Block(), Block(), Block())


def nbytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def on_cpu() -> bool:
    return here().type == "cpu"


def test_a_call_is_explained_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "kernel", lambda *_: pytest.fail("a kernel is built"))
    model, x = blocks(), torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        found = mf.explain(model, x)
    (graph,) = found.graphs
    (shown,) = graph.passes
    assert shown.name == "inference"
    assert (found.kernels, found.library_calls) == (4, 3)
    assert found.bytes_moved == shown.bytes_moved > 0
    assert not found.breaks
    layers = graph.layers(shown)
    assert [layer.path for layer in layers] == ["0", "1", "2"]
    assert [layer.eager for layer in layers] == [4, 4, 4]  # norm, addmm, gelu, add
    norm, product, rest = layers[0].steps
    assert norm.modules == ("0.norm",)
    assert norm.bytes_read == nbytes(x, *model[0].norm.parameters())  # type: ignore[index, union-attr]
    assert norm.bytes_written == nbytes(x)
    assert product.name == ("aten.addmm.default" if on_cpu() else "product + bias")
    assert product.modules == ("0.up",)
    assert "matrix products" in product.reason
    assert rest.modules == ("0", "1.norm")  # the residual, and the next block's norm
    assert shown.eager is not None
    assert shown.eager.launches == 12


def test_what_it_says_fits_the_terminal() -> None:
    said = str(mf.explain(blocks(), torch.randn(ROWS, WIDTH)))
    assert max(map(len, said.splitlines())) <= 80
    for words in (
        "Sequential: 1 graph, 0 breaks",
        "graph 1, forward: 4 kernels + 3 library calls",
        "graph 1, backward:",
        "(eager: 12 operations",
        "0: 2 kernels + 1 library call (eager: 4 operations)",
        f"{'addmm' if on_cpu() else 'product + bias'} ×3: matrix products are the library's",
    ):
        assert words in said, words


def test_repeated_layers_are_named_once() -> None:
    model = nn.Sequential(*(Block() for _ in range(5)))
    with torch.no_grad():
        said = str(mf.explain(model, torch.randn(ROWS, WIDTH)))
    assert "2: as 1" in said
    assert "3: as 1" in said


class Noisy(nn.Module):
    """Training changes it, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        self.norm.extra = self.norm.running_mean  # type: ignore[assignment]
        return F.dropout(self.norm(x), 0.5, self.training)


def test_a_call_leaves_no_traces() -> None:
    model, x = Noisy(), torch.randn(ROWS, WIDTH)
    mean, before, given = model.norm.running_mean, model.state_dict(), x.clone()
    kept = {name: value.clone() for name, value in before.items()}
    random = torch.get_rng_state()
    found = mf.explain(model, x)
    assert {each.name for each in found.passes} == {"forward", "backward"}
    assert torch.equal(x, given)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.norm.running_mean is mean
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model._compiled_call_impl is None


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        torch._dynamo.graph_break()
        out: Tensor = self.second(h)
        return out


def test_graph_breaks_say_why_and_where() -> None:
    with torch.no_grad():
        found = mf.explain(Broken(), torch.randn(ROWS, WIDTH))
    assert len(found.graphs) == 2
    (ends,) = found.breaks
    assert ends.file == __file__
    assert ends.text.strip() == "torch._dynamo.graph_break()"
    assert "graph_break" in ends.reason
    first, second = (graph.layers(graph.passes[0])[0] for graph in found.graphs)
    assert first.path == "first.norm"
    assert second.path == "second.norm"
    said = str(found)
    assert "graph 1 ends in a graph break" in said
    assert max(map(len, said.splitlines())) <= 80


class Locked(nn.Module):
    """As models of transformers: prepares itself under a lock before its first operation."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.inner, self.lock, self.ready = Block(), lock, False

    def prepare(self) -> None:
        with self.lock:
            self.ready = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.prepare()
        out: Tensor = self.inner(x)
        return out


def test_a_break_before_the_first_graph() -> None:
    """It ends no graph, so none of them says so."""
    model = mf.optimize(nn.Sequential(Locked(threading.Lock())))
    x = torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        model(x)
    found = mf.explain(model)
    assert not any(graph.ends_in for graph in found.graphs)
    (ends,) = found.breaks
    assert "lock" in ends.reason
    assert (ends.file, ends.text) == (__file__, "with self.lock:")
    said = str(found)
    assert "1 break," in said
    assert "a graph break, before or between graphs: Unsupported context manager" in said
    assert max(len(line) for line in said.splitlines() if __file__ not in line) <= 80


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def test_a_graph_that_aot_autograd_cannot_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo then runs the function in Python, and captures what it calls."""
    usual = recorded.watched

    def watched(module: torch.fx.GraphModule, *rest: Any) -> Any:
        if len(module.graph.find_nodes(op="call_function", target=F.gelu)) > 1:
            raise UnsupportedOperatorException(torch.ops.aten.nonzero.default)
        return usual(module, *rest)

    monkeypatch.setattr(recorded, "watched", watched)
    with torch.no_grad():
        found = mf.explain(Pair(), torch.randn(ROWS, WIDTH))
    assert len(found.graphs) == 1  # of one block, which both run
    (ends,) = found.breaks
    assert "failed with aten.nonzero.default" in ends.reason
    assert ends.file == __file__


def test_an_optimized_model_tells_of_its_calls() -> None:
    model = mf.optimize(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    assert "has not been called yet" in str(mf.explain(model))
    model(torch.randn(2, 4, requires_grad=True))
    assert [each.name for each in mf.explain(model).passes] == ["forward", "backward"]
    with torch.no_grad():
        model(torch.randn(2, 4))
    assert len(mf.explain(model).graphs) == 2
    with pytest.raises(ValueError, match="is not optimized"):
        mf.explain(mf.deoptimize(model))


def test_a_pass_says_all_of_its_steps() -> None:
    with torch.no_grad():
        (shown,) = mf.explain(blocks(), torch.randn(ROWS, WIDTH)).passes
    said = str(shown)
    assert "one kernel, row by row" in said
    assert "stored between steps" in said
