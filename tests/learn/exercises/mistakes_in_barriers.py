"""Typical mistakes in CUDA exercises whose blocks meet."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "grid_barrier": {
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
