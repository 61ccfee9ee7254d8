"""What the optimizers share: a step in three parts, of which the middle one is the launch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from megafuse.optim.launch import Batch, launch
from megafuse.optim.operation import Columns
from megafuse.runtime import loader

Gathered = TypeVar("Gathered")  # what a rule knows of a group's parameters that have gradients
Group = dict[str, Any]
# Torch's ways to do a step, which a checkpoint's groups may ask for; ours takes their place.
_WAYS = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}


class OneLaunch(Optimizer, Generic[Gathered]):
    """A mixin: it comes before torch's class."""

    @abstractmethod
    def _gather(self, group: Group) -> Gathered:
        """A group's parameters that have gradients, with what is kept for them."""

    @abstractmethod
    def _batch(self, group: Group, gathered: Gathered) -> Batch: ...

    @abstractmethod
    def _finish(self, group: Group, gathered: Gathered, left: set[int]) -> None:
        """After the launch; the parameters whose ids are in `left` are torch's to do."""

    def _columns(self, group: Group, *names: str) -> Columns | None:
        """A group's parameters that have gradients, these, and what is kept for them under these
        names. None where torch's own way has to be taken, which makes what is missing and refuses
        what it does not do: before the first step, with sparse gradients, or with options on."""
        host: Any = loader.load()
        if host is None or any(map(group.get, _WAYS)):
            return None
        found: Columns | None = host.optimizer_columns(group["params"], self.state, names)
        return found

    @_disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient. Returns what `closure` returns."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{type(self).__name__}.step() cannot be part of a CUDA graph: the learning rate "
                "and the count of steps would stay what they are now. Call it outside the capture."
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            work = [(group, self._gather(group)) for group in self.param_groups]
            left = launch([self._batch(group, gathered) for group, gathered in work])
            for group, gathered in work:
                self._finish(group, gathered, left)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's. Steps that a fused optimizer counted on the GPU are counted on the host."""
        groups = [
            {key: _WAYS.get(key, value) for key, value in group.items()}
            for group in state_dict["param_groups"]
        ]
        super().load_state_dict({**state_dict, "param_groups": groups})
        for state in self.state.values():
            if isinstance(step := state.get("step"), Tensor):
                state["step"] = step.cpu()


def of_those(left: set[int], parameters: list[Tensor], *columns: list[Any]) -> list[list[Any]]:
    """The rows of these columns whose parameter is left."""
    rows = [i for i, parameter in enumerate(parameters) if id(parameter) in left] if left else []
    return [[column[i] for i in rows] for column in (parameters, *columns)]


def sign_of(group: Group) -> float:
    return -1.0 if group["maximize"] else 1.0
