"""Every rung is right, moves the bytes it says, and stays inside its tensors.

The CUDA rungs too, where there is no GPU: their sources are compiled with NVRTC, and run on the CPU
with every access to memory checked and counted (checked_memory.h).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import re
from pathlib import Path

import pytest
import torch

import megafuse
from megafuse.learn.ladder import LADDERS, Ladder, Rung, instructions, launch, layer_norm
from megafuse.learn.ladder import linear_relu as linear_relu_ladder
from megafuse.runtime import cpp, nvrtc, sources

needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
needs_nvrtc = pytest.mark.skipif(nvrtc.problem() is not None, reason="needs NVRTC")

SHAPES = {
    "gelu_scale": [(0,), (1,), (3,), (5, 13), (1023,), (2 * 4096 + 5,), (3, 4096)],
    "bias_act": [(0, 8), (1, 1), (3, 7), (5, 1022), (3, 1028)],
    "layer_norm": [(0, 8), (1, 1), (3, 7), (2, 255), (5, 1022), (3, 1028), (2, 4096)],
    "linear_relu": [(1, 1, 1), (5, 3, 7), (33, 31, 65), (40, 64, 96)],
}
BY_FILE = {
    rung.file: (ladder, rung)
    for ladder in LADDERS.values()
    for rung in ladder.rungs
    if rung.file is not None
}


def files_on(device: str) -> list[str]:
    return [file for file, (ladder, rung) in BY_FILE.items() if rung in ladder.on(device)]


ON_CPU = [(ladder, rung) for ladder in LADDERS.values() for rung in ladder.on("cpu")]


def skip_where_it_does_not_apply(ladder: Ladder, rung: Rung, device: str) -> None:
    if rung not in ladder.on(device):
        pytest.skip(rung.changed(device))


EVERY_RUNG = [(ladder, rung) for ladder in LADDERS.values() for rung in ladder.rungs]
EVERY_SHAPE = [
    pytest.param(ladder, rung, shape, id=f"{ladder.name}-{rung.name}-{'x'.join(map(str, shape))}")
    for ladder, rung in EVERY_RUNG
    for shape in SHAPES[ladder.name]
]


def arguments(ladder: Ladder, shape: tuple[int, ...], device: str = "cpu") -> tuple:
    if ladder.name == "gelu_scale":
        return torch.randn(shape, device=device) * 3, 1.7
    if ladder.name == "bias_act":
        return torch.randn(shape, device=device), torch.randn(shape[-1], device=device), "relu"
    if ladder.name == "layer_norm":
        weight, bias = (torch.randn(shape[-1], device=device) for _ in range(2))
        return torch.randn(shape, device=device) + 1, weight, bias, 1e-5
    rows, outs, ins = shape
    made = (torch.randn(rows, ins), torch.randn(outs, ins), torch.randn(outs))
    return tuple(t.to(device) for t in made)


def assert_right(ladder: Ladder, result: torch.Tensor, args: tuple) -> None:
    """Four times eager's error, and what adding n numbers one after the other may cost: n roundings
    of either sign, so about √n of them. A wrong index errs by as much as the values are."""
    exact = ladder.exact(*args)
    assert result.shape == exact.shape
    if result.numel() == 0:
        return
    error = float((result - exact).abs().max())
    eager = float((ladder.op.reference(*args) - exact).abs().max())
    added = 1 if ladder.name in ("gelu_scale", "bias_act") else args[0].shape[-1]
    assert error <= 4 * eager + math.sqrt(added) * 1.2e-7 * max(1.0, float(exact.abs().max()))


@pytest.fixture
def poisoned(monkeypatch):
    """Results begin as NaN: what a rung forgets to write shows."""
    real = launch.empty

    def empty(*shape, like):
        return real(*shape, like=like).fill_(float("nan"))

    for name in LADDERS:
        module = importlib.import_module(f"megafuse.learn.ladder.{name}")
        monkeypatch.setattr(module, "empty", empty)


@needs_compiler
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("ladder", "rung", "shape"), EVERY_SHAPE)
def test_right(ladder, rung, shape, device):
    skip_where_it_does_not_apply(ladder, rung, device)
    args = arguments(ladder, shape, device)
    assert_right(ladder, rung.run(*args), args)


@needs_compiler
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("ladder", "rung"), EVERY_RUNG, ids=lambda each: each.name)
def test_nan_and_inf_come_out_where_pytorch_puts_them(ladder, rung, device):
    skip_where_it_does_not_apply(ladder, rung, device)
    args = arguments(ladder, (9, 37, 37)[: len(SHAPES[ladder.name][-1])], device)
    x = args[0].view(-1)
    x[3], x[40], x[80] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    if ladder.name == "gelu_scale":
        x[121], x[122] = torch.tensor([1e30, -1e30])  # their cubes overflow
    expected, result = ladder.op.reference(*args), rung.run(*args)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isposinf(), expected.isposinf())
    assert torch.equal(result.isneginf(), expected.isneginf())


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_on_any_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for ladder, rung in ON_CPU:
            args = arguments(ladder, SHAPES[ladder.name][-1])
            assert_right(ladder, rung.run(*args), args)
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_without_torchs_threads(monkeypatch):
    monkeypatch.setattr(launch, "_openmp", lambda: None)
    for ladder, rung in ON_CPU:
        args = arguments(ladder, SHAPES[ladder.name][-1])
        assert_right(ladder, rung.run(*args), args)


def test_the_last_rung_is_the_shipped_op():
    for ladder in LADDERS.values():
        last = ladder.rungs[-1]
        assert last.run is getattr(megafuse, ladder.name)
        assert last.op is megafuse.OPS[ladder.name]
        assert last.file is None


def test_what_a_cache_holds_does_not_come_from_memory(monkeypatch):
    """Three sweeps ask for x three times; a cache that holds x delivers two of them."""
    x, row = torch.randn(64, 1024), torch.randn(1024)
    naive = LADDERS["layer_norm"].rungs[0]
    for held, readings in ((x.nbytes, 1), (x.nbytes - 1, 3)):
        monkeypatch.setattr("megafuse.learn.ladder.rung.cache_bytes", lambda _, held=held: held)
        ledger = naive.ledger(x, row, row, 1e-5)
        assert ledger.bytes_moved == 4 * x.nbytes + 2 * row.nbytes
        assert ledger.from_memory == (readings + 1) * x.nbytes + 2 * row.nbytes


@needs_compiler
def test_ledger_of_the_shipped_op_is_its_cost():
    x = torch.randn(100, 100)
    shipped, fused = LADDERS["gelu_scale"].rungs[-1], LADDERS["gelu_scale"].rungs[-2]
    assert shipped.ledger(x, 1.7).bytes_moved == 2 * x.nbytes
    assert fused.ledger(x, 1.7).bytes_moved == shipped.ledger(x, 1.7).bytes_moved


def test_ledger_runs_nothing(monkeypatch):
    monkeypatch.setattr(launch, "_launch_cpu", None)
    x = torch.randn(100, 100)
    ledger = LADDERS["gelu_scale"].rungs[0].ledger(x, 1.7)
    assert ledger.operations == ("gelu", "scale")
    assert ledger.bytes_moved == 4 * x.nbytes


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.ones(8, dtype=torch.float16), "float32"),
        (torch.ones(8, 8).t(), "contiguous"),
        (torch.ones(9)[1:], "16 bytes"),
    ],
)
def test_what_a_kernel_cannot_take_is_refused(x, said):
    for rung in LADDERS["gelu_scale"].rungs[:-1]:
        with pytest.raises(ValueError, match=said):
            rung.run(x, 1.7)


# ---- the CUDA sources, without a GPU


# What a launch for rows of 1024 floats compiles in.
ABOVE = dict.fromkeys(("layer_norm/4_row_kept", "layer_norm/5_wide"), "#define COLS 1024\n")


def entries(text: str) -> list[str]:
    return re.findall(r'^extern "C" (?:__global__ )?void (\w+)\(', text, re.M)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("file", [*files_on("cuda"), "probes"])
def test_compiles_for_the_gpu(file, arch):
    text = ABOVE.get(file, "") + launch.source(file, "cuda")
    cubin = nvrtc.compile_cubin(text, arch, [sources.KERNELS])
    for entry in entries(text):
        assert entry.encode() in cubin


@needs_nvrtc
def test_instructions_say_what_a_rung_changed():
    def of(file, entry):
        text = ABOVE.get(file, "") + launch.source(file, "cuda")
        return instructions.compiled(text, entry)

    narrow, wide = of("gelu_scale/2_coalesced", "gelu"), of("gelu_scale/3_wide", "gelu")
    assert (narrow.bytes_per_load, wide.bytes_per_load) == (4, 16)
    assert narrow.count("ld.global") == narrow.count("st.global") == 1
    assert narrow.count("fma") >= 1
    assert any("ld.global" in line for line in narrow.around_first("ld.global"))
    assert of("layer_norm/2_coalesced", "layer_norm").count("shfl") == 0
    assert of("layer_norm/3_warp", "layer_norm").count("shfl") == 10
    assert of("layer_norm/3_warp", "layer_norm").count("bar.") == 0
    kept, wide = of("layer_norm/4_row_kept", "layer_norm"), of("layer_norm/5_wide", "layer_norm")
    # 32 floats a thread of x, weight and bias; and no room for more than those 32
    assert kept.count("ld.global") == 3 * 32
    assert kept.count("st.global") == 32
    assert kept.count("setp") == 1, "whether there is such a row, and nothing else, is asked"
    assert wide.count("ld.global") == 3 * 8
    assert wide.bytes_per_load == 16
    assert len(wide.lines) < len(kept.lines)


# ---- memory, checked and counted


class Buffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("floats", "reads", "writes", "bad")),
    )


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A function (device, line above the sources) -> library of all sources over checked memory."""
    folder = tmp_path_factory.mktemp("checked")

    @functools.cache
    def build(device: str, above: str) -> ctypes.CDLL:
        out = folder / f"{device}{len(list(folder.iterdir()))}.so"
        flags = ["-std=c++20", "-O1", "-pthread", "-w"]
        include = [sources.KERNELS, Path(__file__).parent]
        cpp.compile_shared(over_checked_memory(device, above), out, flags=flags, include=include)
        return ctypes.CDLL(str(out))

    return build


