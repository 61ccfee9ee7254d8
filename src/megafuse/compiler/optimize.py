"""`optimize`: a model that runs through our backend, and is the same object as before.

torch's own `nn.Module.compile` has a place for it: what lies in `_compiled_call_impl` is called in
place of `forward` and its hooks, is no part of the state, and is not copied or saved. So nothing
else of the module changes, and taking it away is all there is to `deoptimize`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from megafuse.compiler.given_up import Compilations
from megafuse.compiler.hard_sizes import constant_while_tracing
from megafuse.compiler.said_once import say_while_tracing
from megafuse.compiler.spread import has_dtensors

Model = TypeVar("Model", bound=nn.Module)
# What Dynamo should do otherwise than by default while it captures such a model.
_DYNAMO = {
    "skip_nnmodule_hook_guards": False,  # hooks that are added later are seen
    "specialize_float": True,  # else every math.pi is an argument, and a tensor on the CPU
    "recompile_limit": 32,  # kinds of calls: train, eval, no_grad, autocast, a batch of 1, …
}
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12):
    # That two objects are one is a guard on both, not one on all variables: checked.py leaves those
    # of the model out. (Before 2.12 there would be none: weights that are no longer tied ran tied.)
    _DYNAMO["use_lamba_guard_for_object_aliasing"] = False


def optimize(model: Model, *, graphs: bool | int = False) -> Model:
    """Makes the model run as programs of fused kernels, forward and backward; returns the model.

        model = mf.optimize(model)
        print(mf.explain(model, x))  # what became one kernel, what did not, and why

    It is captured when it is first called. Other batch sizes and lengths run what is there. The
    module stays what it is: parameters, state_dict, hooks, train() and eval(), to(), saving. Copies
    of it, by deepcopy or torch.load, are not optimized. `deoptimize` gives the original back.

    graphs=True replays programs as CUDA graphs from the third call of a size on, forward and
    backward; a number is how many graphs a program may have at most (8). Results are copied out,
    so you may keep them. Memory is the graphs' until `deoptimize`. docs/optimize.md has the rules.
    On a CPU it changes nothing.
    """
    from megafuse.compiler.recordable import most

    found = optimized(model)
    if found is None or found.recorder.most != most(graphs):
        made = Optimized(model, graphs=graphs)
        deoptimize(model)
        model._compiled_call_impl = made
    return model


def deoptimize(model: Model) -> Model:
    """The model as it was before `optimize`: returns it. Of others nothing changes."""
    found = optimized(model)
    if found is not None:
        del model._compiled_call_impl
        found.recorder.release()
    return model


def optimized(model: Any) -> Optimized | None:
    """What `optimize` has put there. Raises TypeError for what can have nothing there."""
    check(model)
    found = model._compiled_call_impl
    if found is None or isinstance(found, Optimized):
        return found
    raise TypeError(
        f"This {type(model).__name__} is compiled already, by its method compile() and another "
        "backend. Set model._compiled_call_impl = None first, or leave it as it is."
    )


def check(model: Any) -> None:
    """Raises TypeError, in plain words, for what is no module that can be captured."""
    kind = type(model).__name__
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        raise TypeError(
            f"This is TorchScript (a {kind}): there is no Python in it to capture. "
            "Pass the module that it was made from."
        )
    if isinstance(model, torch._dynamo.OptimizedModule):
        raise TypeError(
            "This model is what torch.compile returned: it is compiled already. "
            "Pass the model that torch.compile was given."
        )
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"{model.__name__} is a class: pass a model, such as {model.__name__}(…).")
    instead = " Functions are for megafuse.fuse." if callable(model) else ""
    raise TypeError(f"A model is a torch.nn.Module, and this is a {kind}.{instead}")


class Optimized:
    """What an optimized module calls."""

    def __init__(self, model: nn.Module, runs: bool = True, graphs: bool | int = False) -> None:
        from torch._dynamo import eval_frame  # takes sympy with it, which takes a second

        from megafuse.compiler.recorded import Recorder

        self.model, self.frames = model, eval_frame
        self.recorder = Recorder(model, runs, graphs)
        weakref.finalize(self, self.recorder.release).atexit = False  # the model is gone
        # As config.patch, in a fifth of its time: Dynamo does so itself for dynamic=True.
        config = torch._dynamo.config
        known = {name: value for name, value in _DYNAMO.items() if hasattr(config, name)}
        self.change_dynamo = config._make_closure_patcher(**known)
        self._begin()

    def _begin(self) -> None:
        """With nothing captured."""
        from megafuse.compiler.checked import Checks

        self.entry = _entry(self.model)
        self.run: Callable[..., Any] = self._first_run
        self.checks = Checks(self.model, self.entry)

    def _first_run(self, *args: Any, **kwargs: Any) -> Any:
        """Only now: the model may have been spread over ranks since `optimize`."""
        dynamic = not has_dtensors(self.model)  # torch cannot trace these with sizes as symbols
        self.run = torch.compile(self.entry, backend=self.recorder, dynamic=dynamic)
        return self.run(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch.fx._symbolic_trace._is_fx_tracing_flag:
            forward: Any = self.model._call_impl
            return forward(*args, **kwargs)  # a part of what others capture
        if self.frames._stance.stance != "default":  # of torch.compiler.set_stance
            return self._through_dynamo(args, kwargs)
        found = self.checks.find(args, kwargs)
        if found is None:
            if self.checks.methods.changed():
                self._begin()
            found = self.checks.note(args, kwargs)
        if found is None:
            return self._through_dynamo(args, kwargs)
        return found(*args, **kwargs)

    def _through_dynamo(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        compilations = Compilations()
        changes = (self.change_dynamo(), say_while_tracing(), constant_while_tracing())
        try:
            return self.run(*args, **kwargs)
        finally:
            for revert in reversed(changes):
                revert()
            self.recorder.given_up += compilations.given_up(self.model, __file__)
            self.checks.guards_ran()
            self.checks.methods.settle()

    def __deepcopy__(self, memo: Any) -> None:
        """For modules with a __getstate__ of their own: their copies are not optimized either."""

    def __reduce__(self) -> Any:
        return type(None), ()


def _entry(model: nn.Module) -> Any:
    """What Dynamo captures. It keeps what it compiled by code object, and only so many; so each
    model has its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    return call
