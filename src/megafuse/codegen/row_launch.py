"""How a generated row-wise kernel is launched on a GPU: kernels/graph_rows_cuda.h."""

from __future__ import annotations

from dataclasses import dataclass

from megafuse.codegen.shape import ONE_SHOT, Shape
from megafuse.codegen.variant import BYTES, Operand

_REGISTERS = 64  # 32-bit words of a row that a thread holds: half of what it has in 512
_FEW_REGISTERS = 32  # so few leave the compiler enough of 80
_AT_ONCE = 64  # bytes of each input that a thread has under way
_BLOCK = 128  # threads of a block, where several rows share one
_MOST_THREADS = 512  # of a row, in one block
_CLUSTER = 8  # blocks of a row, on every GPU that has clusters
_RESIDENT = 640  # threads of a processor, where blocks stay
_RESIDENT_FEW = 768  # and where they hold little
_STREAM = 256  # threads of a row that is gone through once, and too long for a block
_STREAM_VECTORS = 4096  # of such a row, for each of a cluster's blocks


@dataclass(frozen=True)
class GpuRow:
    """A row as the host runtime describes it (runtime/host/core/request.h)."""

    vectors: int  # or a few fewer, unless this is `exact`
    vector: int  # elements of one
    shifted: bool = False  # rows start anywhere in a vector
    exact: bool = False
    clusters: bool = False  # whether the GPU has clusters of blocks


@dataclass(frozen=True)
class RowLaunch:
    """`threads` threads of each of `cluster` blocks have a row, `items` vectors each, and a block
    has `rows` rows.

    `whole`: they hold all of it, so that memory is read once, and where the row `keeps`, what is
    kept of its elements between steps, which else is computed again. Else a row is read again in
    every step, from the cache where it fits. `shifted` rows start anywhere in a vector
    (kernels/row_share_cuda.h). `full`: there is a vector for every item of every thread.
    """

    items: int
    threads: int
    rows: int
    whole: bool
    shifted: bool = False
    blocks_per_processor: int = ONE_SHOT
    cluster: int = 1
    full: bool = False
    resident: int = 1  # blocks of a processor that registers are kept free for
    keeps: bool = True

    @property
    def cut(self) -> str:
        """The arguments of kernels/graph_pieces_cuda.h's GraphCut."""
        numbers = (self.items, self.threads, self.rows, self.cluster)
        bools = (self.whole, self.shifted, self.full, self.keeps)
        flags = (str(flag).lower() for flag in bools)
        return ", ".join((*map(str, numbers), *flags))

    @property
    def shape(self) -> Shape:
        block = self.threads * self.rows
        return Shape(block, self.rows, self.blocks_per_processor, self.cluster)