def over_checked_memory(device: str, above: str) -> str:
    """Every rung's source in a namespace of its own, below one list of includes; with a line
    above, those that need one."""
    files = files_on(device)
    if device == "cuda":
        files = [file for file in files if (file in ABOVE) == bool(above)]
    texts = {file: launch.source(file, device) for file in files}
    includes = sorted({line for text in texts.values() for line in INCLUDES.findall(text)})
    parts = [over_checked_memory_alone(file, text, device) for file, text in texts.items()]
    return "\n".join([above, '#include "checked_memory.h"', *includes, *parts])


INCLUDES = re.compile("^#include .*$", re.M)


def over_checked_memory_alone(file: str, text: str, device: str) -> str:
    waits = "true" if re.search("__syncthreads|__shfl", text) else "false"
    text = INCLUDES.sub("", text).replace('extern "C" ', "")
    text = re.sub(r"reinterpret_cast<((const )?(float4|Floats))\*>", r"counted_cast<\1>", text)
    text = re.sub(r"(const )?float\*( __restrict)?", r"Counted<\1float>", text)
    runs = [
        f'extern "C" long long {name_of(file, entry)}(void** words, const unsigned* grid) {{\n'
        + (
            f"  return as_cuda({entry}, words, grid, {waits});\n}}\n"
            if device == "cuda"
            else f"  return on_cpu({entry}, words);\n}}\n"
        )
        for entry in entries(launch.source(file, device))
    ]
    return f"namespace {name_of(file, 'source')} {{\n{text}{''.join(runs)}}}\n"


