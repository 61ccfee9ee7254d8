"""convert: every module of a model that has a fused form gets it, in place."""

from __future__ import annotations

from torch import nn

from megafuse.nn import activation
from megafuse.nn.attention import Attention
from megafuse.nn.converted import Converted
from megafuse.nn.foreign.match import Match
from megafuse.nn.foreign.recognise import recognise
from megafuse.nn.foreign.subclass import Foreign
from megafuse.nn.foreign.trial import aside
from megafuse.nn.layer_norm import LayerNorm
from megafuse.nn.rms_norm import RMSNorm
from megafuse.nn.sequential import Sequential, runs, spelled
from megafuse.nn.transformer_block import TransformerBlock

_OURS = (Attention, LayerNorm, RMSNorm, Sequential, TransformerBlock)


def convert(model: nn.Module) -> Converted:
    """Gives the modules that have a fused form the class for it; says which, and which not and why.

    Of torch these are nn.LayerNorm and nn.RMSNorm over one dimension, nn.TransformerEncoderLayer
    with relu or gelu, its self_attn, and an nn.Sequential with neighbours that fuse. Of other
    libraries: norms and feed-forward blocks, recognised by the parts that they hold and by trying
    a small copy of them (see megafuse.nn.foreign).

    The new class is a subclass of the old, and nothing but the class changes: Parameters, names,
    hooks, state_dict, optimizers and references to the module stay as they are. The answer is a
    dict of paths and the names of what they have become; `left` in it is one of paths and reasons,
    and `print` shows both.
    """
    answer = Converted()
    with aside():
        for path, module in model.named_modules():
            if type(module) in _OURS:
                continue
            kind, found = type(module).__name__, _found(module)
            if found is None:
                continue
            answer.was[path] = kind
            if isinstance(found, str):
                answer.left[path] = found
            elif isinstance(found, Match):
                found.give(module)
                answer[path] = found.kind
            else:
                module.__class__ = found
                answer[path] = found.__name__
                if found is TransformerBlock and type(module.self_attn) is nn.MultiheadAttention:
                    inner = f"{path}.self_attn" if path else "self_attn"
                    module.self_attn.__class__ = Attention
                    answer.was[inner] = nn.MultiheadAttention.__name__
                    answer[inner] = Attention.__name__
    return answer


def _found(module: nn.Module) -> type[nn.Module] | Match | str | None:
    """The class for one of torch's, the match for one of others, or the reason to leave it."""
    kind = type(module)
    if kind in (nn.LayerNorm, nn.RMSNorm):
        if len(module.normalized_shape) != 1:  # type: ignore[arg-type]
            return f"it is over {len(module.normalized_shape)} dimensions; the op's rows are one"  # type: ignore[arg-type]
        return LayerNorm if kind is nn.LayerNorm else RMSNorm
    if kind is nn.TransformerEncoderLayer:
        if activation.known(module.activation):  # type: ignore[arg-type]
            return TransformerBlock
        return "no fused form of its activation (there are relu and gelu)"
    if isinstance(module, nn.MultiheadAttention):
        return "its caller may want the weights, which the op never has: Attention.from_torch"
    if isinstance(module, nn.Sequential):
        return _sequence(module)
    return recognise(module)


def _sequence(module: nn.Sequential) -> type[nn.Module] | Match | str | None:
    if isinstance(module, Sequential) or not any(n > 1 for n in runs(spelled(list(module)))):
        return None
    if type(module) is nn.Sequential:
        return Sequential
    if type(module).forward is nn.Sequential.forward:
        return Match(ForeignSequential, None, Sequential.__name__)
    return "a subclass of nn.Sequential with a forward of its own"


class ForeignSequential(Foreign, Sequential):
    """A subclass of nn.Sequential that has nothing of its own in its forward: torchvision's MLP."""
