"""What a call of an optimized model pays before its program begins: our check, and Dynamo's guards.

12 layers of width 64, one row of 16 tokens, inference. Every round calls the model first, so that
the check finds the caches as a call leaves them, and then takes one time of each; medians in µs.
"warm" is the least of many in a row. Needs transformers; takes about a minute:

    python benchmarks/guards.py            # BERT, GPT-2 and Llama
    python benchmarks/guards.py --model BERT
"""

import argparse
import os
import statistics
import time

import torch

import megafuse as mf

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SIZES = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 2}
MODELS = {
    "BERT": ("BertForMaskedLM", "BertConfig", {**SIZES, "intermediate_size": 256}),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 200, "n_embd": 64, "n_layer": 12, "n_head": 2, "use_cache": False},
    ),
    "Llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**SIZES, "intermediate_size": 176, "num_key_value_heads": 1, "use_cache": False},
    ),
}


def microseconds(call):
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def measure(name, rounds):
    import transformers

    kind, config, settings = MODELS[name]
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    ids = torch.randint(1, 200, (1, 16))
    mf.optimize(model)
    with torch.no_grad():
        for _ in range(3):
            model(ids)
        checks = model._compiled_call_impl.checks
        checked = checks.checked[0]
        scope = {"model": model, "args": (ids,), "kwargs": {}}
        ways = {
            "check": lambda: checks.find((ids,), {}),
            "guards": lambda: checked.guards.check(scope),
        }
        taken = {way: [] for way in ways}
        for _ in range(rounds):
            for way, call in ways.items():
                model(ids)
                taken[way].append(microseconds(call))
        warm = {way: min(microseconds(call) for _ in range(500)) for way, call in ways.items()}
    found = {way: statistics.median(times) for way, times in taken.items()}
    return found, warm


def main():
    parser = argparse.ArgumentParser(description="Our check and Dynamo's guards, in µs.")
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    print(f"{'':8} {'check':>8} {'guards':>8} {'ratio':>7}   warm: {'check':>6} {'guards':>7}")
    for name in [options.model] if options.model else MODELS:
        found, warm = measure(name, options.rounds)
        ratio = found["guards"] / found["check"]
        print(
            f"{name:8} {found['check']:8.1f} {found['guards']:8.1f} {ratio:6.0f}×"
            f"         {warm['check']:6.1f} {warm['guards']:7.1f}"
        )


if __name__ == "__main__":
    main()
