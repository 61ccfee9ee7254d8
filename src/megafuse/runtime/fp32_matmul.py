"""How float32 matrix products are computed on CUDA: `megafuse.set_fp32_matmul`."""

from __future__ import annotations

from types import ModuleType

MODES = ("split", "ieee", "tf32")
_set: str | None = None


def set_fp32_matmul(mode: str | None) -> None:
    """Chooses how float32 products inside megafuse's ops are computed on CUDA.

    "split"  each operand as two float16 halves, three products on the tensor cores: two to three
             times as fast as "ieee" at the sizes of a transformer; its error against float64 is
             held to twice that of "ieee" (docs/fp32.md). Small products are done as under "ieee".
    "ieee"   cuBLAS in strict float32, as PyTorch does by default.
    "tf32"   operands rounded to 10 bits: the fastest, and a thousand times less accurate.
    None     as it was at the start: TF32 where torch.backends.cuda.matmul allows it, else "split".

    It holds for the whole process. Other dtypes, and tensors on the CPU, are computed as before.
    """
    global _set
    if mode is not None and mode not in MODES:
        words = ", ".join(map(repr, MODES))
        raise ValueError(f"megafuse.set_fp32_matmul: mode must be {words} or None, got {mode!r}")
    _set = mode
    from megafuse.runtime import loader

    if loader.loaded():
        host = loader.load()
        assert host is not None
        tell(host)


def get_fp32_matmul() -> str | None:
    """What `set_fp32_matmul` was last given; None if it was not called."""
    return _set


def tell(host: ModuleType) -> None:
    """Hands the choice to the host runtime."""
    host.set_fp32_matmul(0 if _set is None else 1 + MODES.index(_set))