def row_launch(
    inputs: tuple[Operand, ...],
    held: frozenset[int],
    kept_bytes: int,
    row: GpuRow,
    sums: int = 0,
    fetches: bool = False,
    passes: int = 2,
) -> RowLaunch:
    """`held` are the inputs that more than one step needs, and `kept_bytes` what is kept of an
    element between steps.

    A thread takes 64 bytes of each input where the row is long enough, and a warp has several rows
    where they are short. Where a block would not hold the row so, a thread takes twice as much, or
    several blocks share the row, a cluster.

    Where what is kept has no room beside the row, it is computed again in each step.

    `fetches`: whether it loads from places that it computes for each element. That is so much code
    that it is not repeated for many vectors.

    `passes` over a row: steps, and one for results. A row of one pass has nothing to hold.

    `sums`: outputs that are summed over rows. A thread holds those of its columns, too, and few
    blocks stay for all rows: each writes one row of partial sums.
    """
    vector = row.vector
    rows_of = [BYTES[o.dtype] for i, o in enumerate(inputs) if i in held and o.walk in "csu"]
    widest = max((BYTES[o.dtype] for o in inputs if o.walk in "cu"), default=4)
    widest_vector = widest * vector
    if passes == 1 and not sums and row.vectors > _MOST_THREADS * max(_AT_ONCE // widest_vector, 1):
        return _streamed(row)
    found = None
    for kept in dict.fromkeys([kept_bytes, 0] if rows_of else [kept_bytes]):
        words = max((sum(rows_of) + kept + 4 * sums) * vector / 4, 1)  # of a vector, in registers
        beside = sum(BYTES[o.dtype] for o in inputs if o.walk == "b") / 4  # of the whole row
        beside += words / vector if row.shifted else 0
        most = max(int((_REGISTERS - beside) / words), 1)
        wanted = min(max(_AT_ONCE // widest_vector, 1), most)
        tries = [(1 if fetches else wanted, 1)]
        if not fetches and (rows_of or kept or sums):
            tries += _for_long_rows(wanted, most, words, row.clusters)
        found = _first_that_fits(tries, row)
        if found is not None:
            break
    if found is None:
        # One block of 1024 waits for its last thread. (Gradient of a cross-entropy, 8192 x 50257 in
        # bfloat16: 0.77 ms, and 0.59 with two blocks of 512.)
        cluster = _CLUSTER if row.clusters else 1
        return RowLaunch(wanted, _MOST_THREADS, 1, False, row.shifted, 2, cluster)
    threads, cluster = found
    if 1 < cluster < _CLUSTER and threads > _BLOCK:
        # As many threads in smaller blocks: more of these are on a processor, and one waits less.
        # (bfloat16 on an H200: a group norm of 131,072 elements 0.87 of the time with 256 threads
        # in eight blocks, a cross-entropy of 32,768 words 0.95 with 128 in four.)
        threads, cluster = threads // 2, cluster * 2
    items = -(-max(row.vectors, 1) // (threads * cluster))
    full = row.exact and items * threads * cluster == row.vectors
    rows = max(_BLOCK // threads, 1) if cluster == 1 else 1
    # With sums a thread takes 80 to 100 registers.
    stay = max(_RESIDENT // (threads * rows), 1) if sums else ONE_SHOT
    few = not sums and items * words + beside <= _FEW_REGISTERS
    resident = max(_RESIDENT_FEW // (threads * rows), 1) if few and cluster == 1 else 1
    keeps = kept == kept_bytes
    return RowLaunch(items, threads, rows, True, row.shifted, stay, cluster, full, resident, keeps)


def _streamed(row: GpuRow) -> RowLaunch:
    """A row of one pass: blocks of few threads, several on a processor, so that some read while
    others join what they have found. One block is best for many rows, eight for few. (Gradient of a
    cross-entropy in bfloat16 on an H200, us, with one, two and eight: 8192 x 50257 468, 484, 621;
    8 x 50257 16.5, 12.1, 8.9.)"""
    cluster = min(_power_of_two(-(-row.vectors // _STREAM_VECTORS)), _CLUSTER)
    cluster = cluster if row.clusters else 1
    resident = 1024 // _STREAM
    return RowLaunch(1, _STREAM, 1, False, row.shifted, ONE_SHOT, cluster, resident=resident)


def _first_that_fits(tries: list[tuple[int, int]], row: GpuRow) -> tuple[int, int] | None:
    """Threads of a block and blocks of a row: of the first of these (vectors of a thread, blocks of
    a row) for which a block is not too large."""
    vectors = max(row.vectors, 1)
    for items, cluster in tries:
        threads = _power_of_two(-(-vectors // (items * cluster)))
        threads = max(threads, min(4, _power_of_two(vectors)))  # neighbours read neighbours
        if row.shifted:  # a thread for each element at the ends of a row
            threads = max(threads, _power_of_two(2 * row.vector - 2))
        if threads <= _MOST_THREADS:
            return threads, cluster
    return None


def _for_long_rows(wanted: int, most: int, words: float, clusters: bool) -> list[tuple[int, int]]:
    """Vectors of a thread and blocks of a row, in the order of preference. (512 rows of 32 Ki in
    bfloat16: of one input 21.8 us in two blocks, 24.0 in one; of two inputs 91 and 84.)"""
    more = min(2 * wanted, most)
    if not clusters:
        return [(more, 1), (most, 1)]
    first = [(more, 2), (more, 1)] if more * words <= _FEW_REGISTERS else [(more, 1), (more, 2)]
    return [*first, (more, 4), (more, _CLUSTER), (most, _CLUSTER)]


def _power_of_two(n: int) -> int:
    """The least that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
