"""Nothing of the user's is lost: what calls change is put back.

Tensors are copied when an operation is about to write to them, and only those that were there
before the call: what a call allocates is its own. So a model of 10 GB that changes two buffers
costs two buffers. Besides, the random generators, gradients, buffers that were replaced, train and
eval, and the state of optimizers, schedulers and scalers that the callable can reach.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_MOST = 64  # objects that are looked through from one callable


class Keep:
    """What to put back. `before_write` is called with each tensor that is about to be changed."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        self.copies: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}
        self.lost: list[str] = []  # what could not be copied
        self._grads: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._found = list(reachable(function, arguments))
        self._modules = [
            (m, m.training, dict(m._buffers), dict(m._parameters))
            for root in self._found
            if isinstance(root, nn.Module)
            for m in root.modules()
        ]
        for root in self._found:
            if isinstance(root, nn.Module):
                for parameter in root.parameters():
                    self.leaf(parameter)
        for leaf in pytree.tree_leaves(arguments):
            if isinstance(leaf, Tensor):
                self.leaf(leaf)
        self._optimizers = [
            (o, {k: dict(v) for k, v in o.state.items()}, [dict(g) for g in o.param_groups])
            for o in self._found
            if isinstance(o, torch.optim.Optimizer)
        ]
        self._others = [(o, copy.deepcopy(o.state_dict())) for o in self._found if _has_state(o)]
        self._random = _generators()
        self._grad_mode = torch.is_grad_enabled()

    def leaf(self, t: Tensor) -> None:
        """Its gradient is to be afterwards what it is now."""
        if t.is_leaf and id(t) not in self._grads:
            self._grads[id(t)] = (t, t.grad)

    def before_write(self, t: Tensor) -> None:
        """A copy of the tensor, once: on its own device, else on the CPU, else none."""
        if t.layout != torch.strided:
            return
        at = (t.data_ptr(), t.device, t.dtype, tuple(t.shape), tuple(t.stride()))
        if at in self.copies:
            return
        plain = t.detach()
        try:
            try:
                kept = plain.clone()
            except torch.OutOfMemoryError:
                kept = plain.cpu()
        except (RuntimeError, MemoryError) as error:
            self.lost.append(f"a tensor of {list(t.shape)} was written to and has no copy: {error}")
            return
        self.copies[at] = (plain, kept)

    def buffers(self) -> None:
        """Copies of all buffers, and with an optimizer of all parameters: for calls that nothing
        watches."""
        for _, _, buffers, parameters in self._modules:
            held = [*buffers.values(), *(parameters.values() if self._optimizers else ())]
            for t in held:
                if t is not None:
                    self.before_write(t)

    def restore(self) -> None:
        """Puts everything back; the last copies first, since the first ones are the oldest."""
        torch.set_grad_enabled(self._grad_mode)
        with torch.no_grad():
            for target, kept in reversed(list(self.copies.values())):
                _unexpanded(target).copy_(_unexpanded(kept.to(target.device)))
        for leaf, grad in self._grads.values():
            leaf.grad = grad
        for module, training, buffers, parameters in self._modules:
            module.training = training
            if isinstance(module, torch.jit.ScriptModule):  # its tensors cannot be exchanged
                continue
            module._buffers.clear()
            module._buffers.update(buffers)
            module._parameters.clear()
            module._parameters.update(parameters)
        for optimizer, state, groups in self._optimizers:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, was in zip(optimizer.param_groups, groups, strict=False):
                group.clear()
                group.update(was)
        for other, state in self._others:
            other.load_state_dict(state)
        self.restore_random()

    def restore_random(self) -> None:
        for put_back in self._random:
            put_back()


def reachable(function: Callable[..., Any], arguments: Any, every: bool = False) -> Iterator[Any]:
    """Modules, optimizers and the like: arguments, what a method is bound to, closures, globals.
    With `every`, also the functions on the way."""
    todo: list[Any] = [function, *pytree.tree_leaves(arguments)]
    seen: set[int] = set()
    while todo and len(seen) < _MOST:
        thing = todo.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if every or _is_state(thing):
            yield thing
        todo += _held(thing)


def _held(thing: Any) -> list[Any]:
    """What a function uses beyond its arguments."""
    held: list[Any] = []
    if inspect.ismethod(thing):
        held.append(thing.__self__)
    inner = inspect.unwrap(thing) if callable(thing) else None
    inner = getattr(inner, "__func__", inner)
    if not inspect.isfunction(inner):
        return held
    for cell in inner.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    names = inner.__code__.co_names
    for name in names:
        value = inner.__globals__.get(name)
        plain = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
        same_file = inspect.isfunction(plain) and plain.__globals__ is inner.__globals__
        if same_file or _is_state(value):
            held.append(value)
        elif isinstance(value, (list, tuple, dict)):
            held += [v for v in pytree.tree_leaves(value) if _is_state(v)][:_MOST]
    return held


def _is_state(value: Any) -> bool:
    return isinstance(value, (nn.Module, torch.optim.Optimizer)) or _has_state(value)


def _has_state(thing: Any) -> bool:
    """A scheduler, a scaler: no module and no optimizer, whose state is more than its tensors."""
    if isinstance(thing, (nn.Module, torch.optim.Optimizer, type, Tensor)):
        return False
    known = type(thing).__module__.startswith("torch.")
    return known and all(hasattr(thing, name) for name in ("state_dict", "load_state_dict"))


def _generators() -> list[Callable[[], object]]:
    """How to set each random generator to where it is now."""
    held: list[Callable[[], object]] = []
    cpu, plain = torch.get_rng_state(), random.getstate()
    held += [lambda: torch.set_rng_state(cpu), lambda: random.setstate(plain)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states = torch.cuda.get_rng_state_all()
        held.append(lambda: torch.cuda.set_rng_state_all(states))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        drawn = numpy.random.get_state()
        held.append(lambda: numpy.random.set_state(drawn))
    return held


def _unexpanded(t: Tensor) -> Tensor:
    for dim, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        if size > 1 and stride == 0:
            t = t.narrow(dim, 0, 1)
    return t
