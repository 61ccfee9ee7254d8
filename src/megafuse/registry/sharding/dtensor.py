"""The ops on DTensors: tensors are moved as the cheapest cut wants them, and each rank calls the op
on its parts.

Registered with torch.library's rules for tensor subclasses, and written with DTensor's public
methods alone: its own table of strategies is private, differs from release to release, and is not
made for lists of tensors that may be missing.

A call that draws random numbers is not cut: a number comes from a place in the tensor, so that the
parts would all have the same ones. Every rank does the whole call, which needs the same state of
torch's generator on all of them; this is looked at once.
"""

from __future__ import annotations

import functools
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from megafuse.registry.declared import OPS, Op
from megafuse.registry.sharding import cuts
from megafuse.registry.sharding.cuts import Cut, Role
from megafuse.registry.sharding.labels import Labelled, labelled

NOTHING = ""  # the name of what is empty, as nothing was kept in its place


def register(op: Op, library: torch.library.Library) -> None:
    """Gives `torch.ops.megafuse.<name>` its rule."""
    rule = functools.partial(_ruled, functools.partial(_forward, op))
    torch.library.register_torch_dispatch(f"megafuse::{op.name}", DTensor, rule, lib=library)


def register_backward(library: torch.library.Library) -> None:
    """The one operation that is every op's backward."""
    rule = functools.partial(_ruled, _backward)
    torch.library.register_torch_dispatch("megafuse::backward", DTensor, rule, lib=library)


def _ruled(
    rule: Callable[..., Any], cls: type, func: Any, types: Any, args: Any, kwargs: Any = None
) -> Any:
    """As `__torch_dispatch__` is called."""
    return rule(*args, **(kwargs or {}))


def _forward(op: Op, *args: Any, keep: bool = False) -> Any:
    if len(args) > len(op.arguments):
        *args, keep = args  # type: ignore[assignment]
    args = (*args, *(a.default for a in op.arguments[len(args) :]))
    values = dict(zip((a.name for a in op.arguments), args, strict=True))
    tensors = {a.name: values[a.name] for a in op.arguments if isinstance(values[a.name], Tensor)}
    _check_gradients(op, tensors)
    found = labelled(op, {name: t.shape for name, t in tensors.items()}, {})
    call = _Call(op, found, list(tensors.values()))
    for name, tensor in tensors.items():
        call.takes(name, "argument", tensor)
    call.choose(op.draws(values), values)
    local = [call.local() if isinstance(value, Tensor) else value for value in args]
    results = op.overload(*local, *([keep] if op.autograd.keeps else []))
    if isinstance(results, Tensor):
        return call.whole(op.signature.returns[0], "result", results)
    names = [*op.signature.returns, *op.autograd.keeps, "random"]
    return tuple(
        call.whole(name, "result" if at < op.outputs else "saved", t)
        for at, (name, t) in enumerate(zip(names, results, strict=False))
    )


def _backward(
    name: str,
    grads: list[Tensor | None],
    saved: list[Tensor | None],
    saved_values: list[float],
    like: list[Tensor | None],
    numbers: list[float],
    choices: list[int],
    random: Tensor | None,
    wanted: list[bool],
) -> list[Tensor]:
    op = OPS[name]
    outputs, wants = op.signature.returns, list(op.autograd.grads)
    held = [
        *(("incoming", n, t) for n, t in zip(outputs, grads, strict=False)),
        *(("saved", n, t) for n, t in zip(op.autograd.saves, saved, strict=True)),
        *(("saved", n, t) for n, t in zip(wants, like, strict=True)),
    ]
    arguments = {a.name for a in op.arguments}
    shapes = {n: t.shape for _, n, t in held if t is not None}
    given = [n for n, want in zip(wants, wanted, strict=True) if want]
    shapes |= {n: shapes[outputs[0]] for n in given if n not in shapes}  # as the result
    found = labelled(
        op,
        {n: s for n, s in shapes.items() if n in arguments},
        {n: s for n, s in shapes.items() if n not in arguments},
    )
    call = _Call(op, found, [t for _, _, t in held if t is not None])
    for role, n, t in held:
        if t is not None:
            call.takes(n, role, t)  # type: ignore[arg-type]
    flags = {
        a.name: bool(c) for a, c in zip(op.arguments, choices, strict=True) if a.kind == "flag"
    }
    call.choose(random is not None, flags)
    local = [None if t is None else call.local() for _, _, t in held]
    first, second = len(grads), len(grads) + len(saved)
    made = torch.ops.megafuse.backward.default(
        name, local[:first], local[first:second], saved_values, local[second:], numbers, choices,
        random.to_local() if isinstance(random, DTensor) else random, wanted,
    )  # fmt: skip
    return [call.whole(n, "gradient", t) for n, t in zip(given, made, strict=True)]


