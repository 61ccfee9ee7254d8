"""convert: every module of a model that has a fused form gets it, in place."""

from __future__ import annotations

from torch import nn

from megafuse.nn import activation
from megafuse.nn.attention import Attention
from megafuse.nn.layer_norm import LayerNorm
from megafuse.nn.rms_norm import RMSNorm
from megafuse.nn.sequential import Sequential, runs, spelled
from megafuse.nn.transformer_block import TransformerBlock


def convert(model: nn.Module) -> dict[str, str]:
    """Gives the modules it knows their fused class; returns their paths, and the classes' names.

    These are nn.LayerNorm and nn.RMSNorm over one dimension, nn.TransformerEncoderLayer with relu
    or gelu, its self_attn, and an nn.Sequential with neighbours that fuse. The new class is a
    subclass of the old, and nothing but the class changes: Parameters, names, hooks, state_dict,
    optimizers and references to the module stay as they are. All else is left alone, subclasses
    too, and an nn.MultiheadAttention elsewhere, whose caller may want the weights (see Attention).
    """
    replaced = {}
    for path, module in model.named_modules():
        fused = _fused_class(module)
        if fused is None:
            continue
        module.__class__ = fused
        replaced[path] = fused.__name__
        if isinstance(module, TransformerBlock) and type(module.self_attn) is nn.MultiheadAttention:
            module.self_attn.__class__ = Attention
            replaced[f"{path}.self_attn" if path else "self_attn"] = Attention.__name__
    return replaced


def _fused_class(module: nn.Module) -> type[nn.Module] | None:
    kind = type(module)
    if kind is nn.LayerNorm and len(module.normalized_shape) == 1:  # type: ignore[arg-type]
        return LayerNorm
    if kind is nn.RMSNorm and len(module.normalized_shape) == 1:  # type: ignore[arg-type]
        return RMSNorm
    if kind is nn.TransformerEncoderLayer and activation.known(module.activation):  # type: ignore[arg-type]
        return TransformerBlock
    if kind is nn.Sequential and any(n > 1 for n in runs(spelled(list(module)))):  # type: ignore[call-overload]
        return Sequential
    return None
