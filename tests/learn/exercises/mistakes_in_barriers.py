"""Typical mistakes in CUDA exercises whose blocks meet."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "grid_barrier": {
        "a read and a write": (
            "atomicAdd(arrived, 1u);",
            "*arrived += 1;",
            "no races",
            "The counter is changed by a read and a write",
        ),
        "every thread is waited for": (
            "< gridDim.x) {",
            "< gridDim.x * blockDim.x) {",
            "ends",
            "It waits for an arrival of every thread",
        ),
        "the wrong way round": (
            "0u) < gridDim.x",
            "0u) == gridDim.x",
            "ends",
            "The loop goes on while all have come",
        ),
        "one block": (
            "threadIdx.x == 0",
            "blockIdx.x == 0",
            "no races",
            "blockIdx.x == 0 picks a block",
        ),
        "a thread of each warp": (
            "threadIdx.x == 0",
            "threadIdx.x % 32 == 0",
            "no races",
            "One thread of each warp counts",
        ),
        "set back too early": (
            "gridDim.x) {\n    }\n",
            "gridDim.x) {\n    }\n    *arrived = 0;\n",
            "no races",
            "The counter is set back to 0",
        ),
        "the block has not come": (
            "grid_barrier(Counter arrived) {\n  __syncthreads();",
            "grid_barrier(Counter arrived) {",
            "no races",
            "one before thread 0 counts",
        ),
        "a look without a loop": ("while (", "if (", "no races", "it takes a loop"),
        "each look counts": (
            "atomicAdd(arrived, 1u);\n    while (atomicAdd(arrived, 0u) <",
            "while (atomicAdd(arrived, 1u) <",
            "no races",
            "a block that looks twice counts as two",
        ),
        "the fence too late": (
            "__threadfence();\n    atomicAdd(arrived, 1u);",
            "atomicAdd(arrived, 1u);\n    __threadfence();",
            "no races",
            "The fence comes after the count",
        ),
        "nobody counts": (
            "    atomicAdd(arrived, 1u);\n",
            "",
            "ends",
            "no thread adds 1 to `arrived`",
        ),
        "no fence": ("    __threadfence();\n", "", "no races", "There is no __threadfence()"),
        "one arrival too many is waited for": (
            "< gridDim.x) {",
            "< gridDim.x + 1) {",
            "ends",
            "The goal is gridDim.x arrivals",
        ),
        "one arrival too few": (
            "< gridDim.x) {",
            "< gridDim.x - 1) {",
            "no races",
            "It waits for gridDim.x - 1 arrivals",
        ),
        "every thread counts": (
            "if (threadIdx.x == 0) {\n    __thread",
            "{\n    __thread",
            "no races",
            "every thread of a block adds to the counter",
        ),
        "a plain look": (
            "while (atomicAdd(arrived, 0u) <",
            "while (*arrived <",
            "no races",
            "looks at *arrived, a plain variable",
        ),
        "the others do not wait": (
            "    }\n  }\n  __syncthreads();",
            "    }\n  }",
            "no races",
            "There are not two __syncthreads() in grid_barrier",
        ),
    },
    "megakernel": {
        "one bias for all": ("b1[j]", "b1[0]", "one block", "the bias of row 0"),
        "the bias of the lane": ("b2[o]", "b2[lane]", "one block", "b2[lane] is that, too"),
        "the barrier at the end": (
            ("  grid_barrier(arrived);\n\n", "y[o] = v + b2[o];\n  }\n"),
            ("\n", "y[o] = v + b2[o];\n  }\n  grid_barrier(arrived);\n"),
            "no races",
            "The barrier comes after both phases",
        ),
        "rows of w1": (
            "w1 + j * ins",
            "w1 + j * hidden",
            "one block",
            "Row j of w1 was taken from j * hidden on",
        ),
        "rows of w2": (
            "w2 + o * hidden",
            "w2 + o * outs",
            "one block",
            "Row o of w2 was taken from o * outs on",
        ),
        "too short a product": (
            "x, ins)",
            "x, hidden)",
            "one block",
            "The first product has hidden terms",
        ),
        "the bias after the ReLU": (
            "fmaxf(v + b1[j], 0.0f)",
            "fmaxf(v, 0.0f) + b1[j]",
            "one block",
            "b1 is added after the ReLU",
        ),
        "h of outs rows": (
            "j < hidden;",
            "j < outs;",
            "written first",
            "phase 1 writes h[j] for every j",
        ),
        "h in shared memory": (
            ("  int lane", "h[j] =", "h, hidden)"),
            ("  __shared__ float mine[256];\n  int lane", "mine[j] =", "mine, hidden)"),
            "written first",
            "which is each block's own",
        ),
        "warps without a row return": (
            "  for (int j = warp;",
            "  if (warp >= hidden) return;\n  for (int j = warp;",
            "barriers",
            "also one that has no row to compute",
        ),
        "all lanes write": ("if (lane == 0) h[j]", "h[j]", "no races", "lane 0 writes"),
        "x goes into both layers": (
            "dot(w2 + o * hidden, h, hidden)",
            "dot(w2 + o * hidden, x, hidden)",
            "one block",
            "The second layer was given x",
        ),
        "one lane computes": (
            (
                "    float v = dot(w1 + j * ins, x, ins);\n"
                "    if (lane == 0) h[j] = fmaxf(v + b1[j], 0.0f);"
            ),
            "    if (lane == 0) h[j] = fmaxf(dot(w1 + j * ins, x, ins) + b1[j], 0.0f);",
            "shuffles",
            "All 32 lanes of the warp call dot()",
        ),
        "no barrier between the phases": (
            "  grid_barrier(arrived);\n",
            "",
            "no races",
            "The kernel never calls grid_barrier",
        ),
        "a barrier in the loop": (
            "h[j] = fmaxf(v + b1[j], 0.0f);\n  }\n  grid_barrier(arrived);",
            "h[j] = fmaxf(v + b1[j], 0.0f);\n    grid_barrier(arrived);\n  }",
            "no races",
            "as often as they have rows",
        ),
        "one block comes to the barrier": (
            "  grid_barrier(arrived);\n",
            "  if (blockIdx.x > 0) grid_barrier(arrived);\n",
            "no races",
            "blocks that do not take it never come",
        ),
        "a block per row": (
            "blockIdx.x * 2 + here",
            "blockIdx.x",
            "no races",
            "two warps have the same number",
        ),
        "the activation is forgotten": (
            "fmaxf(v + b1[j], 0.0f)",
            "v + b1[j]",
            "one block",
            "The ReLU of the first layer is left out",
        ),
    },
}
