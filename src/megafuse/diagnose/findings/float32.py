"""strict float32 product: on a GPU, three products of halves give the same accuracy sooner."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, dtype, indices, main_line, total

NAME = "strict float32 product"
_LEAST = 5e8  # FLOPs of a product: smaller ones are left as they are by megafuse, too
_REACHED = 0.55  # of the rate that three products of float16 would have; measured on an H200


def find(case: Case) -> Iterator[Finding]:
    rate = _REACHED * case.machine.gemm.get("float16", 0.0) / 3
    if not case.on_gpu or not rate:
        return
    operations = [
        op
        for op in case.record.operations
        if op.kind == "product" and dtype(op) == "float32" and op.flops >= _LEAST
        and op.flops / max(op.seconds, 1e-9) < rate
        and op.flops / rate > case.memory_seconds(op.bytes_moved)  # else memory is what binds
        # Faster than strict float32 can be: TF32 is allowed already.
        and op.flops / max(op.seconds, 1e-9) < 1.2 * case.machine.flop_rate("float32")
    ]  # fmt: skip
    if not operations:
        return
    flops = sum(op.flops for op in operations)
    where, lines = main_line(operations)
    yield Finding(
        NAME,
        f"{len(operations)} products in strict float32 do not use the tensor cores",
        "megafuse.optimize(model), or megafuse's layers: each operand as two float16 halves, "
        "accurate as float32 (docs/fp32.md); or bfloat16 where that is enough.",
        where,
        total(operations),
        case.gain(total(operations) - flops / rate),
        "likely",
        [
            Evidence("its rate", flops / total(operations), "FLOP/s"),
            Evidence("rate of the split product", rate, "FLOP/s"),
        ],
        indices(operations),
        "three products of float16 at 55 % of the measured rate",
        lines,
    )
