"""The ops as PyTorch's dispatcher knows them: `torch.ops.megafuse.<name>`, defined at import.

Their kernels here load the host runtime, which puts its own in their place, and call again. Shapes
for tracers (fake tensors) and vmap's rule stay.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from megafuse.registry.activation import ready
from megafuse.registry.declared import OPS, Op
from megafuse.registry.sharding.when_imported import when_imported
from megafuse.runtime.progress import logger

_LIBRARY = torch.library.Library("megafuse", "DEF")


def is_defined(name: str) -> bool:
    """Whether the dispatcher has an op of this name already."""
    return hasattr(torch.ops.megafuse, name)


def define(op: Op) -> None:
    """Makes `torch.ops.megafuse.<name>`."""
    tags = [torch.Tag.pt2_compliant_tag]
    if op.random:
        tags.append(torch.Tag.nondeterministic_seeded)
    _LIBRARY.define(op.schema, tags=tags)

    def reference(*args: Any) -> Any:
        keep = len(args) > len(op.arguments) and args[-1]
        args = args[: len(op.arguments)]
        args += tuple(a.default for a in op.arguments[len(args) :])  # the dispatcher drops them
        results = op.laid_out(op.listed(op.reference(*args)), args)
        rule = op.autograd
        if rule.keeps:
            results += rule.kept(*args) if keep else [results[0].new_empty(0) for _ in rule.keeps]
        if op.random:
            results.append(results[0].new_empty(2, dtype=torch.int64))
        return results[0] if len(results) == 1 else tuple(results)

    def bootstrap(*args: Any) -> Any:
        if ready(op):
            return op.overload(*args)
        args += tuple(a.default for a in op.arguments[len(args) :])
        op.check(*args[: len(op.arguments)])
        return reference(*args)

    for key in ("CPU", "CUDA", *(["Autograd"] if op.differentiable else [])):
        _LIBRARY.impl(op.name, bootstrap, key)
    torch.library.register_fake(f"megafuse::{op.name}", reference, lib=_LIBRARY)
    if _shards:
        _shard(op)


_LIBRARY.define(
    "backward(str op, Tensor?[] grads, Tensor?[] saved, float[] saved_values, Tensor?[] like, "
    "float[] numbers, int[] choices, Tensor? random, bool[] wanted) -> Tensor[]",
    tags=[torch.Tag.pt2_compliant_tag],
)


def _backward_fake(
    op: str,
    grads: list[Tensor | None],
    saved: list[Tensor | None],
    saved_values: list[float],
    like: list[Tensor | None],
    numbers: list[float],
    choices: list[int],
    random: Tensor | None,
    wanted: list[bool],
) -> list[Tensor]:
    grad = grads[0]
    assert grad is not None
    follows = OPS[op].signature.laid_out_as is not None
    if OPS[op].pointwise:
        # A sum of all that is read has the strides that a kernel reading it gives its outputs.
        read = [t for t in saved if t is not None and t.device == grad.device]
        whole = torch.empty_like(functools.reduce(torch.add, read, grad), dtype=grad.dtype)
    else:
        whole = grad.new_empty(grad.shape)
    return [
        torch.empty_like(whole if t is None else t)
        if follows or t is None
        else t.new_empty(t.shape)
        for t, want in zip(like, wanted, strict=True)
        if want
    ]


def _backward_vmap(info: Any, in_dims: Any, *args: Any) -> tuple[list[Tensor], list[int]]:
    """Sample by sample: torch's own fallback does not take lists."""

    def sample(value: Any, dim: Any, i: int) -> Any:
        if isinstance(value, (list, tuple)):
            dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
            return [sample(v, d, i) for v, d in zip(value, dims, strict=True)]
        return value if dim is None else value.select(dim, i)

    each = [
        torch.ops.megafuse.backward(*(sample(a, d, i) for a, d in zip(args, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    stacked = [torch.stack(gradients) for gradients in zip(*each, strict=True)]
    return stacked, [0] * len(stacked)


def _backward_bootstrap(op: str, *args: Any) -> Any:
    if not ready(OPS[op]):
        raise RuntimeError(
            "megafuse: this graph was compiled with fused kernels, and they cannot be built here. "
            "`megafuse doctor` says what is missing, a C++ compiler perhaps, and how to get it."
        )
    return torch.ops.megafuse.backward.default(op, *args)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("backward", _backward_bootstrap, _key)
torch.library.register_fake("megafuse::backward", _backward_fake, lib=_LIBRARY)
torch.library.register_vmap("megafuse::backward", _backward_vmap, lib=_LIBRARY)


# ---- DTensor

_shards = False  # whether DTensor is there, and the ops have their rules


def _shard(op: Op) -> None:
    from megafuse.registry.sharding import dtensor

    dtensor.register(op, _LIBRARY)


def _shard_all() -> None:
    global _shards
    try:
        from megafuse.registry.sharding import dtensor

        dtensor.register_backward(_LIBRARY)
        for op in OPS.values():
            _shard(op)
    except Exception as error:  # somebody imports DTensor, and perhaps not for our ops
        logger.warning(
            "megafuse: its ops take no DTensors with torch %s: %s", torch.__version__, error
        )
    else:
        _shards = True


if torch.distributed.is_available():
    when_imported(_shard_all)
