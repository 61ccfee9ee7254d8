"""What capture.py traces with: stand-ins for arguments, and modes that watch the user's code.

A tensor becomes a fake one with symbolic sizes, a float or an int a SymFloat or SymInt, so that
sizes and numbers come anew with each call. Equal sizes get different symbols; where the code needs
them equal, torch's ShapeEnv notes a guard.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._prims_common import compute_elementwise_output_strides
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import traceback
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from megafuse.graph import origin, random_calls, views
from megafuse.graph.errors import CaptureError


class _Shapes(ShapeEnv):
    """Does not note which line asked for a symbol or a guard: origin.py knows the user's lines. The
    first such note imports torch.export, a twelfth of what a first call imports."""

    def _get_user_frame(self) -> None:
        return None


# Exponents that are no numbers of the call but part of what is compiled: a power by them is a
# product or a root, a tenth of the arithmetic of any exponent's, which takes a logarithm.
_EXPONENTS = (-2, -1, -0.5, 0.5, 1, 2, 3)


class _Fakes(FakeTensorMode):
    """Fake tensors with the strides that eager's have.

    For pointwise operations in 16 bits torch's take those of float32 copies of the operands: where
    one is expanded and another transposed, the copy's strides decide, and in eager the other's."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.pow.Tensor_Scalar:
            _fix_exponent(args[1])
        if func in _VIEWS and views.is_dense(args[0]):
            return views.view_of_dense(*args)
        made = super().dispatch(func, types, args, kwargs)
        if (
            isinstance(made, torch.Tensor)
            and made.dtype in (torch.float16, torch.bfloat16)
            and torch.Tag.pointwise in func.tags
        ):
            return self._laid_out(made, func, args)
        return made

    def _laid_out(self, made: torch.Tensor, func: Any, args: Any) -> torch.Tensor:
        given = [a for a in args if isinstance(a, torch.Tensor)]
        if len(given) < 2 or func._schema.is_mutable or not any(map(_is_expanded, given)):
            return made
        if not all(a.shape == made.shape for a in given):
            return made
        strides = compute_elementwise_output_strides(*given)
        if tuple(strides) == made.stride():
            return made
        plain = torch.empty_strided(made.shape, strides, dtype=made.dtype, device="meta")
        return FakeTensor(self, plain, made.device)


_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def _fix_exponent(exponent: Any) -> None:
    """A simple one becomes a constant by the guard that a comparison leaves."""
    if isinstance(exponent, (torch.SymFloat, torch.SymInt)) and _is_simple(exponent):
        bool(exponent == exponent.node.hint)


def _is_simple(exponent: torch.SymFloat | torch.SymInt) -> bool:
    return exponent.node.hint in _EXPONENTS


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(type(stride) is int and stride == 0 for stride in tensor.stride())


_TIED = 3  # dimensions


class StandIns:
    """Fake tensors and symbolic numbers of one capture."""

    def __init__(self, symbolic_sizes: bool) -> None:
        self.shapes = _Shapes(
            duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )
        self.mode = _Fakes(shape_env=self.shapes, static_shapes=False)
        # Its cache is for those who run the same operation twice: it took a third of the trace.
        self.mode.cache_enabled = False
        self._size = DimDynamic.DYNAMIC if symbolic_sizes else DimDynamic.STATIC

    def tensor(self, real: torch.Tensor, name: str) -> torch.Tensor:
        dims = real.dim()
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=[self._size] * dims,
            dynamic_strides=[DimDynamic.INFER_STRIDE] * dims,
        )
        # A view arrives without its base, and a leaf of the caller's graph is a leaf here.
        real = real.detach().requires_grad_(real.requires_grad)
        return self.mode.from_tensor(real, source=ConstantSource(name), symbolic_context=context)

    def tie(self, real: Iterable[Any], stand_ins: Iterable[Any]) -> None:
        """Tensors that are alike, of three dimensions and more, are taken to be so in every call:
        the queries and keys of a rotary embedding share a kernel then. Where another call's are
        not, that is another variant. Fewer dimensions say less: lengths that have nothing to do
        with each other are equal by chance."""
        first: dict[Any, torch.Tensor] = {}
        for tensor, stand_in in zip(real, stand_ins, strict=True):
            if isinstance(tensor, torch.Tensor) and tensor.dim() >= _TIED:
                like = first.setdefault((tensor.shape, tensor.dtype, tensor.device), stand_in)
                for one, other in zip(stand_in.shape, like.shape, strict=True):
                    torch._check(one == other)  # torch's ShapeEnv notes it

    def number(self, value: float | int, name: str) -> Any:
        source = ConstantSource(name)
        symbol = self.shapes.create_symbol(
            value,
            source,
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=None,
            do_not_specialize_zero_one=True,
        )
        if isinstance(value, float):
            return self.shapes.create_symfloatnode(symbol, hint=value, source=source)
        return self.shapes.create_symintnode(symbol, hint=value, source=source)


