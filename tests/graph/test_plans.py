"""Plans of functions of real models, forward and backward, beside the interpreter of the IR."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graph import compare, functions
from graph.functions import SAMPLES, Sample
from graph.run_plan import run_plan
from megafuse.graph.clean import clean
from megafuse.graph.interpret import interpret
from megafuse.graph.ir import Graph
from megafuse.graph.lowering import lower
from megafuse.graph.partition import partition
from megafuse.graph.plan import Plan

# By way of an interpreter of plans; tests/compiler runs such functions through fuse.
pytestmark = pytest.mark.slow

# How many kernels each becomes: forward, backward.
KERNELS = {
    functions.rms_norm: (1, 1),
    functions.rope: (2, 6),
    functions.swiglu: (1, 1),
    functions.gated_norm: (1, 1),
    functions.label_smoothing: (3, 3),
    functions.adamw: (1, 0),
    functions.lion: (1, 0),
    functions.ema: (1, 1),
    functions.causal_softmax: (1, 1),
    functions.group_norm: (2, 5),
    functions.layer_norm_residual: (1, 1),
    functions.dequantise: (1, 1),
    functions.gelu_bias: (1, 1),
    functions.focal_loss: (2, 1),
    functions.ddim_step: (1, 1),
    functions.batch_norm_inference: (1, 2),
}


def planned(graph: Graph, args: list[Any], name: str) -> tuple[Plan, list[Any]]:
    """The plan, after its results were compared with the interpreter's."""
    plan = partition(graph, name)
    with torch.no_grad():
        found, wanted = run_plan(plan, graph, args), interpret(graph, args, "fused")
    for mine, theirs, strides in zip(found, wanted, graph.strides, strict=True):
        if mine is None or strides is None:
            continue
        loose = {"rtol": 2e-2, "atol": 2e-2} if theirs.dtype in compare.HALVES else {}
        torch.testing.assert_close(mine, theirs, equal_nan=True, **loose)
    return plan, found


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forward(sample: Sample, dtype: torch.dtype) -> None:
    args = sample.drawn(dtype)
    found = compare.captured(sample.function, *args)
    plan, _ = planned(clean(lower(found)), compare.placed(found, args, {}), str(sample))
    assert len(plan.kernels) <= KERNELS[sample.function][0], [c.reason for c in plan.cuts]


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.gradients], ids=str)
def test_backward(sample: Sample) -> None:
    args = sample.drawn(gradients=True)
    found = compare.captured(sample.function, *args)
    forward, backward = clean(lower(found)), clean(lower(found, "backward"))
    _, outputs = planned(forward, compare.placed(found, args, {}), str(sample))
    saved = outputs[len(outputs) - found.saved :] if found.saved else []
    takes = [
        compare.taken(saved[which], taker) if kind == "saved" else torch.randn_like(outputs[which])
        for taker, (kind, which) in zip(backward.inputs, found.backward_takes, strict=False)
    ]
    plan, _ = planned(backward, takes, f"{sample}_backward")
    assert len(plan.kernels) <= KERNELS[sample.function][1], [c.reason for c in plan.cuts]
