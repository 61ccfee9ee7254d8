"""What a row's step is, for any contender: it is made in eager mode, then the model is changed.

forward       logits, without gradients
train step    forward, loss, backward and AdamW's step over all parameters
decode step   the next token's logits, with a cache of keys and values that was filled before
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from megafuse.bench.models.case import Case
from megafuse.bench.models.samples import OF_A_GRADIENT, OUTPUTS, reference_mode, thinned
from megafuse.bench.models.zoo import TINY_VOCABULARY, loss_of, tensor_of

SEED = 0
LEARNING_RATE = 1e-5
Results = dict[str, dict[str, Tensor]]  # thinned: "outputs" and "gradients"


@dataclass
class Work:
    """`model` is what a contender compiles, `step` what is timed. `results` is one step that hands
    out its outputs and gradients: until `learn` is called, they are the same in every step."""

    model: nn.Module
    step: Callable[[], None]
    results: Callable[[], Results]
    kept: Callable[[], list[Tensor]]  # tensors that stay from step to step
    learn: Callable[[], None] = field(default=lambda: None)


def work_of(case: Case, wide: torch.dtype | None = None) -> Work:
    """In the row's dtype; or the same numbers, rounded to that before, in a wider one.

    The model is made as it always is, its tables too (a rotary embedding's are float32). Only what
    is computed with it is wide: call `results` under `reference_mode`.
    """
    torch.manual_seed(SEED)
    with torch.device(case.device):
        model = case.of.make(case.tiny)
        _stir(model)
        inputs = case.of.inputs(case.size, case.tiny)
    dtype = getattr(torch, case.dtype)
    model = model.to(dtype)
    inputs = {name: _rounded(value, dtype) for name, value in inputs.items()}
    if wide is not None:
        model = model.to(wide)
        inputs = {name: _rounded(value, wide) for name, value in inputs.items()}
    made = {"forward": _forward, "train": _train, "decode": _decode}[case.mode]
    with reference_mode(wide or dtype):
        return made(case, model, inputs)


def _stir(model: nn.Module) -> None:
    """Biases are all 0 and norms all 1 else: a mistake in them would not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 10)


def _rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _state(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


# ---- forward


def _forward(case: Case, model: nn.Module, inputs: dict[str, Tensor]) -> Work:
    model.eval()
    arguments = case.of.arguments

    def step() -> None:
        with torch.no_grad():
            model(**inputs, **arguments)

    def results() -> Results:
        with torch.no_grad():
            return _outputs(model(**inputs, **arguments))

    return Work(model, step, results, lambda: [*_state(model), *inputs.values()])


def _outputs(output: Any) -> Results:
    return {"outputs": thinned({"output": tensor_of(output)}, OUTPUTS)}


# ---- train step


class Training(nn.Module):
    """A model and its loss: the loss is a part of what is compiled."""

    def __init__(self, model: nn.Module, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.arguments = arguments

    def forward(self, target: Tensor, **inputs: Tensor) -> Tensor:
        return loss_of(tensor_of(self.model(**inputs, **self.arguments)), target)


def _train(case: Case, model: nn.Module, inputs: dict[str, Tensor]) -> Work:
    target = _target(case, model, inputs)
    training = Training(model, dict(case.of.arguments)).train()
    # PyTorch's fastest, for every contender. It learns nothing until its results were looked at.
    optimizer = torch.optim.AdamW(training.parameters(), lr=0.0, fused=True)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step() -> None:
        training(target, **inputs).backward()
        update()

    def results() -> Results:
        loss = training(target, **inputs)
        loss.backward()
        named = {n: p.grad for n, p in training.named_parameters() if p.grad is not None}
        found = {
            "outputs": thinned({"loss": loss}, OUTPUTS),
            "gradients": thinned(named, OF_A_GRADIENT),
        }
        optimizer.zero_grad(set_to_none=True)  # no update: float64's needs no moments
        return found

    def learn() -> None:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE

    def kept() -> list[Tensor]:
        moments = (v for state in optimizer.state.values() for v in state.values())
        return [*_state(training), *inputs.values(), target, *_tensors(moments)]

    return Work(training, step, results, kept, learn)


def _target(case: Case, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    about, size = case.of, case.size
    device = case.device
    if about.vocabulary:
        most = TINY_VOCABULARY if case.tiny else about.vocabulary
        return torch.randint(most, (size.batch, size.length), device=device)
    if about.classes:
        return torch.randint(about.classes, (size.batch,), device=device)
    with torch.no_grad():
        like = tensor_of(model(**inputs, **about.arguments))
    dtype = getattr(torch, case.dtype)
    return torch.randn(like.shape, device=device).to(dtype).to(like.dtype)


# ---- decode step


def _decode(case: Case, model: nn.Module, inputs: dict[str, Tensor]) -> Work:
    """The cache is static, with as much room again as its context has: then a step costs the same
    wherever it is. When the room is used up, the next steps write over it."""
    hf = importlib.import_module("transformers")
    context = case.size.context
    tokens = inputs["input_ids"][:1, :context]
    token = inputs["input_ids"][-1:, :1].clone()
    model.eval()
    cache = hf.StaticCache(config=model.config, max_cache_len=2 * context)
    with torch.no_grad():
        model(input_ids=tokens, past_key_values=cache, use_cache=True)
    turns = _turns(cache, context)

    def call() -> Any:
        with torch.no_grad():
            return model(input_ids=token, past_key_values=cache, use_cache=True)

    def step() -> None:
        next(turns)
        call()

    def results() -> Results:
        _set_back(cache, context)
        found = _outputs(call())
        _set_back(cache, context)
        return found

    def kept() -> list[Tensor]:
        return [
            *_state(model),
            token,
            *_tensors(v for x in cache.layers for v in (x.keys, x.values)),
        ]

    return Work(model, step, results, kept)


def _turns(cache: Any, context: int) -> Iterator[None]:
    """Before each step: the cache is set back before the room behind the context is used up."""
    for step in itertools.count(1):
        if step % context == 0:
            _set_back(cache, context)
        yield


def _set_back(cache: Any, context: int) -> None:
    """The next token comes right after the context again."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(context)


def _tensors(values: Iterator[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor)]
