"""Programs that the fuzzer found to fail once, each shrunk (python -m megafuse.compiler.fuzz)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.compiler import fuse
from megafuse.compiler.fuzz import Argument, Program, check, trial
from megafuse.graph import torch_versions

pytestmark = pytest.mark.slow  # each test compiles for seconds


def test_a_reduction_of_one_element_in_16_bits() -> None:
    """The row functor looked below a field of the row for what it stores."""
    source = """
        def program(a0):
            v3 = a0.mean(0, keepdim=True)
            v5 = v3.repeat_interleave(2, 0)
            v6 = torch.lerp(v3, v5, 0.3)
            return v5, v6
    """
    arguments = [Argument("a0", "bfloat16", ((1, 7), (1, 16)), layout="offset")]
    check(Program.of_source(source, arguments))


def test_gradients_of_a_loss_of_one_element() -> None:
    """The same, in a backward."""
    source = """
        def program(a0, a1):
            v0, v1 = torch.var_mean(a0, -1, correction=0)
            v2 = (v0.abs() + 0.1) ** a1.clamp(-2, 2)
            v4 = torch.var_mean(v1, 0, correction=0)[0]
            v5 = F.huber_loss(v4, v2, delta=0.7)
            return v5,
    """
    arguments = [
        Argument("a0", "bfloat16", ((1, 1), (1, 1)), requires_grad=True),
        Argument("a1", "bfloat16", ((1, 1), (1, 1)), requires_grad=True),
    ]
    check(Program.of_source(source, arguments))


def test_an_argument_requires_gradients_and_no_result_has_one() -> None:
    """Captured again and again: the variant had no backward, and the host asked for one."""
    source = """
        def program(a0):
            v5 = a0 > 0
            return v5,
    """
    check(
        Program.of_source(source, [Argument("a0", "float16", ((16,), (300,)), requires_grad=True)])
    )


def test_strides_of_dimensions_of_size_1_do_not_matter() -> None:
    """A gradient came with another stride there: "captured for other layouts"."""
    source = """
        def program(a0, a1):
            v0 = a0 @ a1.transpose(-1, -2)
            v1 = v0 - v0.mean(-1, keepdim=True)
            v4 = v1.clone()
            return v4,
    """
    arguments = [
        Argument("a0", "float32", ((17, 1, 1), (2, 1, 1))),
        Argument("a1", "float32", ((17, 63, 1), (2, 129, 1)), requires_grad=True),
    ]
    check(Program.of_source(source, arguments))


@pytest.mark.parametrize(
    "view",
    [
        "unfold(-1, 2, 1)",
        "expand(2, 4, 6)",
        "select(0, 1)",
        "transpose(0, 1)",
        "narrow(1, 1, 3)",
    ],
)
@pytest.mark.parametrize("of", ["a0", "v0"])
def test_gradients_of_views(view: str, of: str) -> None:
    """Results with gaps or overlaps: the backward wanted gradients that lie like these."""
    source = f"""
        def program(a0):
            v0 = a0.sin()
            v1 = {of}.{view}
            return v1, v0
    """
    check(Program.of_source(source, [Argument("a0", "float32", ((4, 6),) * 2, requires_grad=True)]))


def test_a_number_that_comes_with_the_call_beside_a_broadcast() -> None:
    """torch's tracer failed with a message, and each number was compiled for."""
    fused = fuse(torch.lerp)
    x, y = torch.randn(5, 7), torch.randn(7)
    for weight in (0.3, 0.9, -1.5):
        torch.testing.assert_close(fused(x, y, weight), torch.lerp(x, y, weight))
    assert len(fused.variants) == 1


NUMBERS: dict[str, tuple[Callable[..., Tensor], list[tuple[float, ...]]]] = {
    "an int": (lambda x, n: x * int(n), [(2,), (3,)]),
    "a float": (lambda x, n: x * float(n), [(2.0,), (3.0,)]),
    "in a formula of autograd's": (lambda x, n: torch.lerp(x, x + 1, n), [(0.2,), (0.7,)]),
    "equal numbers": (lambda x, n, m: x * n if n == m else x / n, [(3.0, 3.0), (5.0, 2.0)]),
    "a number twice another": (lambda x, n, m: x * n if n == 2 * m else x / n, [(4, 2), (5, 2)]),
    "one more than another": (lambda x, n, m: x * n if n == m + 1 else x / n, [(4, 3), (4, 4)]),
    "a size less one": (lambda x, n: x[:, 1:] + torch.arange(n, dtype=x.dtype), [(6,), (1,)]),
}


