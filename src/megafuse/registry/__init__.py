"""What an op is: a PyTorch function, and the kernel that gives the same in one launch.

An op is declared once, by decorating its reference twin:

    @op(forward="GeluScale<{F}, {approximate}>", …)
    def gelu_scale(x: Tensor, scale: float, approximate: str = "tanh") -> Tensor:
        return F.gelu(x, approximate=approximate) * scale

The function's signature is the op's schema and its body the reference; what the decorator
returns is the fused op under the same signature. Tests, benchmarks and the command line walk
`OPS`; nothing lists the ops a second time.

Ops come in families: "pointwise" and "rows" ops are functors that a generic kernel runs, a
"composite" is a C++ program of its own (runtime/host/programs.h) that launches several kernels.

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
    family: str
    program: str
    reference: Callable[..., Any]
    functors: Functors | None
    arguments: list[Argument]
    returns: tuple[str, ...]
    keeps: tuple[str, ...]
    kept: Callable[..., Sequence[Tensor]]
    sample: Sampler
    flops: tuple[int, int] | Callable[..., tuple[int, int]]
    launches: tuple[int, int] | Callable[..., tuple[int, int]] | None
    unread: Callable[..., tuple[int, int]] | None
    saves: tuple[str, ...]
    grads: dict[str, int]
    passthrough: tuple[str, ...]
    output_dtype: str | None
    dtype_like: str | None
    inverted: str | None
    random: bool
    autocast: str | None
    laid_out_as: str | None
    vjp: Callable[..., Sequence[Tensor | None]] | None
    further_check: Callable[..., str | None] | None
    fused: Callable[..., Any] = field(init=False)
    _namespace: dict[str, Any] = field(init=False)

    @property
    def differentiable(self) -> bool:
        return bool(self.grads)

    @property
    def pointwise(self) -> bool:
        return self.family == "pointwise"

    @property
    def outputs(self) -> int:
        """How many tensors a call returns."""
        return len(self.returns)

    @property
    def tensors(self) -> list[str]:
        """Names of the arguments that may be tensors, in the functor's order."""
        return [a.name for a in self.arguments if a.is_tensor]

    @property
    def schema(self) -> str:
        """The op's declaration for PyTorch's dispatcher.

        After what users see come kept results (empty unless `keep`), and a random state.
        """
        results = self.outputs + len(self.keeps) + self.random
        returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        listed = [a.schema for a in self.arguments] + ["bool keep=False"] * bool(self.keeps)
        return f"{self.name}({', '.join(listed)}) -> {returns}"

    @property
    def overload(self) -> Any:
        """The op as the dispatcher knows it."""
        return getattr(torch.ops.megafuse, self.name).default

    def laid_out(self, results: Sequence[Tensor], args: Sequence[Any]) -> list[Tensor]:
        """The reference's outputs with the strides that the fused op's have."""
        if self.pointwise:
            return list(results)
        if self.laid_out_as is None:
            return [t.contiguous() for t in results]
        like = args[self.position(self.laid_out_as)]
        return [torch.empty_like(like, dtype=t.dtype).copy_(t) for t in results]

    def position(self, name: str) -> int:
        return [a.name for a in self.arguments].index(name)

    def listed(self, results: Any) -> list[Tensor]:
        """What a call returned, one tensor or several, as a list."""
        return [results] if self.outputs == 1 else list(results)

    def draws(self, values: dict[str, Any]) -> bool:
        """Whether a call with these arguments depends on random numbers."""
        return self.random and values["training"] and values["p"] > 0

    def check(self, *args: Any) -> None:
        """Raises a TypeError or ValueError that says what is wrong with `args`, if anything."""
        arguments.check(self.name, self.arguments, args, self.pointwise, self.further_check)

    def cost(self, *args: Any) -> Cost:
        """The least a forward call must do."""
        return Cost.of_forward(self, args)

    def backward_cost(self, *args: Any) -> Cost:
        """The least a backward call must do when every argument wants its gradient."""
        return Cost.of_backward(self, args)

    def description(self) -> dict[str, Any]:
        """The op as data for the host runtime (runtime/host/op.h)."""
        results = [*self.returns, *self.keeps]
        return {
            "name": self.name,
            "family": self.family,
            "program": self.program,
            "args": [
                (
                    a.name,
                    a.kind,
                    tuple(a.choices),
                    float(a.least),
                    float(a.most),
                    a.optional,
                    a.own_dtype,
                    a.shape,
                )
                for a in self.arguments
            ],
            "outputs": self.outputs,
            "kept": len(self.keeps),
            "dtype": self.output_dtype,
            "dtype_like": -1 if self.dtype_like is None else self.position(self.dtype_like),
            "inverted": -1 if self.inverted is None else self.position(self.inverted),
            "random": self.random,
            "autocast": self.autocast,
            "laid_out_as": -1 if self.laid_out_as is None else self.position(self.laid_out_as),
            "saved": [
                -1 - results.index(s) if s in results else self.position(s) for s in self.saves
            ],
            "grads": [
                (self.position(name), result, name in self.passthrough)
                for name, result in self.grads.items()
            ],
            "slow": self._namespace["traced"],
            "reference": self.reference,
            "explain": self.check,
            "vjp": functools.partial(second_derivative.vjp, self),
            "kept_like": self.kept,
        }


