"""Reading a linear layer: torch.nn.Linear, or one that keeps its weight transposed."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from megafuse.nn.adopt import expect

# The second is MultiheadAttention's out_proj: the same layer, left alone by torch's quantization.
LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)


def linear_of(module: nn.Module, what: str) -> nn.Linear:
    """The same layer as an nn.Linear: `module` itself, or one over the memory of a Conv1D.

    Conv1D, of GPT-2 in transformers, keeps its weight as [in, out]. Its transposed view becomes
    the Parameter [out, in]: no copy, but another Parameter, so make the optimizer afterwards.
    """
    if type(module).__name__ == "Conv1D" and {"nx", "nf"} <= vars(module).keys():
        weight = module.get_parameter("weight")
        made = nn.Linear(weight.shape[0], weight.shape[1], device="meta")
        made.weight = nn.Parameter(weight.detach().t(), weight.requires_grad)
        made.bias = module.get_parameter("bias")
        return made.train(module.training)
    return expect(module, what, *LINEAR)
