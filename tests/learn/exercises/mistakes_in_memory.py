"""Typical mistakes in CUDA exercises about threads, addresses and shared memory."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "cuda_index": {
        "a round too few": (
            "k < 4",
            "k < 3",
            "one block",
            "Never written: elements 384 to 511 of 0 to 511",
        ),
        "an input is left out": (
            "a * x[i] + y[i]",
            "a * x[i]",
            "one block",
            "what comes out if y were 0 everywhere",
        ),
        "added to what is not there yet": (
            "out[i] = ",
            "out[i] += ",
            "written first",
            "`+=` reads before it writes",
        ),
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
        "the bias of the row": ("bias[c]", "bias[r]", "8 × 32", "The bias was taken by row"),
        "one row of blocks": (
            "blockIdx.y * blockDim.y + ",
            "",
            "no races",
            "blockIdx.x or blockIdx.y does not count",
        ),
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
        "two rounds of three": ("k < 3", "k < 2", "written first", "was never fetched"),
        "pixels a float apart": (
            "int t = 3 * threadIdx.x",
            "int t = threadIdx.x",
            "one block",
            "it begins at 3 * t",
        ),
        "blocks 128 floats apart": (
            "blockIdx.x * 384",
            "blockIdx.x * 128",
            "1,000",
            "Each block began 128 floats after the last",
        ),
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
        "blocks do not change places": (
            "int r = blockIdx.y * 32 + threadIdx.x;",
            "int r = blockIdx.x * 32 + threadIdx.x;",
            "no races",
            "The blocks change places, too",
        ),
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
        "groups of groups": ("(x)[i]", "(x)[4 * i]", "stays inside", "four times too far"),
        "one of four": (
            "    v.y *= factor;\n    v.z *= factor;\n    v.w *= factor;\n",
            "",
            "4,096",
            "Only v.x is multiplied",
        ),
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
        "the bias of the row": ("bias[o]", "bias[r]", "one tile", "The bias was taken by row"),
        "one tile of many": (
            "first < ins;",
            "first < 16;",
            "20 × 24 × 36",
            "Only the first tile's product",
        ),
        "weight the other way": (
            "weight[fetched * ins + i]",
            "weight[i * outs + fetched]",
            "one tile",
            "weight was read by column",
        ),
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
