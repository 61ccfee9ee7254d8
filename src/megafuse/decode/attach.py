"""`model.generate` makes its text in a decoder where that can do what is asked, and else as before.

transformers prepares the call (inputs, generation config, logits processors, stopping criteria) and
hands it to a function of ours, its `custom_generate`. What that cannot do (beams, other processors,
a cache of the caller's, scores in the result) goes through the model's own generate, and the log
says so once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megafuse.runtime.progress import logger

if TYPE_CHECKING:
    from megafuse.decode.decoder import Decoder

_OWN = "_megafuse_generate"


class NotOurs(Exception):
    """The call asks for something that the decoder does not do."""


def attach(decoder: Decoder, model: Any) -> None:
    if _OWN in vars(model):
        detach(model)
    mine: Any = decoder.model
    if model is not mine:
        raise ValueError("this decoder was compiled from another model: its weights are that one's")
    own = model.generate

    def generate(*args: Any, streamer: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("custom_generate") is not None:
            return own(*args, streamer=streamer, **kwargs)

        # transformers does not hand the streamer on to such functions.
        def through(model: Any, input_ids: Tensor, **prepared: Any) -> Tensor:
            return _routed(decoder, input_ids, streamer, **prepared)

        state = torch.get_rng_state()
        try:
            return own(*args, custom_generate=through, **kwargs)
        except NotOurs as why:
            _say_once(str(why))
            torch.set_rng_state(state)
            return own(*args, streamer=streamer, **kwargs)

    setattr(model, _OWN, own)
    model.generate = generate


def detach(model: Any) -> None:
    """Nothing happens where no decoder is attached."""
    if _OWN in vars(model):
        delattr(model, _OWN)
        del model.generate


@dataclass
class _Asked:
    """What the processors and criteria that transformers made of a call come to."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


def _routed(
    decoder: Decoder,
    input_ids: Tensor,
    streamer: Any,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **rest: Any,
) -> Tensor:
    _refuse_modes(generation_config, rest)
    asked = _processors(logits_processor)
    ends = _stops(stopping_criteria)
    rows = _without_padding(input_ids, rest.get("attention_mask"))
    new = generation_config.max_length - input_ids.shape[1]
    if len(rows) > decoder.batch:
        raise NotOurs(f"{len(rows)} rows at once, for {decoder.batch} of which it was compiled")
    if max(row.numel() for row in rows) + new - 1 > decoder.max_length:
        raise NotOurs(f"max_length={generation_config.max_length} is more than its cache holds")
    how: dict[str, Any] = {
        "temperature": asked.temperature if generation_config.do_sample else 0.0,
        "top_k": asked.top_k,
        "top_p": asked.top_p,
        "repetition_penalty": asked.repetition_penalty,
        "stop": ends,
    }
    if streamer is None:
        made = decoder.generate(rows, new, **how)
    else:
        streamer.put(input_ids.cpu())
        made = _streamed(decoder.stream(rows, new, **how), streamer, len(rows))
    return torch.cat([input_ids, made.to(input_ids.device)], dim=1)


def _streamed(tokens: Iterable[list[int]], streamer: Any, rows: int) -> Tensor:
    columns = []
    for column in tokens:
        columns.append(torch.tensor(column))
        streamer.put(columns[-1])
    streamer.end()
    return torch.stack(columns, dim=1) if columns else torch.empty(rows, 0, dtype=torch.int64)


def _refuse_modes(config: Any, rest: dict[str, Any]) -> None:
    if config.num_beams != 1 or config.num_return_sequences != 1:
        raise NotOurs("beams, or several texts for one prompt")
    if config.return_dict_in_generate:
        raise NotOurs("return_dict_in_generate: only the tokens are returned")
    past = rest.get("past_key_values")
    if past is not None and past.get_seq_length() > 0:
        raise NotOurs("past_key_values of the caller's")
    for name in ("inputs_embeds", "assistant_model", "prefix_allowed_tokens_fn", "token_type_ids"):
        if rest.get(name) is not None:
            raise NotOurs(name)


def _processors(found: Any) -> _Asked:
    asked = _Asked()
    fields = {
        "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", "penalty"),
        "TemperatureLogitsWarper": ("temperature", "temperature"),
        "TopKLogitsWarper": ("top_k", "top_k"),
        "TopPLogitsWarper": ("top_p", "top_p"),
    }
    order = list(fields)
    last = -1
    for processor in found:
        name = type(processor).__name__
        if name not in fields or order.index(name) <= last:
            raise NotOurs(f"the logits processor {name}")
        last = order.index(name)
        ours, theirs = fields[name]
        setattr(asked, ours, getattr(processor, theirs))
    return asked


def _stops(criteria: Any) -> tuple[int, ...]:
    ends: tuple[int, ...] = ()
    for criterion in criteria:
        name = type(criterion).__name__
        if name == "EosTokenCriteria":
            ends = tuple(criterion.eos_token_id.flatten().tolist())
        elif name != "MaxLengthCriteria":
            raise NotOurs(f"the stopping criterion {name}")
    return ends


def _without_padding(ids: Tensor, mask: Any) -> list[Tensor]:
    if mask is None:
        return list(ids)
    if mask.dim() != 2 or mask.shape != ids.shape:
        raise NotOurs("an attention mask that is not [rows, length]")
    seen = mask.bool()
    if not bool((seen[:, 1:] >= seen[:, :-1]).all()):
        raise NotOurs("an attention mask that hides more than padding on the left")
    return [row[kept] for row, kept in zip(ids, seen, strict=True)]


_said: set[str] = set()


def _say_once(why: str) -> None:
    if why not in _said:
        _said.add(why)
        logger.warning("megafuse.decode: model.generate runs the model's own: %s", why)