def op(
    *,
    family: str = "pointwise",
    program: str | None = None,
    forward: str | None = None,
    backward: str | None = None,
    header: str | None = None,
    sample: Sampler,
    flops: tuple[int, int] | Callable[..., tuple[int, int]],
    launches: tuple[int, int] | Callable[..., tuple[int, int]] | None = None,
    unread: Callable[..., tuple[int, int]] | None = None,
    choices: dict[str, dict[str, str]] | None = None,
    shapes: dict[str, str] | None = None,
    returns: tuple[str, ...] = ("out",),
    keeps: tuple[str, ...] = (),
    kept: Callable[..., Sequence[Tensor]] | None = None,
    saves: tuple[str, ...] = (),
    grads: dict[str, int] | None = None,
    passthrough: tuple[str, ...] = (),
    any_dtype: tuple[str, ...] = (),
    own_dtype: tuple[str, ...] = (),
    ranges: dict[str, tuple[float, float]] | None = None,
    output_dtype: str | None = None,
    dtype_like: str | None = None,
    inverted: str | None = None,
    random: bool = False,
    autocast: str | None = None,
    laid_out_as: str | None = None,
    vjp: Callable[..., Sequence[Tensor | None]] | None = None,
    check: Callable[..., str | None] | None = None,
    words: Callable[[Variant], dict[str, str]] | None = None,
) -> Callable[[Function], Function]:
    """Declares an op; the decorated function is its reference.

    family              "pointwise", "rows" or "composite"
    program             a composite's name in runtime/host/programs.h; the op's own unless told
    forward, backward   functor types in kernels/<name>.h (see runtime/render.py for `{…}`)
    header              of the functors, where it is not <name>.h
    sample              makes arguments for tests and benchmarks (see registry/sample.py)
    flops               floating-point operations, forward and backward: so many an element of the
                        first output, or a function of the arguments that gives the totals
    launches            on CUDA, forward and backward, or a function of the arguments; counted for
                        pointwise ops
    unread              (*args) → bytes that forward and backward need not read
    choices             the C++ word for each value of a string argument; flags get true/false
    shapes              argument → its shape, such as "...K" or "NK" (see runtime/host/op.h);
                        tensors of pointwise ops broadcast instead
    returns             names of the outputs, as many as the reference returns
    keeps               names of results that only the backward reads
    kept                (*args) → tensors like these, made with new_empty
    saves               what the backward reads after the gradients, in its order: names of
                        arguments, of `returns` and of `keeps`
    grads               argument → which result of the backward is its gradient
    passthrough         arguments whose gradient is the incoming one, as they are merely added
    any_dtype           tensor arguments that need not be floating point
    own_dtype           tensor arguments that need not have the first one's dtype (not pointwise)
    ranges              allowed range of a float or int argument
    output_dtype        "int8", or None for the promoted dtype of the tensors
    dtype_like          the first tensor is promoted as if it had this argument's dtype
    inverted            an argument that a CUDA kernel gets as its reciprocal when it is a number
    random              draws random numbers; such an op has the arguments `p` and `training`
    autocast            what torch.autocast does: "float32" (on CUDA, as exp) or "lower" (as
                        matmul; arguments with their own dtype keep it), or None
    laid_out_as         the argument whose order of dimensions in memory the output has, and each
                        gradient that of its argument; else they are contiguous (not pointwise)
    vjp                 gradients in the order of `grads`, in plain PyTorch, for second
                        derivatives: (grad, *saves) →, or where the op is not pointwise
                        (*grads, **everything saved, numbers and choices, by name) →. Found from
                        the reference when all arguments that matter are saved
    check               (*args) → what is wrong with them, or None, beyond what the above says;
                        the program throws BadArguments then
    words               further `{…}` of the functor types, from the kernel's operands
    """

    def declare(function: Function) -> Function:
        name = function.__name__
        parsed = arguments.parse(
            function, choices or {}, any_dtype, own_dtype, ranges or {}, shapes or {}
        )
        if len(returns) != arguments.outputs(function):
            raise TypeError(f"{name}: returns={returns} does not match its return annotation")
        functors = None
        if forward is not None:
            flags = {a.name: {"True": "true", "False": "false"} for a in parsed if a.kind == "flag"}
            spelled = {**(choices or {}), **flags}
            shared = {a.name for a in parsed if a.shape == "C"}
            late = (len(shared), len(shared & {*saves}))
            functors = Functors(
                header or f"{name}.h", forward, backward, spelled, random, late, words
            )
            build.declare(name, functors)
        made = Op(
            name=name,
            family=family,
            program=(program or name) if family == "composite" else family,
            reference=function,
            functors=functors,
            arguments=parsed,
            returns=returns,
            keeps=keeps,
            kept=kept or (lambda *args: []),
            sample=sample,
            flops=flops,
            launches=launches,
            unread=unread,
            saves=saves,
            grads=grads or {},
            passthrough=passthrough,
            output_dtype=output_dtype,
            dtype_like=dtype_like,
            inverted=inverted,
            random=random,
            autocast=autocast,
            laid_out_as=laid_out_as,
            vjp=vjp,
            further_check=check,
        )
        unsaved = set(made.grads) - {*saves, *passthrough}
        if unsaved and vjp is None and {*returns, *keeps} & {*saves}:
            raise TypeError(f"{name}: save {sorted(unsaved)} too, for second derivatives")
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


