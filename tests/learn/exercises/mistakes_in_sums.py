"""Typical mistakes in CUDA exercises about sums over a warp, a block and a row."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "warp_sum": {
        "a round too many": ("int d = 16", "int d = 32", "rows of 32", "Twice the sum"),
        "up in place of down": (
            "__shfl_down_sync",
            "__shfl_up_sync",
            "rows of 32",
            "With __shfl_up_sync lane l takes",
        ),
        "all lanes write": ("if (lane == 0) out", "out", "no races", "Only one lane may write"),
        "a round is missing": ("d > 0", "d > 1", "rows of 32", "The round d = 1 is missing"),
        "a shuffle in a condition": (
            "    sum += __shfl",
            "    if (lane < d) sum += __shfl",
            "shuffles",
            "it must come to the shuffle",
        ),
        "lanes without a float return": (
            "if (row >= rows) return;",
            "if (row >= rows || lane >= cols) return;",
            "shuffles",
            "A lane without an element adds 0",
        ),
        "half of the lanes in the mask": (
            "0xffffffffu",
            "0x0000ffffu",
            "shuffles",
            "0xffffffff names all 32",
        ),
        "each lane a stretch": (
            "for (int c = lane; c < cols; c += 32) sum += x[row * cols + c];",
            (
                "int each = (cols + 31) / 32;\n"
                "  for (int k = 0; k < each; ++k) {\n"
                "    if (lane * each + k < cols) sum += x[row * cols + lane * each + k];\n"
                "  }"
            ),
            "bytes moved",
            "each lane walks a stretch of its own",
        ),
    },
    "block_sum": {
        "one place for all warps": (
            "sums[warp] = sum",
            "sums[lane] = sum",
            "no races",
            "into the warp's own place",
        ),
        "a warp's step": ("c += 256", "c += 32", "rows of 256", "not by 32"),
        "no barrier before the sums are read": (
            "  __syncthreads();\n",
            "",
            "no races",
            "who reads another warp's sum must wait for it",
        ),
        "a barrier for one warp": (
            "  __syncthreads();\n",
            "  if (warp == 0) __syncthreads();\n",
            "barriers",
            "cannot stand in an `if` that only some take",
        ),
        "a place for four warps": (
            "sums[8]",
            "sums[4]",
            "stays inside",
            "a place for each of them",
        ),
        "one warp's sum": ("w < 8", "w < 1", "rows of 256", "That is warp 0's sum alone"),
    },
    "online_softmax": {
        "only lane 0 has the pair": (
            "__shfl_xor_sync",
            "__shfl_down_sync",
            "rows of 32",
            "With __shfl_down_sync only lane 0",
        ),
        "m is changed first": (
            "    s = s * expf(m - both) + os * expf(om - both);\n    m = both;",
            "    m = both;\n    s = s * expf(m - both) + os * expf(om - both);",
            "rows of 32",
            "m was changed before s",
        ),
        "the sum is not mended": (
            "s = s * expf(m - larger) + expf(v - larger)",
            "s = s + expf(v - larger)",
            "rows of 77",
            "stayed as it was when a larger x came",
        ),
        "lanes' sums are added as they are": (
            "s = s * expf(m - both) + os * expf(om - both)",
            "s = s + os",
            "rows of 32",
            "sums were added as they are",
        ),
        "begins with -inf": (
            "-3e38f",
            "-INFINITY",
            "far from 0",
            "begin with a large negative number",
        ),
        "every lane for itself": (
            "int d = 16; d > 0",
            "int d = 16; d > 16",
            "rows of 32",
            "Every lane divided by its own sum",
        ),
    },
    "norm_forward": {
        "a lane's own mean": (
            "warp_sum(sum) / cols",
            "sum / cols",
            "rows of 100",
            "Every lane subtracted its own mean",
        ),
        "a lane's own variance": (
            "warp_sum(squares) / cols",
            "squares / cols",
            "rows of 100",
            "Every lane divided by its own variance",
        ),
        "the root the wrong way": ("rsqrtf", "sqrtf", "rows of 100", "rsqrtf is 1 / sqrt"),
        "empty places in the squares": (
            "if (k * 32 + lane < cols) squares",
            "squares",
            "rows of 100",
            "must add nothing to the squares",
        ),
        "cols - 1": (
            "warp_sum(squares) / cols",
            "warp_sum(squares) / (cols - 1)",
            "rows of 100",
            "was divided by cols - 1",
        ),
        "the mean of squares": (
            "squares += away * away",
            "squares += kept[k] * kept[k] - mean * mean",
            "around 1,000",
            "what is left is noise",
        ),
        "weight by row": (
            "* weight[c]",
            "* weight[row]",
            "rows of 100",
            "taken by row",
        ),
        "the residual is forgotten": (
            "a[c] + b[c]",
            "a[c]",
            "rows of 100",
            "The residual is left out",
        ),
    },
    "norm_backward": {
        "a lane's own sum": (
            "warp_sum(sum_g) / cols",
            "sum_g / cols",
            "one row, dx",
            "A lane's own sum was taken",
        ),
        "added, not subtracted": (
            "g[k] - mg - h[k]",
            "g[k] - mg + h[k]",
            "one row, dx",
            "is added: it is subtracted",
        ),
        "no weight": ("up * weight[c]", "up", "one row, dx", "if weight were 1 everywhere"),
        "the mean of g is forgotten": (
            "g[k] - mg - ",
            "g[k] - ",
            "one row, dx",
            "mean(g) is left out",
        ),
        "the variance is a constant": (
            " - h[k] * mgh",
            "",
            "one row, dx",
            "h * mean(g * h) is left out",
        ),
        "rows add as if they were alone": (
            "atomicAdd(&dweight[c], up * h[k])",
            "dweight[c] += up * h[k]",
            "no races",
            "does it in one step",
        ),
        "x in place of h": (
            "atomicAdd(&dweight[c], up * h[k])",
            "atomicAdd(&dweight[c], up * x[row * cols + c])",
            "one row, dweight",
            "That sums grad * x",
        ),
    },
}