@pytest.mark.parametrize("case", NUMBERS.values(), ids=list(NUMBERS))
def test_a_graph_for_one_number_is_not_run_for_another(
    case: tuple[Callable[..., Tensor], list[tuple[float, ...]]],
) -> None:
    """The trace made a constant of the number, and nobody compared the next call's with that."""
    function, calls = case
    fused = fuse(function)
    x = torch.randn(5, 7, requires_grad=True)
    for numbers in calls:
        torch.testing.assert_close(fused(x, *numbers), function(x, *numbers))
    assert len(fused.variants) == len(calls)


@pytest.mark.parametrize(
    "call",
    [
        "copysign",
        "heaviside",
        "xlogy",
        "special.xlog1py",
        "logaddexp",
        "logaddexp2",
        "logical_and",
        "logical_or",
        "logical_xor",
    ],
)
def test_strides_of_operands_that_lie_otherwise(call: str) -> None:
    """torch's tracer took the strides of another operand than its kernels."""
    source = f"""
        def program(a0, a1, a2):
            v0 = torch.{call}(a0, a1.permute(2, 1, 0))
            v1 = torch.{call}(a1.permute(2, 1, 0), a0)
            v2 = torch.{call}(a2.permute(2, 1, 0), a1.permute(2, 1, 0))
            return v0, v1, v2
    """
    arguments = [
        Argument("a0", "float32", ((3, 4, 5), (5, 3, 2))),
        Argument("a1", "float32", ((5, 4, 3), (2, 3, 5))),
        Argument("a2", "float32", ((5, 4, 1), (2, 3, 1))),
    ]
    check(Program.of_source(source, arguments))


def test_an_empty_slice_beside_others() -> None:
    """Division by zero: a reshape of no elements into no elements."""
    source = """
        def program(a0, a1):
            v0 = a1.ceil()
            v1 = v0 > a0
            v3 = v0[..., 1:]
            v4 = torch.sub(a0, v3, alpha=0.25)
            v7 = torch.cat([-v4[..., 1:], v4[..., :1]], -1)
            return v3, v7, v1
    """
    arguments = [
        Argument("a0", "float16", ((63, 1), (33, 1))),
        Argument("a1", "float16", ((1,), (1,))),
    ]
    check(Program.of_source(source, arguments))


def test_the_library_takes_a_reshape_of_what_lies_transposed() -> None:
    """It is a view of what lies in order, and was stored as its argument lies."""
    source = """
        def program(a0):
            v0 = torch.sigmoid(a0)
            v1 = v0.flatten()
            v2 = v1.cumsum(0)
            return v2,
    """
    check(Program.of_source(source, [Argument("a0", "float32", ((7, 5), (3, 3)), "transposed")]))


def test_a_view_and_its_copy() -> None:
    """The copy was returned for both."""
    source = """
        def program(a0):
            v0 = a0.unsqueeze(-1).expand(*a0.shape, 3)
            v1 = v0.clone()
            return v1, v0
    """
    check(Program.of_source(source, [Argument("a0", "float32", ((4,), (6,)))]))


def test_gradients_of_an_empty_view() -> None:
    source = """
        def program(a0, a1):
            v0 = F.hardswish(a1)
            v1 = a0.flatten()
            return v0, v1
    """
    arguments = [
        Argument("a0", "float32", ((0, 7), (0, 5)), requires_grad=True),
        Argument("a1", "float32", ((7,), (5,)), requires_grad=True),
    ]
    check(Program.of_source(source, arguments))


def test_a_size_that_is_saved_and_equal_to_another() -> None:
    """Nothing in the backward's arguments said what it is: the function ran unfused."""
    source = """
        def program(a0, a1):
            v0 = a0.diagonal() * a1
            v1 = v0 * a0.exp()
            return v0, v1
    """
    arguments = [
        Argument("a0", "float32", ((4, 3), (31, 3)), requires_grad=True),
        Argument("a1", "float32", ((4, 3), (31, 3))),
    ]
    check(Program.of_source(source, arguments))


