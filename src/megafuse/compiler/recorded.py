"""A backend for one model that remembers what became of each graph, for `explain`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from megafuse.compiler.backend import watched
from megafuse.compiler.compile import Compiled, NotFused
from megafuse.compiler.given_up import GivenUp
from megafuse.compiler.recordable import most
from megafuse.compiler.replayed import Replays


@dataclass
class Recorded:
    """One graph of Dynamo's. `parts` are its programs, by name: forward and backward, or model
    where nothing needs a gradient; the backward's may come late, with the first backward pass."""

    module: torch.fx.GraphModule
    paths: dict[str, str]  # of the modules in it: Dynamo's name → as in named_modules()
    autocast: dict[str, Any]  # what the graph was captured under
    parts: dict[str, Compiled | NotFused] = field(default_factory=dict)
    replays: Replays | None = None  # CUDA graphs, where they were asked for

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Grad mode and autocast as they were."""
        with torch.set_grad_enabled("forward" in self.parts), torch.autocast(**self.autocast):
            yield


class Recorder:
    """What torch.compile calls for each graph. Without `runs` nothing is built, PyTorch runs it."""

    __name__ = "megafuse"

    def __init__(self, model: nn.Module, runs: bool = True, graphs: bool | int = False) -> None:
        # Dynamo keeps each backend that it ever had, and should not keep the model with it.
        self.model = weakref.ref(model)
        self.runs, self.most = runs, most(graphs)
        self.graphs: list[Recorded] = []
        self.given_up: list[GivenUp] = []

    def __call__(
        self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        found = Recorded(module, _paths(module, self.model()), _autocast(example_inputs))
        found.replays = Replays(self.most) if self.most else None
        run = watched(module, example_inputs, found.parts.__setitem__, self.runs, found.replays)
        self.graphs.append(found)  # only now: Dynamo may begin again, with another graph
        return run

    def release(self) -> None:
        """Gives the memory of CUDA graphs back; programs run without them from now on."""
        for each in self.graphs:
            if each.replays is not None:
                each.replays.release()


def _paths(module: torch.fx.GraphModule, model: nn.Module | None) -> dict[str, str]:
    """Dynamo's names begin where its frame does, but it keeps the modules' identities."""
    names = {str(id(each)): path for path, each in model.named_modules()} if model else {}
    found: dict[str, str] = {}
    for node in module.graph.nodes:
        for key, (theirs, *_) in node.meta.get("nn_module_stack", {}).items():
            found[theirs] = names.get(key.partition("@")[0], theirs)  # m@1: called once more
    return found


def _autocast(example_inputs: Sequence[Any]) -> dict[str, Any]:
    devices = (each.device.type for each in example_inputs if isinstance(each, torch.Tensor))
    kind = next(devices, "cpu")
    return {
        "device_type": kind,
        "dtype": torch.get_autocast_dtype(kind),
        "enabled": torch.is_autocast_enabled(kind),
    }
