"""`@op`, which declares an op by decorating its reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from megafuse.registry import call, checks, dispatcher
from megafuse.registry.autograd import Autograd
from megafuse.registry.checks import DeclarationError
from megafuse.registry.cost import Pair
from megafuse.registry.declared import OPS, Op
from megafuse.registry.kernel import Kernel, OfFunctors
from megafuse.registry.sample import Sampler
from megafuse.registry.sharding import Sharding
from megafuse.registry.signature import Signature, arguments_of, outputs_of
from megafuse.runtime import build

Function = TypeVar("Function", bound=Callable[..., Any])

_HINTS_SAY_IT = Signature()
_NO_GRADIENTS = Autograd()
_BY_FAMILY = Sharding()


def op(
    *,
    kernel: Kernel,
    signature: Signature = _HINTS_SAY_IT,
    autograd: Autograd = _NO_GRADIENTS,
    flops: Pair,
    launches: Pair | None = None,
    unread: Callable[..., tuple[int, int]] | None = None,
    sample: Sampler,
    sharding: Sharding = _BY_FAMILY,
) -> Callable[[Function], Function]:
    """Declares an op; the decorated function is its reference.

    Raises a DeclarationError, and leaves nothing behind, where the declaration is wrong.

    kernel      Pointwise, Rows or Program (kernel.py)
    signature   what type hints do not say of arguments and results (signature.py)
    autograd    what is saved and whose gradients there are (autograd.py)
    flops       floating-point operations, forward and backward: so many an element of the first
                output, or a function of the arguments that gives the totals
    launches    on CUDA, forward and backward, or a function of the arguments; counted for
                pointwise ops
    unread      (*args) → bytes that forward and backward need not read
    sample      makes arguments for tests and benchmarks (sample.py)
    sharding    along what a call can be cut, for tensors that are spread over ranks (sharding/)
    """

    def declare(function: Function) -> Function:
        name = function.__name__
        if dispatcher.is_defined(name):
            raise DeclarationError(name, "an op of this name is declared already")
        checks.check_kernel(name, kernel)
        arguments = arguments_of(function, signature)
        if len(signature.returns) != outputs_of(function):
            raise DeclarationError(
                name, f"returns={signature.returns} does not match its return annotation"
            )
        checks.check_names(name, arguments, signature)
        functors = None
        if isinstance(kernel, OfFunctors):
            functors = kernel.functors(name, arguments, signature, autograd)
        made = Op(
            name=name,
            reference=function,
            arguments=arguments,
            signature=signature,
            kernel=kernel,
            functors=functors,
            autograd=autograd,
            flops=flops,
            launches=launches,
            unread=unread,
            sample=sample,
            sharding=sharding,
        )
        checks.check(made)  # what follows tells others of the op
        dispatcher.define(made)
        made.fused, made._namespace = call.fused(made)
        if functors is not None:
            build.declare(name, functors)
        OPS[name] = made
        return cast(Function, made.fused)

    return declare
