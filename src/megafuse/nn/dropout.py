"""Dropout as a submodule: it has no parameters, and what walks a model for nn.Dropout finds it."""

from __future__ import annotations

from torch import Tensor, nn

from megafuse.nn.adopt import expect
from megafuse.nn.plain import plain
from megafuse.ops.dropout_add import dropout_add


def dropout_of(dropout: nn.Module | float, beside: nn.Module, what: str) -> nn.Dropout:
    """An nn.Dropout as it is; a probability as an nn.Dropout in the mode of its neighbour."""
    if not isinstance(dropout, nn.Module):
        return nn.Dropout(dropout).train(beside.training)
    return expect(dropout, what, nn.Dropout)


def drops(dropout: nn.Module) -> bool:
    """Whether a call of `dropout` may change its argument."""
    return not plain(dropout, nn.Dropout) or (dropout.training and dropout.p > 0)


def with_residual(x: Tensor, residual: Tensor | None, dropout: nn.Module | None) -> Tensor:
    """residual + dropout(x), in one op if the two tensors are alike; either may be missing."""
    if dropout is None:
        return x if residual is None else residual + x
    if residual is None:
        return dropout(x)  # type: ignore[no-any-return]
    if plain(dropout, nn.Dropout) and x.dtype == residual.dtype and x.shape == residual.shape:
        return dropout_add(x, residual, dropout.p, dropout.training)
    return residual + dropout(x)  # type: ignore[no-any-return]
