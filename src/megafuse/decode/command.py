"""The command `megafuse generate MODEL_DIR "prompt"`: text as it comes, and how fast it came."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megafuse.decode.decoder import Decoder

_EXAMPLES = """\
examples:
  megafuse generate ./SmolLM2-135M "Once upon a time"
  megafuse generate ./Qwen3-0.6B "Why is the sky blue?" --chat
  megafuse generate ./model "A list:" --temperature 0.8 --top-p 0.95 --seed 7
  megafuse generate ./model "Hello" --weights int8 --schedule
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("model", metavar="MODEL_DIR", help="a folder as save_pretrained writes it")
    parser.add_argument("prompt", help="the text to go on from")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default 128")
    parser.add_argument("--temperature", type=float, default=0.0, help="default 0: the likeliest")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="default 0: all tokens")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="default 1: all")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="default 1: none")
    parser.add_argument("--seed", type=int, help="the same text again")
    parser.add_argument("--chat", action="store_true", help="the prompt as a user's message")
    parser.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto"
    )
    parser.add_argument("--weights", choices=("int8",), help="quantize a copy of the weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU that can run it")
    parser.add_argument("--threads", type=int, help="default: as many as torch has")
    parser.add_argument("--schedule", action="store_true", help="also the time of each phase")


def run(parsed: argparse.Namespace) -> int:
    """Prints the text to stdout, the speed to stderr; status 2 for what cannot be run."""
    if not Path(parsed.model, "config.json").is_file():
        return _failed(
            f"{parsed.model} has no config.json: expected a folder with a model and its tokenizer, "
            "as save_pretrained writes it. Nothing is downloaded"
        )
    try:
        import transformers
    except ImportError:
        return _failed('transformers is not installed: pip install "megafuse[models]"')
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return _generate(parsed, transformers)
    except (ValueError, OSError) as error:  # Unsupported is a ValueError
        return _failed(str(error))


def _failed(why: str) -> int:
    print(f"megafuse: {why}", file=sys.stderr)
    return 2


def _generate(parsed: argparse.Namespace, transformers: Any) -> int:
    import torch

    from megafuse.decode.decoder import compile

    tokenizer = transformers.AutoTokenizer.from_pretrained(parsed.model, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        parsed.model, dtype=parsed.dtype, local_files_only=True
    )
    model = model.eval().to(parsed.device or best_device())
    ids = _prompt(parsed, tokenizer)
    decoder = compile(
        model,
        max_length=len(ids) + max(parsed.max_new_tokens, 1),
        weights=parsed.weights,
        threads=parsed.threads,
    )
    streamer = transformers.TextStreamer(tokenizer, skip_special_tokens=True)
    times = [time.perf_counter()]
    for token in decoder.stream(
        ids,
        parsed.max_new_tokens,
        temperature=parsed.temperature,
        top_k=parsed.top_k,
        top_p=parsed.top_p,
        repetition_penalty=parsed.repetition_penalty,
        seed=parsed.seed,
    ):
        times.append(time.perf_counter())
        streamer.put(torch.tensor([token]))
    streamer.end()
    print(speed(decoder, len(ids), times), file=sys.stderr)
    if parsed.schedule:
        print(f"\n{decoder.schedule}", file=sys.stderr)
    return 0


def best_device() -> str:
    import torch

    from megafuse.decode.kernel_cuda import OLDEST

    there = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= OLDEST
    return "cuda" if there else "cpu"


def _prompt(parsed: argparse.Namespace, tokenizer: Any) -> list[int]:
    if parsed.chat:
        made = tokenizer.apply_chat_template(
            [{"role": "user", "content": parsed.prompt}],
            add_generation_prompt=True,
            return_dict=False,
        )
        return [int(token) for token in made]
    return [int(token) for token in tokenizer(parsed.prompt)["input_ids"]]


def speed(decoder: Decoder, prompt: int, times: list[float]) -> str:
    """The first token apart, which is the prompt's; the others against the memory's roof."""
    if len(times) == 1:
        return "no tokens were asked for"
    first = f"prompt of {prompt} tokens: {times[1] - times[0]:.2f} s"
    made = len(times) - 2
    if made == 0:
        return first
    from megafuse.bench.roof import roofs

    seconds = (times[-1] - times[1]) / made
    moved = decoder.schedule.bytes_at(prompt + made // 2) / seconds
    roof = roofs(decoder.device.type).read
    return (
        f"{first}; then {1 / seconds:.1f} tokens/s\n"
        f"{moved / 1e9:.1f} GB/s of weights and cache, {100 * moved / roof:.0f} % of the "
        f"{roof / 1e9:.1f} GB/s that this machine reads"
    )
