"""A function and its gradient as functors of kernels/pointwise.h, for an author to refine.

Both are traced by fuse. For the backward, the gradient is traced as a function of the incoming one
and all arguments, so that an op has to save nothing else. Numbers are traced as tensors: the
arithmetic on them is then in the functor, not worked out by the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from megafuse.codegen.body import Applied, Body, Fetched, Loaded, Term, terms
from megafuse.codegen.scope import Scope
from megafuse.codegen.writer import Lines
from megafuse.compiler.compile import NotFused, compiled
from megafuse.compiler.new_op.read import Refused, Written
from megafuse.graph.errors import CaptureError
from megafuse.graph.plan import Kernel, Plan, Tensor

# Of all tensors: an op's arguments broadcast without its functor's help. Square, so that a matrix
# product is found to be one, and not to be an error.
_SHAPE = (6, 6)
GRADIENT = "its gradient"
_LITERAL = re.compile(r"(?<![\w.])(\d+\.?\d*(?:e[+-]?\d+)?)f\b")


def bodies(written: Written) -> tuple[Body, Body]:
    """Forward and backward; operands are named and numbered as the arguments are."""
    names = [p.name for p in written.parameters]
    args = [torch.rand(_SHAPE) + 0.5 for _ in names]
    forward = _body(written.function, written.function.__name__, args, names)
    if len(forward.outputs) != 1:
        raise Refused(f"{written.function.__name__} returns more than one tensor")
    pulled = _pulled(written, args)
    backward = _body(pulled, GRADIENT, [torch.rand(_SHAPE), *args], ["grad", *names])
    for term in terms(backward):  # it has no lines and names of the user's
        term.line = None
        term.name = term.name if isinstance(term, Loaded) else None
    return forward, backward


def _pulled(written: Written, args: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """(grad, *args) → the gradients of the tensors, as a graph of plain operations."""
    places = [i for i, p in enumerate(written.parameters) if p.kind == "Tensor"]

    def gradients(grad: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def of_tensors(*tensors: torch.Tensor) -> Any:
            inner = list(given)
            for place, tensor in zip(places, tensors, strict=True):
                inner[place] = tensor
            return written.function(*inner)

        pull: Any = torch.func.vjp(of_tensors, *(given[i] for i in places))[1]
        found: tuple[torch.Tensor, ...] = pull(grad)
        return found

    graph = make_fx(gradients)(torch.rand(_SHAPE), *args)
    return lambda *given: graph(*given)


def _body(
    function: Callable[..., Any], called: str, args: Sequence[torch.Tensor], names: Sequence[str]
) -> Body:
    try:
        plan = compiled(function, args, {}, "fused").forward[1]
    except (NotFused, CaptureError) as error:
        raise Refused(f"{called} cannot be fused: {error}") from None
    except Exception as error:  # the function's own: it may not take tensors of one shape
        raise Refused(f"{called}, with {_SHAPE} tensors: {type(error).__name__}: {error}") from None
    if not plan.steps and called == GRADIENT:  # of x + y, say: all are the incoming one
        passed = [_result(result, None, names) for result in plan.outputs]
        return Body(called, ("Float",) * len(names), tuple(passed))
    kernel = _only(plan, called)
    body = kernel.body
    for term in terms(body):
        if isinstance(term, Loaded):
            buffer = kernel.inputs[term.operand].buffer
            if buffer is None or buffer.argument is None or not _in_place(kernel, term.operand):
                raise Refused(f"{called} depends on where an element is: no pointwise op does")
            term.name, term.operand = names[buffer.argument], buffer.argument
    body.inputs = ("Float",) * len(names)
    body.outputs = tuple(_result(result, kernel, names) for result in plan.outputs)
    return body


def _in_place(kernel: Kernel, operand: int) -> bool:
    """Whether each element is read where the result has it: not transposed, say."""
    read = kernel.inputs[operand]
    return read.buffer is not None and read.strides == read.buffer.strides and read.offset == 0


def _result(result: Any, kernel: Kernel | None, names: Sequence[str]) -> Term:
    """In the function's order, which need not be the kernel's; it may be an argument as it is."""
    assert isinstance(result, Tensor)
    place = result.buffer.argument
    if place is not None:
        return Loaded(place, dtype="Float", name=names[place])
    assert kernel is not None
    return kernel.body.outputs[[o.buffer for o in kernel.outputs].index(result.buffer)]


def _only(plan: Plan, called: str) -> Kernel:
    """The one kernel, of elements."""
    steps = plan.steps
    if len(steps) != 1 or not isinstance(steps[0], Kernel):
        said = ", ".join(s.body.name if isinstance(s, Kernel) else str(s.target) for s in steps)
        raise Refused(
            f"{called} takes {len(steps)} steps ({said or 'nothing is computed'}): an op made "
            "from a function is one kernel. `megafuse fuse … --explain` shows them; mf.fuse runs "
            "the function as it is"
        )
    kernel = steps[0]
    if kernel.body.row_wise:
        raise Refused(
            f"{called} goes row by row, and only functors of elements are written for you: follow "
            "rms_norm.h and rms_norm.py, or let mf.fuse run it"
        )
    used = terms(kernel.body)
    if any(isinstance(t, Fetched) for t in used) or any(
        o.buffer.dtype != torch.float32 for o in kernel.outputs if o.buffer is not None
    ):
        raise Refused(f"{called} gathers, or its result is no float: write such an op by hand")
    return kernel


def operations(body: Body) -> int:
    """An estimate of the FLOPs of an element."""
    return sum(isinstance(term, Applied) and term.prim.name != "cast" for term in terms(body))


def struct(body: Body, name: str, tensors: Sequence[str], numbers: Sequence[str]) -> str:
    """The functor, a template of the type that arithmetic is done in."""
    scope = Scope(body)
    # As C++ calls what is used: an argument may have a name that is taken there.
    used = {t.name: scope.inputs[t.operand] for t in terms(body) if isinstance(t, Loaded)}
    lines = Lines()
    lines.add("template <class F>")
    lines.open(f"struct {name} : Scalars<{len(numbers)}> {{")
    kept = [(at, used[n]) for at, n in enumerate(numbers) if n in used]
    for _, number in kept:
        lines.add(f"F {number};")
    reads = ", ".join(f"{number}(s[{at}])" for at, number in kept)
    given = f"const F* s) : {reads}" if reads else "const F*)"
    lines.add(f"MF_INLINE explicit {name}({given} {{}}")
    parameters = ", ".join(f"F {used[t]}" if t in used else "F" for t in tensors)
    results = len(body.outputs)
    returns = "F" if results == 1 else f"Pack<F, {results}>"
    lines.open(f"MF_INLINE {returns} operator()({parameters}) const {{")
    scope.enter()
    scope.declare(body.outputs, lines)
    for term in body.outputs:
        if not scope.is_known(term):
            lines.comment(term.line)
    texts = [scope.text(term).code for term in body.outputs]
    lines.add(f"return {texts[0]};" if results == 1 else f"return {{{', '.join(texts)}}};")
    lines.close()
    lines.close("};")
    return "\n".join(map(_of_any_float, str(lines).splitlines())) + "\n"


def _of_any_float(line: str) -> str:
    """float becomes F, and 0.5f becomes F(0.5); the user's lines stay as they are."""
    if line.lstrip().startswith("//"):
        return line
    return re.sub(r"\bfloat\b", "F", _LITERAL.sub(r"F(\1)", line))