def name_of(file: str, entry: str) -> str:
    return f"rung_{file.replace('/', '_')}_{entry}"


class Counts:
    """What the launches of one rung did to memory."""

    def __init__(self) -> None:
        self.buffers: list[tuple[launch.Access, Buffer]] = []
        self.fetched = 0


def run_checked(build, device: str, monkeypatch) -> Counts:
    """Makes launches run over checked memory, and returns where their counts will be."""
    counts = Counts()

    def instead(file, entry, grid, args, above):
        words = []
        for arg in args:
            if isinstance(arg, launch.Access):
                made = Buffer(arg.tensor.data_ptr(), arg.tensor.numel(), 0, 0, 0)
                counts.buffers.append((arg, made))
                words.append(ctypes.cast(ctypes.pointer(made), ctypes.c_void_p))
            else:
                value = launch._c_value(arg)
                words.append(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p))
        if device == "cpu":
            parts = (ctypes.c_longlong(0), ctypes.c_longlong(1))
            words += [ctypes.cast(ctypes.pointer(p), ctypes.c_void_p) for p in parts]
        shape = (ctypes.c_uint * 4)(*grid.blocks, *grid.threads)
        function = build(device, above)[name_of(file, entry)]
        function.restype = ctypes.c_longlong
        counts.fetched += function((ctypes.c_void_p * len(words))(*words), shape)

    monkeypatch.setattr(launch, "_launch_cpu", instead)
    if device == "cuda":
        monkeypatch.setattr(layer_norm, "_row_statistics", lambda x: ())
        compiled_in = lambda x: f"#define COLS {x.shape[-1]}\n"  # noqa: E731
        monkeypatch.setattr(layer_norm, "_compiled_in", compiled_in)
        monkeypatch.setitem(linear_relu_ladder._TILE, "cpu", linear_relu_ladder._TILE["cuda"])
    return counts