def _fused(op: Op) -> tuple[Callable[..., Any], dict[str, Any]]:
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


def _first_call(op: Op, *args: Any) -> Any:
    """Loads the runtime, then does the call; later calls go straight to the runtime."""
    if activate():
        if isinstance(op._namespace["direct"], functools.partial):
            register_late(op)
        return op._namespace["direct"](*args)
    op.check(*args)
    return op.reference(*args)


def _traced(op: Op) -> Callable[..., Any]:
    """The call through the dispatcher, for tracers and everything that watches it."""
    overload = op.overload
    numbers = [i for i, a in enumerate(op.arguments) if a.kind == "tensor_or_number"]
    divisor = None if op.inverted is None else op.position(op.inverted)
    outputs = op.outputs
    more = bool(op.keeps) or op.random  # results that users do not see

    def call(*args: Any) -> Any:
        bare = False
        if any(not isinstance(args[i], Tensor) for i in numbers):
            dims = [a.dim() for a in args if isinstance(a, Tensor)]
            if dims and dims[0] == 0 and any(dims):
                op.check(*args)
                return op.reference(*args)  # no tensor has as little say there as a number
            args, bare = arguments.as_tensors(args, numbers, divisor)
        results = overload(*args)
        if more:
            results = results[0] if outputs == 1 else tuple(results[:outputs])
        return results.squeeze(0) if bare else results

    return call


# ---- the dispatcher's side, until the host runtime takes over


def _define(op: Op) -> None:
    tags = [torch.Tag.pt2_compliant_tag]
    if op.random:
        tags.append(torch.Tag.nondeterministic_seeded)
    _LIBRARY.define(op.schema, tags=tags)

    def reference(*args: Any) -> Any:
        keep = len(args) > len(op.arguments) and args[-1]
        args = args[: len(op.arguments)]
        args += tuple(a.default for a in op.arguments[len(args) :])  # the dispatcher drops them
        results = op.laid_out(op.listed(op.reference(*args)), args)
        if op.keeps:
            results += op.kept(*args) if keep else [results[0].new_empty(0) for _ in op.keeps]
        if op.random:
            results.append(results[0].new_empty(2, dtype=torch.int64))
        return results[0] if len(results) == 1 else tuple(results)

    def bootstrap(*args: Any) -> Any:
        if activate():
            return op.overload(*args)
        args += tuple(a.default for a in op.arguments[len(args) :])
        op.check(*args[: len(op.arguments)])
        return reference(*args)

    for key in ("CPU", "CUDA", *(["Autograd"] if op.differentiable else [])):
        _LIBRARY.impl(op.name, bootstrap, key)
    torch.library.register_fake(f"megafuse::{op.name}", reference, lib=_LIBRARY)


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
    follows = OPS[op].laid_out_as is not None
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


def _backward_bootstrap(*args: Any) -> Any:
    if not activate():
        raise RuntimeError(
            "megafuse: this graph was compiled with fused kernels, and no C++ compiler is found "
            "to build them here. Install g++ or clang++, or set CXX."
        )
    return torch.ops.megafuse.backward.default(*args)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("backward", _backward_bootstrap, _key)
torch.library.register_fake("megafuse::backward", _backward_fake, lib=_LIBRARY)
torch.library.register_vmap("megafuse::backward", _backward_vmap, lib=_LIBRARY)
