"""What an op is: a PyTorch function, and the kernel that gives the same in one launch.

An op is declared once, by decorating its reference twin:

    @op(forward="GeluScale<{F}, {approximate}>", …)
    def gelu_scale(x: Tensor, scale: float, approximate: str = "tanh") -> Tensor:
        return F.gelu(x, approximate=approximate) * scale

The function's signature is the op's schema and its body the reference; what the decorator
returns is the fused op under the same signature. Tests, benchmarks and the command line walk
`OPS`; nothing lists the ops a second time.

Three ways lead to the kernel:
- plain tensors: straight into the C++ host runtime (`runtime/host/module.cpp`);
- torch.compile, dispatch modes, subclasses, functorch: through `torch.ops.megafuse.<name>`,
  defined here at import, whose kernels the host runtime replaces when it is loaded;
- no C++ compiler: the reference, after the same checks of its arguments.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from megafuse.registry import arguments, second_derivative
from megafuse.registry.arguments import Argument
from megafuse.registry.cost import Cost
from megafuse.registry.sample import Sampler
from megafuse.runtime import build, loader
from megafuse.runtime.render import Functors, Variant

OPS: dict[str, Op] = {}

_LIBRARY = torch.library.Library("megafuse", "DEF")
_LOCK = threading.RLock()
_ACTIVE = False

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Op:
    """One op's declaration. See `op` for what the fields mean."""

    name: str
    reference: Callable[..., Tensor]
    functors: Functors
    arguments: list[Argument]
    sample: Sampler
    flops: tuple[int, int]
    saves: tuple[str, ...]
    grads: dict[str, int]
    passthrough: tuple[str, ...]
    output_dtype: str | None
    dtype_like: str | None
    inverted: str | None
    random: bool
    autocast_float: bool
    vjp: Callable[..., Sequence[Tensor]] | None
    fused: Callable[..., Tensor] = field(init=False)
    _namespace: dict[str, Any] = field(init=False)

    @property
    def differentiable(self) -> bool:
        return bool(self.grads)

    @property
    def tensors(self) -> list[str]:
        """Names of the arguments that may be tensors, in the functor's order."""
        return [a.name for a in self.arguments if a.is_tensor]

    @property
    def schema(self) -> str:
        """The op's declaration for PyTorch's dispatcher."""
        returns = "(Tensor, Tensor)" if self.random else "Tensor"
        listed = ", ".join(a.schema for a in self.arguments)
        return f"{self.name}({listed}) -> {returns}"

    @property
    def overload(self) -> Any:
        """The op as the dispatcher knows it."""
        return getattr(torch.ops.megafuse, self.name).default

    def position(self, name: str) -> int:
        return [a.name for a in self.arguments].index(name)

    def check(self, *args: Any) -> None:
        """Raises a TypeError or ValueError that says what is wrong with `args`, if anything."""
        arguments.check(self.name, self.arguments, args)

    def cost(self, *args: Any) -> Cost:
        """The least a forward call must do."""
        return Cost.of_forward(self, args)

    def backward_cost(self, *args: Any) -> Cost:
        """The least a backward call must do when every argument wants its gradient."""
        return Cost.of_backward(self, args)

    def description(self) -> dict[str, Any]:
        """The op as data for the host runtime (runtime/host/op.h)."""
        output = -1
        return {
            "name": self.name,
            "args": [
                (a.name, a.kind, tuple(a.choices), float(a.least), float(a.most))
                for a in self.arguments
            ],
            "dtype": self.output_dtype,
            "dtype_like": -1 if self.dtype_like is None else self.position(self.dtype_like),
            "inverted": -1 if self.inverted is None else self.position(self.inverted),
            "random": self.random,
            "autocast_float": self.autocast_float,
            "saved": [output if s == "out" else self.position(s) for s in self.saves],
            "grads": [
                (self.position(name), result, name in self.passthrough)
                for name, result in self.grads.items()
            ],
            "slow": self._namespace["traced"],
            "reference": self.reference,
            "explain": self.check,
            "vjp": functools.partial(second_derivative.vjp, self),
        }


