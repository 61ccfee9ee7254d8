"""Tokens a second of one user: the decode kernel, eager transformers and torch.compile, in turns.

    python benchmarks/decode.py                     a 135M-parameter model, float32 and bfloat16
    python benchmarks/decode.py --dtype float32 --rounds 10
    python benchmarks/decode.py --record benchmarks/results/decode-x86_64-2-cores.json
    python benchmarks/decode.py --soak 10000 --shape tiny      10,000 tokens: is memory flat?
    python benchmarks/decode.py --gate 2000 --dtype bfloat16   logits against float32's
    python benchmarks/decode.py --device cuda --shape 1b --dtype bfloat16 --tokens 129 --all

With --all: tests/decode first, then the gate, the times, on a GPU those of OTHERS too, and a soak
run; the first that fails is the last.

Random weights in the shapes of SHAPES (by default SmolLM-135M: 30 layers of 576, vocabulary of
49,152); batch 1, a prompt of 32 tokens. A contender's sample is the time of a call that makes some
tokens less that of one which makes 1, over the tokens between, so that the prompt does not count.
Contenders take turns, and ratios are taken round by round.

- eager: model.generate, greedy, with its own cache.
- torch.compile: the model's forward, compiled, in a plain loop over a static cache; on a GPU with
  CUDA graphs.
- ours: decoder.generate; and the same with int8 weights.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from torch.nn import functional as F

import megafuse as mf
from megafuse.bench import machine
from megafuse.bench.roof import roofs
from megafuse.bench.timing import Timing, speedup
from megafuse.runtime import provenance

# vocabulary, hidden, inner, layers, heads, key heads, tied
SHAPES = {
    "tiny": (1000, 256, 704, 4, 4, 2, True),
    "135m": (49152, 576, 1536, 30, 9, 3, True),  # SmolLM
    "1b": (128256, 2048, 8192, 16, 32, 8, True),  # Llama 3.2
    "3b": (128256, 3072, 8192, 28, 24, 8, True),
    "8b": (128256, 4096, 14336, 32, 32, 8, False),
}
PROMPT = 32
# Ours alone, on a GPU: shape, tokens of the prompt, texts at once, weights.
OTHERS: tuple[tuple[str, int, int, str | None], ...] = (
    ("1b", PROMPT, 2, None),
    ("1b", PROMPT, 8, None),
    ("1b", 4000, 1, None),
    ("3b", PROMPT, 1, None),
    ("8b", PROMPT, 1, None),
    ("8b", PROMPT, 1, "int8"),
)
CACHES = (1, 63, 64, 65, 1023, 4095)  # of the gate
Call = Callable[[int], object]


def made_model(options: argparse.Namespace, dtype: str) -> Any:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    heads = ("num_attention_heads", "num_key_value_heads", "tie_word_embeddings")
    shape: dict[str, Any] = dict(zip((*names, *heads), SHAPES[options.shape], strict=True))
    ends = {"eos_token_id": None, "bos_token_id": None, "max_position_embeddings": 8192}
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(options.device):
            return hf.LlamaForCausalLM(hf.LlamaConfig(**shape, **ends)).eval()
    finally:
        torch.set_default_dtype(before)


def prompt_of(model: Any, length: int = PROMPT, kind: str = "random") -> Tensor:
    vocab = int(model.config.vocab_size)
    if kind == "random":
        return torch.randint(vocab, (length,))
    return torch.randint(vocab, (7,)).repeat(-(-length // 7))[:length]


# ---- times


def contenders(
    model: Any, prompt: Tensor, tokens: int, compiled: bool
) -> tuple[dict[str, Call], Any]:
    """What makes so many tokens, by name; and our decoder."""
    decoder = mf.decode.compile(model, max_length=PROMPT + tokens)
    int8 = mf.decode.compile(model, max_length=PROMPT + tokens, weights="int8")
    there = prompt[None].to(model.device)
    calls: dict[str, Call] = {
        "eager": lambda n: model.generate(there, max_new_tokens=n, do_sample=False),
        "ours": lambda n: decoder.generate(prompt, n),
        "ours, int8": lambda n: int8.generate(prompt, n),
    }
    if compiled:
        calls["torch.compile"] = compiled_loop(model, there, tokens)
    return calls, decoder


def compiled_loop(model: Any, prompt: Tensor, tokens: int) -> Call:
    mode = "reduce-overhead" if model.device.type == "cuda" else None
    step = torch.compile(model.forward, dynamic=False, mode=mode)

    # One for all calls: a CUDA graph is of the addresses that it was recorded with.
    cache = hf.StaticCache(config=model.config, max_cache_len=PROMPT + tokens)

    @torch.no_grad()
    def generate(n: int) -> list[Tensor]:
        cache.reset()
        logits = model(prompt, past_key_values=cache, logits_to_keep=1).logits
        made = [logits[:, -1].argmax(-1, keepdim=True)]
        while len(made) < n:
            logits = step(input_ids=made[-1], past_key_values=cache, use_cache=True).logits
            made.append(logits[:, -1].argmax(-1, keepdim=True).clone())
        return made

    return generate


def seconds_a_token(call: Call, tokens: int, device: str) -> float:
    taken = []
    for count in (1, tokens):
        start = time.perf_counter()
        call(count)
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return (taken[1] - taken[0]) / (tokens - 1)


def measured(options: argparse.Namespace, dtype: str) -> dict[str, Any]:
    model, device, tokens = made_model(options, dtype), options.device, options.tokens
    prompt = prompt_of(model)
    calls, decoder = contenders(model, prompt, tokens, not options.no_compile)
    for name, call in calls.items():
        print(f"{dtype}: first call of {name}", flush=True)
        call(3)
    decoder.schedule.reset()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for i in range(options.rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            samples[name].append(seconds_a_token(calls[name], tokens, device))
    times = {name: Timing.of(taken) for name, taken in samples.items()}
    moved = decoder.schedule.bytes_at(PROMPT + tokens // 2)
    return {
        "dtype": dtype,
        "shape": options.shape,
        "tokens": tokens,
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
        / roofs(device, again=True).read,  # measured beside it
        "schedule": str(decoder.schedule).splitlines(),
    }


def others(options: argparse.Namespace, dtype: str) -> list[dict[str, Any]]:
    """Times of OTHERS."""
    found: list[dict[str, Any]] = []
    options, model = copy.copy(options), None
    for shape, context, batch, weights in OTHERS:
        if model is None or shape != options.shape:
            options.shape, model = shape, None
            gc.collect()
            torch.cuda.empty_cache()
            model = made_model(options, dtype)
        case = {"shape": shape, "context": context, "batch": batch, "weights": weights or dtype}
        found.append(case | alone(model, context, batch, weights))
        print(line_of(found[-1]), flush=True)
    return found


def alone(model: Any, context: int, batch: int, weights: str | None) -> dict[str, Any]:
    """Seconds a step without other contenders, in all and by the kernel's own clocks."""
    tokens, device = 65, model.device.type
    prompts = [prompt_of(model, context) for _ in range(batch)]
    decoder = mf.decode.compile(model, max_length=context + tokens, batch=batch, weights=weights)

    def call(n: int) -> object:
        return decoder.generate(prompts, n)

    call(3)
    decoder.schedule.reset()
    taken = Timing.of([seconds_a_token(call, tokens, device) for _ in range(5)])
    moved = decoder.schedule.bytes_at(context + tokens // 2, batch)
    clocked = sum(decoder.schedule.microseconds() or []) / 1e6  # without the prompts' noise
    return {
        "seconds": [taken.low, taken.median, taken.high],
        "clocked_seconds": clocked,
        "bytes": moved,
        "share_of_roof": moved / clocked / roofs(device).read,
        "schedule": str(decoder.schedule).splitlines(),
    }


def line_of(case: dict[str, Any]) -> str:
    low, median, high = (1e6 * t for t in case["seconds"])
    return (
        f"{case['shape']}, {case['weights']}, context {case['context']}, batch {case['batch']}: "
        f"{1e6 * case['clocked_seconds']:.0f} µs by the kernel's clocks, {median:.0f} in all "
        f"({low:.0f}–{high:.0f}), {100 * case['share_of_roof']:.0f} % of the memory's roof"
    )


def first_token(options: argparse.Namespace) -> float:
    """Seconds from a model with its weights to the first token of a text, in a new process; of two
    such the second, which finds the kernel in the cache."""
    own = ("--first-token", "--device", options.device, "--shape", options.shape)
    command = [sys.executable, __file__, *own, "--dtype", options.dtype[0]]
    for _ in range(2):
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(said.split()[-1])


def say_first_token(options: argparse.Namespace) -> None:
    model = made_model(options, options.dtype[0])
    prompt = prompt_of(model)
    if options.device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    next(iter(mf.decode.compile(model, max_length=256).stream(prompt, 100)))
    print(time.perf_counter() - start)


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


# ---- the gate of tests/decode/test_gate.py, on a large shape


def divergence(found: Tensor, exact: Tensor) -> Tensor:
    p, q = exact.double().log_softmax(-1), found.double().log_softmax(-1)
    return F.kl_div(q, p, reduction="none", log_target=True).sum(-1)


@torch.no_grad()
def gate(options: argparse.Namespace, dtype: str) -> bool:
    """Whether divergence and agreement with float32 are no worse than eager's own."""
    model = made_model(options, dtype)
    exact_model = copy.deepcopy(model).float()
    each = -(-options.gate // (2 * len(CACHES)))
    decoder = mf.decode.compile(model, max_length=max(CACHES) + each)
    sums = {"ours": [0.0, 0.0], "eager": [0.0, 0.0]}
    for kind in ("random", "repetitive"):
        ids = prompt_of(model, max(CACHES) + each, kind)
        for cached in CACHES:
            some = ids[: cached + each]
            eager, exact = (
                m(some[None].to(m.device), logits_to_keep=each).logits[0].float()
                for m in (model, exact_model)
            )
            ours = decoder.logits(some, prefilled=cached)
            for name, found in (("ours", ours), ("eager", eager)):
                sums[name][0] += float(divergence(found, exact).sum())
                sums[name][1] += float((found.argmax(-1) == exact.argmax(-1)).sum())
    count = 2 * each * len(CACHES)
    for name, (apart, agreed) in sums.items():
        print(
            f"{dtype} {name}: divergence {apart / count:.3g}, the likeliest token is float32's "
            f"in {agreed:.0f} of {count}"
        )
    (ours_apart, ours_agreed), (apart, agreed) = sums["ours"], sums["eager"]
    return ours_apart <= apart and ours_agreed >= agreed


# ---- soak


def held(device: str) -> int:
    """Bytes that this process has: of the GPU's memory, or of the host's."""
    if device == "cuda":
        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def soak(options: argparse.Namespace, dtype: str) -> bool:
    """Many texts one after the other, by generate, stream, streams closed early and resume: whether
    memory stays flat after the first tenth, and the first text comes again at the end."""
    model = made_model(options, dtype)
    decoder = mf.decode.compile(model, max_length=256)
    first = prompt_of(model)
    expected = decoder.generate(first, 100).tolist()
    made, texts, before = 0, 0, 0
    while made < options.soak:
        # Few lengths: eager bfloat16 on a CPU keeps something for every new length of a prompt.
        prompt = prompt_of(model, (1, 20, 63, 100)[texts % 4])
        made += decoder.generate(prompt, 60, temperature=0.8, top_p=0.9, seed=texts).numel()
        made += len(list(decoder.stream([5], 40, resume=True)))
        stream: Any = decoder.stream(prompt, 100)
        made += sum(1 for _ in zip(range(10), stream, strict=False))
        stream.close()
        texts += 1
        if before == 0 and made * 10 >= options.soak:
            gc.collect()
            before = held(options.device)
    gc.collect()
    grown = held(options.device) - before
    again = decoder.generate(first, 100).tolist() == expected
    print(
        f"{dtype}: {made} tokens in {texts} rounds; {before / 1e6:.1f} MB after a tenth, "
        f"{grown / 1e6:+.2f} MB since; the first text comes again: {again}"
    )
    return again and grown <= max(before // 100, 1 << 20)


# ---- the command


def tests_pass(device: str) -> bool:
    """Those of tests/decode that are about this device."""
    folder = Path(__file__).resolve().parents[1] / "tests/decode"
    marked = "cuda" if device == "cuda" else "not cuda and not slow"
    command = [sys.executable, "-m", "pytest", "--maxfail=5", "-q", str(folder), "-m", marked]
    print(" ".join(command), flush=True)
    return subprocess.run(command).returncode == 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=25, help="of a timed call; default 25")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--gate", type=int, default=0, metavar="POSITIONS")
    parser.add_argument("--soak", type=int, default=0, metavar="TOKENS")
    parser.add_argument(
        "--all", action="store_true", help="tests, gate of 2000, times, soak of 10000"
    )
    parser.add_argument("--first-token", action="store_true", help="seconds to it, and no more")
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    if options.all:
        options.gate, options.soak = options.gate or 2000, options.soak or 10000
    options.dtype = options.dtype or ["float32", "bfloat16"]
    return options


def main() -> int:
    options = parsed()
    if options.first_token:
        say_first_token(options)
        return 0
    only = (options.gate or options.soak) and not options.all
    if options.all and not tests_pass(options.device):
        return 1
    for asked, check in ((options.gate, gate), (options.soak if only else 0, soak)):
        if asked and not all(check(options, dtype) for dtype in options.dtype):
            print(f"the {check.__name__} FAILED")
            return 1
    if only:
        return 0
    timed(options)
    if options.all and not all(soak(options, dtype) for dtype in options.dtype):
        print("the soak FAILED")
        return 1
    return 0


def timed(options: argparse.Namespace) -> None:
    cases = [measured(options, dtype) for dtype in options.dtype]
    commit, changed = provenance.commit()
    result = {
        "machine": machine.about(options.device),
        "versions": {**provenance.versions(), "transformers": hf.__version__},
        "commit": commit + (" and changes" if changed else ""),
        "threads": torch.get_num_threads(),
        "cases": cases,
    }
    result["first_token"] = first_token(options)
    if options.all and options.device == "cuda":
        result["others"] = [case for dtype in options.dtype for case in others(options, dtype)]
    print(table(result))
    print(f"\nfirst token of a new process: {result['first_token']:.2f} s after its weights")
    for case in cases:
        print(f"\n{case['dtype']}: {100 * case['share_of_roof']:.0f} % of the memory's roof")
        print("\n".join(case["schedule"]))
    if options.record:
        options.record.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
