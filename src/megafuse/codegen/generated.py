"""A generated functor over certain operands as a translation unit: render.py's counterpart."""

from __future__ import annotations

from dataclasses import dataclass

from megafuse.codegen import tuning
from megafuse.codegen.body import Body
from megafuse.codegen.functor import definition, functor_type
from megafuse.codegen.render import SUM_CALLS
from megafuse.codegen.row_launch import RowLaunch
from megafuse.codegen.shape import ONE_SHOT, Shape
from megafuse.codegen.variant import BYTES, STORAGE, SUMMED, Operand, pitch
from megafuse.codegen.writer import wrapped

SHORT = 63  # columns: kMost of kernels/graph_short_rows_cpu.h
LONG = 256  # columns from which on 64 are folded side by side: kLeastLong of host/core/rows.h
_CROWD = 192  # bytes of all operands' vectors: four times as many still fit into registers


@dataclass(frozen=True)
class Generated:
    """One generated kernel. Everything that its source depends on, and nothing else.

    `operands` are the outputs (of every element, then of every row with walk 'w'), then the inputs.
    Dimensions are as in kernels/pointwise.h; of row-wise kernels dimension 0 is the row.
    """

    name: str
    definition: str  # of the functor
    functor: str  # its type
    device: str  # cpu or cuda
    dims: int
    outputs: int
    operands: tuple[Operand, ...]
    vector: int = 1
    wide_index: bool = False
    across: bool = False  # vectors are cut across rows, wherever these start
    row_wise: bool = False
    rounds: bool = False  # after every primitive, as eager does
    draws: bool = False  # random numbers
    short_rows: bool = False  # row-wise on the CPU: up to SHORT columns, many rows side by side
    long_rows: bool = False  # row-wise on the CPU: from LONG columns on
    launch: RowLaunch | None = None  # row-wise on CUDA
    sums: str = ""  # pointwise with sums: the family, sum_columns, … (runtime/host/core/sums.h)
    double: bool = False  # whether terms of sums are

    @property
    def symbol(self) -> str:
        return f"megafuse_{self.name}"

    @property
    def contracts(self) -> bool:
        """Whether a*b+c is rounded once (see Variant.contracts): not where eager's bits are asked
        for."""
        return self.row_wise and not self.rounds

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.operands[self.outputs :]


def generated(
    body: Body,
    device: str,
    dims: int,
    outputs: tuple[str, ...],
    inputs: tuple[str, ...],
    *,
    vector: int = 1,
    wide_index: bool = False,
    across: bool = False,
    short_rows: bool = False,
    long_rows: bool = False,
    launch: RowLaunch | None = None,
    sums: str = "Float",
    sum_family: str = "",
) -> Generated:
    """The kernel of `body` whose operands walk so, a letter for each of outputs and inputs.

    Outputs with walk 'r' are sums: over rows, if the body is row-wise, else as `sum_family` says.
    They are partial sums of dtype `sums`, one row of them for each thread (CPU, where they must
    begin as 0) or block (CUDA), stride 1 apart. Those with walk 'g' are over the rows of each
    segment (kernels/graph_rows.h).
    """
    results = [*enumerate(body.outputs), *enumerate(body.row_outputs)]
    made = [
        Operand(sums if walk in SUMMED else term.dtype, walk, i)
        for walk, (i, term) in zip(outputs, results, strict=True)
    ]
    summed = [term for walk, (_, term) in zip(outputs, results, strict=True) if walk in SUMMED]
    read = [Operand(dtype, walk) for walk, dtype in zip(inputs, body.inputs, strict=True)]
    return Generated(
        name=body.name,
        definition=definition(body, runs=not short_rows),
        functor=functor_type(body),
        device=device,
        dims=dims,
        outputs=len(made),
        operands=(*made, *read),
        vector=vector,
        wide_index=wide_index,
        across=across,
        row_wise=body.row_wise,
        rounds=body.rounds,
        draws=body.draws,
        short_rows=short_rows,
        long_rows=long_rows,
        launch=launch,
        sums=sum_family,
        double=any(term.dtype == "Double" for term in summed),
    )


