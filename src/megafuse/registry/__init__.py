"""What an op is: a PyTorch function, and the kernel that gives the same in one launch.

An op is declared once, by decorating its reference twin:

    @op(kernel=Pointwise("GeluScale<{F}, {approximate}>", …), …)
    def gelu_scale(x: Tensor, scale: float, approximate: str = "tanh") -> Tensor:
        return F.gelu(x, approximate=approximate) * scale

The function's signature is the op's schema and its body the reference; what the decorator
returns is the fused op under the same signature. Tests, benchmarks and the command line walk
`OPS`; nothing lists the ops a second time.

Its parts: a signature (what the type hints leave open), a kernel, an autograd rule; and beside them
what it costs, and samples for tests. Kernels come in families: pointwise and row-wise ones are
functors that a generic kernel runs, a composite is a C++ program of its own
(runtime/host/programs/programs.h) that launches several kernels.

Three ways lead to the kernel:
- plain tensors: straight into the C++ host runtime (`runtime/host/torch/module.cpp`);
- torch.compile, dispatch modes, subclasses, functorch: through `torch.ops.megafuse.<name>`,
  defined at import, whose kernels the host runtime replaces when it is loaded;
- no C++ compiler: the reference, after the same checks of its arguments.

The files, from the bottom up: arguments.py (what may be passed), the parts signature.py,
autograd.py, kernel.py, sample.py and cost.py, then declared.py (`Op`, `OPS`), second_derivative.py,
activation.py (the ops go to the host runtime), call.py (the function users call), dispatcher.py,
checks.py (what a declaration must be), declaration.py (`@op`). sharding/ has the rules for DTensor;
catalog.py lists kernels to compile
ahead.
"""

from __future__ import annotations

from megafuse.registry.activation import activate
from megafuse.registry.autograd import Autograd
from megafuse.registry.checks import DeclarationError
from megafuse.registry.declaration import op
from megafuse.registry.declared import OPS, Op
from megafuse.registry.kernel import Pointwise, Program, Rows
from megafuse.registry.sharding import Sharding
from megafuse.registry.signature import Signature

__all__ = [
    "OPS",
    "Autograd",
    "DeclarationError",
    "Op",
    "Pointwise",
    "Program",
    "Rows",
    "Sharding",
    "Signature",
    "activate",
    "op",
]
