"""Each finding from numbers: of a GPU, a fast CPU and a slow CPU, and of a machine that is noisy.

A case is a record that must give one finding, first; the same record with one thing changed must
not. Times come from the machine's roofs, so that every machine's case is that machine's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.samples import FAST_CPU, GPU, MACHINES, SLOW_CPU, Calls, tensor
from megafuse.diagnose import findings, rank, roofline
from megafuse.diagnose.finding import Finding
from megafuse.diagnose.findings import Case
from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import HostCall, Record, Where

NAMES = ["gpu", "fast cpu", "slow cpu"]
# As one was measured, for the numbers that benchmarks/gallery.py recorded there.
H200 = replace(
    GPU,
    copy=4.24396e12,
    read=4.22525e12,
    cached=4.24396e12,
    fresh=3.81995e12,
    call=9.92177e-6,
    launch=2.88e-6,
)
LARGE = 1 << 26  # elements: no cache holds them
every_machine = pytest.mark.parametrize("machine", MACHINES, ids=NAMES)


def found(record: Record, machine: Machine, products: object = None) -> list[Finding]:
    roofline.fill(record, machine)
    return rank.found(Case(record, machine, products))  # type: ignore[arg-type]


def names(record: Record, machine: Machine, products: object = None) -> list[str]:
    return [finding.name for finding in found(record, machine, products)]


def streamed(machine: Machine, tensors: int, elements: int = LARGE) -> float:
    """Seconds of a pass over so many tensors, at the roof."""
    return tensors * 4 * elements / machine.copy


def library(machine: Machine) -> Callable[..., float]:
    """A library that has 80 % of the roof at every shape."""

    def seconds(batch: int, rows: int, inner: int, columns: int, dtype: str) -> float:
        return 2 * batch * rows * inner * columns / (0.8 * machine.flop_rate(dtype))

    return seconds


# ---- the famous one


def linear_relu(machine: Machine, share: float) -> Record:
    """A user's kernel at this share of the library's rate."""
    m, k, n = 2048, 1024, 4096
    calls = Calls(machine)
    x, w, b = (tensor(i, *s, outside=True) for i, s in enumerate([(m, k), (n, k), (n,)]))
    seconds = library(machine)(1, m, k, n, "float32") / share
    calls.add("mine.linear_relu.default", "extension", seconds, [x, w, b], [tensor(3, m, n)])
    return calls.record()


@every_machine
def test_a_naive_product_is_named_with_both_rates(machine: Machine) -> None:
    (finding,) = found(linear_relu(machine, 0.02), machine, library(machine))
    assert finding.name == "naive product"
    assert finding.number("share of the library's rate") == pytest.approx(2.0, rel=0.01)
    assert finding.number("the library's rate") == pytest.approx(
        0.8 * machine.flop_rate("float32"), rel=0.01
    )
    assert 20 < finding.call_gain < 51
    assert "2048×1024 · 1024×4096" in finding.title


@every_machine
def test_a_kernel_near_the_librarys_rate_is_fine(machine: Machine) -> None:
    assert names(linear_relu(machine, 0.9), machine, library(machine)) == []


def test_an_extension_that_is_no_product_is_left_alone() -> None:
    calls = Calls(GPU)
    shape = (4096, 1000)
    calls.add("mine.norm.default", "extension", 1e-3, [tensor(0, *shape)], [tensor(1, *shape)])
    assert names(calls.record(), GPU, library(GPU)) == []


def test_batches_of_products() -> None:
    calls = Calls(GPU)
    operands = [tensor(0, 64, 512, 128), tensor(1, 64, 128, 512)]
    calls.add("mine.bmm.default", "extension", 1.0, operands, [tensor(2, 64, 512, 512)])
    (finding,) = found(calls.record(), GPU, library(GPU))
    assert "64 of 512×128 · 128×512" in finding.title


# ---- chains


def chain(machine: Machine, count: int, elements: int = LARGE, start: int = 0) -> Calls:
    calls = Calls(machine)
    for i in range(count):
        before, after = tensor(start + i, elements), tensor(start + i + 1, elements)
        seconds = max(streamed(machine, 2, elements), machine.call)
        calls.add("aten.mul.Tensor", "pointwise", seconds, [before], [after], line=10 + i)
    return calls


@every_machine
def test_a_chain_is_one_pass(machine: Machine) -> None:
    (finding,) = found(chain(machine, 5).record(), machine)
    assert finding.name == "fusable"
    assert finding.operations == [0, 1, 2, 3, 4]
    assert finding.call_gain == pytest.approx(5, rel=0.1)
    assert finding.number("bytes moved") == pytest.approx(5 * finding.number("bytes of one pass"))  # type: ignore[operator]


@every_machine
def test_one_operation_is_no_chain(machine: Machine) -> None:
    assert names(chain(machine, 1).record(), machine) == []


def test_operations_that_share_nothing_are_no_chain() -> None:
    calls = Calls(GPU)
    for i in range(4):
        reads, writes = [tensor(2 * i, LARGE)], [tensor(2 * i + 1, LARGE)]
        calls.add("aten.exp.default", "pointwise", streamed(GPU, 2), reads, writes)
    assert names(calls.record(), GPU) == []


def test_what_others_read_must_still_be_written() -> None:
    """Each result of the chain is kept for a product: one pass saves only the reads."""
    calls = chain(GPU, 3)
    for i in (1, 2, 3):
        calls.add("aten.mm.default", "product", 1e-6, [tensor(i, LARGE)], [tensor(90 + i, 4, 4)])
    finding = next(f for f in found(calls.record(), GPU) if f.name == "fusable")
    assert finding.number("bytes of one pass") == 4 * 4 * LARGE


def test_noise_hides_what_it_could_be() -> None:
    calls = chain(SLOW_CPU, 2)
    calls.add("aten.sort.default", "index", 12 * calls.now, [tensor(50, LARGE)], [])
    assert names(calls.record(noise=0.01), SLOW_CPU) == []  # 4 % of the call
    calls = chain(SLOW_CPU, 2)
    calls.add("aten.sort.default", "index", 4 * calls.now, [tensor(50, LARGE)], [])
    assert names(calls.record(noise=0.01), SLOW_CPU) == ["fusable"]
    assert names(calls.record(noise=2.0), SLOW_CPU) == []


# ---- launches


def test_a_gpu_that_waits_for_its_host_is_launch_bound() -> None:
    calls = Calls(GPU)
    for i in range(200):
        calls.add(
            "aten.add.Tensor", "pointwise", 2e-6, [tensor(i, 64)], [tensor(i + 1, 64)], gap=6e-6
        )
    (finding,) = found(calls.record(busy=400e-6, host=1.6e-3), GPU)
    assert finding.name == "launch-bound"
    assert finding.number("launches") == 200
    assert finding.call_gain == pytest.approx(1.6e-3 / (400e-6 + 200e-6 + 10e-6), rel=0.05)


@pytest.mark.parametrize("machine", [FAST_CPU, SLOW_CPU], ids=NAMES[1:])
def test_a_cpu_with_tiny_operations_is_launch_bound(machine: Machine) -> None:
    calls = Calls(machine)
    for i in range(100):
        calls.add("aten.add.Tensor", "pointwise", machine.call, [tensor(i, 8)], [tensor(i + 1, 8)])
    assert names(calls.record(), machine) == ["launch-bound"]


def test_a_busy_gpu_is_not_launch_bound() -> None:
    calls = Calls(GPU)
    for i in range(20):
        moved = [tensor(2 * i, LARGE)], [tensor(2 * i + 1, LARGE)]
        calls.add("aten.exp.default", "pointwise", streamed(GPU, 2), *moved)
    assert names(calls.record(host=1e-4), GPU) == []


# ---- attention


def attention(machine: Machine, tokens: int = 4096) -> Record:
    calls = Calls(machine)
    heads, width = 16, 64
    flops = 2 * heads * tokens * tokens * width
    rate = machine.flop_rate("float32")
    q, k, v = (tensor(i, heads, tokens, width, outside=True) for i in range(3))
    scores = [tensor(3 + i, heads, tokens, tokens) for i in range(3)]
    pass_ = 2 * scores[0].bytes / machine.copy
    calls.add("aten.bmm.default", "product", flops / rate, [q, k], [scores[0]], flops=flops)
    calls.add("aten.mul.Tensor", "pointwise", pass_, [scores[0]], [scores[1]], line=2)
    calls.add("aten._softmax.default", "reduction", pass_, [scores[1]], [scores[2]], line=3)
    out = tensor(9, heads, tokens, width)
    calls.add("aten.bmm.default", "product", flops / rate, [scores[2], v], [out], flops=flops)
    return calls.record(host=1e-5)


@every_machine
def test_attention_written_out(machine: Machine) -> None:
    (finding,) = found(attention(machine), machine)
    assert finding.name == "attention written out"
    assert finding.operations == [0, 1, 2, 3]
    assert "16×4096×4096 scores" in finding.title


def test_a_softmax_alone_is_no_attention() -> None:
    calls = Calls(GPU)
    rows = [tensor(0, 4096, 4096)], [tensor(1, 4096, 4096)]
    calls.add("aten._softmax.default", "reduction", 40e-6, *rows)
    assert names(calls.record(), GPU) == []


# ---- copies


@every_machine
def test_a_transposed_copy_of_a_weight(machine: Machine) -> None:
    calls = Calls(machine)
    weight = tensor(0, 4096, 4096, strides=(1, 4096), outside=True)
    copied = tensor(1, 4096, 4096)
    seconds = 3 * streamed(machine, 2, 4096 * 4096)
    calls.add("aten.clone.default", "copy", seconds, [weight], [copied])
    (finding,) = found(calls.record(), machine)
    assert finding.name == "hidden copy"
    assert finding.sure == "sure"


def test_a_copy_to_the_device() -> None:
    calls = Calls(GPU)
    here, there = tensor(0, 1 << 20, device="cpu", outside=True), tensor(1, 1 << 20, device="cuda")
    calls.add("aten._to_copy.default", "copy", 4e-4, [here], [there])
    (finding,) = found(calls.record(), GPU)
    assert finding.name == "hidden copy"
    assert "from one device to another" in finding.title


def test_a_cat_is_no_hidden_copy() -> None:
    calls = Calls(GPU)
    parts = [tensor(0, LARGE), tensor(1, LARGE)]
    calls.add("aten.cat.default", "copy", streamed(GPU, 4), parts, [tensor(2, 2 * LARGE)])
    assert names(calls.record(), GPU) == []


@every_machine
def test_a_dtype_round_trip(machine: Machine) -> None:
    calls = Calls(machine)
    there = [tensor(i, LARGE, dtype="float64") for i in (1, 2)]
    one = streamed(machine, 1)
    calls.add("aten._to_copy.default", "copy", 3 * one, [tensor(0, LARGE)], [there[0]])
    calls.add("aten.clamp.default", "pointwise", 4 * one, [there[0]], [there[1]])
    calls.add("aten._to_copy.default", "copy", 3 * one, [there[1]], [tensor(3, LARGE)])
    (finding,) = found(calls.record(), machine)
    assert finding.name == "dtype round trip"
    assert finding.call_gain > 3


def halves_of_one_tensor() -> Record:
    """examples/slow/dtype_round_trip.py as an H200 ran it: x and y lie in one memory, one behind
    the other."""
    count = 16384 * 2048
    calls = Calls(H200)
    x, y = (tensor(0, count, outside=True, offset=i * count) for i in range(2))
    there = [tensor(i, count, dtype="float64") for i in range(1, 5)]
    calls.add("aten._to_copy.default", "copy", 142.560e-6, [x], there[:1])
    calls.add("aten._to_copy.default", "copy", 144.703e-6, [y], there[1:2])
    calls.add("aten.add.Tensor", "pointwise", 187.455e-6, there[:2], there[2:3])
    calls.add("aten.clamp.default", "pointwise", 132.288e-6, there[2:3], there[3:])
    calls.add("aten._to_copy.default", "copy", 118.080e-6, there[3:], [tensor(5, count)])
    return calls.record(seconds=732e-6)


def test_two_slices_of_a_tensor_are_read_both() -> None:
    """What came of it was measured there: 95.5 µs."""
    (finding,) = found(halves_of_one_tensor(), H200)
    assert finding.name == "dtype round trip"
    assert 732e-6 - finding.gain == pytest.approx(95.5e-6, rel=0.05)


def test_two_slices_of_a_tensor_come_into_a_chain_both() -> None:
    one = streamed(GPU, 1)
    calls = Calls(GPU)
    x, y = (tensor(0, LARGE, outside=True, offset=i * LARGE) for i in range(2))
    calls.add("aten.exp.default", "pointwise", 2 * one, [x], [tensor(1, LARGE)])
    calls.add("aten.add.Tensor", "pointwise", 3 * one, [tensor(1, LARGE), y], [tensor(2, LARGE)])
    (finding,) = found(calls.record(), GPU)
    assert 5 * one - finding.gain == pytest.approx(3 * one, rel=0.05)


def test_one_cast_is_no_round_trip() -> None:
    calls = Calls(GPU)
    wide = tensor(1, LARGE, dtype="float64")
    calls.add("aten._to_copy.default", "copy", streamed(GPU, 3), [tensor(0, LARGE)], [wide])
    assert names(calls.record(), GPU) == []


# ---- again and again


def softmaxes(machine: Machine, same: bool) -> Record:
    calls = Calls(machine)
    for i in range(8):
        read = tensor(0 if same else 20 + i, LARGE, outside=True)
        calls.add(
            "aten._softmax.default",
            "reduction",
            streamed(machine, 2),
            [read],
            [tensor(1 + i, LARGE)],
        )
    return calls.record()


@every_machine
def test_the_same_work_again(machine: Machine) -> None:
    (finding,) = found(softmaxes(machine, same=True), machine)
    assert finding.name == "repeated work"
    assert finding.call_gain == pytest.approx(8, rel=0.02)


@every_machine
def test_other_numbers_are_other_work(machine: Machine) -> None:
    assert names(softmaxes(machine, same=False), machine) == []


def test_what_follows_from_the_same_is_the_same() -> None:
    calls = Calls(GPU)
    for i in range(4):
        calls.add(
            "aten.exp.default", "pointwise", 1e-3, [tensor(0, LARGE)], [tensor(10 + i, LARGE)]
        )
        calls.add(
            "aten.cumsum.default",
            "reduction",
            1e-3,
            [tensor(10 + i, LARGE)],
            [tensor(20 + i, LARGE)],
        )
    finding = next(f for f in found(calls.record(), GPU) if f.name == "repeated work")
    assert finding.number("operations that are not needed") == 6


def test_random_numbers_are_never_the_same() -> None:
    calls = Calls(GPU)
    for i in range(4):
        out = [tensor(1 + i, LARGE)]
        calls.add("aten.native_dropout.default", "pointwise", 1e-3, [tensor(0, LARGE)], out)
    assert names(calls.record(), GPU) == []


@every_machine
def test_repeated_casts(machine: Machine) -> None:
    calls = Calls(machine)
    for i in range(8):
        weight = tensor(0, 8192, 8192, outside=True)
        half = tensor(1 + i, 8192, 8192, dtype="bfloat16")
        seconds = streamed(machine, 2, 8192 * 8192)
        calls.add("aten._to_copy.default", "copy", seconds, [weight], [half], autocast=True)
    (finding,) = found(calls.record(), machine)
    assert finding.name == "repeated casts"
    assert "autocast" in finding.advice


@every_machine
def test_a_loop_over_the_batch(machine: Machine) -> None:
    calls = Calls(machine)
    weight = tensor(0, 4096, 4096, outside=True)
    for i in range(64):
        row = tensor(1, 1, 4096, storage=1, outside=True)
        row = type(row)(**{**row.__dict__, "offset": 4096 * i})
        seconds = streamed(machine, 1, 4096 * 4096)
        calls.add(
            "aten.mm.default",
            "product",
            seconds,
            [row, weight],
            [tensor(100 + i, 1, 4096)],
            flops=2 * 4096**2,
        )
    finding = found(calls.record(), machine)[0]
    assert finding.name == "loop over the batch"
    assert finding.number("turns") == 64


def test_a_recurrence_is_no_loop_over_the_batch() -> None:
    calls = Calls(GPU)
    weight = tensor(0, 4096, 4096, outside=True)
    for i in range(64):
        calls.add(
            "aten.mm.default",
            "product",
            20e-6,
            [tensor(100 + i, 1, 4096), weight],
            [tensor(101 + i, 1, 4096)],
        )
    assert "loop over the batch" not in names(calls.record(), GPU)


# ---- training


@every_machine
def test_gradients_zeroed_by_writing(machine: Machine) -> None:
    calls = Calls(machine)
    one = streamed(machine, 1)
    before, zero, after = (tensor(i, LARGE, storage=0, outside=True) for i in range(3))
    calls.add("aten.zero_.default", "fill", one, [], [zero])
    calls.add(
        "aten.mm.default",
        "product",
        4 * one,
        [tensor(5, 8, 8)],
        [tensor(6, LARGE)],
        phase="backward",
    )
    calls.add(
        "aten.add_.Tensor",
        "pointwise",
        3 * one,
        [zero, tensor(6, LARGE)],
        [after],
        phase="backward",
    )
    finding = next(f for f in found(calls.record(), machine) if "zeroed" in f.name)
    assert finding.gain == pytest.approx(4 * one, rel=0.05)
    assert before.storage == after.storage


def test_zeros_that_nobody_adds_to_are_fine() -> None:
    calls = Calls(GPU)
    calls.add("aten.zero_.default", "fill", 1e-3, [], [tensor(0, LARGE, outside=True)])
    assert names(calls.record(), GPU) == []


@every_machine
def test_an_optimizer_in_a_loop(machine: Machine) -> None:
    calls = Calls(machine)
    for i in range(200):
        state = tensor(4 * i, 64, 64, outside=True)
        for name in ("mul_", "add_", "addcmul_", "addcdiv_"):
            calls.add(
                f"aten.{name}.default",
                "pointwise",
                2 * machine.call,
                [state],
                [state],
                phase="optimizer",
            )
    assert names(calls.record(), machine)[0] == "optimizer in a loop"


def test_a_fused_optimizer_is_fine() -> None:
    calls = Calls(GPU)
    states = [tensor(i, LARGE, outside=True) for i in range(4)]
    for _ in range(4):
        calls.add(
            "aten._fused_adamw_.default",
            "optimizer",
            streamed(GPU, 7),
            states,
            states,
            phase="optimizer",
        )
    assert names(calls.record(), GPU) == []


@every_machine
def test_waiting_for_data(machine: Machine) -> None:
    calls = chain(machine, 1)
    waits = HostCall("DataLoader", "data loader", Where("train.py", 7), 0.0, 4 * calls.now)
    record = calls.record(seconds=5 * calls.now, host_calls=[waits])
    assert names(record, machine)[0] == "waits for data"


@every_machine
def test_operations_of_a_loader_are_not_what_is_left(machine: Machine) -> None:
    """As they were watched they take longer than the loader, whose time is of another call."""
    calls = chain(machine, 5)
    inside = [op.index for op in calls.operations]
    waits = HostCall("DataLoader", "data loader", Where("a.py", 7), 0.0, 0.4 * calls.now, inside)
    record = calls.record(seconds=0.5 * calls.now, host_calls=[waits])
    finding = found(record, machine)[0]
    assert finding.name == "waits for data"
    assert finding.gain == pytest.approx(waits.seconds)


@every_machine
def test_work_outside_pytorch(machine: Machine) -> None:
    calls = chain(machine, 1)
    beside = HostCall("numpy.dot", "python", Where("train.py", 7), 0.0, 2 * calls.now)
    (finding,) = found(calls.record(seconds=3 * calls.now, host_calls=[beside]), machine)
    assert finding.name == "work outside PyTorch"
    assert "numpy.dot takes 67 %" in finding.title


# ---- products


def product(machine: Machine, columns: int, dtype: str, share: float) -> Record:
    calls = Calls(machine)
    m, k = 8192, 768
    flops = 2 * m * k * columns
    x, w = tensor(0, m, k, dtype=dtype), tensor(1, columns, k, dtype=dtype, outside=True)
    seconds = flops / (share * machine.flop_rate(dtype))
    calls.add(
        "aten.mm.default",
        "product",
        seconds,
        [x, w],
        [tensor(2, m, columns, dtype=dtype)],
        flops=flops,
    )
    return calls.record()


def test_an_odd_head_on_a_gpu() -> None:
    (finding,) = found(product(GPU, 50257, "bfloat16", 0.3), GPU, library(GPU))
    assert finding.name == "unaligned product"
    assert "50,257" in finding.title
    assert "50,304" in finding.advice


def test_an_even_head_is_fine() -> None:
    assert names(product(GPU, 50304, "bfloat16", 0.8), GPU, library(GPU)) == []


def test_a_cpu_does_not_care() -> None:
    assert names(product(SLOW_CPU, 50257, "float32", 0.8), SLOW_CPU, library(SLOW_CPU)) == []


def test_strict_float32_on_a_gpu() -> None:
    (finding,) = found(product(GPU, 4096, "float32", 0.9), GPU, library(GPU))
    assert finding.name == "strict float32 product"
    assert finding.number("rate of the split product") == pytest.approx(0.55 * 250e12)
    assert names(product(GPU, 4096, "float32", 5.0), GPU, library(GPU)) == []  # TF32 already


@every_machine
def test_a_tiny_batch(machine: Machine) -> None:
    calls = Calls(machine)
    for i in range(4):
        weight = tensor(10 + i, 16384, 16384, outside=True)
        rows = [tensor(i, 1, 16384), weight]
        seconds = weight.bytes / machine.read
        calls.add(
            "aten.mm.default",
            "product",
            seconds,
            rows,
            [tensor(i + 1, 1, 16384)],
            flops=2 * 16384**2,
        )
    (finding,) = found(calls.record(), machine)
    assert finding.name == "tiny batch"


# ---- reads


@every_machine
def test_strided_access(machine: Machine) -> None:
    calls = Calls(machine)
    channel = tensor(0, LARGE, strides=(16,), outside=True)
    seconds = 10 * streamed(machine, 1)
    calls.add("aten.mean.default", "reduction", seconds, [channel], [tensor(1)])
    (finding,) = found(calls.record(), machine)
    assert finding.name == "strided access"
    fetched = finding.number("bytes fetched for each of them")
    assert fetched == (8 if machine is GPU else 16)


@every_machine
def test_a_boolean_mask(machine: Machine) -> None:
    calls = Calls(machine)
    reads = [tensor(0, LARGE), tensor(1, LARGE, dtype="bool")]
    seconds = 6 * streamed(machine, 2)
    calls.add("aten.index.Tensor", "index", seconds, reads, [tensor(2, LARGE // 2)])
    (finding,) = found(calls.record(), machine)
    assert finding.name == "synchronisation"


def test_item_on_a_gpu_and_on_a_cpu() -> None:
    for machine, wanted in ((GPU, ["synchronisation"]), (SLOW_CPU, [])):
        calls = Calls(machine)
        for i in range(8):
            moved = [tensor(2 * i, LARGE)], [tensor(2 * i + 1, LARGE)]
            calls.add("aten.exp.default", "pointwise", streamed(machine, 2), *moved)
            read = calls.add("aten._local_scalar_dense.default", "read", 0.0, [tensor(99)], [])
            read.waits = machine is GPU
            read.host_seconds = streamed(machine, 2) if machine is GPU else 1e-6
        total = 1.5 * calls.now
        assert names(calls.record(seconds=total, host=total), machine) == wanted


def test_a_working_set_that_is_streamed() -> None:
    calls = Calls(FAST_CPU)
    for i in range(4):
        seconds = streamed(FAST_CPU, 2)
        calls.add("aten.sort.default", "other", seconds, [tensor(i, LARGE)], [tensor(i + 1, LARGE)])
    (finding,) = found(calls.record(), FAST_CPU)
    assert finding.name == "streamed working set"


# ---- what is compiled


def test_recompilation_and_graph_breaks_are_facts() -> None:
    calls = chain(FAST_CPU, 3)
    record = calls.record(
        seconds=100 * calls.now, compiled=True, recompiled=9, graph_breaks=["model.py:3: item()"]
    )
    recompiled, broken = found(record, FAST_CPU)
    assert (recompiled.name, broken.name) == ("recompilation", "graph break")
    assert (broken.where.file, broken.where.line) == ("model.py", 3)


def test_allocator_retries() -> None:
    record = chain(GPU, 1).record(allocator_retries=12)
    assert names(record, GPU) == ["allocator retries"]


# ---- all together


def test_no_second_is_counted_twice() -> None:
    """A chain that is computed twice is repeated work and fusable: together less than the call."""
    calls = Calls(FAST_CPU)
    for turn in range(2):
        for i in range(4):
            read = tensor(0 if i == 0 else 100 * turn + i, LARGE)
            write = tensor(100 * turn + i + 1, LARGE)
            calls.add("aten.exp.default", "pointwise", streamed(FAST_CPU, 2), [read], [write])
    record = calls.record()
    both = found(record, FAST_CPU)
    assert {f.name for f in both} == {"repeated work", "fusable"}
    assert sum(f.gain for f in both) < record.seconds
    assert [f.gain for f in both] == sorted((f.gain for f in both), reverse=True)


def test_the_guide_has_every_finding() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.+)$", guide, re.M)
    told = {name for heading in headings for name in heading.split(", ")}
    files = Path(inspect.getfile(findings)).parent.glob("*.py")
    sources = [file.read_text(encoding="utf-8") for file in files]
    known = {name for text in sources for name in re.findall(r'^NAME = "(.+)"$', text, re.M)}
    assert told == known | {"recompilation", "graph break"}
