"""What an ATen call does with its elements: one of record.KINDS, by its tags and its name."""

from __future__ import annotations

import functools
from typing import Any

import torch

_NAMES = {
    "product": "mm bmm addmm baddbmm addbmm mv addmv dot vdot linear matmul einsum _scaled_mm "
    "convolution _convolution convolution_backward mkldnn_linear mkldnn_convolution "
    "_linear_pointwise _convolution_pointwise conv1d conv2d conv3d linear_backward "
    "mkldnn_linear_backward _addmm_activation _int_mm _weight_int8pack_mm lstm gru",
    "attention": "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_attention_math _flash_attention_forward _efficient_attention_forward "
    "_scaled_dot_product_fused_attention_overrideable _native_multi_head_attention "
    "_transformer_encoder_layer_fwd",
    "copy": "copy_ clone _to_copy contiguous cat stack repeat roll flip constant_pad_nd tile "
    "_reshape_copy _copy_from_and_resize expand_copy permute_copy view_copy "
    "repeat_interleave _unsafe_view_copy lift_fresh_copy reflection_pad2d",
    "fill": "zeros ones full empty empty_like zeros_like ones_like full_like empty_strided "
    "new_zeros new_ones new_empty new_full new_empty_strided zero_ fill_ fill arange rand randn "
    "randint rand_like randn_like normal_ uniform_ bernoulli_ randperm eye scalar_tensor "
    "linspace tril_indices triu_indices empty_permuted resize_ set_ lift_fresh zero",
    "index": "embedding index index_select gather scatter scatter_ scatter_add scatter_add_ "
    "index_put index_put_ _index_put_impl_ index_add index_add_ nonzero masked_select "
    "masked_scatter unique _unique2 unique_consecutive sort topk argsort one_hot take "
    "embedding_dense_backward bincount histc searchsorted multinomial kthvalue "
    "index_copy index_copy_ select_backward slice_backward where_index nonzero_static bucketize",
    "reduction": "sum mean amax amin max min prod any all argmax argmin var var_mean std std_mean "
    "norm linalg_vector_norm logsumexp cumsum cumprod softmax log_softmax _softmax "
    "_log_softmax native_layer_norm native_batch_norm native_group_norm _fused_rms_norm "
    "_softmax_backward_data _log_softmax_backward_data native_layer_norm_backward "
    "native_batch_norm_backward native_group_norm_backward nll_loss_forward nll_loss_backward "
    "nll_loss2d_forward mse_loss smooth_l1_loss aminmax count_nonzero "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
    "_batch_norm_with_update _batch_norm_no_update batch_norm_backward cudnn_batch_norm_backward "
    "_fused_rms_norm_backward binary_cross_entropy binary_cross_entropy_with_logits "
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d mean_backward _safe_softmax "
    "_weight_norm_interface median mode dist trace equal allclose",
    "read": "_local_scalar_dense item is_nonzero",
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# They touch no element; `detach` and the like are views by their schema.
_FREE = (
    "empty empty_like empty_strided new_empty new_empty_strided empty_permuted resize_ set_ "
    "lift_fresh _unsafe_view _reshape_alias alias _version_counter sym_size sym_numel "
    "sym_stride is_same_size"
)
FREE = frozenset(_FREE.split())
_REDUCING = getattr(torch.Tag, "reduction", None)
_PYTORCHS = ("aten", "prims", "prim", "quantized", "mkldnn", "inductor", "c10d", "_c10d_functional")


@functools.lru_cache(maxsize=4096)
def kind(func: Any) -> str:
    """Of an OpOverload."""
    namespace, _, name = str(func._schema.name).partition("::")
    return of_name(namespace, name, func)


def of_name(namespace: str, name: str, func: Any = None) -> str:
    """Of a profiler's event too, which has no OpOverload."""
    if name.startswith(("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_")):
        return "optimizer"
    if namespace not in _PYTORCHS:
        return "extension"
    if func is not None and (func.is_view or name in FREE):
        return "fill" if name.startswith(("empty", "new_empty")) else "view"
    plain = name.removesuffix("_") if not name.startswith("_") else name
    found = _KIND_OF.get(name) or _KIND_OF.get(plain)
    if found:
        return found
    tags = getattr(func, "tags", ())
    if torch.Tag.pointwise in tags or name in _POINTWISE or name.endswith("_backward"):
        return "pointwise"
    if _REDUCING is not None and _REDUCING in tags:
        return "reduction"
    return "other"


# Without the tag in some versions.
_ELEMENTWISE = (
    "add add_ mul mul_ sub sub_ div div_ native_dropout native_dropout_backward masked_fill "
    "masked_fill_ bernoulli where tril triu dropout relu_ gelu silu threshold_backward "
    "clamp clamp_ lerp addcmul addcdiv addcmul_ addcdiv_ rsub"
)
_POINTWISE = frozenset(_ELEMENTWISE.split())
