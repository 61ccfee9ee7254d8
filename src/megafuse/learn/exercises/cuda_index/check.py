"""The kernel on counted memory, thread by thread; through NVRTC; and on a GPU if there is one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megafuse.learn.exercises import gpu, roof, tensors
from megafuse.learn.exercises.catalog import HERE
from megafuse.learn.exercises.findings import Finding, Stop
from megafuse.learn.exercises.native import SECTOR, Counts, compile_stop, pasted
from megafuse.learn.exercises.work import Work
from megafuse.runtime import nvrtc
from megafuse.runtime.cpp import CompileError

_A, _THREADS, _EACH = 1.5, 128, 4
_NAME = "axpy"


def check(work: Work) -> Iterator[Finding]:
    """One block, several blocks, a last block that is not full; sectors; the GPU's compiler."""
    native = work.native(before=pasted(HERE / "cuda_on_cpu.h"))
    for what, n, says in (
        ("one block", 512, _ONE_BLOCK),
        ("eight blocks", 4096, _BLOCKS),
        ("10,000", 10_000, _BOUNDS),
    ):
        arrays = _arrays(n, "cpu")
        try:
            counts = native.counted(arrays, (n,))
        except Stop as stop:
            if stop.finding.what == "stays inside":
                raise Stop(what, stop.finding.found, says) from None
            raise
        yield (finding := _result(what, arrays, says))
        if not finding.ok:
            return
    yield _once(counts, 10_000)
    yield _coalesced(counts, 10_000)
    cubin = _compiled(work)
    if isinstance(cubin, Finding):
        yield cubin
    else:
        yield Finding("NVRTC", True, f"compiles: {len(cubin)} bytes of machine code")
    if work.device == "cuda" and isinstance(cubin, bytes):
        yield from _on_the_gpu(cubin)
    else:
        large = _arrays(1 << 22, "cpu")
        native.plain(large, (1 << 22,))
        yield _result("at full speed", large, _BOUNDS)
        run = lambda: native.plain(large, (1 << 22,))  # noqa: E731
        yield roof.share(run, 3 * large["x"].nbytes, "cpu", _ON_CPU, threads=1)


def _arrays(n: int, device: str) -> dict[str, Tensor]:
    x, y = (torch.randn(n, device=device) for _ in range(2))
    return {"x": x, "y": y, "out": torch.full((n,), torch.nan, device=device)}


def _result(what: str, arrays: dict[str, Tensor], says: str) -> Finding:
    exact = _A * arrays["x"].double() + arrays["y"].double()
    return tensors.close(what, arrays["out"], exact, torch.float32, 1e-6, says)


def _once(counts: Counts, n: int) -> Finding:
    written = counts.written_elements
    ok = written == n
    return Finding("written", ok, f"{written} stores for {n} elements", "" if ok else _TWICE)


def _coalesced(counts: Counts, n: int) -> Finding:
    each, least = counts.sectors * SECTOR / n, 12
    ok = each <= 1.1 * least
    found = f"{each:.0f} an element, the least is {least}; {_per_request(counts)}"
    return Finding("bytes moved", ok, found, "" if ok else _APART)


def _per_request(counts: Counts) -> str:
    return f"{counts.sectors / max(counts.requests, 1):.1f} sectors a request"


def _compiled(work: Work) -> bytes | Finding:
    """For this machine's GPU, or for an H100 where there is none."""
    problem = nvrtc.problem()
    if problem is not None:
        return Finding("NVRTC", None, f"not compiled for a GPU: {problem}")
    major, minor = torch.cuda.get_device_capability() if work.device == "cuda" else (9, 0)
    source = pasted(HERE / "counted.h") + pasted(work.path)
    try:
        return nvrtc.compile_cubin(source, f"sm_{major}{minor}", [])
    except CompileError as error:
        return compile_stop(error, work.path).finding


def _on_the_gpu(cubin: bytes) -> Iterator[Finding]:
    kernel = gpu.Kernel(cubin, _NAME)

    def run(arrays: dict[str, Tensor]) -> None:
        n = arrays["x"].numel()
        blocks = -(-n // (_THREADS * _EACH))
        kernel.launch(blocks, _THREADS, *arrays.values(), _A, n)

    small = _arrays(10_000, "cuda")
    run(small)
    yield _result("on the GPU", small, _BOUNDS)
    large = _arrays(1 << 24, "cuda")
    yield roof.share(lambda: run(large), 3 * large["x"].nbytes, "cuda")


_ONE_BLOCK = (
    "A block of 128 threads with four elements each covers 512 elements, each once. nan: no thread "
    "wrote there."
)
_BLOCKS = (
    "With eight blocks the first 512 elements come out right and the rest was never written "
    "(nan), or goes wrong: threadIdx.x is a place within the block, and is the same in every "
    "block. Which 512 elements a block works on must come from blockIdx.x."
)
_BOUNDS = (
    "10,000 elements take 20 blocks of 512, and the last one has room for 240 too many. A "
    "thread whose i is not below n must do nothing: out there lies other memory, on a GPU too, and "
    "no error tells that it was overwritten."
)
_TWICE = (
    "Some elements are written more than once. Two threads that write the same place race with "
    "each other, and every needless store costs memory traffic."
)
_APART = (
    "Right, and slow. In each round the 32 threads of a warp access memory together, in sectors "
    "of 32 bytes, eight floats. Where thread t takes element 4 t + k, the warp's 32 elements lie "
    "spread over 16 sectors; where thread t takes element t of the round, they fill 4. No cache "
    "is counted here: a GPU's may hide some of it, and not when it is full of other warps' "
    "sectors."
)
_ON_CPU = "Timed on the CPU, where threads are a loop; the sectors are what counts for a GPU."