SMALL = {  # of those that have a CUDA source
    "gelu_scale": [(1,), (7,), (3, 1025)],
    "layer_norm": [(1, 1), (3, 7), (2, 1028), (2, 4096)],
    "linear_relu": [(1, 1, 1), (33, 34, 65)],
}
SMALL_SHAPES = [
    (file, shape) for file in files_on("cuda") for shape in SMALL[BY_FILE[file][0].name]
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("file", "shape"), SMALL_SHAPES)
def test_cuda_source_over_checked_memory(checked, monkeypatch, file, shape):
    ladder, rung = BY_FILE[file]
    args = arguments(ladder, shape)
    counts = run_checked(checked, "cuda", monkeypatch)
    assert_right(ladder, rung.run(*args), args)
    for access, seen in counts.buffers:
        assert seen.bad == 0
        elements = access.times * access.tensor.numel()
        if access.tensor.dim() == 1 and ladder.name != "gelu_scale":
            continue  # weight and bias: once from memory, then from cache for every row
        assert seen.reads + seen.writes == elements, "the ledger says otherwise"


SHAPES_BEYOND_A_CACHE = {
    "gelu_scale": (200 * 4096,),
    "bias_act": (512, 256),
    "layer_norm": (512, 256),
}
SWEPT = [file for file in files_on("cpu") if BY_FILE[file][0].name in SHAPES_BEYOND_A_CACHE]


@needs_compiler
@pytest.mark.parametrize("file", SWEPT)
def test_cpu_source_fetches_what_its_ledger_says(checked, monkeypatch, file):
    """Through a small cache: whole lines are fetched, and what is still there is not."""
    ladder, rung = BY_FILE[file]
    args = arguments(ladder, SHAPES_BEYOND_A_CACHE[ladder.name])
    monkeypatch.setattr("megafuse.learn.ladder.rung.cache_bytes", lambda device: 128 * 64)
    counted = rung.ledger(*args).from_memory
    counts = run_checked(checked, "cpu", monkeypatch)
    assert_right(ladder, rung.run(*args), args)
    assert all(seen.bad == 0 for _, seen in counts.buffers)
    if rung.name == "naive":  # 4 bytes of every 64 are used
        assert counts.fetched > 8 * counted
    else:
        assert counted <= counts.fetched <= 1.05 * counted


def test_rung_texts():
    for _, rung in EVERY_RUNG:
        assert isinstance(rung, Rung)
        assert rung.changed("cuda")
        assert rung.changed("cpu")
    for file, (ladder, rung) in BY_FILE.items():
        for device in ("cuda", "cpu"):
            if rung not in ladder.on(device):
                continue
            text = launch.source(file, device)
            assert text.startswith("//"), "a source begins with what it is"
            assert max(map(len, text.splitlines())) <= 100
