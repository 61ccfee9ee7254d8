"""Diagnoses as they might come out, for the tests of the page."""

from __future__ import annotations

from megafuse.diagnose.diagnosis import Diagnosis, Verdict
from megafuse.diagnose.finding import Evidence, Finding, Trial
from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import HostCall, Kernel, Operation, Record, Touched, Where

FILE = "/project/train.py"
DATA = Where(FILE, 9, "step", "batch = next(loader)")
GELU = Where(FILE, 12, "step", "x = 0.5 * x * (1 + torch.tanh(x))")
HEAD = Where(FILE, 15, "step", "return linear_relu(x, weight)")

H200 = Machine(
    name="NVIDIA H200",
    device="cuda",
    copy=4.1e12,
    read=4.3e12,
    fresh=4.0e12,
    cached=9e12,
    cache_bytes=50 << 20,
    call=4e-6,
    launch=2e-6,
    gemm={"float32": 50e12, "bfloat16": 750e12},
    versions={"torch": "2.11.0", "python": "3.12.3"},
)
LAPTOP = Machine(
    name="a laptop",
    device="cpu",
    copy=12e9,
    read=16e9,
    fresh=6e9,
    cached=60e9,
    cache_bytes=32 << 20,
    call=1e-6,
    gemm={"float32": 120e9},
    threads=2,
    versions={"torch": "2.11.0", "python": "3.12.3"},
)


def tensor(*shape: int) -> Touched:
    size = 4
    for n in shape:
        size *= n
    return Touched(0, 0, shape, (), "float32", "cpu", size)


def operation(
    index: int,
    name: str,
    kind: str,
    where: Where,
    start: float,
    seconds: float,
    *,
    on: str = "cpu",
    share: float = 0.5,
    flops: int = 0,
    phase: str = "forward",
) -> Operation:
    """Moves 8 MB. On a GPU the host launches it in 5 µs, and one kernel runs from `start` on."""
    x = tensor(1024, 1024)
    made = Operation(index, name, kind, phase, where, start, seconds, reads=[x], writes=[x])
    made.bytes_moved, made.flops, made.allocated = 2 * x.bytes, flops, x.bytes
    made.roof, made.floor, made.roof_share = "memory", share * seconds, share
    if on == "cuda":
        made.host_start, made.host_seconds = index * 7e-6, 5e-6
        made.device_start, made.device_seconds = start, seconds
        made.kernels = [Kernel(f"kernel_of_{name}<float>", start, seconds, 7)]
    return made


def naive() -> Diagnosis:
    """On a CPU: a chain, then a slow product; two findings, the first of them tried."""
    operations = [
        operation(0, "aten.tanh.default", "pointwise", GELU, 4e-3, 2e-3),
        operation(1, "aten.add.Tensor", "pointwise", GELU, 6e-3, 1e-3),
        operation(2, "aten.mul.Tensor", "pointwise", GELU, 7e-3, 1e-3),
        operation(3, "aten.view.default", "view", GELU, 8e-3, 1e-6),
        operation(4, "ada.linear_relu.default", "extension", HEAD, 9e-3, 40e-3, flops=67_000_000),
    ]
    operations[4].roof, operations[4].roof_share, operations[4].floor = "compute", 0.02, 0.8e-3
    record = Record(
        "train.py:step", "cpu", "forward", 50e-3, 49e-3, 52e-3, 20, 0.3, operations=operations
    )
    record.host_calls = [HostCall("DataLoader.__next__", "data loader", DATA, 0.0, 3e-3)]
    record.busy, record.host, record.peak_bytes = 44e-3, 50e-3, 12 << 20
    product = Finding(
        "naive-product",
        "linear_relu runs at 2.1 % of the library's rate for its shape",
        "Call torch.nn.functional.linear, or megafuse.linear_relu, in its place.",
        HEAD,
        40e-3,
        38e-3,
        "measured",
        [
            Evidence("its rate", 1.7e9, "FLOP/s"),
            Evidence("the library's rate for this shape", 80e9, "FLOP/s"),
            Evidence("of the library's rate", 2.1, "%"),
            Evidence("calls", 1, ""),
        ],
        [4],
        how="67 MFLOP at the library's rate.",
        trial=Trial(
            "megafuse.linear_relu in its place", 50e-3, 12.5e-3, 3.8, 4.2, accuracy="Exact."
        ),
        fix="--- train.py\n+++ train.py\n@@ -15 +15 @@\n-return linear_relu(x, weight)\n"
        "+return mf.linear_relu(x, weight)\n",
        call_gain=4.17,
    )
    chain = Finding(
        "fusable",
        "3 operations go over the same 4 MB",
        "Put @megafuse.fuse on the function.",
        GELU,
        4e-3,
        2.5e-3,
        "likely",
        [Evidence("moved", 25e6, "B"), Evidence("at best", 8e6, "B")],
        [0, 1, 2],
        how="8 MB at the copy's rate.",
        call_gain=1.05,
    )
    verdict = Verdict(False, "compute", 0.07, "A matrix product of your own takes 80 % of it.")
    return Diagnosis(record, LAPTOP, verdict, [product, chain], 8.2, "2026-11-17T02:00:00+00:00")


def launches(count: int = 300) -> Diagnosis:
    """On a GPU: many short kernels with gaps between them."""
    operations = [
        operation(
            i,
            ("aten.mul.Tensor", "aten.add.Tensor")[i % 2],
            "pointwise",
            GELU,
            2e-5 + i * 7e-6,
            2e-6,
            on="cuda",
            phase="backward" if i > count / 2 else "forward",
        )
        for i in range(count)
    ]
    total = 3e-5 + count * 7e-6
    record = Record(
        "step", "cuda", "forward+backward", total, total, total, 50, 0.1, operations=operations
    )
    record.busy, record.host = count * 2e-6, total
    finding = Finding(
        "launch-bound",
        f"The GPU computes 29 % of the time: {count} launches",
        "Put the step into a CUDA graph.",
        GELU,
        total,
        0.7 * total,
        "sure",
        [Evidence("launches", count, "")],
        list(range(count)),
        lines=[HEAD],
        trial=Trial("a CUDA graph", total, 0, 0, 0, error="the step prints"),
        call_gain=3.4,
    )
    verdict = Verdict(False, "host", 0.2, "The GPU waits for the host 71 % of the time.")
    return Diagnosis(record, H200, verdict, [finding], 6.0, "2026-11-17T02:00:00+00:00", "megafuse")


def fine() -> Diagnosis:
    """Nothing to change."""
    where = Where(FILE, 4, "step", "return torch.add(x, y, out=out)")
    record = Record("fine_add.py:step", "cpu", "forward", 2e-3, 1.9e-3, 2.1e-3, 80, 2e-3)
    record.operations = [operation(0, "aten.add.out", "pointwise", where, 0, 2e-3, share=0.95)]
    record.busy = record.host = 2e-3
    verdict = Verdict(True, "memory", 0.95, "It runs at 95 % of the memory's roof: leave it.")
    return Diagnosis(record, LAPTOP, verdict, [], 5.0, "2026-11-17T02:00:00+00:00")
