"""How a CUDA kernel is launched, as data; tuning/ chooses it."""

from __future__ import annotations

from dataclasses import dataclass

ONE_SHOT = 1 << 22  # blocks a processor: as many as there is work for


@dataclass(frozen=True)
class Shape:
    """Threads a block, groups a thread (or rows a block), blocks a processor, blocks that share a
    row, bytes of shared memory beside what the kernel declares."""

    block: int
    unroll: int
    blocks_per_processor: int
    cluster: int = 1
    shared: int = 0


@dataclass(frozen=True)
class RowShape:
    """How a row-wise kernel is cut: the parameters of kernels/rows_cuda.h."""

    items: int
    threads: int
    rows: int
    cluster: int
    whole: bool
    ahead: bool
    blocks_per_processor: int
    ring: int = 0  # bytes of shared memory for rows to come
    again: bool = True  # what is there is read again, not held in registers
    # Blocks a processor that registers are kept free for. One will do mostly: for more, ptxas
    # spills a register or two.
    resident: int = 1

    @property
    def launch(self) -> Shape:
        block = self.threads * self.rows
        return Shape(block, self.rows, self.blocks_per_processor, self.cluster, self.ring)

    def cut(self, shifted: bool) -> str:
        """The C++ type; `shifted` rows start anywhere in a vector."""
        numbers = f"{self.items}, {self.threads}, {self.rows}, {self.cluster}"
        whole, ahead, again, moved = (
            str(flag).lower() for flag in (self.whole, self.ahead, self.again, shifted)
        )
        return f"mf::RowCut<{numbers}, {whole}, {ahead}, {self.ring}, {again}, {moved}>"