def op(
    *,
    forward: str,
    backward: str | None = None,
    sample: Sampler,
    flops: tuple[int, int],
    choices: dict[str, dict[str, str]] | None = None,
    saves: tuple[str, ...] = (),
    grads: dict[str, int] | None = None,
    passthrough: tuple[str, ...] = (),
    any_dtype: tuple[str, ...] = (),
    ranges: dict[str, tuple[float, float]] | None = None,
    output_dtype: str | None = None,
    dtype_like: str | None = None,
    inverted: str | None = None,
    random: bool = False,
    autocast_float: bool = False,
    vjp: Callable[..., Sequence[Tensor]] | None = None,
    words: Callable[[Variant], dict[str, str]] | None = None,
) -> Callable[[Function], Function]:
    """Declares a pointwise op; the decorated function is its reference.

    forward, backward   functor types in kernels/<name>.h (see runtime/render.py for `{…}`)
    sample              makes arguments for tests and benchmarks (see registry/sample.py)
    flops               floating-point operations an element, forward and backward
    choices             the C++ word for each value of a string argument; flags get true/false
    saves               what the backward functor reads after the gradient, in its order:
                        names of arguments, or "out"
    grads               argument → which result of the backward functor is its gradient
    passthrough         arguments whose gradient is the incoming one
    any_dtype           tensor arguments that need not be floating point
    ranges              allowed range of a float argument
    output_dtype        "int8", or None for the promoted dtype of the tensors
    dtype_like          the first tensor is promoted as if it had this argument's dtype
    inverted            an argument that a CUDA kernel gets as its reciprocal when it is a number
    random              the functor draws random numbers
    autocast_float      under CUDA autocast the op computes in float32 (as exp does)
    vjp                 (grad, *saves) → gradients in the order of `grads`, in plain PyTorch, for
                        second derivatives; found from the reference when all tensors are saved
    words               further `{…}` of the functor types, from the kernel's operands
    """

    def declare(function: Function) -> Function:
        name = function.__name__
        parsed = arguments.parse(function, choices or {}, any_dtype, ranges or {})
        flags = {a.name: {"True": "true", "False": "false"} for a in parsed if a.kind == "flag"}
        spelled = {**(choices or {}), **flags}
        functors = Functors(f"{name}.h", forward, backward, spelled, random, words)
        made = Op(
            name=name,
            reference=function,
            functors=functors,
            arguments=parsed,
            sample=sample,
            flops=flops,
            saves=saves,
            grads=grads or {},
            passthrough=passthrough,
            output_dtype=output_dtype,
            dtype_like=dtype_like,
            inverted=inverted,
            random=random,
            autocast_float=autocast_float,
            vjp=vjp,
        )
        build.declare(name, functors)
        _define(made)
        made.fused, made._namespace = _fused(made)
        OPS[name] = made
        return cast(Function, made.fused)

    return declare


def activate() -> bool:
    """Loads the host runtime (compiling it if need be) and hands it every op.

    False: there is no compiler, and every op runs its reference.
    """
    global _ACTIVE
    with _LOCK:
        host = loader.load()
        if host is not None and not _ACTIVE:
            for each in OPS.values():
                each._namespace["direct"] = host.register_op(each.description())
            _ACTIVE = True
        return _ACTIVE


def register_late(each: Op) -> None:
    """Hands the host runtime an op declared after it was loaded."""
    host = loader.load()
    if _ACTIVE and host is not None:
        each._namespace["direct"] = host.register_op(each.description())


# ---- the public function

_TEMPLATE = """
def {name}{signature}:
    if is_dynamo_compiling():
        return traced({names})
    return direct({names})
"""


def _fused(op: Op) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """The function users call, and its globals, whose `direct` changes on first use.

    Written out rather than a closure over *args: Python then fills in defaults and keywords
    at no cost (0.1 µs instead of 0.6).
    """
    signature = inspect.signature(op.reference)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    namespace: dict[str, Any] = {
        "is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
        "traced": _traced(op),
        "direct": functools.partial(_first_call, op),
    }
    text = _TEMPLATE.format(
        name=op.name,
        signature=inspect.Signature(bare),
        names=", ".join(a.name for a in op.arguments),
    )
    exec(compile(text, f"<megafuse.{op.name}>", "exec"), namespace)
    made = functools.update_wrapper(namespace[op.name], op.reference)
    made.__module__ = "megafuse"
    return made, namespace


