"""What is taken apart while torch traces: its core table, less what has a rule of its own here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from megafuse.graph.lowering.table import RULES

aten = torch.ops.aten

# What torch would take apart, and the library does better whole; or what is random.
WHOLE = """
    addr baddbmm dot mv vdot linear matmul bernoulli rrelu cdist col2im im2col
    _scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention
    embedding_dense_backward grid_sampler_2d max_unpool2d max_unpool3d native_dropout_backward
    nll_loss_forward nll_loss2d_forward nll_loss2d_backward multi_margin_loss
    multilabel_margin_loss_forward upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa _weight_norm_interface convolution
    _convolution slow_conv3d thnn_conv2d gru lstm rnn_relu rnn_tanh index_add index_copy
    index_fill adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d renorm unfold_backward
    embedding_bag special_log_ndtr diagonal_backward isin
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
    return {**kept, **OWN}


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


# Where torch's own have another dtype or other strides than its kernels.


def _huber_loss(x: Any, y: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    """Its kernels give the dtype of x, whatever y's is."""
    return torch._refs.nn.functional.huber_loss(x, y, reduction, delta).to(x.dtype)


def _log_sigmoid_forward(x: Any) -> Any:
    """Its CPU kernel gives contiguous tensors, whatever x's strides are."""
    if x.device.type == "cpu":
        x = x.clone(memory_format=torch.contiguous_format)
    return torch._decomp.decompositions.log_sigmoid_forward(x)


OWN: dict[Any, Callable[..., Any]] = {
    aten.addcmul.default: _addcmul,
    aten.addcdiv.default: _addcdiv,
    aten.lerp.Scalar: _lerp,
    aten.huber_loss.default: _huber_loss,
    aten.log_sigmoid_forward.default: _log_sigmoid_forward,
}
