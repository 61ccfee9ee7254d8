"""`fused.explain` tells the truth: bytes are the operands', reasons are the plan's."""

from __future__ import annotations

from typing import Any

import torch

import megafuse as mf


def gated_norm(x: Any, gate: Any, weight: Any) -> Any:
    h = x * torch.sigmoid(gate)
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight


def arguments(grad: bool = False) -> tuple[torch.Tensor, ...]:
    x, gate = torch.randn(60, 80, requires_grad=grad), torch.randn(60, 80)
    return x, gate, torch.randn(80, requires_grad=grad)


def nbytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_one_kernel_moves_arguments_and_results_once() -> None:
    x, gate, weight = arguments()
    found = mf.fuse(gated_norm).explain(x, gate, weight)
    assert found.forward is not None
    (step,) = found.forward.steps
    assert step.kind == "rows"
    assert step.reads == ("x", "gate", "weight")
    assert step.bytes_read == nbytes(x, gate, weight)
    assert step.bytes_written == nbytes(x)
    assert len(step.lines) == 2
    assert found.backward is None


def test_eager_is_counted_operation_by_operation() -> None:
    x, gate, weight = arguments()
    found = mf.fuse(gated_norm).explain(x, gate, weight)
    assert found.forward is not None
    eager = found.forward.eager
    assert eager is not None
    assert eager.launches == 8
    rows = 60 * 4
    # sigmoid, mul, square, mean; then add and rsqrt of rows; then two products.
    assert eager.bytes_moved == (2 + 3 + 2 + 1) * nbytes(x) + 5 * rows + (2 * 2) * nbytes(
        x
    ) + rows + nbytes(weight)


def test_the_backward_says_what_is_saved_and_computed_again() -> None:
    x, gate, weight = arguments(grad=True)
    found = mf.fuse(gated_norm).explain(x, gate, weight)
    assert found.backward is not None
    written = {name for step in found.backward.steps for name in step.writes}
    assert {"grad of x", "grad of weight"} <= written
    assert "h" in found.recomputed
    assert found.saved_bytes == 60 * 4
    said = str(found)
    assert "saved for the backward: 240 B" in said
    assert "computed again in the backward" in said


def test_the_library_is_named_with_a_reason() -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight) * 2

    x, weight = torch.randn(6, 8), torch.randn(8, 4)
    found = mf.fuse(layer).explain(x, weight)
    assert found.forward is not None
    product, kernel = found.forward.steps
    assert product.kind == "library"
    assert "matrix product" in product.reason
    assert product.bytes_read == nbytes(x, weight)
    assert product.bytes_written == kernel.bytes_read == kernel.bytes_written == 6 * 4 * 4
    assert found.forward.cuts
    assert "the library's" in str(found)


def test_views_of_arguments_are_not_saved_memory() -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x @ weight.T) * 2

    x, weight = torch.randn(6, 8, requires_grad=True), torch.randn(4, 8)
    found = mf.fuse(layer).explain(x, weight)
    assert found.saved_bytes == 0
    assert "nothing but arguments and results" in str(found)


def test_what_is_not_fused_says_why() -> None:
    def branching(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    fused = mf.fuse(branching)
    found = fused.explain(torch.ones(3))
    assert found.forward is None
    assert found.raises
    assert "branching cannot be fused" in str(found)
    assert "if x.sum() > 0" in str(found)
    assert "torch.where" in str(found)
    assert "branching is not fused, and runs as it is" not in str(found)
    assert "runs as it is" in str(mf.fuse(branching).explain(3))


def test_it_fits_the_terminal() -> None:
    for grad in (False, True):
        said = str(mf.fuse(gated_norm).explain(*arguments(grad)))
        assert max(map(len, said.splitlines())) <= 80


def test_nothing_is_computed_or_changed() -> None:
    def bump(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    x = torch.zeros(4)
    fused = mf.fuse(bump)
    fused.explain(x)
    assert torch.equal(x, torch.zeros(4))
    assert not fused.variants


def rescaled(x: Any, y: Any, scale: float) -> Any:
    """Images, flattened for their spread."""
    made = y + scale * (x - y)
    return made * (x.flatten(1).std(-1) / made.flatten(1).std(-1))[:, None, None]


def test_what_is_flattened_shares_a_kernel_with_what_is_not() -> None:
    x, y = torch.randn(2, 5, 6, 7).unbind()
    fused = mf.fuse(rescaled)
    found = fused.explain(x, y, 3.0)
    assert found.forward is not None
    (step,) = found.forward.steps
    assert step.kind == "rows"
    torch.testing.assert_close(fused(x, y, 3.0), rescaled(x, y, 3.0))
    # Other memory than the kernel's rows go along: right, in as many kernels as it takes.
    turned = y.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    torch.testing.assert_close(fused(x, turned, 3.0), rescaled(x, turned, 3.0))


def both_scaled(x: Any, y: Any, scale: Any) -> Any:
    return x * scale, y * scale


def test_arguments_that_are_alike_share_a_kernel() -> None:
    fused, scale = mf.fuse(both_scaled), torch.randn(8)
    for shape in ((2, 3, 8), (4, 5, 8)):
        x, y = torch.randn(2, *shape).unbind()
        torch.testing.assert_close(fused(x, y, scale), both_scaled(x, y, scale))
    assert len(fused.variants) == 1
    found = fused.explain(x, y, scale)
    assert found.forward is not None
    assert len(found.forward.steps) == 1
    # And where they are not, the others' sizes are their own.
    for heads in (1, 2, 7):
        y = torch.randn(4, heads, 8)
        torch.testing.assert_close(fused(x, y, scale), both_scaled(x, y, scale))
    assert len(fused.variants) <= 3
    rows = mf.fuse(both_scaled)
    for tall in (5, 6):
        x, y = torch.randn(5, 8), torch.randn(tall, 8)
        torch.testing.assert_close(rows(x, y, scale), both_scaled(x, y, scale))
    assert len(rows.variants) == 1
