"""What is taken apart while torch traces: its core table, less what has a rule of its own here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from megafuse.graph import random_calls
from megafuse.graph.hints import hint, is_one
from megafuse.graph.lowering import eager_strides, losses
from megafuse.graph.lowering.table import RULES

aten = torch.ops.aten

# What torch would take apart, and the library does better whole; or what is random.
WHOLE = """
    addr baddbmm dot mv vdot linear matmul rrelu cdist col2im im2col
    _scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention
    embedding_dense_backward grid_sampler_2d max_unpool2d max_unpool3d
    nll_loss_forward nll_loss2d_forward multi_margin_loss
    multilabel_margin_loss_forward upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa _weight_norm_interface convolution
    _convolution slow_conv3d thnn_conv2d gru lstm rnn_relu rnn_tanh index_add index_copy
    index_fill adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d renorm unfold_backward
    embedding_bag special_log_ndtr isin
"""
# Not in torch's core table, and worth taking apart.
APART = """
    _native_batch_norm_legit _native_batch_norm_legit_no_training
    _native_batch_norm_legit_functional _batch_norm_with_update_functional
    reflection_pad1d reflection_pad2d std_mean native_layer_norm_backward native_group_norm_backward
"""


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for capture()."""
    from torch._decomp import core_aten_decompositions, decomposition_table

    whole, apart = set(WHOLE.split()), set(APART.split())
    table = dict(core_aten_decompositions())
    for overload, function in decomposition_table.items():
        if getattr(overload, "namespace", "") == "aten" and _name(overload) in apart:
            table.setdefault(overload, function)
    kept = {
        overload: function
        for overload, function in table.items()
        if overload not in RULES and _name(overload) not in whole
    }
    return eager_strides.kept({**kept, **OWN, **losses.APART, **random_calls.APART})


def _name(overload: Any) -> str:
    return str(overload._schema.name.partition("::")[2])


# With these, `value` may be a number that comes with the call; torch's own would fix it.


def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + _times(y * z, value)


def _addcdiv(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + _times(y, value) / z


def _lerp(x: Any, y: Any, weight: Any) -> Any:
    """With such a number, torch's tracer takes only tensors of the same shape."""
    if x.shape == y.shape:
        return NotImplemented  # there is a rule for it
    return aten.lerp.Scalar(*torch.broadcast_tensors(x, y), weight)


def _times(x: Any, value: Any) -> Any:
    return x if isinstance(value, (int, float)) and value == 1 else x * value


# Where torch's own have another dtype or shape than its kernels (other strides: eager_strides.py).
# Some are mended in newer versions of torch, and megafuse runs with older ones too.


def _huber_loss(x: Any, y: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    """Its kernels give the dtype of x, whatever y's is."""
    return torch._refs.nn.functional.huber_loss(x, y, reduction, delta).to(x.dtype)


def _soft_margin_loss(x: Any, y: Any, reduction: int = 1) -> Any:
    """Its kernels give the dtype of x, whatever y's is."""
    return torch._decomp.decompositions.soft_margin_loss(x, y, reduction).to(x.dtype)


def _binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    """Its kernels give the dtype of the target, and reduce what is rounded to that."""
    own = torch._decomp.decompositions
    loss = own.binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction=0)
    return own.apply_loss_reduction(loss.to(target.dtype), reduction)


def _linalg_vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """torch 2.11 keeps a dimension of size 1 that is counted from the end."""
    if dim is None or all(d >= 0 for d in dim):
        return NotImplemented  # there is a rule for it
    counted = [d % max(x.dim(), 1) for d in dim]
    return aten.linalg_vector_norm(x, ord, counted, keepdim, dtype=dtype)


def _gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Of one element of each row, where the index has as many rows as x: it may have fewer, so to
    compare is to note a guard, and from then on its gradient is known to be of all rows."""
    if x.dim() and x.dim() == index.dim():
        sizes = list(zip(x.shape, index.shape, strict=True))
        del sizes[dim % x.dim()]
        if is_one(index.shape[dim]) and all(hint(a) == hint(b) for a, b in sizes):
            _ = all(a == b for a, b in sizes)
    return NotImplemented  # there is a rule for it


OWN: dict[Any, Callable[..., Any]] = {
    aten.addcmul.default: _addcmul,
    aten.addcdiv.default: _addcdiv,
    aten.lerp.Scalar: _lerp,
    aten.huber_loss.default: _huber_loss,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy_with_logits,
    aten.linalg_vector_norm.default: _linalg_vector_norm,
    aten.gather.default: _gather,
}