def _first_call(op: Op, *args: Any) -> Tensor:
    """Loads the runtime, then does the call; later calls go straight to the runtime."""
    if activate():
        if isinstance(op._namespace["direct"], functools.partial):
            register_late(op)
        return cast(Tensor, op._namespace["direct"](*args))
    op.check(*args)
    return op.reference(*args)


def _traced(op: Op) -> Callable[..., Tensor]:
    """The call through the dispatcher, for tracers and everything that watches it."""
    overload = op.overload
    numbers = [i for i, a in enumerate(op.arguments) if a.kind == "tensor_or_number"]

    def call(*args: Any) -> Tensor:
        if numbers:
            # The dispatcher wants tensors. float32 loses nothing: kernels compute in it unless
            # a tensor is float64, and then the number is made float64 too.
            floats = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
            if any(t.dtype == torch.float64 for t in floats):
                dtype = torch.float64
            elif floats and all(t.dim() == 0 for t in floats):
                dtype = floats[0].dtype  # else the number would promote it
            else:
                dtype = torch.float32
            args = tuple(
                torch.scalar_tensor(a, dtype=dtype)
                if i in numbers and not isinstance(a, Tensor)
                else a
                for i, a in enumerate(args)
            )
        result = overload(*args)
        return cast(Tensor, result[0] if op.random else result)

    return call


# ---- the dispatcher's side, until the host runtime takes over


def _define(op: Op) -> None:
    tags = [torch.Tag.pt2_compliant_tag]
    if op.random:
        tags.append(torch.Tag.nondeterministic_seeded)
    _LIBRARY.define(op.schema, tags=tags)

    def reference(*args: Any) -> Any:
        out = op.reference(*args)
        return (out, out.new_empty(2, dtype=torch.int64)) if op.random else out

    def bootstrap(*args: Any) -> Any:
        if activate():
            return op.overload(*args)
        args += tuple(a.default for a in op.arguments[len(args) :])  # the dispatcher drops them
        op.check(*args)
        return reference(*args)

    for key in ("CPU", "CUDA", *(["Autograd"] if op.differentiable else [])):
        _LIBRARY.impl(op.name, bootstrap, key)
    torch.library.register_fake(f"megafuse::{op.name}", reference, lib=_LIBRARY)


_LIBRARY.define(
    "pointwise_backward(str op, Tensor grad, Tensor?[] saved, float[] saved_values, "
    "Tensor?[] like, float[] numbers, int[] choices, Tensor? random, bool[] wanted) -> Tensor[]",
    tags=[torch.Tag.pt2_compliant_tag],
)


def _backward_fake(
    op: str,
    grad: Tensor,
    saved: list[Tensor | None],
    saved_values: list[float],
    like: list[Tensor | None],
    numbers: list[float],
    choices: list[int],
    random: Tensor | None,
    wanted: list[bool],
) -> list[Tensor]:
    # A sum of all that is read has the strides that a kernel reading it gives its outputs.
    read = [t for t in saved if t is not None and t.device == grad.device]
    full = functools.reduce(torch.add, read, grad)
    return [
        torch.empty_like(full, dtype=grad.dtype) if t is None else t.new_empty(t.shape)
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
        torch.ops.megafuse.pointwise_backward(
            *(sample(a, d, i) for a, d in zip(args, in_dims, strict=True))
        )
        for i in range(info.batch_size)
    ]
    stacked = [torch.stack(gradients) for gradients in zip(*each, strict=True)]
    return stacked, [0] * len(stacked)


def _backward_bootstrap(*args: Any) -> Any:
    if not activate():
        raise RuntimeError(
            "megafuse: this graph was compiled with fused kernels, and no C++ compiler is found "
            "to build them here. Install g++ or clang++, or set CXX."
        )
    return torch.ops.megafuse.pointwise_backward.default(*args)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("pointwise_backward", _backward_bootstrap, _key)
torch.library.register_fake("megafuse::pointwise_backward", _backward_fake, lib=_LIBRARY)
torch.library.register_vmap("megafuse::pointwise_backward", _backward_vmap, lib=_LIBRARY)
