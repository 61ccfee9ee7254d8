"""The schedule as data: its phases, bytes and words, and what is not supported."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

import megafuse as mf
from decode.tiny import FAMILIES, PLAIN, make, text
from megafuse.decode import LostWait, Unsupported
from megafuse.decode.decoder import _together
from megafuse.decode.words import kinds, members, packed


def test_phases_in_order() -> None:
    schedule = mf.decode.compile(make("llama-3"), max_length=8).schedule
    layer = ["qkv", "attend", "project", "gate_up", "down"]
    assert [p.kind for p in schedule] == ["embed", *layer * 3, "head", "sample"]
    assert [p.waits_for for p in schedule] == [None, *range(len(schedule) - 1)]


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_are_those_of_the_weights(family: str) -> None:
    """Each matrix once; of the embedding a row, unless the head is the same matrix."""
    model = make(family)
    decoder = mf.decode.compile(model, max_length=8)
    embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    rows = sum(m.weight[0].numel() for m in embeddings)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    matrices -= sum(m.weight.numel() for m in embeddings)
    matrices += model.get_output_embeddings().weight.numel() if tied else 0
    found = sum(p.bytes for p in decoder.schedule if p.kind not in ("embed", "sample"))
    biases = sum(
        p.numel() for n, p in model.named_parameters() if re.search(r"(proj|attn|fc).bias", n)
    )
    assert found == 4 * (matrices + biases)
    assert decoder.schedule[0].bytes == 4 * rows
    more = decoder.schedule.bytes_at(8) - decoder.schedule.bytes
    heads = decoder._parts.kv_heads * decoder._cache.pitch
    assert more == 4 * 2 * 8 * heads * len(decoder._parts.layers)


def test_words_have_the_headers_order() -> None:
    assert kinds()["kSample"] == 7
    assert list(members("Phase"))[:4] == ["kind", "layer", "rows", "cols"]
    assert len(set(members("Step"))) == len(members("Step")) > 50
    words = packed("Phase", {"rows": 5, "eps": 0.5})
    assert words[members("Phase")["rows"]] == 5
    assert words[members("Phase")["eps"]] == 0x3FE0000000000000


def test_the_compiler_agrees_about_the_size(tmp_path: Any) -> None:
    from megafuse.runtime import cpp, sources

    wanted = {name: 8 * len(members(name)) for name in ("Phase", "Step")}
    sizes = (f"sizeof(mf::decode::{name}) == {size}" for name, size in wanted.items())
    checks = "".join(f'static_assert({size}, "");\n' for size in sizes)
    cpp.compile_shared(
        '#include "decode.h"\n' + checks, tmp_path / "x.so", include=[sources.KERNELS]
    )


def test_printed() -> None:
    decoder = mf.decode.compile(make("llama-3"), max_length=40)
    assert "no token was made yet" in str(decoder.schedule)
    decoder.generate(text(5), 20)
    lines = str(decoder.schedule).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "mean of 19 steps" in lines[-1]
    total, parts = float(lines[-2].split()[-2]), [float(x.split()[-2]) for x in lines[1:-2]]
    assert total == pytest.approx(sum(parts), rel=0.05)
    assert total > 0
    decoder.schedule.reset()
    assert decoder.schedule.microseconds() is None


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("llama-3", {"hidden_act": "mish"}, "config.hidden_act"),
        ("llama-3", {"head_dim": 258}, "config.head_dim"),
        ("gpt-2", {"activation_function": "tanh"}, "config.activation_function"),
        ("gpt-2", {"add_cross_attention": True}, "config.add_cross_attention"),
    ],
)
def test_the_error_names_the_field(family: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(field)) as error:
        mf.decode.compile(make(family, **changes), max_length=8)
    assert error.value.field == field


def test_other_models_and_states_are_refused() -> None:
    import transformers as hf

    gemma = hf.GemmaForCausalLM(hf.GemmaConfig(**{**PLAIN, "head_dim": 16})).eval()
    with pytest.raises(Unsupported, match=r"config.model_type is 'gemma'.*llama"):
        mf.decode.compile(gemma, max_length=8)
    with pytest.raises(Unsupported, match=r"model.training.*eval"):
        mf.decode.compile(make("llama-3").train(), max_length=8)
    with pytest.raises(Unsupported, match=r"config.dtype"):
        mf.decode.compile(make("llama-3", torch.float64), max_length=8)
    with pytest.raises(Unsupported, match=r"config.max_position_embeddings"):
        mf.decode.compile(make("gpt-2"), max_length=1101)
    mixed = make("llama-3")
    mixed.model.layers[1].mlp.down_proj.bfloat16()
    with pytest.raises(Unsupported, match=r"dtype and device.*bfloat16"):
        mf.decode.compile(mixed, max_length=8)
    wrapped = make("llama-3")
    wrapped.model.layers[0].self_attn.q_proj = torch.nn.Sequential()
    with pytest.raises(Unsupported, match=r"model.layers.0.self_attn.q_proj"):
        mf.decode.compile(wrapped, max_length=8)
    with pytest.raises(ValueError, match="batch is 9"):
        mf.decode.compile(make("llama-3"), max_length=8, batch=9)
    with pytest.raises(ValueError, match="max_length is 0"):
        mf.decode.compile(make("llama-3"), max_length=0)


def test_a_lost_wait_is_an_error() -> None:
    """The barrier waits for one thread more than there are: the watchdog ends it."""
    decoder = mf.decode.compile(make("llama-3"), max_length=16, threads=2, watchdog=0.2)
    prompt = text(4)
    right = decoder.generate(prompt, 8)
    decoder._space.step["parties"] = 3
    with pytest.raises(LostWait, match=r"more than 0.2 s"):
        decoder.generate(prompt, 8)
    decoder._space.step["parties"] = 2
    assert decoder.generate(prompt, 8).tolist() == right.tolist()


def test_no_word_in_memory_has_a_number_of_the_next_launch() -> None:
    """Kernels for one row and for two take turns in the same memory; and numbers have 32 bits."""
    decoder = mf.decode.compile(make("llama-3"), max_length=16, batch=2)
    space, taken = decoder._space, []
    for rows in ([text(3)], [text(2), text(4)], [text(3)]):
        decoder.generate(rows, 2)
        taken.append(space.step["numbered"])
    launched = len(decoder.schedule)
    assert taken[0] >= 1
    assert all(after - before > launched for before, after in itertools.pairwise(taken))
    space._next_number, words = 2**32 - 5, space._floats["parts"]
    words.fill_(1)
    space.number_phases(launched)
    assert space.step["numbered"] == 1
    assert not words.any()


def test_a_launch_is_short_enough_for_a_screen() -> None:
    """Llama's 1B, 8B and 70B; each launch reads 1 TB at most, or 16 tokens' weights."""
    gpu = torch.device("cuda")
    found = [_together(gpu, step) for step in (2_475_000_000, 15_000_000_000, 140_000_000_000)]
    assert found == [256, 66, 16]
    assert _together(torch.device("cpu"), 10**12) == 16