def test_a_check_of_values_is_a_step() -> None:
    """one_hot asserts that its classes are there, and gives nothing to anyone."""

    def hot(x: Tensor, at: Tensor) -> Tensor:
        return F.one_hot(at, 3) * x.exp()

    fused = fuse(hot)
    x, at = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(fused(x, at), hot(x, at))
    assert fused.variants
    if x.is_cuda or torch_versions.LOSES_CHECKS:
        return  # the GPU's own check ends the process
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        fused(x, at + 1)


@pytest.mark.usefixtures("poisoned")
def test_a_softmax_of_one_beside_a_sum() -> None:
    """Rows of one element got an axis of their own, and the sum's axes were taken for rows."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.sum(0)
        return torch.softmax(x, -1), total

    fused = fuse(both)
    for shape in ((3, 2, 3, 1), (16, 2, 7, 1)):
        x = torch.randn(shape)
        torch.testing.assert_close(fused(x), both(x))


def test_results_whose_elements_share_a_place() -> None:
    """Poisoned as if each had a place of its own: the heap behind it was overwritten."""
    source = """
        def program(a0):
            v0 = F.pad(a0, (0, 1, 2, 0))
            v1 = v0.unsqueeze(-1).expand(*v0.shape, 300)
            v2 = v0.exp().unfold(-1, 2, 1)
            return v1, v2
    """
    check(Program.of_source(source, [Argument("a0", "float32", ((3, 1), (3, 1)))]))


def test_dropout_beside_an_empty_argument() -> None:
    """It runs unfused, as PyTorch draws, and was held to what the fused one draws."""
    source = """
        def program(a0, a1):
            v0 = F.dropout(a1, 0.3)
            return v0, a0
    """
    arguments = [
        Argument("a0", "float32", ((0, 3), (0, 3))),
        Argument("a1", "float32", ((5, 40), (5, 40))),
    ]
    outcome = trial(Program.of_source(source, arguments, seed=7049))
    assert outcome.verdict == "right", outcome


def test_a_kernel_needs_no_library_for_exceptions() -> None:
    """GCC wanted one for the largest of many float16, and the kernel could not be loaded."""
    source = """
        def program(a92):
            v5 = a92.abs().max()
            return v5,
    """
    arguments = [
        Argument("a92", "float16", ((2, 3, 3), (3, 31, 31))),
    ]
    check(Program.of_source(source, arguments, seed=8584))


def test_elu_s_gradient_at_nan() -> None:
    """NaN in PyTorch's vectors, the incoming gradient elsewhere: either is right."""
    source = """
        def program(a0):
            v8 = F.elu(a0)
            return v8,
    """
    arguments = [
        Argument("a0", "float32", ((3,), (65,)), requires_grad=True, values="special"),
    ]
    check(Program.of_source(source, arguments, seed=8591))


def test_an_empty_slice_s_offset_is_not_looked_at() -> None:
    """The backward was refused: an empty tensor that is kept begins elsewhere."""
    source = """
        def program(a92):
            v3 = a92[1:]
            v4 = v3 * v3
            return v4,
    """
    arguments = [
        Argument("a92", "float32", ((1, 3), (1, 3)), requires_grad=True),
    ]
    check(Program.of_source(source, arguments, seed=8820))


def test_mean_beside_the_variance_of_infinities() -> None:
    """PyTorch's is NaN or infinite as the layout has it: either is right."""
    source = """
        def program(a1):
            v1 = a1.to(torch.float32)
            v4, v5 = torch.var_mean(v1, -1, correction=0)
            return v5,
    """
    arguments = [
        Argument("a1", "float32", ((5,), (3,)), values="special"),
    ]
    check(Program.of_source(source, arguments, seed=9465))
    source = """
        def program(a0):
            v1 = a0.swapaxes(0, -1)
            v6, v7 = torch.var_mean(v1, -1, correction=0)
            return v7,
    """
    arguments = [
        Argument("a0", "float32", ((5, 5), (3, 3)), values="special"),
    ]
    check(Program.of_source(source, arguments, seed=10492))


