"""Tokens a second of one user: the decode kernel, eager transformers and torch.compile, in turns.

    python benchmarks/decode.py                     a 135M-parameter model, float32 and bfloat16
    python benchmarks/decode.py --dtype float32 --rounds 10
    python benchmarks/decode.py --record benchmarks/results/decode-x86_64-2-cores.json

Random weights in the shape of SmolLM-135M (30 layers of 576, vocabulary of 49,152); batch 1, a
prompt of 32 tokens. A contender's sample is the time of a call that makes TOKENS tokens less that
of one which makes 1, over the tokens between, so that the prompt does not count. Contenders take
turns, and ratios are taken round by round.

- eager: model.generate, greedy, with its own cache.
- torch.compile: the model's forward, compiled, in a plain loop over a static cache.
- ours: decoder.generate; and the same with int8 weights.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import megafuse as mf
from megafuse.bench import machine
from megafuse.bench.roof import roofs
from megafuse.bench.timing import Timing, speedup
from megafuse.runtime import provenance

SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "eos_token_id": None,
    "bos_token_id": None,
}
PROMPT, TOKENS = 32, 25
Call = Callable[[int], object]


def contenders(model: Any, prompt: torch.Tensor, compiled: bool) -> tuple[dict[str, Call], Any]:
    """What makes so many tokens, by name; and our decoder."""
    decoder = mf.decode.compile(model, max_length=PROMPT + TOKENS)
    int8 = mf.decode.compile(model, max_length=PROMPT + TOKENS, weights="int8")
    calls: dict[str, Call] = {
        "eager": lambda n: model.generate(prompt[None], max_new_tokens=n, do_sample=False),
        "ours": lambda n: decoder.generate(prompt, n),
        "ours, int8": lambda n: int8.generate(prompt, n),
    }
    if compiled:
        calls["torch.compile"] = compiled_loop(model, prompt)
    return calls, decoder


def compiled_loop(model: Any, prompt: torch.Tensor) -> Call:
    step = torch.compile(model.forward, dynamic=False)

    @torch.no_grad()
    def generate(n: int) -> list[torch.Tensor]:
        cache = hf.StaticCache(config=model.config, max_cache_len=PROMPT + TOKENS)
        logits = model(prompt[None], past_key_values=cache, logits_to_keep=1).logits
        made = [logits[:, -1].argmax(-1, keepdim=True)]
        while len(made) < n:
            logits = step(input_ids=made[-1], past_key_values=cache, use_cache=True).logits
            made.append(logits[:, -1].argmax(-1, keepdim=True))
        return made

    return generate


def seconds_a_token(call: Call) -> float:
    taken = []
    for tokens in (1, TOKENS):
        start = time.perf_counter()
        call(tokens)
        taken.append(time.perf_counter() - start)
    return (taken[1] - taken[0]) / (TOKENS - 1)


def measured(dtype: str, rounds: int, compiled: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model: Any = hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPE)).eval().to(getattr(torch, dtype))
    prompt = torch.randint(SHAPE["vocab_size"], (PROMPT,))
    calls, decoder = contenders(model, prompt, compiled)
    for name, call in calls.items():
        print(f"{dtype}: first call of {name}", flush=True)
        call(3)
    decoder.schedule.reset()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            samples[name].append(seconds_a_token(calls[name]))
    times = {name: Timing.of(taken) for name, taken in samples.items()}
    moved = decoder.schedule.bytes_at(PROMPT + TOKENS // 2)
    return {
        "dtype": dtype,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": moved,
        "seconds": {n: [t.low, t.median, t.high] for n, t in times.items()},
        "speedup": {
            n: [r.low, r.median, r.high]
            for n, t in times.items()
            if n in ("eager", "torch.compile")
            for r in [speedup(t, times["ours"])]
        },
        "share_of_roof": moved
        / times["ours"].median
        / roofs("cpu", again=True).read,  # measured beside it
        "schedule": str(decoder.schedule).splitlines(),
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "| dtype | contender | ms a token | tokens/s | ours is faster by |",
        "|---|---|---:|---:|---:|",
    ]
    for case in result["cases"]:
        for name, (low, median, high) in case["seconds"].items():
            gain = case["speedup"].get(name)
            by = "" if gain is None else f"{gain[1]:.2f}× ({gain[0]:.2f}–{gain[2]:.2f})"
            lines.append(
                f"| {case['dtype']} | {name} | {median * 1e3:.2f} "
                f"({low * 1e3:.2f}–{high * 1e3:.2f}) | {1 / median:.1f} | {by} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    cases = [
        measured(dtype, options.rounds, not options.no_compile)
        for dtype in options.dtype or ("float32", "bfloat16")
    ]
    commit, changed = provenance.commit()
    result = {
        "machine": machine.about("cpu"),
        "versions": {**provenance.versions(), "transformers": hf.__version__},
        "commit": commit + (" and changes" if changed else ""),
        "threads": torch.get_num_threads(),
        "cases": cases,
    }
    print(table(result))
    for case in cases:
        print(f"\n{case['dtype']}: {100 * case['share_of_roof']:.0f} % of the memory's roof")
        print("\n".join(case["schedule"]))
    if options.record:
        options.record.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
