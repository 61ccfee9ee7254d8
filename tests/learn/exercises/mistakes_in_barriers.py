"""Typical mistakes in CUDA exercises whose blocks meet."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "grid_barrier": {
        "no fence": ("    __threadfence();\n", "", "no races", "after a __threadfence()"),
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
            "let nobody through before every block has counted itself",
        ),
        "every thread counts": (
            "if (threadIdx.x == 0) {\n    __thread",
            "{\n    __thread",
            "no races",
            "thread 0 of each block adds 1",
        ),
        "a plain look": (
            "while (atomicAdd(arrived, 0u) <",
            "while (*arrived <",
            "no races",
            "keep it in a register",
        ),
        "the others do not wait": (
            "    }\n  }\n  __syncthreads();",
            "    }\n  }",
            "no races",
            "wait for thread 0",
        ),
    },
    "megakernel": {
        "no barrier between the phases": (
            "  grid_barrier(arrived);\n",
            "",
            "no races",
            "between the phases",
        ),
        "a barrier in the loop": (
            "h[j] = fmaxf(v + b1[j], 0.0f);\n  }\n  grid_barrier(arrived);",
            "h[j] = fmaxf(v + b1[j], 0.0f);\n    grid_barrier(arrived);\n  }",
            "no races",
            "between the phases",
        ),
        "one block comes to the barrier": (
            "  grid_barrier(arrived);\n",
            "  if (blockIdx.x > 0) grid_barrier(arrived);\n",
            "no races",
            "everyone must meet at grid_barrier",
        ),
        "a block per row": ("blockIdx.x * 2 + here", "blockIdx.x", "no races", "that is a race"),
        "the activation is forgotten": (
            "fmaxf(v + b1[j], 0.0f)",
            "v + b1[j]",
            "one block",
            "relu(b1[j]",
        ),
    },
}
