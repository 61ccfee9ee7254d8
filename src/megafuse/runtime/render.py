"""From what a call needs to the C++ or CUDA source of exactly that kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# torch's dtype names as the kernel headers spell them.
STORAGE = {
    "Float": "float",
    "Double": "double",
    "Half": "mf::half",
    "BFloat16": "mf::bfloat16",
    "Bool": "bool",
    "Byte": "mf::u8",
    "Char": "mf::i8",
    "Short": "mf::i16",
    "Int": "mf::i32",
    "Long": "mf::i64",
}


_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}
_BYTES |= {"Bool": 1, "Byte": 1, "Char": 1}


@dataclass(frozen=True)
class Operand:
    """How one tensor is stored and walks along the innermost dimension (kernels/pointwise.h)."""

    dtype: str
    walk: str
    result: int = 0


@dataclass(frozen=True)
class Functors:
    """An op's arithmetic: its header and the functors in it.

    In a functor's type `{F}` stands for the type arithmetic is done in, `{S}` for the dtype
    PyTorch would compute in, `{name}` for the C++ word of the choice or flag `name`.
    """

    header: str
    forward: str
    backward: str | None = None
    choices: dict[str, dict[str, str]] = field(default_factory=dict)
    random: bool = False  # draws random numbers
    words: Callable[[Variant], dict[str, str]] | None = None  # further `{…}`, by variant


@dataclass(frozen=True)
class Variant:
    """One kernel: which functor, on which processor, over which operands."""

    op: str
    family: str  # forward, backward, sum_columns, sum_rows, sum_short_rows
    choices: dict[str, str | bool]
    device: str
    common: str
    double: bool
    dims: int
    vector: int
    wide_index: bool
    outputs: int
    operands: tuple[Operand, ...]

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.operands[self.outputs :]

    @property
    def symbol(self) -> str:
        suffix = {"forward": ""}.get(self.family, f"_{self.family}")
        return f"megafuse_{self.op}{suffix}"

    @property
    def label(self) -> str:
        """For people: `bias_act backward, float32 (gelu)`."""
        words = [self.op] + ([] if self.family == "forward" else [self.family.replace("_", " ")])
        chosen = ", ".join(str(v) for v in self.choices.values() if isinstance(v, str))
        names = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
        inputs = [o.dtype for o in self.inputs if o.walk != "v"]
        dtype = names.get(inputs[0], inputs[0].lower()) if inputs else "number"
        return f"{' '.join(words)}, {dtype}" + (f" ({chosen})" if chosen else "")


@dataclass(frozen=True)
class Shape:
    """How a CUDA kernel is launched: threads a block, groups a thread, blocks a processor."""

    block: int
    unroll: int
    blocks_per_processor: int


def functor(functors: Functors, variant: Variant) -> str:
    """The functor's C++ type, such as `mf::GeluScale<float, mf::GeluTanh>`."""
    template = functors.forward if variant.family == "forward" else functors.backward
    assert template is not None, f"{variant.op} has no backward functor"
    words: dict[str, str] = {
        "F": "double" if variant.double else "float",
        "S": STORAGE[variant.common],
        **(functors.words(variant) if functors.words else {}),
    }
    for name, value in variant.choices.items():
        words[name] = functors.choices[name][str(value)]
    return "mf::" + template.format(**words)


_ONE_SHOT = 1 << 22  # blocks a multiprocessor: as many as there is work for


def shape(functors: Functors, variant: Variant) -> Shape:
    """The launch shape of a CUDA kernel; measured by benchmarks/tune_pointwise.py on an H200.

    One group of 16 bytes a thread, and as many blocks as that takes: a grid that stays for the
    whole launch lost 3 to 6 % at every size. More groups a thread pay where it has more to wait
    for: scalar accesses, random numbers, an index to split when elements are narrow.
    """
    if variant.family.startswith("sum_"):
        return Shape(block=256, unroll=1, blocks_per_processor=8)
    widths = {_BYTES[o.dtype] for o in variant.operands if o.walk == "c"}
    if variant.vector == 1 or functors.random:
        unroll = 4
    elif len(widths) > 1 or (variant.dims > 1 and max(widths) < 4):
        unroll = 2
    else:
        unroll = 1
    return Shape(block=128, unroll=unroll, blocks_per_processor=_ONE_SHOT)


def source(functors: Functors, variant: Variant) -> str:
    """The whole translation unit."""
    return (_cuda if variant.device == "cuda" else _cpu)(functors, variant)


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
    )


def _cpu(functors: Functors, variant: Variant) -> str:
    if variant.family in ("forward", "backward"):
        driver, run = "pointwise_cpu.h", "mf::PointwiseCpu<Kernel>(words).run(begin, end)"
    else:
        which = "columns" if variant.family == "sum_columns" else "rows"
        driver, run = "sum_cpu.h", f"mf::SumCpu<Kernel>(words, slot).{which}(begin, end)"
    return (
        f'#include "{functors.header}"\n#include "{driver}"\n\n'
        f"{_kernel_type(functors, variant)}\n"
        f'extern "C" void {variant.symbol}(const mf::u64* words, mf::i64 begin, mf::i64 end,\n'
        f"    [[maybe_unused]] mf::i64 slot) {{\n"
        f"  {run};\n}}\n"
    )


def _cuda(functors: Functors, variant: Variant) -> str:
    index = "mf::i64" if variant.wide_index else "mf::i32"
    launch = shape(functors, variant)
    if variant.family in ("forward", "backward"):
        driver = "pointwise_cuda.h"
        made = f"mf::PointwiseCuda<Kernel, {variant.vector}, {launch.unroll}, {index}>(words.word)"
        run = f"{made}.run()"
    else:
        which = {"sum_columns": "columns", "sum_rows": "rows<256>", "sum_short_rows": "rows<32>"}
        driver = "sum_cuda.h"
        made = f"mf::SumCuda<Kernel, {variant.vector}, {index}>(words.word)"
        run = f"{made}.{which[variant.family]}()"
    return (
        f'#include "{functors.header}"\n#include "{driver}"\n\n'
        f"{_kernel_type(functors, variant)}\n"
        f'extern "C" __global__ void __launch_bounds__({launch.block}) {variant.symbol}(\n'
        f"    const __grid_constant__ mf::Words<Kernel::words> words) {{\n"
        f"  {run};\n}}\n"
    )
