"""What is observed of small calls on a CPU: operations with lines, bytes, FLOPs and values."""

from __future__ import annotations

import _thread
import inspect
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.bench.timing import Timing
from megafuse.diagnose import observe, roofs, timeline
from megafuse.diagnose.keep import Keep
from megafuse.diagnose.observe import observed
from megafuse.diagnose.record import Operation, Record
from megafuse.diagnose.subject import subject
from megafuse.diagnose.watch import Watch

ROWS, WIDTH = 256, 512


def record(function: Any, *args: Any, mode: str = "forward") -> Record:
    what = subject(function, args, {}, mode)
    keep = Keep(function, args)
    try:
        return observed(what, keep, 20.0)[0]
    finally:
        keep.restore()


def work(found: Record) -> list[Operation]:
    return [op for op in found.operations if op.kind != "view"]


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def gated(x: Tensor, y: Tensor) -> Tensor:
    gate = torch.sigmoid(y)
    return x * gate


def test_operations_have_lines_bytes_and_values() -> None:
    x, y = torch.randn(2, ROWS, WIDTH)
    sigmoid, mul = work(record(gated, x, y))
    assert (sigmoid.name, mul.name) == ("aten.sigmoid.default", "aten.mul.Tensor")
    assert (sigmoid.kind, mul.kind) == ("pointwise", "pointwise")
    assert sigmoid.where.line == line_of(gated, "sigmoid")
    assert mul.where.line == line_of(gated, "x * gate")
    assert mul.where.text == "return x * gate"
    assert mul.where.file == __file__
    assert sigmoid.bytes_moved == 2 * x.nbytes
    assert mul.bytes_moved == 3 * x.nbytes
    assert sigmoid.writes[0].value in {t.value for t in mul.reads}
    assert mul.reads[0].outside
    assert not mul.reads[1].outside


def test_a_thread_with_no_python_below_may_call() -> None:
    """As autograd's thread for a GPU does: there is no frame that the operation was called from."""
    watch, x = Watch(None), torch.ones(4)
    _thread.start_new_thread(watch.__torch_dispatch__, (torch.ops.aten.neg.default, (), (x,)))
    begun = time.perf_counter()
    while not watch.operations and time.perf_counter() - begun < 30:
        time.sleep(0.01)
    assert [op.name for op in watch.operations] == ["aten.neg.default"]


def test_times_add_up() -> None:
    x, y = torch.randn(2, 2048, 2048)
    found = record(gated, x, y)
    assert 0.3 * found.seconds < found.busy <= found.seconds * 1.0001
    assert found.low <= found.seconds <= found.high
    assert found.calls >= 3
    starts = [op.host_start for op in found.operations]
    assert starts == sorted(starts)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return F.gelu(h)


def test_what_the_profiler_slows_is_measured_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPTI stays in the process. On an H200 200 launches took 1.25 ms before and 1.75 ms after."""
    order: list[str] = []

    def noting(name: str, function: Any) -> Any:
        def noted(*args: Any, **settings: Any) -> Any:
            order.append(name)
            return function(*args, **settings)

        return noted

    monkeypatch.setattr(roofs, "machine", noting("roofs", lambda device: None))
    monkeypatch.setattr(observe, "_host", noting("host", observe._host))
    monkeypatch.setattr(timeline, "profiled", noting("profiler", timeline.profiled))
    record(gated, *torch.randn(2, ROWS, WIDTH))
    assert order[:3] == ["host", "roofs", "profiler"]


def test_the_host_is_not_busier_than_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """optimizer_loop on an H200: 15.5 ms of 12.4."""
    host, call = (Timing.of([s]) for s in (15.5e-3, 12.4e-3))
    monkeypatch.setattr(observe, "compare", lambda *_, **__: {"": host})
    what = replace(subject(gated, (), {}, "forward"), device="cuda")
    assert observe._host(what, call) == 12.4e-3


def test_a_product_has_its_flops_and_its_line() -> None:
    with torch.no_grad():
        found = record(Net(), torch.randn(ROWS, WIDTH))
    product = next(op for op in work(found) if op.kind == "product")
    assert product.flops == 2 * ROWS * WIDTH * WIDTH
    assert product.where.line == line_of(Net.forward, "self.first")
    assert product.where.function.endswith("forward")


def test_the_backward_belongs_to_the_forwards_lines() -> None:
    found = record(Net(), torch.randn(ROWS, WIDTH), mode="backward")
    assert found.mode == "forward+backward"
    backward = [op for op in work(found) if op.phase == "backward"]
    gelu = next(op for op in backward if "gelu_backward" in op.name)
    products = [op for op in backward if op.kind == "product"]
    assert gelu.where.line == line_of(Net.forward, "F.gelu")
    assert products
    assert {op.where.line for op in products} == {line_of(Net.forward, "self.first")}


def test_torchs_own_modules_name_their_layer() -> None:
    found = record(nn.Sequential(nn.LayerNorm(WIDTH)), torch.randn(ROWS, WIDTH))
    (norm,) = (op for op in work(found) if "layer_norm" in op.name)
    assert norm.where.file.endswith("normalization.py")


def test_writing_makes_another_value() -> None:
    def twice(x: Tensor) -> Tensor:
        y = torch.exp(x)
        y.add_(1)
        return y * 2

    _, add, mul = work(record(twice, torch.randn(ROWS)))
    assert add.reads[0].storage == add.writes[0].storage
    assert add.reads[0].value != add.writes[0].value == mul.reads[0].value


def test_memory_that_is_used_again_is_another_tensor() -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(6):
            x = x + 1
        return x

    writes = [op.writes[0].storage for op in work(record(chain, torch.randn(ROWS, WIDTH)))]
    assert len(set(writes)) == 6


def test_an_embedding_reads_its_rows_not_its_table() -> None:
    table = nn.Embedding(50_000, 64)
    (op,) = work(record(lambda ids: table(ids), torch.arange(128)))
    assert op.bytes_moved == 2 * 128 * 64 * 4 + 128 * 8


def test_optimizers_have_their_phase() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    phases = {op.phase for op in work(record(step))}
    assert phases == {"forward", "backward", "optimizer"}


def test_autocast_is_seen() -> None:
    layer = nn.Linear(64, 64).requires_grad_(False)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = layer(torch.ones(4, 64))
        return out

    casts = [op for op in work(record(step)) if op.name == "aten._to_copy.default"]
    assert casts
    assert all(op.autocast for op in casts)


def test_a_compiled_call_is_seen_as_such() -> None:
    compiled = torch.compile(gated, backend="aot_eager")
    found = record(compiled, *torch.randn(2, 8, 8))
    assert found.compiled
    assert found.recompiled == 0


def test_what_is_compiled_inside_a_call_has_the_flops_and_bytes_of_its_library_calls() -> None:
    def products(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        first = torch.addmm(bias, x, w).relu()
        q = (first @ w).view(2, 8, 4, 16).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    compiled = torch.compile(products, backend="aot_eager")

    def step(*args: Tensor) -> Tensor:
        return compiled(*args)

    with torch.no_grad():
        found = record(step, torch.randn(16, 64), torch.randn(64, 64), torch.randn(64))
    assert found.compiled
    flops = {op.short: op.flops for op in found.operations if op.flops}
    attention = flops.pop("_scaled_dot_product_flash_attention_for_cpu")
    assert attention == 4 * (2 * 4 * 8 * 16) * 8
    assert flops == {"addmm": 2 * 16 * 64 * 64, "mm": 2 * 16 * 64 * 64}
    product = next(op for op in found.operations if op.short == "mm")
    assert product.bytes_moved >= 4 * (16 * 64 + 64 * 64)
