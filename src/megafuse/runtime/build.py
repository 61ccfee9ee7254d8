"""Source to machine code, once: compiled on the first miss, then read from the cache."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from megafuse.codegen import render, tuning
from megafuse.codegen.activations import AFTER_PRODUCTS, words
from megafuse.codegen.variant import STORAGE, Functors, Operand, Variant
from megafuse.runtime import cache, cpp, fallback, nvrtc, precompiled, progress, sources

_ACTS = {"none": "mf::NoAct", **words(*AFTER_PRODUCTS)}


def _stored_pre(variant: Variant) -> dict[str, str]:
    """How linear_epilogue's second output is stored, where it has one."""
    compute = "double" if variant.double else "float"
    kept = variant.is_forward and variant.outputs == 2
    return {"Pre": STORAGE[variant.operands[1].dtype] if kept else compute}


_UP_TO_FOUR = {"count": {str(count): str(count) for count in range(1, 5)}}

# What the host runtime launches on its own behalf (runtime/host/core/sums.h, epilogue.h, widened.h,
# split.h, dropout_add.h).
PASSES = {
    "sum_parts": Functors(
        "Same<{F}, {count}>", "Same<{F}, {count}>", header="sum_parts.h", choices=_UP_TO_FOUR
    ),
    "linear_epilogue": Functors(
        "LinearEpilogue<{F}, {act}, {Pre}>",
        "LinearEpilogueBackward<{F}, {act}>",
        header="linear_epilogue.h",
        choices={"act": _ACTS},
        words=_stored_pre,
    ),
    "row_dots": Functors("RowDots<{F}, {count}>", header="row_dots.h", choices=_UP_TO_FOUR),
    "column_dots": Functors(
        "ColumnDots<{F}, {count}>",
        "ColumnDots<{F}, {count}>",
        header="few_rows.h",
        choices=_UP_TO_FOUR,
    ),
    "outer_sum": Functors("OuterSum<{F}, {count}>", header="few_rows.h", choices=_UP_TO_FOUR),
    "split_halves": Functors("SplitHalves<{F}>", header="split.h"),
    "split_epilogue": Functors(
        "SplitEpilogue<{F}, {act}>", header="split_epilogue.h", choices={"act": _ACTS}
    ),
    "dropout_add": Functors(
        "DropoutAdd<{F}, {training}>",
        "DropoutAddBackward<{F}, {training}>",
        header="dropout_add.h",
        choices={"training": {"True": "true", "False": "false"}},
        random=True,
        numbers=("p",),
    ),
}

_FUNCTORS = dict(PASSES)  # by op; ops declare theirs


# What the host runtime takes (runtime/host/core/table.h): path and symbol, perhaps that of a second
# function; machine code, symbol, threads a block, unroll, blocks a processor, cluster, bytes of
# shared memory.
CpuKernel = tuple[str, str] | tuple[str, str, str]
CudaKernel = tuple[bytes, str, int, int, int, int, int]


def declare(op: str, functors: Functors) -> None:
    """Tells the runtime where the arithmetic of `op` is."""
    _FUNCTORS[op] = functors


@dataclass(frozen=True)
class Asked:
    """A kernel that the host runtime has not seen (description_of in host/core/request.h)."""

    name: str  # of the functor
    family: str
    choices: dict[str, str | bool]
    common: str
    double: bool
    dims: int
    vector: int
    wide_index: bool
    outputs: int
    operands: tuple[tuple[str, str, int], ...]  # dtype, walk, result
    row_vectors: int = 0
    few: bool = False
    across: bool = False
    short_rows: bool = False
    long_rows: bool = False  # of generated functors
    exact: bool = False  # of generated functors: a row has `row_vectors`, and not a few fewer


def kernel(index: int, asked: Asked) -> CpuKernel | CudaKernel:
    """A functor's kernel for CUDA device `index`, or for the CPU where that is negative.

    Where it cannot be built, fallback.Unbuildable; what went wrong in a functor's text, or in a
    header from outside the package, comes through as it is.
    """
    device = "cpu" if index < 0 else "cuda"
    major, minor = torch.cuda.get_device_capability(index) if device == "cuda" else (0, 0)
    functors = _FUNCTORS[asked.name]
    variant = Variant(
        op=asked.name,
        family=asked.family,
        choices=asked.choices,
        device=device,
        common=asked.common,
        double=asked.double,
        dims=asked.dims,
        vector=asked.vector,
        wide_index=asked.wide_index,
        outputs=asked.outputs,
        operands=tuple(Operand(*o) for o in asked.operands),
        row_vectors=asked.row_vectors,
        few=asked.few,
        across=asked.across,
        draws=functors.draws(asked.choices),
        late=functors.late_of(asked.family),
        clusters=major >= 9,
        roomy=major in (9, 10, 11),
        short_rows=asked.short_rows,
    )
    source = render.source(functors, variant)
    ships = bool(functors.header) and sources.ships(functors.header)
    get = fallback.get if ships else cache.get
    with fallback.reference_instead(variant.label) if ships else contextlib.nullcontext():
        if device == "cpu":
            return str(cpu_object(source, variant.label, ships)), variant.symbol
        arch = f"sm_{major}{minor}"
        cubin = cuda_binary(source, arch, variant.label, variant.contracts, get)
    shape = tuning.shape(functors, variant)
    launch = (shape.block, shape.unroll, shape.blocks_per_processor, shape.cluster, shape.shared)
    return cubin, variant.symbol, *launch


