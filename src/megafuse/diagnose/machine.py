"""The machine that a call is held against: its roofs, as they were measured."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Machine:
    """Bytes and FLOP a second at best, and what a call costs at least."""

    name: str  # "NVIDIA H200", "Neoverse-N1, 2 threads"
    device: str  # "cpu" or "cuda"
    copy: float  # bytes a second, read and written, of tensors that no cache holds
    read: float  # bytes a second, only read
    cached: float  # bytes a second, read and written, of tensors that the cache holds
    cache_bytes: int
    call: float  # seconds of the smallest operation of eager PyTorch, from Python
    launch: float | None = None  # seconds of the smallest kernel on a GPU
    gemm: dict[str, float] = field(default_factory=dict)  # FLOP a second, by dtype
    threads: int = 1
    fresh: float = 0.0  # bytes a second, read, and written to memory that was just allocated
    versions: dict[str, str] = field(default_factory=dict)
    disturbed: int = 0  # how often it was measured beside other work, and never alone

    def flop_rate(self, dtype: str) -> float:
        """Of matrix products in this dtype; in float32's where it was not measured."""
        return self.gemm.get(dtype) or self.gemm.get("float32") or 0.0
