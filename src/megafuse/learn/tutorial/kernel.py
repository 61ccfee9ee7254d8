"""Step 3: the kernel, line by line, and the instructions it becomes."""

from __future__ import annotations

import time

import torch

from megafuse.learn.explain import seconds
from megafuse.learn.ladder import LADDERS, instructions, launch
from megafuse.learn.tutorial import classic
from megafuse.learn.tutorial.tour import Tour
from megafuse.runtime.cpp import CompileError

TITLE = "The kernel, line by line"
FILE = "gelu_scale/4_fused"

# What each line means, by the text that it begins with.
MEANINGS = {
    "cuda": {
        "// gelu and scale": "",
        '#include "gelu_scale.h"': "The arithmetic: a struct that knows nothing of GPUs. The CPU's "
        "kernel includes the same file.",
        "using Functor": "That struct, for float and the tanh form of GELU.",
        'extern "C" __global__': "__global__: the host launches it, and every thread runs it. x "
        'and out are addresses in the GPU\'s memory; extern "C" keeps the name findable.',
        "float factor, long long n": "",
        "const Functor functor": "The scale goes into a register, once for each thread.",
        "const long long thread =": "Who am I? My block's number times threads per block, plus my "
        "place in it. 64 bits, for tensors beyond 2³¹ floats.",
        "const long long threads": "How many are we? The whole grid.",
        "for (long long i = thread;": "Neighbours take neighbouring groups of four floats, then "
        "all jump ahead by the whole grid: any n, with a grid made for the chip.",
        "float4 v = reinterpret": "One load of 16 bytes. 32 threads of a warp fetch 512 bytes in a "
        "row: whole cache lines, nothing wasted.",
        "v.x = functor": "GELU and scale, in registers. What lies between the two never leaves "
        "them: this is the fusion.",
        "v.y = functor": "",
        "v.z = functor": "",
        "v.w = functor": "Four independent chains, so one can compute while another waits.",
        "reinterpret_cast<float4*>(out)": "One store of 16 bytes.",
        "const long long rest": "One to three floats may be left over: the first threads take one "
        "each.",
        "if (rest < n)": "Without this check the kernel would write past the end.",
        "}": "",
    },
    "cpu": {
        "// gelu and scale": "",
        '#include "gelu_scale.h"': "The arithmetic, the very file that the CUDA kernel includes.",
        "using mf::i64": "",
        "using Functor": "The same struct: what runs here is what runs on a GPU.",
        'extern "C" void': "__restrict: the arrays do not overlap, so the compiler may load ahead. "
        "`part` of `parts`: which thread this is.",
        "float factor, i64 n,": "",
        "const Functor functor": "The scale goes into a register.",
        "const i64 last": "This thread's share ends here.",
        "for (i64 i = n * part": "No branch and no call inside, so the compiler makes SIMD code of "
        "it: 4 to 16 floats with each instruction. GELU's result stays in a register.",
        "}": "",
    },
}


def run(tour: Tour) -> None:
    screen = tour.screen
    screen.say(
        f"This is rung 4 of the ladder to come, the fused kernel for a GPU, as it stands in "
        f"learn/ladder/kernels/{FILE}.cu:"
    )
    screen.explained(explained("cuda"))
    if tour.device == "cpu":
        screen.say(
            "There is no GPU in this run, so the same functor runs on the CPU. Its loop, from "
            f"{FILE}.cpp; the cache stands for what registers and shared memory are on a GPU:"
        )
        screen.explained(explained("cpu"))
    _instructions(tour)
    if tour.device == "cuda":
        _compiled_live(tour)
        _the_classic_way(tour)


def explained(device: str) -> list[tuple[str, str]]:
    """Every line of the source with its meaning."""
    lines = launch.source(FILE, device).splitlines()
    return [(line, _meaning(line.strip(), MEANINGS[device])) for line in lines if line.strip()]


def _meaning(line: str, meanings: dict[str, str]) -> str:
    return next(text for begins, text in meanings.items() if line.startswith(begins))


def _instructions(tour: Tour) -> None:
    screen = tour.screen
    try:
        made = instructions.compiled(launch.source(FILE, "cuda"), "gelu_scale")
        narrow = instructions.compiled(launch.source("gelu_scale/2_coalesced", "cuda"), "gelu")
    except CompileError as error:
        screen.say(
            "What it compiles to, NVIDIA's PTX, needs NVRTC (no GPU, and no CUDA toolkit). It is "
            f"not here: {error}"
        )
        return
    screen.say(
        f"NVRTC makes {len(made.lines)} instructions of it (PTX, for {instructions.ARCHITECTURE}). "
        "Around the first load:"
    )
    screen.code(made.around_first("ld.global"))
    screen.table(
        ("", "fused, 16-byte", "rung 2, gelu only"),
        [
            (name, str(made.count(*words)), str(narrow.count(*words)))
            for name, words in (
                ("loads from memory", ("ld.global",)),
                ("stores to memory", ("st.global",)),
                ("multiply-adds", ("fma",)),
                ("other adds, multiplies", ("add.f32", "add.rn.f32", "mul.f32", "mul.rn.f32")),
                ("exponentials, reciprocals", ("ex2", "rcp")),
            )
        ]
        + [("bytes of the widest load", str(made.bytes_per_load), str(narrow.bytes_per_load))],
    )
    screen.say(
        "Each is counted as it stands in the program: the fused one has a loop for four floats at "
        "a time and an ending for one. gelu's result has no store and no load: it never leaves "
        "its register."
    )


def _compiled_live(tour: Tour) -> None:
    if not tour.compiles:
        tour.screen.say("It cannot be compiled and run here: `megafuse doctor` says why.")
        return
    ladder = LADDERS["gelu_scale"]
    x = torch.randn(1 << 20, device="cuda")
    start = time.perf_counter()
    result = ladder.rungs[3].run(x, 1.7)
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    error = float((result - ladder.exact(x, 1.7)).abs().max())
    tour.screen.say(
        f"Compiled by NVRTC (or found in the cache), loaded and run on {tour.machine} in "
        f"{seconds(took)}; the largest error against float64 is {error:.1e}."
    )


def _the_classic_way(tour: Tour) -> None:
    """torch's load_inline, as most tutorials do it."""
    screen = tour.screen
    missing = classic.missing()
    if tour.quick:
        screen.say("(The classic way, load_inline with nvcc, takes a minute: left out by --quick.)")
        return
    if missing:
        screen.say(f"The classic way, torch's load_inline, is skipped: {missing}.")
        return
    screen.say(
        f"The classic way to the same machine code is torch.utils.cpp_extension.load_inline with "
        f"nvcc ({classic.nvcc()}). It may take a minute or more, the first time …"
    )
    try:
        built = classic.build()
    except Exception as error:  # nvcc, ninja, compiler and torch have many ways not to fit
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        screen.say(f"It did not work here: {first[:300]}. The rest does not need it.")
        return
    screen.say(f"Built in {seconds(built.took)}; {_compared(tour, built)}.")


def _compared(tour: Tour, built: classic.Built) -> str:
    ladder = LADDERS["gelu_scale"]
    x = torch.randn(1 << 20, device="cuda")
    result = built.function(x, 1.7)
    error = float((result - ladder.exact(x, 1.7)).abs().max())
    text = f"its largest error against float64 is {error:.1e}"
    if not tour.compiles:
        return text
    if torch.equal(result, ladder.rungs[3].run(x, 1.7)):
        return text + ", and its bits are those of NVRTC's"
    return text + (
        ". Its bits are not all NVRTC's: nvcc joins a multiplication and an addition into one "
        "rounding unless it is told not to"
    )