def worker(arch: str, name: str) -> CudaKernel:
    """A CUDA kernel that is no functor: the struct of kernels/<name>.h that has a run()."""
    source, symbol = render.worker(name)
    cubin = shipped_cuda(source, arch, name.replace("_", " "))
    return cuda_kernel(cubin, symbol, render.WORKER_THREADS)


def cuda_kernel(cubin: bytes, symbol: str, threads: int, shared: int = 0) -> CudaKernel:
    """A kernel whose caller says how many blocks there are."""
    return cubin, symbol, threads, 1, 1, 1, shared


def shipped_cpu(source: str, label: str) -> Path:
    """As cpu_object, for sources of our own: where it cannot be built, fallback.Unbuildable."""
    with fallback.reference_instead(label):
        return cpu_object(source, label, ships=True)


def shipped_cuda(source: str, arch: str, label: str, contract: bool = False) -> bytes:
    """As cuda_binary, for sources of our own: where it cannot be built, fallback.Unbuildable."""
    with fallback.reference_instead(label):
        return cuda_binary(source, arch, label, contract, fallback.get)


Get = Callable[[str, str, Callable[[Path], None]], Path]  # cache.get, or fallback.get


def cpu_object(
    source: str, label: str, ships: bool = False, more_flags: tuple[str, ...] = ()
) -> Path:
    """The shared object of a CPU kernel. One that ships is not tried again where it was refused
    before, and compiles in less time (precompiled.py). `more_flags` come after those of kernels."""
    flags = (*cpp.kernel_flags(), *more_flags)
    compiler = cpp.find()
    assert compiler is not None  # kernel_flags raised otherwise
    key = cache.key(
        "cpu",
        source,
        sources.closure(source),
        *flags,
        *compiler.command,
        compiler.version,
        cpp.cpu_features(),
    )

    def build(out: Path) -> None:
        with progress.compiling(f"{label} for this CPU"):
            if ships:
                precompiled.compile_kernel(source, out, flags)
            else:
                cpp.compile_shared(source, out, include=[sources.KERNELS], flags=flags)

    return (fallback.get if ships else cache.get)(key, "kernel.so", build)


def cuda_binary(
    source: str, arch: str, label: str, contract: bool = False, get: Get = cache.get
) -> bytes:
    """The machine code of a CUDA kernel."""
    options = repr(sorted(nvrtc.options(arch, contract).items()))
    key = cache.key("cuda", source, sources.closure(source), options, _cuda_tools())

    def build(out: Path) -> None:
        with progress.compiling(f"{label} for {arch}"):
            include = [sources.KERNELS]
            out.write_bytes(nvrtc.compile_cubin(source, arch, include, contract=contract))

    return get(key, "kernel.cubin", build).read_bytes()


@functools.cache
def _cuda_tools() -> str:
    """Versions of what compiles CUDA, read without importing any of it (0.4 s)."""
    names = ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
    versions = [f"torch {torch.__version__} cuda {torch.version.cuda}"]
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)


@functools.cache
def available(device: str) -> bool:
    """Whether kernels can be made for this kind of device; says once what is missing if not."""
    problem = nvrtc.problem() if device == "cuda" and not _all_installed() else None
    if problem is not None:
        progress.logger.warning(
            "megafuse's ops on CUDA tensors run their PyTorch reference, unfused: %s\n"
            "`megafuse doctor` tells more.",
            problem,
        )
    return problem is None


def _all_installed() -> bool:
    """Importing the CUDA bindings only to see that they are there costs 0.4 s: when they are
    installed beside torch's NVRTC, trust them until a kernel must be compiled."""
    return all(name in _cuda_tools() for name in ("cuda-core", "cuda-bindings")) and (
        "nvrtc" in _cuda_tools()
    )
