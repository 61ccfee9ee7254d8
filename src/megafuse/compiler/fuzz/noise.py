"""Runs that are off by an ulp here and there, as any honest kernel may be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# These round nothing: they move elements, choose among them, or change a sign. And the gradient of
# amax looks for elements that are equal to it.
_EXACT = """
    abs alias_copy amax amin arange cat ceil clamp clamp_max clamp_min clone constant_pad_nd copy
    diagonal_copy empty empty_like empty_strided expand_copy flip floor fmax fmin full full_like
    gather index index_put index_select masked_fill max maximum median min minimum neg new_empty
    new_empty_strided new_full new_ones new_zeros ones ones_like permute_copy relu repeat roll round
    scalar_tensor scatter select_backward select_scatter sign slice_backward slice_scatter sort
    stack topk tril triu trunc where zeros zeros_like
"""
EXACT = frozenset(_EXACT.split())


# A gradient times the sum of two terms of about 1, which may nearly cancel.
SLOPES = {"gelu_backward", "silu_backward", "mish_backward"}

# Their terms are rounded before they are added up, where `dtype` is narrower.
SUMS = {"sum", "mean", "prod", "cumsum", "cumprod", "nansum", "linalg_vector_norm"}


class Noise(TorchDispatchMode):
    """Every new float tensor is multiplied by 1 + r · ulp, r = −1, 0 or 1 times `size`. Below
    autograd: what is saved for a backward, and what that makes, are off as well."""

    def __init__(self, size: int = 1, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = min(size, 2)
        self.random = torch.Generator()
        self.random.manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in SUMS:
            args = (self.narrowed(args[0], kwargs.get("dtype")), *args[1:])
        made = func(*args, **kwargs)
        if func.overloadpacket.__name__ in EXACT:
            return made
        if any(result.alias_info is not None for result in func._schema.returns):
            return made  # a view, or written in place
        if func.overloadpacket.__name__ in SLOPES:
            made = made + (self.shaken(args[0]) - args[0])
        return pytree.tree_map_only(Tensor, self.shaken, made)

    def narrowed(self, terms: Tensor, dtype: torch.dtype | None) -> Tensor:
        narrower = dtype is not None and dtype.itemsize < terms.dtype.itemsize
        return self.shaken(terms, dtype) if narrower else terms

    def shaken(self, made: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """By ulps of another dtype where one is given."""
        if not made.is_floating_point() or not made.numel():
            return made
        eps = torch.finfo(dtype or made.dtype).eps * self.size
        r = torch.randint(-1, 2, made.shape, generator=self.random, device="cpu")
        return made * (1 + r.to(made.device, made.dtype) * eps)

    def argument(self, value: Any) -> Any:
        """An argument of the function, off by an ulp as well."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return self.shaken(value.detach()).requires_grad_(value.requires_grad)