def test_a_size_is_not_taken_from_a_stride_that_nobody_walks_along() -> None:
    """The backward of the second part of one row was refused."""
    source = """
        def program(a1):
            v4, v5 = a1.chunk(2, 1)
            return v5,
    """
    arguments = [
        Argument("a1", "float32", ((1, 3), (1, 3)), requires_grad=True),
    ]
    check(Program.of_source(source, arguments, seed=11879))
    arguments = [
        Argument("a1", "float32", ((1, 5), (1, 8)), requires_grad=True),
    ]
    check(Program.of_source(source, arguments, seed=11879))


def test_layer_norm_of_equal_numbers() -> None:
    """Is 0, as in eager (program 10082); it was 7.5e-5, because the mean is a rounded sum."""

    @fuse
    def norm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.layer_norm(x, (x.shape[-1],)), x.var(-1), x.std(-1)

    torch.manual_seed(10082)
    for width in (1000, 1001, 3000):
        x = torch.randn(50, 1).expand(50, width).contiguous()
        for result in norm(x):
            assert result.abs().max() <= 1e-12, width


def test_the_variance_of_huge_numbers() -> None:
    """Squares that overflow make it infinite, not NaN."""
    torch.manual_seed(0)
    x = torch.randn(8, 1000) * 1e30
    assert fuse(lambda x: x.var(-1))(x).isinf().all()
    assert x.var(-1).isinf().all()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_size_that_is_equal_to_a_number(
    requires_grad: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By way of another one: it was left unknown, and the function ran unfused."""

    @fuse
    def multiplied(x: Tensor, y: Tensor) -> Tensor:
        return x.view(7, 16, 3) * y

    x = torch.randn(112, 3, requires_grad=requires_grad)
    y = torch.randn(7, 16, 3, requires_grad=requires_grad)
    with caplog.at_level("WARNING"):
        assert torch.equal(multiplied(x, y), x.view(7, 16, 3) * y)
        one = torch.randn(7, 1, 3)
        assert torch.equal(multiplied(x, one), x.view(7, 16, 3) * one)
    assert "unfused" not in caplog.text
    with pytest.raises(RuntimeError, match="invalid for input"):
        multiplied(torch.randn(119, 3), y)


def test_a_mean_over_more_elements_than_float16_counts() -> None:
    """Its gradient was 0: the divisor, 65,536, was rounded to infinity."""
    source = """
        def program(a1, a2):
            v1 = F.l1_loss(a1, a2)
            return v1,
    """
    arguments = [
        Argument("a1", "float16", ((256,), (256,)), requires_grad=True),
        Argument("a2", "float16", ((256, 1), (256, 1)), requires_grad=True),
    ]
    check(Program.of_source(source, arguments, seed=11442))


def test_gelu_s_slope_near_its_zero_in_float64() -> None:
    """An ulp of its terms is many of theirs together: PyTorch's is 1.2e-16 off, ours 1.1e-16."""
    source = """
        def program(a0):
            v1, v2 = a0.chunk(2, 3)
            v3 = F.gelu(v1, approximate="tanh")
            return v3,
    """
    arguments = [Argument("a0", "float64", ((2, 3, 4, 34), (2, 3, 4, 34)), requires_grad=True)]
    for seed in (4, 7):
        check(Program.of_source(source, arguments, seed=seed))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_strides_of_an_expanded_less_a_transposed_tensor(dtype: str) -> None:
    """torch's fake tensors have others than eager in 16 bits."""
    source = """
        def program(a1, a2):
            v1 = a1 - a2
            return v1,
    """
    arguments = [
        Argument("a1", dtype, ((3, 3), (5, 5)), layout="expanded"),
        Argument("a2", dtype, ((3, 3), (5, 5)), layout="transposed"),
    ]
    check(Program.of_source(source, arguments, seed=11946))


def test_a_saved_slice_that_begins_elsewhere() -> None:
    """Torch's view begins a row on, ours where its memory does: the backward raised."""
    source = """
        def program(a0, n1):
            v1 = a0.flip(-1)[..., 1:]
            v2 = v1.transpose(0, -1).flatten(0, 1)
            v4 = v2.swapaxes(0, -1)
            v6 = v4 + n1
            v8 = torch.atan2(v6, v6.abs() + 0.2)
            return v8,
    """
    arguments = [
        Argument("a0", "float32", ((3, 3), (3, 3)), layout="transposed", requires_grad=True),
        Argument("n1", "int", (4, 4)),
    ]
    check(Program.of_source(source, arguments, seed=14643))


def test_integers_of_floats_that_none_holds() -> None:
    """An integer is never infinite or NaN, though PyTorch leaves open which it is: GCC took the
    conversions to and fro for a truncation (program 15902)."""
    special = torch.tensor([3.7, -3.7, torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 2.0**31])
    for dtype in (torch.int32, torch.int64):
        for floats in (torch.float32, torch.float64):
            x = special.to(floats).repeat(9)
            made = fuse(lambda x, dtype=dtype: 0.5 + x.to(dtype))(x)
            assert made.isfinite().all()
            assert made[:2].tolist() == [3.5, -2.5]


@pytest.mark.parametrize("shape", [(1, 3, 2), (3, 3), (2, 4, 5)])
def test_rows_of_which_nothing_is_left(shape: tuple[int, ...]) -> None:
    """Above the diagonal of one column there is nothing: no reduction is left in a kernel of rows,
    which could not be compiled (programs 15931 and 16902)."""

    @fuse
    def largest(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        above = x.amax(-1, keepdim=True).triu(1)
        return above, above + x, x.sum(-1)

    x = torch.randn(shape)
    for made, expected in zip(largest(x), largest.function(x), strict=True):
        torch.testing.assert_close(made, expected)
    assert largest.variants, "it ran unfused"


def test_division_by_a_number_of_the_row() -> None:
    """On a GPU by the reciprocal, corrected: to the bits of division, zeros and infinities too."""
    torch.manual_seed(0)
    x = torch.randn(40, 515) * torch.logspace(-18, 18, 40)[:, None]
    x[0, 3], x[1, 4], x[2, 5], x[3] = -0.0, torch.inf, torch.nan, 0.0
    function = lambda x: x / x.abs().amax(-1, keepdim=True)  # noqa: E731
    torch.testing.assert_close(fuse(function)(x), function(x), rtol=0, atol=0, equal_nan=True)


def image_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    h = x.double() if x.dtype == torch.float64 else x.float()
    h = h.reshape(len(x), 2, -1)
    h = h - h.mean(-1, keepdim=True)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5)
    h = h.reshape(x.shape).to(x.dtype)
    return torch.nn.functional.silu(h * weight[:, None, None] + bias[:, None, None])


@pytest.mark.parametrize("shape", [(2, 6, 7, 7), (3, 16, 1, 3), (1, 4, 128, 256), (1, 8, 191, 173)])
def test_gradients_of_group_norms(shape: tuple[int, ...]) -> None:
    """Weights that are the same for 49 elements, for 3, and for many, in rows that a block of a GPU
    does not hold, with what it keeps of their elements."""
    torch.manual_seed(0)
    given = [torch.randn(shape).bfloat16(), *torch.randn(2, shape[1]).bfloat16()]
    args = [t.requires_grad_() for t in given]
    exact = [t.detach().double().requires_grad_() for t in given]
    results = fuse(image_norm)(*args), image_norm(*exact)
    passed = torch.randn(shape).bfloat16()
    found = torch.autograd.grad(results[0], args, passed)
    wanted = torch.autograd.grad(results[1], exact, passed.double())
    for mine, one in zip((results[0], *found), (results[1], *wanted), strict=True):
        size = one.abs().amax().item()
        torch.testing.assert_close(mine.double(), one, rtol=2e-2, atol=1e-2 * size)


def test_a_sum_of_terms_that_its_dtype_rounds() -> None:
    """The yardstick's noise was an ulp of float64 where eager rounds each term to float32."""
    source = """
        def program(a1):
            v2 = a1.sum(-1, dtype=torch.float32)
            return v2,
    """
    check(Program.of_source(source, [Argument("a1", "float64", ((129, 65), (3, 3)))], seed=84))


def test_a_row_whose_halves_are_of_one_element() -> None:
    """The second half lies at (2·i + 1)//(2·s), which was not seen to be i//s: it ran unfused."""
    source = """
        def program(a0):
            v0 = a0.reshape(a0.shape[0], -1)
            v1, v2 = a0.tensor_split(2, -1)
            return v0, v1, v0
    """
    shapes = ((1, 2, 3, 8), (1, 2, 5, 2))
    check(Program.of_source(source, [Argument("a0", "float32", shapes, requires_grad=True)]))
