"""Cross-entropy taken apart: the logarithms of a vocabulary's probabilities are never stored.

A log-softmax of rows becomes its largest and its sum, a number a row each, and nll_loss picks one
logarithm of a row while the row is on chip. So the backward saves two numbers a row and computes
the logarithms again from the logits. (GPT-2, 8192 rows of 50,257 float32: 1.6 GB written, read by
the loss, and read again by its backward.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from megafuse.graph.hints import hint

aten = torch.ops.aten
_WIDE = (torch.float32, torch.float64)
_LEAST = 2048  # classes: of fewer, the four small steps more take longer than the bytes
# Unless these are many: a logarithm is 4 bytes written, and 4 read in the backward in place of a
# logit's 2, for which a GPU has the time of four launches from here on (graph/cost.py).
_MANY = 1 << 23


def _are_rows(x: Tensor, dim: int) -> bool:
    """Whether `dim` is the last of a dense tensor, and long or of many rows."""
    last = x.dim() > 0 and dim % x.dim() == x.dim() - 1
    return last and x.is_contiguous() and _is_large(x)


def _is_large(x: Tensor) -> bool:
    return hint(x.shape[-1]) >= _LEAST or hint(x.numel()) >= _MANY


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    wide = torch.float32 if half_to_float else x.dtype
    if wide not in _WIDE or not _are_rows(x, dim):
        return NotImplemented  # there is a rule for it
    x = x.to(wide)
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def _log_softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    if y.dtype not in _WIDE or not _are_rows(y, dim) or not grad.is_contiguous():
        return NotImplemented
    return (grad - y.exp() * grad.sum(-1, keepdim=True)).to(input_dtype)


def _nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> Any:
    """Loss and total weight."""
    if x.dim() != 2 or target.dim() != 1 or not _is_large(x) or _is_one_number(x):
        return NotImplemented
    weights = _weights(x, target, weight, ignore_index)
    at = target.unsqueeze(-1)
    columns = torch.arange(x.shape[-1], device=x.device, dtype=torch.int64)
    picked = torch.where((columns == at) & (at != ignore_index), x, 0).sum(-1)
    losses = 0 - weights * picked  # and no −0 where there is nothing
    if reduction == 0:
        return losses, x.new_zeros(())
    total = weights.sum()
    return (losses.sum() / total if reduction == 1 else losses.sum()), total


def _weights(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Of each row, by its label; 0 where that is ignored. The library still looks at the labels,
    and raises for those that are no class."""
    if x.device.type == "cpu":  # of −1 everywhere, the losses are the weights
        minus = torch.full((), -1, dtype=x.dtype, device=x.device).expand(x.shape)
        weights: Tensor = aten.nll_loss_forward(minus, target, weight, 0, ignore_index)[0]
        return weights
    one = torch.ones((), dtype=x.dtype, device=x.device)
    # There nll_loss would make a copy of it that is not one number.
    is_kept = target != ignore_index
    classes = one.expand(x.shape[-1]) if weight is None else weight
    found = classes.index_select(0, torch.where(is_kept, target, 0))
    return torch.where(is_kept, found, 0)


def _is_one_number(x: Tensor) -> bool:
    return all(statically_known_true(stride == 0) for stride in x.stride())


APART: dict[Any, Callable[..., Any]] = {
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.nll_loss_forward.default: _nll_loss_forward,
}