def shape(kernel: Generated) -> Shape:
    """The launch of a CUDA kernel; pointwise as in tuning/pointwise.py."""
    if kernel.launch is not None:
        return kernel.launch.shape
    if kernel.sums:
        return tuning.SUMS
    widths = {BYTES[o.dtype] * pitch(o.walk) for o in kernel.operands if pitch(o.walk)}
    narrow = kernel.dims > 1 and max(widths, default=4) < 4
    whole = [o for o in kernel.operands if o.walk == "c"]
    if kernel.vector == 1:
        unroll = 4
    elif len(whole) <= 5:
        unroll = 2 if len(widths) > 1 or narrow else 1
    elif narrow and kernel.vector * sum(BYTES[o.dtype] for o in whole) <= _CROWD:
        # Much to wait for, and an index to split. (Two rotary embeddings in bfloat16, twelve
        # operands: 36.4 us with one vector a thread, 34.8 with four, 34.2 in blocks of 64.)
        return Shape(block=64, unroll=4, blocks_per_processor=ONE_SHOT)
    else:  # many operands take many registers
        unroll = 1
    return Shape(block=128, unroll=unroll, blocks_per_processor=ONE_SHOT)


def source(kernel: Generated) -> str:
    """The whole translation unit."""
    run = _cuda(kernel) if kernel.device == "cuda" else _cpu(kernel)
    driver = "graph_rows" if kernel.row_wise else "pointwise"
    if kernel.short_rows:
        driver = "graph_short_rows"
    if kernel.sums:
        driver = "sum"
    prims = "draws" if kernel.draws else "prims"
    return (
        f'#include "{prims}.h"\n#include "{driver}_{kernel.device}.h"\n\n'
        f"{kernel.definition}\n{_kernel_type(kernel)}\n{run}"
    )


def _kernel_type(kernel: Generated) -> str:
    def listed(operands: tuple[Operand, ...], outputs: bool) -> str:
        types = ", ".join(
            f"mf::Operand<{STORAGE[o.dtype]}, '{o.walk}'" + (f", {o.result}>" if outputs else ">")
            for o in operands
        )
        return "\n".join(wrapped(f"mf::Operands<{types}>", 4))

    compute = "double" if kernel.double else "float"
    return (
        f"using Kernel = mf::Kernel<\n    {kernel.functor}, {compute}, {kernel.dims},\n"
        f"{listed(kernel.operands[: kernel.outputs], True)},\n"
        f"{listed(kernel.inputs, False)}>;\n"
    )


def _cpu(kernel: Generated) -> str:
    across = str(kernel.across).lower()
    driver = f"PointwiseCpu<Kernel, {across}>"
    if kernel.row_wise:
        wide = ", 64" if kernel.long_rows else ""
        driver = f"GraphRowsCpu<Kernel{wide}>"
    if kernel.short_rows:
        driver = "GraphShortRowsCpu<Kernel>"
    if kernel.sums:
        which = {"sum_columns": "Columns", "sum_segments": "Segments"}.get(kernel.sums, "Rows")
        driver = f"Sum{which}Cpu<Kernel>"
    slot = ", slot" if kernel.row_wise or kernel.sums else ""
    return (
        f'extern "C" void {kernel.symbol}(const mf::u64* words, mf::i64 begin, mf::i64 end,\n'
        f"    [[maybe_unused]] mf::i64 slot) {{\n"
        f"  mf::{driver}(words{slot}).run(begin, end);\n}}\n"
    )


def _cuda(kernel: Generated) -> str:
    index = "mf::i64" if kernel.wide_index else "mf::i32"
    how, run = shape(kernel), "run()"
    if kernel.sums:
        driver = f"SumCuda<Kernel, {kernel.vector}, {index}>"
        run = SUM_CALLS[kernel.sums]
    elif kernel.row_wise:
        launch = kernel.launch
        assert launch is not None, "a row-wise CUDA kernel needs its launch"
        driver = f"GraphRowsCuda<Kernel, {kernel.vector}, mf::GraphCut<{launch.cut}>, {index}>"
    else:
        across = str(kernel.across).lower()
        driver = f"PointwiseCuda<Kernel, {kernel.vector}, {how.unroll}, {index}, {across}>"
    resident = kernel.launch.resident if kernel.launch is not None else 1
    bounds = f"__launch_bounds__({how.block}{f', {resident}' if resident > 1 else ''})"
    if how.cluster > 1:
        bounds += f" __cluster_dims__({how.cluster}, 1, 1)"
    return (
        f'extern "C" __global__ void {bounds} {kernel.symbol}(\n'
        f"    const __grid_constant__ mf::Words<Kernel::words> words) {{\n"
        f"  mf::{driver}(words.word).{run};\n}}\n"
    )
