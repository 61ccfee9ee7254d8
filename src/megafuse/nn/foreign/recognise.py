"""Which of our modules a module of another library is, and if none: why."""

from __future__ import annotations

from torch import nn

from megafuse.nn.foreign import add_norm, feed_forward, gated, linear_act, norm, packed
from megafuse.nn.foreign.match import Match
from megafuse.nn.foreign.parts import Parts
from megafuse.nn.foreign.subclass import Foreign
from megafuse.nn.layer_norm import LayerNorm


def recognise(module: nn.Module) -> Match | str | None:
    """The match, or the reason why it stays as it is; None for what nothing here is about."""
    if isinstance(module, Foreign):
        return None
    found = norm.recognise(module)
    if found is None:
        found = _of_layers(module)
    if isinstance(found, Match) and "forward" in vars(module):
        return "it has a forward of its own on the instance, which is the one that gets called"
    return found


def _of_layers(module: nn.Module) -> Match | str | None:
    if not module._modules or type(module).forward is nn.Module.forward:
        return None  # a leaf, or a container that is never called
    parts = Parts.of(module)
    layers, acts = len(parts.linears), len(parts.acts)
    if layers == 1 and not acts and _one_norm(parts):
        found = add_norm.recognise(parts)
        return found if isinstance(found, Match) else None
    if layers == 0 or layers + acts + len(parts.unknown) == 1:
        return None  # nothing beside it to fuse with
    if reason := _why_not(parts):
        return reason
    if layers == 2 and packed.is_packed(parts):
        return packed.recognise(parts)
    return {1: linear_act, 2: feed_forward, 3: gated}[layers].recognise(parts)


def _one_norm(parts: Parts) -> bool:
    children = [parts.module._modules[name] for name in parts.others]
    return len(children) == 1 and type(children[0]) in (nn.LayerNorm, LayerNorm)


def _why_not(parts: Parts) -> str | None:
    own = [*parts.module._parameters, *parts.module._buffers]
    if own:
        return f"it has parameters or buffers of its own beside its layers: {', '.join(own)}"
    if len(parts.others) > (len(parts.linears) == 1):
        return f"its forward does more than a feed-forward block: it holds {_some(parts.others)}"
    if not parts.acts and parts.unknown:
        kinds = sorted({type(parts.module._modules[name]).__name__ for name in parts.unknown})
        return f"no fused form of {', '.join(kinds)} (there are relu, gelu and, gated, silu)"
    if parts.unknown:
        return f"its forward does more than a feed-forward block: it holds {_some(parts.unknown)}"
    if not parts.acts:
        return "no feed-forward block, as it has no activation among its parts"
    if len(parts.acts) > 1:
        return f"it has several activations: {', '.join(parts.acts)}"
    if len(parts.linears) > 3:
        return f"it has {len(parts.linears)} linear layers"
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