def is_number(value: object) -> bool:
    """Whether an argument can come anew with each call: a finite float, or an int of 64 bits."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and -(2**63) <= value < 2**63


_PRINTS = "A tensor's value is printed or formatted, but there is none while fuse traces."
_READS = "Python reads a tensor's value, but there is none while fuse traces."
_REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("__repr__", "__format__", "__str__"),
        (_PRINTS, "Print it outside of the fused function, or return it and print the result."),
    ),
    **dict.fromkeys(
        ("__bool__", "is_nonzero", "__contains__", "equal", "allclose"),
        (
            "Python branches on a tensor's value, but there is none while fuse traces.",
            "Choose with torch.where, or branch outside of the fused function.",
        ),
    ),
    **dict.fromkeys(
        (
            "item",
            "tolist",
            "numpy",
            "__float__",
            "__int__",
            "__index__",
            "__complex__",
            "__array__",
        ),
        (_READS, "Keep it a tensor, or pass the number as an argument of the fused function."),
    ),
    **dict.fromkeys(
        ("data_ptr", "__dlpack__"),
        (
            "This asks where a tensor lies in memory, and it lies nowhere while fuse traces.",
            "Do it outside of the fused function.",
        ),
    ),
    **dict.fromkeys(
        ("backward", "requires_grad_", "register_hook", "set_", "resize_", "share_memory_"),
        (
            "This changes how a tensor is stored or differentiated, which fuse cannot trace.",
            "Do it outside of the fused function.",
        ),
    ),
}


class Watch(TorchFunctionMode):
    """Notes the user's line for each operation, in the backward pass too, and refuses some."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[Any] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _REFUSED and any(isinstance(arg, torch.Tensor) for arg in args):
            caller = sys._getframe(1).f_code.co_name  # bool(x) asks for x.item()
            raise CaptureError(*_REFUSED.get(caller, _REFUSED[name]), origin.here())
        if name == "pad":
            _see_padding(*args, **(kwargs or {}))
        if name == "take_along_dim":
            func = _take_along_dim
        if name in _POWERS and len(args) == 2:
            func, args = _with_open_exponent(func, *args)
        here = origin.here()
        traceback.set_stack_trace([origin.written(here)])
        result = random_calls.replaced(func, args)(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                self._remember(tensor.grad_fn, [origin.written(here, backward=True)])
        return result

    def _remember(self, node: Any, line: list[str]) -> None:
        """When the backward pass comes to this node, its operations are of this line."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node is None or node in self._seen:
                continue
            self._seen.add(node)
            if hasattr(node, "register_prehook"):
                node.register_prehook(lambda _: traceback.set_stack_trace(line))
            stack.extend(before for before, _ in node.next_functions)


def _see_padding(
    x: torch.Tensor, pad: Sequence[int], mode: str = "constant", *rest: Any, **more: Any
) -> None:
    """torch's Python kernels do not ask whether there is enough to reflect. To compare is to note a
    guard: smaller sizes are captured anew, and refused."""
    for at, size in enumerate(pad if mode == "reflect" else ()):
        there = x.shape[-1 - at // 2]
        if not size < there:
            raise RuntimeError(
                "Padding size should be less than the corresponding input dimension, but got: "
                f"padding {size} at dimension {x.dim() - 1 - at // 2} of size {there}"
            )


def _take_along_dim(
    x: torch.Tensor, indices: torch.Tensor, dim: int | None = None, **more: Any
) -> torch.Tensor:
    """As gather, which is what it is: torch's own reads sizes as ints."""
    if dim is None or more or x.dim() != indices.dim() or not -x.dim() <= dim < x.dim():
        return torch.take_along_dim(x, indices, dim, **more)
    at = dim % x.dim()
    others = [[*t.shape[:at], 1, *t.shape[at + 1 :]] for t in (x, indices)]
    shape = list(torch.broadcast_shapes(*others))
    x, indices = (t.expand([*shape[:at], t.shape[at], *shape[at + 1 :]]) for t in (x, indices))
    return x.gather(at, indices)


_POWERS = ("pow", "pow_", "__pow__", "__ipow__")


def _with_open_exponent(func: Any, x: Any, exponent: Any) -> tuple[Any, tuple[Any, ...]]:
    """An exponent that comes with the call as a tensor, where there is a gradient: the formula of
    the gradient for numbers asks for its value, and the graph would be for this exponent alone."""
    _fix_exponent(exponent)
    if not isinstance(exponent, (torch.SymFloat, torch.SymInt)) or _is_simple(exponent):
        return func, (x, exponent)
    if not isinstance(x, torch.Tensor) or not (torch.is_grad_enabled() and x.requires_grad):
        return func, (x, exponent)
    open_exponent: Any = exponent  # full's annotation knows no symbolic numbers
    if x.dtype.itemsize == 2 and func.__name__ in ("pow", "__pow__"):
        # A tensor is rounded to the 16 bits of x, a number is not.
        power = torch.full((), open_exponent, dtype=torch.float32, device=x.device)
        return _power_in_float, (x, power)
    # float64 keeps its digits, and of more dimensions x decides on the dtype all the same.
    dtype = torch.float64 if x.dim() else x.dtype
    return func, (x, torch.full((), open_exponent, dtype=dtype, device=x.device))


def _power_in_float(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    return (x.float() ** exponent).to(x.dtype)


@contextmanager
def symbolic_kernels() -> Iterator[None]:
    """torch's Python kernels where it has some: they take symbolic sizes. Those in C++ read them as
    ints, and then the graph is for these sizes alone. AOTAutograd traces so too."""
    with enable_python_dispatcher():
        yield


@contextmanager
def no_hooks() -> Iterator[None]:
    """Tensors that the trace saves are not for the caller's hooks, such as checkpoint's."""
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)
