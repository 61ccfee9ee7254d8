"""Generated pointwise functors under the drivers: walks, several results, indices, gathers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from codegen.bodies import DTYPES, cast, load, number, op, over_row, written
from codegen.judging import check
from codegen.running import Index, Number, run
from codegen.test_prims import BODIES
from megafuse.codegen.body import Body, Fetched, Term
from megafuse.codegen.functor import functor_text
from megafuse.codegen.generated import generated, shape, source
from megafuse.codegen.prims import PRIMS
from megafuse.runtime import nvrtc, sources

# Each body is a kernel to compile; tests/compiler runs such through fuse.
pytestmark = pytest.mark.slow

needs_nvrtc = pytest.mark.skipif(nvrtc.problem() is not None, reason=str(nvrtc.problem()))
LENGTHS = [1, 3, 16, 31, 512, 513, 1543]


def gated(dtype: str = "Float", rounds: bool = False) -> Body:
    """h = x * sigmoid(gate); h * scale, and whether it is positive."""
    x, gate = load(0, dtype, "x"), load(1, dtype, "gate")
    h = op("mul", x, op("sigmoid", gate), name="h", line="h = x * torch.sigmoid(gate)")
    wide = "Double" if dtype == "Double" else "Float"
    scaled = op("mul", h, cast(number(0, name="scale"), wide))
    scaled.dtype, scaled.line = dtype, "return h * scale, h > 0"
    positive = op("gt", h, written(0.0, wide), name="positive")
    return Body("gated", (dtype, dtype), (scaled, positive), scalars=1, rounds=rounds)


def expected(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    h = x * torch.sigmoid(gate)
    return h * 1.7, h > 0


@pytest.mark.parametrize("dtype", ["Float", "Double", "Half", "BFloat16"])
@pytest.mark.parametrize("length", LENGTHS)
def test_results_of_several_dtypes(dtype: str, length: int) -> None:
    kind = DTYPES[dtype]
    x, gate = (torch.randn(length, dtype=torch.float64).to(kind) for _ in range(2))
    scaled, positive = run(gated(dtype), [x, gate], [length], [1.7], parts=2)
    check("scaled", scaled, expected(x, gate)[0], expected(x.double(), gate.double())[0])
    assert torch.equal(positive, x > 0)


def layouts() -> dict[str, tuple[Tensor, Tensor]]:
    whole = torch.randn(37, 19)
    return {
        "both whole": (whole, torch.randn(37, 19)),
        "a row for all": (whole, torch.randn(19)),
        "a number a row": (whole, torch.randn(37, 1)),
        "transposed": (whole, torch.randn(19, 37).t()),
        "every other column": (whole, torch.randn(37, 38)[:, ::2]),
        "backwards": (torch.randn(19, 37).t(), torch.randn(1, 1)),
    }


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("layout", layouts())
def test_operands_walk_as_their_strides_say(layout: str, across: bool) -> None:
    x, gate = layouts()[layout]
    scaled, positive = run(gated(), [x, gate], [37, 19], [1.7], across=across, parts=3)
    want = expected(x, gate.expand(37, 19))
    torch.testing.assert_close(scaled, want[0])
    assert torch.equal(positive, want[1])


def test_a_number_comes_as_a_word() -> None:
    x = torch.randn(100)
    (scaled, _) = run(gated(), [x, Number(0.25)], [100], [1.7])
    torch.testing.assert_close(scaled, expected(x, torch.tensor(0.25))[0])
    body = Body(
        "shifted", ("Long", "Char"), (op("add", load(0, "Long"), cast(load(1, "Char"), "Long")),)
    )
    (got,) = run(body, [torch.arange(50), Number(-7)], [50])
    assert torch.equal(got, torch.arange(50) - 7)


@pytest.mark.parametrize("across", [False, True])
def test_an_index_is_made_of_coordinates(across: bool) -> None:
    x = torch.randn(5, 33, 29)
    row, column = load(1, "Long", "row"), load(2, "Long", "column")
    masked = op("where", op("le", column, row), load(0, name="x"), written(float("-inf")))
    body = Body("causal", ("Float", "Long", "Long"), (masked, op("sub", row, column)))
    indices = [Index(3, (0, 1, 0)), Index(0, (0, 0, 1))]
    got, apart = run(body, [x, *indices], [5, 33, 29], across=across, parts=4)
    rows, columns = torch.arange(33)[:, None] + 3, torch.arange(29)
    assert torch.equal(got, x.masked_fill(columns > rows, float("-inf")))
    assert torch.equal(apart, (rows - columns).expand(5, 33, 29))


def test_a_result_may_take_the_place_of_an_operand() -> None:
    x, gate = torch.randn(1000), torch.randn(1000)
    want, positive = expected(x, gate)
    outputs = [x, torch.empty(1000, dtype=torch.bool)]
    got = run(gated(), [x, gate], [1000], [1.7], outputs=outputs)
    torch.testing.assert_close(got[0], want)
    assert torch.equal(got[1], positive)


def taken(inside: bool) -> Body:
    """table[token, column], or where the token is negative 0."""
    token, column = load(0, "Long", "token"), load(1, "Long", "column")
    keep = op("ge", token, written(0, "Long")) if inside else None
    row = Fetched(0, (token, column), (1, 2), keep, dtype="Half", name="embedding")
    return Body(
        "embedding", ("Long", "Long"), (op("mul", cast(row, "Float"), written(2.0)),), scalars=3
    )


@pytest.mark.parametrize("inside", [False, True])
def test_loads_whose_place_is_computed(inside: bool) -> None:
    table = torch.randn(11, 40).half()[:, ::2]
    token = torch.randint(-2 if inside else 0, 11, (31, 1))
    words = [table.data_ptr(), *table.stride()]
    (got,) = run(taken(inside), [token, Index(0, (0, 1))], [31, 20], words)
    want = table.float()[token[:, 0].clamp(min=0)] * 2 * (token >= 0)
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", ["Half", "BFloat16"])
def test_rounding_after_every_primitive_gives_eager_bits(dtype: str) -> None:
    kind = DTYPES[dtype]
    a, b, c = (torch.randn(2049).to(kind) for _ in range(3))
    x, y, z = (load(i, dtype) for i in range(3))
    term: Term = op("add", op("mul", op("sub", x, y), z), op("mul", x, y))
    for rounds in (True, False):
        (got,) = run(Body("chain", (dtype,) * 3, (term,), rounds=rounds), [a, b, c], a.shape)
        eager = (a - b) * c + a * b
        assert torch.equal(got, eager) == rounds


def test_the_source_reads_like_the_users() -> None:
    text = functor_text(gated())
    assert (
        text
        == """struct Gated : Typed<1> {
  double scale;
  MF_INLINE explicit Gated(const u64* word) : scale(of_word<double>(word[0])) {}

  MF_INLINE auto operator()(float x, float gate) const {
    // h = x * torch.sigmoid(gate)
    const float h = x * sigmoid(gate);
    const bool positive = h > 0.0f;
    // return h * scale, h > 0
    return Tuple{h * float(scale), positive};
  }
};
"""
    )


def test_names_are_valid_and_unique() -> None:
    x, y = load(0, name="double"), load(1, name="self.w[0]")
    exp = op("exp", x, name="exp")
    again = op("exp", y, name="exp")
    text = functor_text(Body("f", ("Float", "Float"), (op("add", exp, again),)))
    assert "float double_, float self_w_0" in text
    assert "const float exp_ = exp(double_);" in text
    assert "const float exp_2 = exp(self_w_0);" in text


def test_a_function_may_be_called_like_a_type_of_ours() -> None:
    x = torch.randn(9, 5)
    (got,) = run(Body("sum", ("Float",), (), (over_row("sum", load(0)),)), [x], [9, 5])
    torch.testing.assert_close(got, x.sum(-1, keepdim=True))


def test_a_line_that_goes_on_stays_a_comment() -> None:
    x = torch.randn(9)
    term = op("exp", load(0), name="y", line="y = \\")
    (got,) = run(Body("f", ("Float",), (op("mul", term, term),)), [x], [9])
    torch.testing.assert_close(got, x.exp() ** 2)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_cuda_sources_compile(arch: str) -> None:
    pointwise = [
        (gated("Half"), 1, "cc", "cc", 8, False, False),
        (gated("Float"), 3, "ss", "bs", 1, True, False),
        (gated("BFloat16"), 2, "cc", "ce", 8, False, True),
        (taken(True), 2, "c", "bi", 4, False, False),
        (taken(False), 2, "c", "ei", 4, False, True),
    ]
    for body, dims, outputs, inputs, vector, wide, across in pointwise:
        kernel = generated(
            body,
            "cuda",
            dims,
            tuple(outputs),
            tuple(inputs),
            vector=vector,
            wide_index=wide,
            across=across,
        )
        assert nvrtc.compile_cubin(source(kernel), arch, [sources.KERNELS])


@needs_nvrtc
@pytest.mark.slow
def test_every_primitive_compiles_for_cuda() -> None:
    for dtype, names in BODIES.values():
        operands = PRIMS[names[0]].operands
        loads = [load(i, dtype) for i in range(operands)]
        body = Body("prims", (dtype,) * operands, tuple(op(name, *loads) for name in names))
        kernel = generated(body, "cuda", 1, ("c",) * len(names), ("c",) * operands)
        assert nvrtc.compile_cubin(source(kernel), "sm_80", [sources.KERNELS])


@pytest.mark.parametrize(
    ("inputs", "dtype", "dims", "unroll"),
    [
        (4, "BFloat16", 3, 2),
        (10, "BFloat16", 3, 4),
        (16, "BFloat16", 3, 1),  # 16 vectors four times over: more than there are registers
        (10, "BFloat16", 1, 1),  # no index to split
        (10, "Float", 3, 1),
    ],
)
def test_vectors_that_a_gpus_thread_has_under_way(
    inputs: int, dtype: str, dims: int, unroll: int
) -> None:
    total = load(0, dtype)
    for operand in range(1, inputs):
        total = op("add", total, load(operand, dtype))
    body = Body("added", (dtype,) * inputs, (total,))
    vector = 8 if dtype == "BFloat16" else 4
    kernel = generated(body, "cuda", dims, ("c",), ("c",) * inputs, vector=vector)
    assert shape(kernel).unroll == unroll
