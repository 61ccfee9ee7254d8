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
    late: tuple[int, int] = (0, 0)  # row-wise: inputs that all rows share, forward and backward
    words: Callable[[Variant], dict[str, str]] | None = None  # further `{…}`, by variant
    numbers: tuple[str, ...] = ()  # names of the numbers that come with each call

    def late_of(self, family: str) -> int:
        return self.late[family == "rows_backward"]


@dataclass(frozen=True)
class Variant:
    """One kernel: which functor, on which processor, over which operands."""

    op: str
    family: str  # as in runtime/host/kernels.h: forward, sum_columns, rows_backward, …
    choices: dict[str, str | bool]
    device: str
    common: str
    double: bool
    dims: int
    vector: int
    wide_index: bool
    outputs: int
    operands: tuple[Operand, ...]
    row_vectors: int = 0  # row-wise on CUDA: vectors in a row, rounded up
    few_rows: bool = False  # so few that a row should have many threads
    across: bool = False  # vectors are cut across rows, wherever these start
    late: int = 0  # row-wise: how many of the last inputs are the same for all rows
    clusters: bool = False  # whether the GPU has clusters of blocks (sm_90)
    roomy: bool = False  # whether a block may have 227 KB of shared memory (sm_90, sm_100)
    short_rows: bool = False  # row-wise on the CPU: so short that many are done side by side

    @property
    def is_forward(self) -> bool:
        return self.family in ("forward", "rows_forward")

    @property
    def is_rows(self) -> bool:
        return self.family.startswith("rows_")

    @property
    def contracts(self) -> bool:
        """Whether a*b+c is rounded once. Rows are summed, and a sum has no bits of PyTorch's to
        keep; in 16 bits rows are bound by instructions: 7 % fewer (layer_norm's backward)."""
        return self.is_rows

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.operands[self.outputs :]

    @property
    def symbol(self) -> str:
        suffix = "" if self.is_forward else f"_{self.family.removeprefix('rows_')}"
        return f"megafuse_{self.op}{suffix}"

    @property
    def label(self) -> str:
        """For people: `bias_act backward, float32 (gelu)`."""
        family = self.family.removeprefix("rows_").replace("_", " ")
        words = [self.op] + ([] if self.is_forward else [family])
        chosen = ", ".join(str(v) for v in self.choices.values() if isinstance(v, str))
        names = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
        inputs = [o.dtype for o in self.inputs if o.walk != "v"]
        dtype = names.get(inputs[0], inputs[0].lower()) if inputs else "number"
        return f"{' '.join(words)}, {dtype}" + (f" ({chosen})" if chosen else "")


@dataclass(frozen=True)
class Shape:
    """How a CUDA kernel is launched: threads a block, groups a thread (or rows a block), blocks a
    processor, blocks that share a row, bytes of shared memory beside what the kernel declares."""

    block: int
    unroll: int
    blocks_per_processor: int
    cluster: int = 1
    shared: int = 0


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


_ONE_SHOT = 1 << 22  # blocks a multiprocessor: as many as there is work for


def shape(functors: Functors, variant: Variant) -> Shape:
    """The launch shape of a CUDA kernel; measured by benchmarks/tune_pointwise.py on an H200.

    One group of 16 bytes a thread, and as many blocks as that takes: a grid that stays for the
    whole launch lost 3 to 6 % at every size. More groups a thread pay where it has more to wait
    for: scalar accesses, random numbers, an index to split when elements are narrow.
    """
    if variant.is_rows:
        rows = row_shape(variant)
        return Shape(
            rows.threads * rows.rows,
            rows.rows,
            rows.blocks_per_processor,
            rows.cluster,
            rows.ring,
        )
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


@dataclass(frozen=True)
class RowShape:
    """How a row-wise CUDA kernel is cut: the parameters of kernels/rows_cuda.h."""

    items: int
    threads: int
    rows: int
    cluster: int
    whole: bool
    ahead: bool
    blocks_per_processor: int
    ring: int = 0  # bytes of shared memory for rows to come
    again: bool = True  # what is there is read again, not held in registers

    def cut(self, shifted: bool) -> str:
        """The C++ type; `shifted` rows start anywhere in a vector."""
        numbers = f"{self.items}, {self.threads}, {self.rows}, {self.cluster}"
        whole, ahead, again, moved = (
            str(flag).lower() for flag in (self.whole, self.ahead, self.again, shifted)
        )
        return f"mf::RowCut<{numbers}, {whole}, {ahead}, {self.ring}, {again}, {moved}>"


