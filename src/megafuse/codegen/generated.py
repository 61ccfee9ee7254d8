"""A generated functor over certain operands as a translation unit: render.py's counterpart."""

from __future__ import annotations

from dataclasses import dataclass

from megafuse.codegen.body import Body
from megafuse.codegen.functor import definition, functor_type
from megafuse.codegen.row_launch import RowLaunch
from megafuse.codegen.shape import ONE_SHOT, Shape
from megafuse.codegen.variant import BYTES, STORAGE, Operand
from megafuse.codegen.writer import wrapped

SHORT = 63  # columns: kMost of kernels/graph_short_rows_cpu.h


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
    across: bool = False  # pointwise: vectors are cut across rows
    row_wise: bool = False
    rounds: bool = False  # after every primitive, as eager does
    short_rows: bool = False  # row-wise on the CPU: up to SHORT columns, many rows side by side
    launch: RowLaunch | None = None  # row-wise on CUDA

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
    launch: RowLaunch | None = None,
    sums: str = "Float",
) -> Generated:
    """The kernel of `body` whose operands walk so, a letter for each of outputs and inputs.

    Outputs with walk 'r' are summed over rows: partial sums of dtype `sums`, one row of them for
    each thread (CPU, where they must begin as 0) or block (CUDA), stride 1 apart.
    """
    results = [*enumerate(body.outputs), *enumerate(body.row_outputs)]
    made = [
        Operand(sums if walk == "r" else term.dtype, walk, i)
        for walk, (i, term) in zip(outputs, results, strict=True)
    ]
    read = [Operand(dtype, walk) for walk, dtype in zip(inputs, body.inputs, strict=True)]
    return Generated(
        name=body.name,
        definition=definition(body, runs=device == "cpu" and not short_rows),
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
        short_rows=short_rows,
        launch=launch,
    )


def shape(kernel: Generated) -> Shape:
    """The launch of a CUDA kernel; pointwise as in tuning/pointwise.py."""
    if kernel.launch is not None:
        return kernel.launch.shape
    widths = {BYTES[o.dtype] for o in kernel.operands if o.walk == "c"}
    if kernel.vector == 1:
        unroll = 4
    else:
        unroll = 2 if len(widths) > 1 or (kernel.dims > 1 and max(widths, default=4) < 4) else 1
    return Shape(block=128, unroll=unroll, blocks_per_processor=ONE_SHOT)


def source(kernel: Generated) -> str:
    """The whole translation unit."""
    run = _cuda(kernel) if kernel.device == "cuda" else _cpu(kernel)
    driver = "graph_rows" if kernel.row_wise else "pointwise"
    if kernel.short_rows:
        driver = "graph_short_rows"
    return (
        f'#include "prims.h"\n#include "{driver}_{kernel.device}.h"\n\n'
        f"{kernel.definition}\n{_kernel_type(kernel)}\n{run}"
    )


def _kernel_type(kernel: Generated) -> str:
    def listed(operands: tuple[Operand, ...], outputs: bool) -> str:
        types = ", ".join(
            f"mf::Operand<{STORAGE[o.dtype]}, '{o.walk}'" + (f", {o.result}>" if outputs else ">")
            for o in operands
        )
        return "\n".join(wrapped(f"mf::Operands<{types}>", 4))

    return (
        f"using Kernel = mf::Kernel<\n    {kernel.functor}, float, {kernel.dims},\n"
        f"{listed(kernel.operands[: kernel.outputs], True)},\n"
        f"{listed(kernel.inputs, False)}>;\n"
    )


def _cpu(kernel: Generated) -> str:
    across = str(kernel.across).lower()
    rows = "GraphShortRowsCpu" if kernel.short_rows else "GraphRowsCpu"
    driver = f"{rows}<Kernel>" if kernel.row_wise else f"PointwiseCpu<Kernel, {across}>"
    return (
        f'extern "C" void {kernel.symbol}(const mf::u64* words, mf::i64 begin, mf::i64 end,\n'
        f"    [[maybe_unused]] mf::i64 slot) {{\n"
        f"  mf::{driver}(words{', slot' if kernel.row_wise else ''}).run(begin, end);\n}}\n"
    )


def _cuda(kernel: Generated) -> str:
    index = "mf::i64" if kernel.wide_index else "mf::i32"
    how = shape(kernel)
    if kernel.row_wise:
        launch = kernel.launch
        assert launch is not None, "a row-wise CUDA kernel needs its launch"
        numbers = f"{launch.items}, {launch.threads}, {launch.rows}, {str(launch.whole).lower()}"
        driver = f"GraphRowsCuda<Kernel, {kernel.vector}, mf::GraphCut<{numbers}>, {index}>"
    else:
        across = str(kernel.across).lower()
        driver = f"PointwiseCuda<Kernel, {kernel.vector}, {how.unroll}, {index}, {across}>"
    return (
        f'extern "C" __global__ void __launch_bounds__({how.block}) {kernel.symbol}(\n'
        f"    const __grid_constant__ mf::Words<Kernel::words> words) {{\n"
        f"  mf::{driver}(words.word).run();\n}}\n"
    )
