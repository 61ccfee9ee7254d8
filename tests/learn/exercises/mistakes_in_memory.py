"""Typical mistakes in CUDA exercises about threads, addresses and shared memory."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "cuda_index": {
        "no bounds check": (
            "if (i < n) ",
            "",
            "stays inside",
            "whose i is not below n must do nothing",
        ),
        "two kinds of index mixed": (
            "+ threadIdx.x;",
            "+ threadIdx.x * 4;",
            "no races",
            "two rounds or two threads overlap",
        ),
        "elements written twice": (
            "k * blockDim.x",
            "k * (blockDim.x - 1)",
            "no races",
            "two rounds or two threads overlap",
        ),
        "the block is forgotten": (
            "blockIdx.x * blockDim.x * 4 + ",
            "",
            "no races",
            "must come from blockIdx.x",
        ),
    },
    "grid_2d": {
        "rows are not bounded": (
            "r < rows && ",
            "",
            "stays inside",
            "some threads have a row that does not exist",
        ),
        "columns are not bounded": (
            " && c < cols",
            "",
            "stays inside",
            "some a column, and both must be asked",
        ),
        "x counts rows": (
            (
                "int c = blockIdx.x * blockDim.x + threadIdx.x;\n"
                "  int r = blockIdx.y * blockDim.y + threadIdx.y;"
            ),
            (
                "int r = blockIdx.x * blockDim.x + threadIdx.x;\n"
                "  int c = blockIdx.y * blockDim.y + threadIdx.y;"
            ),
            "bytes moved",
            "x goes along the row",
        ),
        "the number of rows as their length": (
            "out[r * cols + c]",
            "out[r * rows + c]",
            "no races",
            "Or two blocks have the same elements",
        ),
    },
    "stage": {
        "nobody waits for the pixels": (
            "  __syncthreads();\n",
            "",
            "no races",
            "at a __syncthreads() between the fetching and the computing",
        ),
        "fetching is bounded by pixels": (
            "if (first + at < 3 * n) ",
            "",
            "stays inside",
            "Fetching is bounded by 3 * n",
        ),
        "a shared array that is too short": (
            "pixels[384]",
            "pixels[128]",
            "stays inside",
            "384 floats: that is how long",
        ),
        "threads return before the barrier": (
            "  int first = blockIdx.x * 384;",
            (
                "  if (blockIdx.x * blockDim.x + threadIdx.x >= n) return;\n"
                "  int first = blockIdx.x * 384;"
            ),
            "barriers",
            "may still have floats to fetch for others",
        ),
    },
    "transpose": {
        "the other dimension is padded": (
            "tile[32][33]",
            "tile[33][32]",
            "shared banks",
            "neighbours in a column lie in neighbouring banks",
        ),
        "nobody waits for the tile": (
            "  __syncthreads();\n",
            "",
            "no races",
            "there must be a __syncthreads()",
        ),
        "written down the columns": (
            (
                "int r = blockIdx.y * 32 + threadIdx.x;\n"
                "  for (int k = threadIdx.y; k < 32; k += 8) {\n"
                "    int c = blockIdx.x * 32 + k;\n"
                "    if (r < rows && c < cols) out[c * rows + r] = tile[threadIdx.x][k];"
            ),
            (
                "int d = blockIdx.x * 32 + threadIdx.x;\n"
                "  for (int k = threadIdx.y; k < 32; k += 8) {\n"
                "    int r = blockIdx.y * 32 + k;\n"
                "    if (r < rows && d < cols) out[d * rows + r] = tile[k][threadIdx.x];"
            ),
            "bytes moved",
            "The tile turns it round",
        ),
        "the tile is not turned": (
            "tile[threadIdx.x][k]",
            "tile[k][threadIdx.x]",
            "one tile",
            "it was not turned",
        ),
    },
    "wide_loads": {
        "the end is left out": (
            "else if (i == n / 4)",
            "else if (false)",
            "4,099",
            "those three are taken one by one",
        ),
        "the last group is taken whole": (
            "i < n / 4",
            "i < (n + 3) / 4",
            "stays inside",
            "would reach over the end",
        ),
        "an offset in floats": (
            "reinterpret_cast<const float4*>(x)[i]",
            "*reinterpret_cast<const float4*>(x + i)",
            "aligned",
            "begins in the middle of a group",
        ),
        "three of four": ("    v.w *= factor;\n", "", "4,096", "v.w is not multiplied"),
    },
    "gemm_tile": {
        "the tile is overwritten too early": (
            "ws[tx][k];\n    __syncthreads();",
            "ws[tx][k];",
            "no races",
            "a fast warp overwrites what a slow one still reads",
        ),
        "the tile is used too early": (
            "    __syncthreads();\n    for",
            "    for",
            "no races",
            "Two barriers a tile",
        ),
        "no zeros at the edge": (
            "r < rows && i < ins ? x[r * ins + i] : 0",
            "x[r * ins + i]",
            "stays inside",
            "must hold 0",
        ),
        "the bias is left out": ("sum + bias[o]", "sum", "one tile", "The bias is left out"),
        "the wrong row of weight": (
            "ws[tx][k]",
            "ws[ty][k]",
            "one tile",
            "Row y of weight was taken",
        ),
        "unpadded tiles": ("[17]", "[16]", "shared banks", "pad its rows to 17"),
    },
}