class _Call:
    """One call of an op: its tensors, how they are cut, and what becomes of them."""

    def __init__(self, op: Op, found: Labelled, tensors: Sequence[Any]) -> None:
        meshes = {t.device_mesh for t in tensors if isinstance(t, DTensor)}
        if len(meshes) != 1:
            listed = ", ".join(map(str, meshes))
            raise RuntimeError(
                f"megafuse.{op.name}: its DTensors must be on one mesh, not {listed}"
            )
        self.op, self.found = op, found
        (self.mesh,) = meshes
        self.tensors: list[cuts.Tensor] = []
        self.cut: list[Cut | None] = []
        self._moved: list[Tensor] = []
        self._held: list[Tensor] = []

    def takes(self, name: str, role: Role, tensor: Tensor) -> None:
        """The next of the call's tensors."""
        size = 0.0
        placements: tuple[Placement, ...] = ()
        if isinstance(tensor, DTensor):
            placements = tensor.placements
            count = tensor.numel()
            size = float(count * tensor.element_size()) if isinstance(count, int) else 1.0
        elif tensor.numel() != 1:
            raise RuntimeError(
                f"megafuse.{self.op.name}: argument '{name}' is a plain Tensor beside DTensors. "
                "Make it one too, with torch.distributed.tensor.distribute_tensor."
            )
        kept = len(self.found.dims.get(name, ())) == tensor.dim()
        self.tensors.append(cuts.Tensor(name if kept else NOTHING, role, placements, size))
        self._held.append(tensor)

    @torch.no_grad()  # autograd is above: what is done here has no gradient
    def choose(self, draws: bool, values: Mapping[str, Any]) -> None:
        """Cuts the call, and moves the tensors that lie otherwise."""
        possible = [] if draws else list(cuts.cuts_of(self.op, self.found, values))
        if draws:
            _check_generators(self.op, self.mesh)
        self.cut = cuts.chosen(possible, self.tensors, self.found, self.mesh.shape)
        for tensor, held in zip(self.tensors, self._held, strict=True):
            to = [cuts.placement(cut, tensor, self.found) for cut in self.cut]
            self._moved.append(_moved(held, to) if isinstance(held, DTensor) else held)

    def local(self) -> Tensor:
        """This rank's part of the next tensor."""
        return self._moved.pop(0)

    def whole(self, name: str, role: Role, local: Tensor) -> DTensor:
        """What this rank's part is a part of."""
        labels = self.found.dims.get(name, [])
        if len(labels) != local.dim():
            return self._spread(local, [Replicate()] * self.mesh.ndim, list(local.shape))
        tensor = cuts.Tensor(name, role)
        placements = [cuts.placement(cut, tensor, self.found) for cut in self.cut]
        shape = list(local.shape)
        for ranks, placed in zip(self.mesh.shape, placements, strict=True):
            if isinstance(placed, Shard):
                label = labels[placed.dim]
                assert label is not None
                of_parts = shape[placed.dim] * ranks  # that have other dimensions in them
                shape[placed.dim] = of_parts if label.flat else self.found.sizes[label.name]
        return self._spread(local, placements, shape)

    @torch.no_grad()
    def _spread(
        self, local: Tensor, placements: Sequence[Placement], shape: Sequence[Any]
    ) -> DTensor:
        strides = _dense(shape, local.stride())
        return DTensor.from_local(
            local, self.mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides
        )


def _check_gradients(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raises where a gradient is wanted that the op has not got: whole tensors go to the reference
    then."""
    if not torch.is_grad_enabled() or not op.differentiable:
        return
    for name, tensor in tensors.items():
        if tensor.requires_grad and name not in op.autograd.grads:
            raise RuntimeError(
                f"megafuse.{op.name}: on DTensors it has no gradient for '{name}'. Detach it, or "
                f"call megafuse.reference.{op.name}."
            )


def _moved(tensor: DTensor, to: Sequence[Placement]) -> Tensor:
    """This rank's part of the tensor, placed so. A term of a sum is the first rank's alone."""
    if tuple(to) == tensor.placements:
        return tensor.to_local()
    mesh = tensor.device_mesh
    there = [Replicate() if placed.is_partial() else placed for placed in to]
    local = tensor.redistribute(mesh, there).to_local()
    sums = [dim for dim, placed in enumerate(to) if placed.is_partial()]
    first = all(mesh.get_local_rank(dim) == 0 for dim in sums)
    return local if first else torch.zeros_like(local)


def _dense(shape: Sequence[Any], like: Sequence[Any]) -> tuple[Any, ...]:
    """Strides without gaps, the dimensions in this order in memory."""
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (like[dim], -dim)):
        strides[dim] = step
        step = step * max(shape[dim], 1) if isinstance(shape[dim], int) else step * shape[dim]
    return tuple(strides)


_CHECKED: weakref.WeakSet[DeviceMesh] = weakref.WeakSet()


def _check_generators(op: Op, mesh: DeviceMesh) -> None:
    """Raises where ranks of the mesh would draw other numbers for the same elements."""
    traced = torch._guards.TracingContext.try_get() is not None
    if mesh in _CHECKED or traced or mesh.get_coordinate() is None:
        return
    device = torch.device(mesh.device_type)
    here = torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()
    digest = torch.tensor(zlib.crc32(here.numpy().tobytes()), device=device)
    for dim in range(mesh.ndim):
        ends = torch.stack([digest, -digest])
        dist.all_reduce(ends, dist.ReduceOp.MAX, group=mesh.get_group(dim))
        if int(ends[0]) != -int(ends[1]):
            raise RuntimeError(
                f"megafuse.{op.name}: torch's random numbers are in different states on the ranks "
                f"of {mesh}: copies of one tensor would differ. Call torch.manual_seed with one "
                "seed on all of them."
            )
    _CHECKED.add(mesh)
