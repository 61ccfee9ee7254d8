"""Typical mistakes in CUDA exercises about sums over a warp, a block and a row."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "warp_sum": {
        "the tail is forgotten": (
            "c < cols; c",
            "c < cols / 32 * 32; c",
            "rows of 20",
            "The last floats are left out",
        ),
        "32 floats": (
            "c < cols; c",
            "c < cols && c < 32; c",
            "rows of 1,000",
            "the sum of the first 32 floats",
        ),
        "a mean": ("out[row] = sum", "out[row] = sum / cols", "rows of 32", "That is the mean"),
        "lanes go on by 1": ("c += 32", "c += 1", "rows of 32", "Floats are in it several times"),
        "all lanes begin at 0": (
            "c = lane;",
            "c = 0;",
            "rows of 32",
            "Every lane begins at float 0",
        ),
        "one thread of the block": (
            "lane == 0",
            "threadIdx.x == 0",
            "rows of 32",
            "one thread of the block, and it has four warps",
        ),
        "one round": (
            "for (int d = 16; d > 0; d /= 2) {",
            "{\n    int d = 16;",
            "rows of 32",
            "Only the round d = 16 was run",
        ),
        "d goes down by 2": ("d /= 2", "d -= 2", "rows of 32", "d is halved in every round"),
        "a lane for all": (
            "__shfl_down_sync",
            "__shfl_sync",
            "rows of 32",
            "gives every lane what lane d has",
        ),
        "a step too far": (
            "c < cols",
            "c <= cols",
            "stays inside",
            "its last float is number cols - 1",
        ),
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
        "begins with 1": ("int w = 0", "int w = 1", "rows of 256", "Warp 0's sum is left out"),
        "the last one alone": (
            "all += sums[w]",
            "all = sums[w]",
            "rows of 256",
            "That is the last warp's sum alone",
        ),
        "every warp the same": (
            "c = t;",
            "c = lane;",
            "rows of 256",
            "Every warp has summed the same floats",
        ),
        "lane 31": (
            "if (lane == 0) sums",
            "if (lane == 31) sums",
            "rows of 256",
            "Lane 31 of each warp wrote",
        ),
        "a round is missing": ("d > 0", "d > 1", "rows of 256", "The round d = 1 is missing"),
        "each thread a stretch": (
            "for (int c = t; c < cols; c += 256) sum += x[row * cols + c];",
            (
                "int each = (cols + 255) / 256;\n"
                "  for (int c = t * each; c < (t + 1) * each && c < cols; ++c) {\n"
                "    sum += x[row * cols + c];\n"
                "  }"
            ),
            "bytes moved",
            "each lane walks a stretch of its own",
        ),
        "rows of 256 floats": (
            "x[row * cols + c]",
            "x[row * 256 + c]",
            "stays inside",
            "Row r begins at r * cols",
        ),
        "not shared": ("__shared__ float", "float", "rows of 256", "An array without __shared__"),
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
        "the correction turned round": (
            "s * expf(m - larger)",
            "s * expf(larger - m)",
            "rows of 32",
            "It is the other way round",
        ),
        "the correction turned round where lanes meet": (
            "s * expf(m - both) + os * expf(om - both)",
            "s * expf(both - m) + os * expf(both - om)",
            "rows of 32",
            "It is the other way round",
        ),
        "turned round with an old m": (
            (
                "float v = in[c], larger = fmaxf(m, v);\n"
                "    s = s * expf(m - larger) + expf(v - larger);\n"
                "    m = larger;"
            ),
            (
                "float v = in[c], old;\n"
                "    old = m;\n"
                "    m = fmaxf(m, v);\n"
                "    s = s * expf(m - old) + expf(v - m);"
            ),
            "rows of 32",
            "It is the other way round",
        ),
        "what is added is turned round": (
            "expf(v - larger)",
            "expf(larger - v)",
            "rows of 77",
            "it adds exp(x - m), not exp(m - x)",
        ),
        "exp(x) is added": ("expf(v - larger)", "expf(v)", "rows of 32", "without the largest"),
        "begins with 0": ("m = -3e38f", "m = 0", "far from 0", "m began above all its floats"),
        "the first float twice": (
            "m = -3e38f, s = 0",
            "m = in[lane], s = 1",
            "rows of 32",
            "is in the sum twice",
        ),
        "only the sums meet": (
            "    s = s * expf(m - both) + os * expf(om - both);\n    m = both;",
            "    s += os;",
            "rows of 32",
            "The sums have met, the largest have not",
        ),
        "only the largest meet": (
            "    s = s * expf(m - both) + os * expf(om - both);\n",
            "",
            "rows of 32",
            "The largest have met, the sums have not",
        ),
        "not divided": (" / s;", ";", "rows of 32", "The division by the sum is missing"),
        "m stays": (
            "om - both);\n    m = both;",
            "om - both);",
            "rows of 32",
            "m stayed as it was where pairs met",
        ),
        "the other sum as it is": (
            "os * expf(om - both)",
            "os",
            "rows of 32",
            "A pair's other sum, os",
        ),
        "multiplied": ("/ s;", "* s;", "rows of 32", "It is multiplied by the sum"),
        "a round is missing": (
            "int d = 16",
            "int d = 8",
            "rows of 32",
            "The round d = 16 is missing",
        ),
        "each lane a stretch": (
            "for (int c = lane; c < cols; c += 32) {\n    float v",
            (
                "int each = (cols + 31) / 32;\n"
                "  for (int c = lane * each; c < (lane + 1) * each && c < cols; ++c) {\n"
                "    float v"
            ),
            "bytes moved",
            "each lane walks a stretch of its own",
        ),
        "a step too far": (
            "c < cols; c += 32) {\n    float",
            "c <= cols; c += 32) {\n    float",
            "stays inside",
            "A row has cols floats",
        ),
        "a block a row": (
            "blockIdx.x * 4 + threadIdx.x / 32",
            "blockIdx.x",
            "no races",
            "Two warps write the same row",
        ),
        "lanes without a float return": (
            "if (row >= rows) return;",
            "if (row >= rows || lane >= cols) return;",
            "shuffles",
            "All lanes meet",
        ),
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
}
