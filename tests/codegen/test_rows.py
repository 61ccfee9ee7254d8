"""Generated row-wise functors: chains of reductions, rows of every length, special values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from codegen.bodies import DTYPES, NAMES, cast, load, number, op, over_row, written
from codegen.judging import check
from codegen.row_bodies import CASES, result
from codegen.running import Index, run
from megafuse.codegen.body import Body, Fetched
from megafuse.codegen.functor import functor_text
from megafuse.codegen.generated import generated, source
from megafuse.codegen.row_launch import GpuRow, row_launch
from megafuse.codegen.row_phases import Phases
from megafuse.codegen.variant import Operand
from megafuse.runtime import nvrtc, sources

# Each body is a kernel to compile; tests/compiler runs rows through fuse.
pytestmark = pytest.mark.slow

needs_nvrtc = pytest.mark.skipif(nvrtc.problem() is not None, reason=str(nvrtc.problem()))
FLOATS = ("Float", "Double", "Half", "BFloat16")
COLUMNS = [1, 2, 7, 8, 31, 33, 64, 100, 255, 256, 257, 511, 1000, 2049, 4096, 5003, 100_003]


def drawn(name: str, dtype: str, rows: int, cols: int) -> list[Tensor]:
    torch.manual_seed(rows * cols)
    kinds = CASES[name].inputs
    shapes = [(rows, cols) if kind == "r" else (cols,) for kind in kinds]
    return [torch.randn(shape, dtype=torch.float64).to(DTYPES[dtype]) for shape in shapes]


def compare(name: str, dtype: str, inputs: list[Tensor], short: bool | None = None) -> None:
    case = CASES[name]
    shape = inputs[0].shape
    results = run(case.body(dtype), inputs, shape, [float(shape[-1])], parts=2, short=short)
    eager = case.eager(*inputs)
    exact = case.eager(*(t.double() for t in inputs))
    for i, got in enumerate(results):
        if got.dtype == torch.bool:
            assert (got != eager[i]).double().mean() < 0.01
            continue
        size = exact[i][exact[i].isfinite()].square().mean().sqrt().item() if shape[-1] else 0
        few = 32.0 if dtype == "Double" else 8.0
        theirs = eager[i].to(got.dtype)
        # A mean of numbers around 0 is as good as the numbers are.
        least = size / 8 if got.shape == shape else max(size / 8, 1 / 16)
        check(f"{name} of {dtype}, result {i}", got, theirs, exact[i], few, least)


@pytest.mark.parametrize("cols", COLUMNS)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_every_length(name: str, cols: int) -> None:
    compare(name, "Float", drawn(name, "Float", 5 if cols < 10_000 else 2, cols))


@pytest.mark.parametrize("name", CASES)
def test_short_rows_one_by_one_and_side_by_side(name: str) -> None:
    for rows in (1, 31, 70):
        for cols in (1, 3, 8, 29, 63):
            inputs = drawn(name, "Float", rows, cols)
            compare(name, "Float", inputs, short=False)
            compare(name, "Float", inputs, short=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_every_dtype(name: str, dtype: str) -> None:
    for cols in (3, 200, 1337):
        compare(name, dtype, drawn(name, dtype, 9, cols))


@pytest.mark.parametrize("dtype", ["Float", "BFloat16"])
@pytest.mark.parametrize("name", CASES)
def test_special_values_stay_in_their_row(name: str, dtype: str) -> None:
    inf, nan = float("inf"), float("nan")
    for cols in (5, 70, 300):
        inputs = drawn(name, dtype, 8, cols)
        for row, special in enumerate((nan, inf, -inf)):
            inputs[0][row, row * cols // 4] = special
        inputs[0][3] = -inf
        inputs[0][4] = 0
        results = run(CASES[name].body(dtype), inputs, [8, cols], [float(cols)])
        eager = CASES[name].eager(*inputs)
        for i, got in enumerate(results):
            if got.is_floating_point():
                assert torch.equal(got.isnan(), eager[i].isnan()), f"{name}, result {i}, {cols}"
                assert torch.equal(got.isinf(), eager[i].isinf()), f"{name}, result {i}, {cols}"


KINDS = {
    "sum": torch.sum,
    "prod": torch.prod,
    "amax": torch.amax,
    "amin": torch.amin,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
}


@pytest.mark.parametrize("dtype", ["Float", "Double", "Int", "Long", "Byte"])
def test_every_kind_of_reduction(dtype: str) -> None:
    kind = DTYPES[dtype]
    for cols in (1, 9, 64, 65, 259, 3000):
        x = (torch.randint(0, 4, (6, cols)) if cols > 20 else torch.randn(6, cols) * 3).to(kind)
        if kind.is_floating_point and cols > 1:
            x[1, cols // 2] = x[2, cols - 1] = x[2, 0] = float("nan")
        outs = [over_row(name, load(0, dtype)) for name in KINDS]  # type: ignore[arg-type]
        outs[0].dtype = outs[1].dtype = NAMES[torch.sum(x).dtype]
        small = op("le", load(0, dtype), written(1, dtype))
        outs += [over_row("any", small), over_row("all", small)]
        results = run(Body("kinds", (dtype,), (), tuple(outs)), [x], [6, cols])
        for (name, function), got in zip(KINDS.items(), results, strict=False):
            want = function(x, -1, keepdim=True)
            assert torch.allclose(got, want, rtol=1e-5, equal_nan=True), name
            assert got.dtype == want.dtype, name
        assert torch.equal(results[-2], (x <= 1).any(-1, keepdim=True))
        assert torch.equal(results[-1], (x <= 1).all(-1, keepdim=True))


def test_rows_in_any_layout() -> None:
    x = torch.randn(4, 90, 6)
    for view in (x.transpose(1, 2), x.permute(2, 0, 1), x[:, ::2, :], x[:1].expand(4, 90, 6)):
        inputs = [view, torch.randn(view.shape[-1])]
        (got,) = run(CASES["rms_norm"].body("Float"), inputs, view.shape, [float(view.shape[-1])])
        want = CASES["rms_norm"].eager(*inputs)[0]
        torch.testing.assert_close(got, want)


def test_a_loss_takes_one_element_of_its_row() -> None:
    logits, target = torch.randn(50, 37), torch.randint(0, 37, (50, 1))
    x, row, label = load(0, name="x"), load(1, "Long", "row"), load(2, "Long", "label")
    most = over_row("amax", x, name="most")
    total = over_row("sum", op("exp", op("sub", x, most)), name="total")
    chosen = Fetched(0, (row, label), (1, 2), dtype="Float", name="chosen")
    loss = op("sub", op("add", op("log", total), most), chosen, name="loss")
    body = Body("cross_entropy", ("Float", "Long", "Long"), (), (loss,), scalars=3)
    words = [logits.data_ptr(), *logits.stride()]
    (got,) = run(body, [logits, Index(0, (1, 0)), target], [50, 37], words)
    want = torch.nn.functional.cross_entropy(logits, target[:, 0], reduction="none")
    torch.testing.assert_close(got[:, 0], want)


def rms_norm_backward(dtype: str) -> Body:
    """The gradients of x, and of weight before it is summed over rows."""
    wide = "Double" if dtype == "Double" else "Float"
    grad, x, weight, scale = (cast(load(i, dtype), wide) for i in range(4))
    g, h = op("mul", grad, weight, name="g"), op("mul", x, scale, name="h")
    count = cast(number(0, name="n"), wide)
    shared = op("div", over_row("sum", op("mul", g, h)), count, name="shared")
    dx = op("mul", scale, op("sub", g, op("mul", h, shared)), name="dx")
    outputs = (result(dx, dtype), op("mul", grad, h, name="dw"))
    return Body("rms_norm_backward", (dtype,) * 4, outputs, scalars=1)


@pytest.mark.parametrize("cols", [5, 63, 64, 300, 3001])
def test_results_summed_over_rows(cols: int) -> None:
    grad, x, weight = torch.randn(77, cols), torch.randn(77, cols), torch.randn(cols)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    inputs = [grad, x, weight, scale]
    body = rms_norm_backward("Float")
    dx, dw = run(body, inputs, [77, cols], [float(cols)], parts=3, summed=[1])
    leaves = [t.double().requires_grad_() for t in (x, weight)]
    out = CASES["rms_norm"].eager(*leaves)[0]
    want = torch.autograd.grad(out, leaves, grad.double())
    torch.testing.assert_close(dx.double(), want[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dw, want[1], rtol=1e-5, atol=1e-5)


def test_rounding_after_a_sum_too() -> None:
    x = torch.randn(40, 100).bfloat16()
    total = over_row("sum", load(0, "BFloat16"))
    body = Body("centred", ("BFloat16",), (op("sub", load(0, "BFloat16"), total),), rounds=True)
    (got,) = run(body, [x], [40, 100])
    apart = (got != x - x.sum(-1, keepdim=True)).double().mean()
    assert apart < 0.1  # a sum in another order may round the other way


def test_what_is_dear_is_kept() -> None:
    phases = Phases(CASES["softmax"].body("Float"))
    assert [(term.name, step) for term, step in phases.kept.items()] == [("e", 1)]
    assert not Phases(CASES["layer_norm"].body("Float")).kept
    assert Phases(CASES["layer_norm"].body("Float")).held == {0}


def test_the_source_of_a_row_reads_like_the_users() -> None:
    text = functor_text(CASES["softmax"].body("Float"))
    assert "kept.e = exp(x - row.amax" in text
    assert max(map(len, text.splitlines())) <= 100


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_cuda_sources_compile(arch: str) -> None:
    for name, case in CASES.items():
        for dtype, cols, vector in (("Float", 24, 4), ("BFloat16", 4096, 8), ("Half", 100_003, 1)):
            body = case.body(dtype)
            phases = Phases(body)
            inputs = tuple(Operand(d, "c") for d in body.inputs)
            row = GpuRow(-(-cols // vector), vector, clusters=arch == "sm_90")
            launch = row_launch(inputs, phases.held, phases.kept_bytes, row)
            outputs = ("c",) * len(body.outputs) + ("w",) * len(body.row_outputs)
            kernel = generated(
                body, "cuda", 2, outputs, ("c",) * len(inputs), vector=vector, launch=launch
            )
            cubin = nvrtc.compile_cubin(source(kernel), arch, [sources.KERNELS], contract=True)
            assert cubin, name


@needs_nvrtc
@pytest.mark.parametrize("cols", [24, 4096, 200_000])
def test_sums_over_rows_compile_for_cuda(cols: int) -> None:
    body = rms_norm_backward("Float")
    phases = Phases(body)
    inputs = tuple(Operand("Float", walk) for walk in "cccb")
    for arch in ("sm_80", "sm_90"):
        row = GpuRow(cols // 4, 4, exact=True, clusters=arch == "sm_90")
        launch = row_launch(inputs, phases.held, phases.kept_bytes, row, sums=1)
        kernel = generated(body, "cuda", 2, ("c", "r"), tuple("cccb"), vector=4, launch=launch)
        assert nvrtc.compile_cubin(source(kernel), arch, [sources.KERNELS], contract=True)


def test_rows_are_held_where_they_fit() -> None:
    inputs = (Operand("BFloat16", "c"),)
    short, long = (
        row_launch(inputs, frozenset({0}), 0, GpuRow(cols // 8, 8, exact=True))
        for cols in (512, 1 << 20)
    )
    assert short.whole
    assert short.full
    assert short.items * short.threads * 8 >= 512
    assert not long.whole


def test_what_is_kept_gives_way_to_the_row() -> None:
    """A group norm's gradient: two inputs and three numbers that are kept of each element."""
    inputs = (Operand("BFloat16", "c"), Operand("BFloat16", "c"))
    short, long = (
        row_launch(inputs, frozenset({0, 1}), 12, GpuRow(cols // 8, 8, exact=True, clusters=True))
        for cols in (1 << 12, 1 << 17)
    )
    assert short.whole
    assert short.keeps
    assert long.whole
    assert not long.keeps


def test_several_blocks_share_rows_that_one_does_not_hold() -> None:
    inputs = (Operand("Float", "c"),)
    for cols in (1 << 15, 1 << 17, 1 << 20, 50_260):
        launch = row_launch(inputs, frozenset({0}), 0, GpuRow(cols // 4, 4, clusters=True))
        assert launch.cluster > 1, cols
        assert launch.threads <= (512 if launch.cluster == 8 else 256)
        if launch.whole:
            assert launch.items * launch.threads * launch.cluster * 4 >= cols


def test_a_row_of_masks_is_held_too() -> None:
    """Bytes beside wider numbers took 16 elements of each at once: too many registers, and 512
    threads for 64 columns (8.5 ms in place of 0.09 on an H200)."""
    inputs = tuple(Operand(dtype, "c") for dtype in ("BFloat16", "Bool", "Float"))
    launch = row_launch(inputs, frozenset({0, 1, 2}), 16, GpuRow(8, 8, exact=True))
    assert launch.whole
    assert launch.threads <= 8


def test_long_rows_of_one_pass_are_not_held() -> None:
    """There is nothing that they are held for: a block goes through one, several at a time."""
    one, two = (
        row_launch(
            (Operand("BFloat16", "c"),),
            frozenset({0}),
            0,
            GpuRow(50_257 // 8, 8, shifted=True, clusters=True),
            passes=passes,
        )
        for passes in (1, 2)
    )
    assert [one.whole, two.whole] == [False, True]
    assert one.threads * one.resident == 1024
    assert one.threads * one.cluster < two.threads * two.cluster
    short = GpuRow(1024, 8, exact=True)
    assert row_launch((Operand("BFloat16", "c"),), frozenset({0}), 0, short, passes=1).whole
