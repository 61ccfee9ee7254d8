"""allocator retries: memory is so full that it is given back and asked for again."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case
from megafuse.diagnose.record import Where

NAME = "allocator retries"
_RETRY = 1e-3  # seconds: cudaFree of what is cached waits for the GPU, then cudaMalloc


def find(case: Case) -> Iterator[Finding]:
    retries = case.record.allocator_retries
    if not retries:
        return
    each = retries / max(1, case.record.calls)
    yield Finding(
        NAME,
        f"the allocator ran out of memory and started over {retries} times in "
        f"{case.record.calls} calls",
        "Use less memory: a smaller batch, activation checkpointing, or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments.",
        Where(),
        each * _RETRY,
        max(each * _RETRY, 0.05 * case.record.seconds),
        "likely",
        [Evidence("retries", float(retries), "")],
        how="a millisecond for each retry",
    )