def row_shape(variant: Variant) -> RowShape:
    """Vectors a thread, threads and blocks a row, rows a block; measured by benchmarks/tune_rows.py
    on an H200.

    A thread has 64 bytes of each input under way, 128 where that saves threads: a block with few of
    them waits less at its barrier. Where results are summed over rows, it holds those sums too, and
    the next rows wait in shared memory, or in registers as far as 128 of them go: a block is then
    as large as those allow, one or two a processor, for few partial sums. Rows longer than a block
    holds go to a cluster of blocks where there are such; beyond that they are read twice.
    """
    vectors = variant.row_vectors
    sums = sum(o.walk == "r" for o in variant.operands)
    narrow = variant.vector == 8  # 16-bit numbers
    ring = _with_ring(variant, sums) if sums else _shifted_ring(variant)
    if ring is not None:
        return ring
    block, grid = 1024, _ONE_SHOT
    if sums:
        block, grid = 512, 1
        ahead = min(_registers_free(variant, sums) // variant.vector or 1, 8)
        behind = 16 // variant.vector // (2 if variant.double else 1)
        tries = [(ahead, True), (behind, False)]
        if behind > ahead and vectors > 512 * ahead:
            tries = tries[1:]
    else:
        whole = [o for o in variant.operands if o.walk == "c"]
        narrowest = min((_BYTES[o.dtype] for o in whole), default=4)
        per_vector = max(16 // narrowest // variant.vector, 1)  # vectors in 16 bytes
        wide = narrow and vectors <= 512
        tries = [(min((4 if wide else 8) * per_vector, 16), False)]
        if variant.clusters:
            block = 256 if narrow else 512
        # Rows for several blocks that come in twice the bytes: those of a sum and its norm.
        twice = max(sum(o.walk == "c" for o in variant.operands[: variant.outputs]), 1)
        if variant.clusters and variant.is_forward and vectors * twice > 8 * block:
            if narrow:
                tries = [(4, False)]
            else:
                block = 256 * min(twice, 2)
                tries, grid = [(2048 // block, True)], 1024 // block
    for items, is_ahead in tries:
        threads = _power_of_two(vectors if variant.few_rows else -(-vectors // items))
        threads = max(threads, min(8, _power_of_two(vectors)))
        if variant.across:  # a thread for each element at the ends of a row
            threads = max(threads, 2 * variant.vector)
        cluster = min(threads // block, 8) if variant.clusters and threads > block else 1
        threads = min(threads, block)
        if vectors <= items * threads * cluster:
            return RowShape(
                items=-(-vectors // (threads * cluster)),
                threads=threads,
                rows=max((512 if sums else 128) // threads, 1),
                cluster=cluster,
                whole=True,
                ahead=is_ahead,
                blocks_per_processor=2 if sums and cluster == 8 else grid,
            )
    long = _long_ring(variant)
    if long is not None:
        return long
    cluster = 8 if variant.clusters else 1
    items = min(tries[-1][0], 4 if not sums else 16)
    return RowShape(items, 512, 1, cluster, whole=False, ahead=False, blocks_per_processor=2)


def _shifted_ring(variant: Variant) -> RowShape | None:
    """Long shifted rows beside what all rows share, which does not lie as they do: it is read once
    for all rows of a block, not for each. 8192 x 50257, us, and without: layer_norm 508 and 612 in
    bfloat16, 865 and 1165 in float32; rms_norm 462 and 482 in bfloat16."""
    vectors, narrow = variant.row_vectors, variant.vector == 8
    if not (variant.across and variant.late and variant.roomy and variant.is_forward):
        return None
    row, late = ring_vector_bytes(variant)
    if variant.double or variant.few_rows or row != 16 or vectors <= (2048 if narrow else 4096):
        return None
    cluster = _power_of_two(-(-vectors // (256 * (8 if narrow else 16))))
    if cluster > 8:
        return None
    items = -(-vectors // (256 * cluster))
    if not narrow:
        return RowShape(items, 256, 1, cluster, True, True, 4)
    held = variant.late > 1
    ring = ring_bytes(2, cluster)
    if (2 * row + (0 if held else late)) * items * 256 > ring:
        return None
    return RowShape(items, 256, 1, cluster, True, held, 2, ring)


def _long_ring(variant: Variant) -> RowShape | None:
    """Rows too long for the registers of eight blocks wait in the shared memory of up to sixteen.
    2048 x 151936, share of a copy, and read twice: softmax 81 and 94 % (35, 47; in 16, 32 bits),
    layer_norm 83 and 85 (31, 67), rms_norm 94 and 95 (65, 69), layer_norm's backward 68 (15)."""
    row, late = ring_vector_bytes(variant)
    if not variant.roomy or variant.double or not row or row % 16 or late % 16:
        return None
    light = [(256, 8, 2)] if variant.vector == 8 and not variant.late and variant.is_forward else []
    for threads, cluster, blocks in (*light, (512, 8, 1), (256, 16, 1)):
        items = -(-variant.row_vectors // (threads * cluster))
        if sum(o.walk == "r" for o in variant.operands) and cluster < 16:
            continue  # sums over rows are held too
        ring = ring_bytes(blocks, cluster)
        if items * variant.vector <= (80 if light else 48) and (
            (2 * row + late) * items * threads <= ring
        ):
            return RowShape(items, threads, 1, cluster, True, False, blocks, ring)
    return None


def _with_ring(variant: Variant, sums: int) -> RowShape | None:
    """Where results are summed over rows: with the next rows in shared memory. float32 rows of up
    to 4096 columns do better with the next one in registers, and short ones share a warp."""
    vectors, vector = variant.row_vectors, variant.vector
    least = 32 if vector == 8 else 1025
    if not (sums and variant.roomy) or variant.double or vectors < least:
        return None
    row, weight = ring_vector_bytes(variant)
    if not row or row % 16 or weight % 16:
        return None
    light = row <= 32
    for items in (4, 8):
        cluster, threads = 1, max(_power_of_two(-(-vectors // items)), 32)
        if vectors > 1024:
            cluster, threads = max(threads // 256, 1), 256
        block = 512 if light and vectors <= 1024 else 256
        blocks = 2 if light and vectors > 1024 and items == 4 else 1
        ring = ring_bytes(blocks, cluster)
        if items * vector > 32 or cluster > 8 or (2 * row + weight) * items * block > ring:
            continue
        if variant.few_rows and cluster < 8:
            return None
        return RowShape(
            items=-(-vectors // (threads * cluster)),
            threads=threads,
            rows=max(block // threads, 1),
            cluster=cluster,
            whole=True,
            ahead=False,
            blocks_per_processor=blocks,
            ring=ring,
        )
    return None


def ring_vector_bytes(variant: Variant) -> tuple[int, int]:
    """Bytes that a vector of a row takes in the ring, and those of what all rows share."""
    width = {o: variant.vector * _BYTES[o.dtype] for o in variant.inputs}
    first_late = len(variant.inputs) - variant.late
    row = sum(width[o] for o in variant.inputs[:first_late] if o.walk == "c")
    late = sum(width[o] for o in variant.inputs[first_late:] if o.walk in "cu")
    return row, late


def ring_bytes(blocks: int, cluster: int) -> int:
    """Shared memory for the rows to come of each of so many blocks on a processor of 227 KB, beside
    what warps tell each other: up to 1 KB in each block of a cluster for each of its blocks."""
    each = 227 // blocks - (blocks > 1)
    return (each - 3 - (cluster if cluster > 1 else 0)) * 1024


def _registers_free(variant: Variant, sums: int) -> int:
    """Elements that fit into the registers of a thread: of each a float an input and a sum, and
    what is loaded ahead of them. 104 of 128: 24 for all else, measured with ptxas."""
    inputs = [o for o in variant.inputs if o.walk in "csu"]
    words = sum(_BYTES[o.dtype] for o in inputs) / 4
    numbers = (len(inputs) + sums) * (2 if variant.double else 1)
    return int(104 / (words + numbers))


def _power_of_two(n: int) -> int:
    """The least that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def source(functors: Functors, variant: Variant) -> str:
    """The whole translation unit."""
    return (_cuda if variant.device == "cuda" else _cpu)(functors, variant)


def worker(name: str) -> tuple[str, str]:
    """Source and symbol of a CUDA kernel whose header has a struct with a run(), such as Mend in
    split_mend.h."""
    symbol, struct = f"megafuse_{name}", name.split("_")[-1].capitalize()
    return (
        f'#include "{name}.h"\n\n'
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
        f'#include "{functors.header}"\n#include "{driver}"\n\n'
        f"{_kernel_type(functors, variant)}\n"
        f'extern "C" void {variant.symbol}(const mf::u64* words, mf::i64 begin, mf::i64 end,\n'
        f"    [[maybe_unused]] mf::i64 slot) {{\n"
        f"  {run};\n}}\n"
    )


def _cuda(functors: Functors, variant: Variant) -> str:
    index = "mf::i64" if variant.wide_index else "mf::i32"
    launch = shape(functors, variant)
    bounds = f"__launch_bounds__({launch.block})"
    if variant.is_rows:
        rows = row_shape(variant)
        driver = "rows_cuda.h"
        cut = rows.cut(variant.across)
        run = f"mf::RowsCuda<Kernel, {variant.vector}, {cut}, {index}>(words.word).run()"
        # One block a processor will do: else ptxas spills a register or two to fit another. Rings
        # are as large as lets so many blocks be resident.
        resident = rows.blocks_per_processor if rows.ring else 1
        bounds = f"__launch_bounds__({launch.block}, {resident})"
        if rows.cluster > 1:
            bounds += f" __cluster_dims__({rows.cluster}, 1, 1)"
    elif variant.family in ("forward", "backward"):
        driver = "pointwise_cuda.h"
        how = f"{variant.vector}, {launch.unroll}, {index}, {str(variant.across).lower()}"
        run = f"mf::PointwiseCuda<Kernel, {how}>(words.word).run()"
    else:
        which = {"sum_columns": "columns", "sum_rows": "rows<256>", "sum_short_rows": "rows<32>"}
        driver = "sum_cuda.h"
        made = f"mf::SumCuda<Kernel, {variant.vector}, {index}>(words.word)"
        run = f"{made}.{which[variant.family]}()"
    return (
        f'#include "{functors.header}"\n#include "{driver}"\n\n'
        f"{_kernel_type(functors, variant)}\n"
        f'extern "C" __global__ void {bounds} {variant.symbol}(\n'
        f"    const __grid_constant__ mf::Words<Kernel::words> words) {{\n"
        f"  {run};\n}}\n"
    )
