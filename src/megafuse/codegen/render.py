"""The C++ or CUDA source of a kernel."""

from __future__ import annotations

from megafuse.codegen import tuning
from megafuse.codegen.variant import STORAGE, Functors, Operand, Variant


def functor(functors: Functors, variant: Variant) -> str:
    """The functor's C++ type, such as `mf::GeluScale<float, mf::GeluTanh>`."""
    template = functors.forward if variant.is_forward else functors.backward
    assert template is not None, f"{variant.op} has no backward functor"
    words: dict[str, str] = {
        "F": "double" if variant.double else "float",
        "S": STORAGE[variant.common],
        **(functors.words(variant) if functors.words else {}),
    }
    for name, value in variant.choices.items():
        words[name] = functors.choices[name][str(value)]
    return "mf::" + template.format(**words)


def source(functors: Functors, variant: Variant) -> str:
    """The whole translation unit."""
    return (_cuda if variant.device == "cuda" else _cpu)(functors, variant)


# What a summing CUDA kernel calls, by family.
SUM_CALLS = {
    "sum_columns": "columns()",
    "sum_rows": "rows<256>()",
    "sum_short_rows": "rows<32>()",
    "sum_segments": "segments()",
    "sum_short_segments": "short_segments()",
}
WORKER_THREADS = 256  # a block's


def worker(name: str) -> tuple[str, str]:
    """Source and symbol of a CUDA kernel whose header has a struct with a run(), such as Mend in
    split_mend.h."""
    symbol, struct = f"megafuse_{name}", name.split("_")[-1].capitalize()
    return (
        f'#include "{name}.h"\n\n'
        f"static_assert(mf::{struct}::kThreads == {WORKER_THREADS});\n\n"
        f'extern "C" __global__ void __launch_bounds__(mf::{struct}::kThreads) {symbol}(\n'
        f"    const __grid_constant__ mf::{struct} work) {{\n  work.run();\n}}\n"
    ), symbol


def _kernel_type(functors: Functors, variant: Variant) -> str:
    def operands(chosen: tuple[Operand, ...], outputs: bool) -> str:
        listed = ", ".join(
            f"mf::Operand<{STORAGE[o.dtype]}, '{o.walk}'" + (f", {o.result}>" if outputs else ">")
            for o in chosen
        )
        return f"mf::Operands<{listed}>"

    compute = "double" if variant.double else "float"
    return (
        f"using Kernel = mf::Kernel<\n"
        f"    {functor(functors, variant)}, {compute}, {variant.dims},\n"
        f"    {operands(variant.operands[: variant.outputs], True)},\n"
        f"    {operands(variant.inputs, False)}>;\n"
        f"{_assertions(functors, variant)}"
    )


def _assertions(functors: Functors, variant: Variant) -> str:
    """What the declaration says of the functor, for the compiler to check, in words of its own: a
    functor of fewer numbers or results than are asked for would read past an end."""
    call = "mf::RowCall<Kernel>" if variant.is_rows else "mf::Call<Kernel>"
    takes = "each tensor argument" if variant.is_forward else "each gradient, then each of `saves`"
    count = len(functors.numbers)
    outputs = variant.operands[: variant.outputs]
    last = max((o.result for o in outputs if o.walk != "w"), default=0)
    last_of_row = max((o.result for o in outputs if o.walk == "w"), default=-1)
    conditions = [
        (
            f"Kernel::scalars == {count}",
            f"the signature has {count} numbers ({', '.join(functors.numbers)}), so the functor "
            f"must have Scalars<{count}>",
        ),
        (
            f"!Kernel::random || {str(functors.random).lower()}",
            "it draws random numbers, so the op must be declared with random=True",
        ),
        (f"{call}::results > 0", f"it must take {len(variant.inputs)} elements: one of {takes}"),
        (
            f"{call}::results == 0 || {call}::results > {last}",
            f"`{'returns' if variant.is_forward else 'grads'}` asks for its result {last}, and it "
            "has fewer (the first is 0)",
        ),
    ]
    if last_of_row >= 0:
        words = f"`keeps` asks for number {last_of_row} of row_result, and it has fewer"
        conditions.append((f"{call}::row_results > {last_of_row}", words))
    which = "forward" if variant.is_forward else "backward"
    return "".join(
        f'static_assert({condition},\n    "megafuse.{variant.op}, {which} functor: {words}");\n'
        for condition, words in conditions
    )


def _cpu(functors: Functors, variant: Variant) -> str:
    if variant.is_rows:
        short = variant.short_rows
        driver, made = ("short_rows_cpu.h", "Short") if short else ("rows_cpu.h", "")
        run = f"mf::{made}RowsCpu<Kernel>(words, slot).run(begin, end)"
    elif variant.family in ("forward", "backward"):
        driver, across = "pointwise_cpu.h", str(variant.across).lower()
        run = f"mf::PointwiseCpu<Kernel, {across}>(words).run(begin, end)"
    else:
        which = "Columns" if variant.family == "sum_columns" else "Rows"
        driver, run = "sum_cpu.h", f"mf::Sum{which}Cpu<Kernel>(words, slot).run(begin, end)"
    return (
        f'{functors.definition}#include "{driver}"\n\n'
        f"{_kernel_type(functors, variant)}\n"
        f'extern "C" void {variant.symbol}(const mf::u64* words, mf::i64 begin, mf::i64 end,\n'
        f"    [[maybe_unused]] mf::i64 slot) {{\n"
        f"  {run};\n}}\n"
    )


def _cuda(functors: Functors, variant: Variant) -> str:
    index = "mf::i64" if variant.wide_index else "mf::i32"
    launch = tuning.shape(functors, variant)
    bounds = f"__launch_bounds__({launch.block})"
    if variant.is_rows:
        rows = tuning.rows.shape(variant)
        driver = "rows_cuda.h"
        cut = rows.cut(variant.across)
        run = f"mf::RowsCuda<Kernel, {variant.vector}, {cut}, {index}>(words.word).run()"
        # Rings are as large as lets so many blocks be resident.
        resident = rows.blocks_per_processor if rows.ring else rows.resident
        bounds = f"__launch_bounds__({launch.block}, {resident})"
        if rows.cluster > 1:
            bounds += f" __cluster_dims__({rows.cluster}, 1, 1)"
    elif variant.family in ("forward", "backward"):
        driver = "pointwise_cuda.h"
        how = f"{variant.vector}, {launch.unroll}, {index}, {str(variant.across).lower()}"
        run = f"mf::PointwiseCuda<Kernel, {how}>(words.word).run()"
    else:
        driver = "sum_cuda.h"
        made = f"mf::SumCuda<Kernel, {variant.vector}, {index}, {launch.block}>(words.word)"
        run = f"{made}.{SUM_CALLS[variant.family]}"
    return (
        f'{functors.definition}#include "{driver}"\n\n'
        f"{_kernel_type(functors, variant)}\n"
        f'extern "C" __global__ void {bounds} {variant.symbol}(\n'
        f"    const __grid_constant__ mf::Words<Kernel::words> words) {{\n"
        f"  {run};\n}}\n"
    )
