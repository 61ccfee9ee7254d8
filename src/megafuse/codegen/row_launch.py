"""How a generated row-wise kernel is launched on a GPU: kernels/graph_rows_cuda.h."""

from __future__ import annotations

from dataclasses import dataclass

from megafuse.codegen.shape import ONE_SHOT, Shape
from megafuse.codegen.variant import BYTES, Operand

_REGISTERS = 64  # 32-bit words of a row that a thread holds: half of what it has in 512
_MOST_THREADS = 1024
_OF_MOST_THREADS = 44  # and what it holds there, of 64
_BLOCK = 128  # threads of a block, where several rows share one
_RESIDENT = 640  # threads of a processor, where blocks stay


@dataclass(frozen=True)
class RowLaunch:
    """`threads` threads have a row, `items` vectors each, and a block has `rows` rows.

    `whole`: they hold all of it, so that memory is read once. Else a row is read again in every
    step, from the cache where it fits. `shifted` rows start anywhere in a vector
    (kernels/row_share_cuda.h).
    """

    items: int
    threads: int
    rows: int
    whole: bool
    shifted: bool = False
    blocks_per_processor: int = ONE_SHOT

    @property
    def cut(self) -> str:
        """The arguments of kernels/graph_pieces_cuda.h's GraphCut."""
        flags = (str(flag).lower() for flag in (self.whole, self.shifted))
        return ", ".join((str(self.items), str(self.threads), str(self.rows), *flags))

    @property
    def shape(self) -> Shape:
        return Shape(self.threads * self.rows, self.rows, self.blocks_per_processor)


def row_launch(
    inputs: tuple[Operand, ...],
    held: frozenset[int],
    kept_bytes: int,
    cols: int,
    vector: int,
    sums: int = 0,
    shifted: bool = False,
) -> RowLaunch:
    """For rows of `cols` elements in vectors of `vector`, which divides it or they are shifted.

    `held` are the inputs that more than one step needs, and `kept_bytes` what is kept of an element
    between steps. A thread takes 64 bytes of each input where the row is long enough, more where a
    block would not hold the row otherwise, and a warp has several rows where they are short.

    `sums`: outputs that are summed over rows. A thread holds those of its columns, too, and few
    blocks stay for all rows: each writes one row of partial sums.
    """
    vectors = max(-(-cols // vector), 1)
    rows_of = [BYTES[o.dtype] for i, o in enumerate(inputs) if i in held and o.walk in "csu"]
    words = max((sum(rows_of) + kept_bytes + 4 * sums) * vector / 4, 1)  # of a vector, in registers
    beside = sum(BYTES[o.dtype] for o in inputs if o.walk == "b") / 4  # of the whole row
    most = max(int((_REGISTERS - beside) / words), 1)
    widest = max((BYTES[o.dtype] for o in inputs if o.walk in "cu"), default=4)
    wanted = min(max(64 // (widest * vector), 1), most)
    threads = min(_power_of_two(-(-vectors // wanted)), _MOST_THREADS)
    threads = max(threads, min(8, _power_of_two(vectors)))  # neighbours read neighbours
    if shifted:  # a thread for each element at the ends of a row
        threads = max(threads, _power_of_two(2 * vector - 2))
    items = -(-vectors // threads)
    held_words = items * words + beside + (words / vector if shifted else 0)
    most_words = _OF_MOST_THREADS if threads == _MOST_THREADS else _REGISTERS
    holds = bool(rows_of) or kept_bytes > 0 or sums > 0
    # One block of 1024 waits for its last thread. (Gradient of a cross-entropy, 8192 x 50257 in
    # bfloat16: 0.77 ms, and 0.59 with two blocks of 512.)
    if held_words > most_words or (threads == _MOST_THREADS and not holds):
        return RowLaunch(wanted, 512, 1, False, shifted, blocks_per_processor=2)
    rows = max(_BLOCK // threads, 1)
    if not sums:
        return RowLaunch(items, threads, rows, True, shifted)
    # With sums a thread takes 80 to 100 registers.
    stay = max(_RESIDENT // (threads * rows), 1)
    return RowLaunch(items, threads, rows, True, shifted, blocks_per_processor=stay)


def _power_of_two(n: int) -> int:
    """The least that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
