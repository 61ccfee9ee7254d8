"""Cases that are always looked at first: where a fused op was behind once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from megafuse.bench.job import Mode
from megafuse.bench.result import Choice
from megafuse.bench.sweep.case import KNOWN, Case
from megafuse.ops import OPS

FORWARD: tuple[Mode, ...] = ("forward",)
BOTH: tuple[Mode, ...] = ("forward", "forward+backward")
_HALF, _BOTH_DTYPES = ("bfloat16",), ("bfloat16", "float32")
# Elements of the first tensor, and multiplications of a layer, that keep a call on two CPU cores
# at some tens of milliseconds.
_ELEMENTS, _PRODUCTS = 1 << 21, 1 << 28

_ROWS: tuple[tuple[str, tuple[int, int], tuple[str, ...], tuple[Mode, ...]], ...] = (
    ("softmax", (8192, 50257), _BOTH_DTYPES, BOTH),
    ("layer_norm", (8192, 50257), _BOTH_DTYPES, BOTH),
    ("rms_norm", (8192, 50257), _BOTH_DTYPES, BOTH),
    ("softmax", (2048, 151936), _BOTH_DTYPES, FORWARD),
    ("layer_norm", (2048, 151936), _BOTH_DTYPES, FORWARD),
    ("rms_norm", (2048, 151936), _BOTH_DTYPES, FORWARD),
    ("softmax", (333, 12345), _HALF, FORWARD),
    ("softmax", (20000, 1536), _HALF, BOTH),
    ("rms_norm", (20000, 1536), _HALF, FORWARD),
    ("bias_act", (5000, 3331), _HALF, BOTH),
    ("layer_norm", (8192, 2880), _HALF, ("forward+backward",)),
    ("layer_norm", (4096, 7168), _HALF, ("forward+backward",)),
    ("layer_norm", (333, 12345), _HALF, ("forward+backward",)),
    ("residual_layer_norm", (16384, 4096), _HALF, ("forward+backward",)),
)
_LAYERS: tuple[tuple[str, tuple[int, ...], int, str, Mode, dict[str, Choice]], ...] = (
    ("linear_gelu", (2048, 4096), 11008, "bfloat16", "forward", {}),
    ("linear_gelu", (12000, 1000), 3000, "bfloat16", "forward", {}),
    ("linear_gelu", (1, 4096), 4096, "bfloat16", "forward", {}),
    ("transformer_block", (64, 128, 384), 1536, "float32", "forward+backward", {"heads": 6}),
)
# As the sweep drew them: the layout, choices and forms of arguments are a part of it.
_DRAWN = (
    Case(
        "residual_rms_norm",
        "forward",
        "float32",
        (19114, 5593),
        KNOWN,
        "offset",
        None,
        (("p", 0.1),),
    ),
    Case("bias_act", "forward", "bfloat16", (11, 2579), KNOWN, forms=(("bias", "row"),)),
    Case(
        "add_mul_exp",
        "forward+backward",
        "bfloat16",
        (5, 2),
        KNOWN,
        "offset",
        forms=(("y", "full"),),
    ),
    Case(
        "transformer_block",
        "forward",
        "float32",
        (397, 5, 444),
        KNOWN,
        "gap",
        None,
        (("mask", True),),
    ),
)
# On a CPU without instructions for 16-bit products, where a weight was widened for a few rows.
_FEW_ROWS: tuple[tuple[str, tuple[int, int], int, str, Mode], ...] = (
    ("linear_relu", (2, 4096), 11008, "bfloat16", "forward"),
    ("linear_gelu", (1, 7168), 16384, "float16", "forward"),
    ("swiglu_ffn", (1, 384), 128256, "float16", "forward"),
    ("layernorm_linear", (4, 768), 32000, "float16", "forward"),
    ("layernorm_linear", (2, 768), 2880, "bfloat16", "forward+backward"),
    ("gelu_linear", (2, 7168), 12345, "bfloat16", "forward+backward"),
)


def known(device: str, ops: tuple[str, ...] = ()) -> Iterator[Case]:
    """Those of these ops, or all; on a CPU smaller, and products of many rows in float32."""
    for case in _all():
        if not ops or case.op in ops:
            yield case if device == "cuda" else _smaller(case)
    for name, sizes, features, dtype, mode in _FEW_ROWS:
        if device == "cpu" and (not ops or name in ops):
            yield Case(name, mode, dtype, sizes, KNOWN, features=features)


def _all() -> Iterator[Case]:
    for name, shape, dtypes, modes in _ROWS:
        for dtype in dtypes:
            for mode in modes:
                yield Case(name, mode, dtype, shape, KNOWN)
    for name, sizes, features, dtype, mode, choices in _LAYERS:
        chosen = tuple(choices.items())
        yield Case(name, mode, dtype, sizes, KNOWN, features=features, choices=chosen)
    yield from _DRAWN


def _smaller(case: Case) -> Case:
    """With fewer rows: their length is what the case is about."""
    op, shape = OPS[case.op], list(case.shape)
    per_row = math.prod(shape[1:])
    if op.family != "composite":
        shape[0] = max(1, min(shape[0], _ELEMENTS // per_row))
        return replace(case, shape=tuple(shape))
    shape[0] = max(1, min(shape[0], _PRODUCTS // (per_row * (case.features or shape[-1]))))
    return replace(case, shape=tuple(shape), dtype="float32")
