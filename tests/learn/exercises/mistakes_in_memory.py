"""Typical mistakes in CUDA exercises about threads, addresses and shared memory."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "cuda_index": {
        "blocks overlap": (
            "blockDim.x * 4 +",
            "blockDim.x +",
            "no races",
            "Two blocks write the same element",
        ),
        "rounds overlap": ("k * blockDim.x", "k * 32", "no races", "Within a block two rounds"),
        "a difference": ("+ y[i]", "- y[i]", "one block", "y is subtracted"),
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
        "thread and block changed places": (
            "blockIdx.x * blockDim.x * 4 + threadIdx.x",
            "threadIdx.x * blockDim.x * 4 + blockIdx.x",
            "one block",
            "have changed places",
        ),
        "the block is forgotten": (
            "blockIdx.x * blockDim.x * 4 + ",
            "",
            "no races",
            "must come from blockIdx.x",
        ),
    },
    "grid_2d": {
        "bounds swapped": (
            "r < rows && c < cols",
            "r < cols && c < rows",
            "stays inside",
            "changed places where they are bounded",
        ),
        "or": ("&&", "||", "stays inside", "both must hold"),
        "one too many": (
            "r < rows && c < cols",
            "r <= rows && c <= cols",
            "stays inside",
            "lets one too many through",
        ),
        "the bias by element": (
            "bias[c]",
            "bias[r * cols + c]",
            "stays inside",
            "bias has a number for each column",
        ),
        "the other side of a block": (
            "blockIdx.x * blockDim.x",
            "blockIdx.x * blockDim.y",
            "no races",
            "blockIdx.x goes with blockDim.x",
        ),
        "one column of blocks": (
            "blockIdx.x * blockDim.x + ",
            "",
            "no races",
            "all blocks side by side do the same",
        ),
        "rows as a row's length": (
            "[r * cols + c]",
            "[r * rows + c]",
            "no races",
            "Row r was taken from r * rows on",
        ),
        "a factor": ("+ bias[c]", "* bias[c]", "8 × 32", "The bias is a factor"),
        "the bias of the thread": (
            "bias[c]",
            "bias[threadIdx.x]",
            "64 × 96",
            "The bias was taken at threadIdx.x",
        ),
        "only x is walked down": (
            "= x[r * cols + c]",
            "= x[c * rows + r]",
            "8 × 32",
            "rows became columns",
        ),
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
        "a colour is left out": (
            " + 0.1f * pixels[t + 2]",
            "",
            "one block",
            "The blue is left out",
        ),
        "the first block's pixels": (
            "= rgb[first + at]",
            "= rgb[at]",
            "1,000",
            "Every block fetched the pixels of the first",
        ),
        "the picture's pixel in the block": (
            "int t = 3 * threadIdx.x",
            "int t = 3 * i",
            "stays inside",
            "pixels has the floats of this block alone",
        ),
        "rounds a float apart": (
            "k * 128 + threadIdx.x",
            "k + threadIdx.x",
            "no races",
            "a round is 128 floats",
        ),
        "every block writes the first pixels": (
            "grey[i] =",
            "grey[threadIdx.x] =",
            "no races",
            "pixel i is blockIdx.x * 128",
        ),
        "not shared": ("__shared__ float", "float", "one block", "An array without __shared__"),
        "whole numbers": (
            ("0.3f", "0.6f", "0.1f"),
            ("3 / 10", "6 / 10", "1 / 10"),
            "one block",
            "3 / 10 is 0",
        ),
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
        "a row of out": (
            "out[c * rows + r]",
            "out[c * cols + r]",
            "stays inside",
            "A row of out is `rows` long",
        ),
        "a tile that is too narrow": (
            "tile[32][33]",
            "tile[32][31]",
            "stays inside",
            "The tile has 32 rows of 32 floats",
        ),
        "rows twice": (
            "k += 8) {\n    int c = blockIdx.x * 32 + k;",
            "k += 4) {\n    int c = blockIdx.x * 32 + k;",
            "no races",
            "Two threads of a block write the same element",
        ),
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
        "the block is forgotten": (
            "blockIdx.x * blockDim.x +",
            "",
            "no races",
            "Every block has the same groups",
        ),
        "nothing is multiplied": (
            "    v.x *= factor;\n    v.y *= factor;\n    v.z *= factor;\n    v.w *= factor;\n",
            "",
            "4,096",
            "Nothing is multiplied",
        ),
        "narrow stores": (
            "    reinterpret_cast<float4*>(out)[i] = v;\n",
            (
                "    out[4 * i] = v.x;\n"
                "    out[4 * i + 1] = v.y;\n"
                "    out[4 * i + 2] = v.z;\n"
                "    out[4 * i + 3] = v.w;\n"
            ),
            "requests",
            "The loads take 16 bytes at a time, the stores 4",
        ),
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
        "the tile of x is turned": (
            "xs[ty][tx] =",
            "xs[tx][ty] =",
            "one tile",
            "The tile of x was turned",
        ),
        "the operands swapped": (
            "xs[ty][k] * ws[tx][k]",
            "xs[tx][k] * ws[ty][k]",
            "one tile",
            "x and weight have changed places",
        ),
        "out is turned": (
            "out[r * outs + o]",
            "out[o * rows + r]",
            "one tile",
            "out was written at o * rows + r",
        ),
        "not added up": ("sum += xs", "sum = xs", "one tile", "Only the last product is there"),
        "the bias with each product": (
            "ws[tx][k];",
            "ws[tx][k] + bias[o];",
            "one tile",
            "The bias was added with each product",
        ),
        "whole tiles only": (
            "first < ins;",
            "first + 16 <= ins;",
            "20 × 24 × 36",
            "The last tile is left out",
        ),
        "a ReLU for each tile": (
            "ws[tx][k];",
            "ws[tx][k];\n    sum = fmaxf(sum, 0.0f);",
            "one tile",
            "The ReLU is applied to a part of the sum",
        ),
        "fminf": ("fmaxf(", "fminf(", "one tile", "the ReLU is fmaxf"),
        "rows as a row's length": (
            "out[r * outs + o]",
            "out[r * rows + o]",
            "no races",
            "Two threads write the same result",
        ),
        "one column for all": (
            "xs[ty][tx] =",
            "xs[ty][0] =",
            "no races",
            "thread (tx, ty) fills [ty][tx]",
        ),
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
        "rows of weight by the block of x": (
            "int fetched = blockIdx.x",
            "int fetched = blockIdx.y",
            "20 × 24 × 36",
            "come from the wrong block",
        ),
        "the row that is multiplied is fetched": (
            "weight[fetched * ins + i]",
            "weight[o * ins + i]",
            "one tile",
            "but it fetches row ty",
        ),
        "columns by ty": ("i = first + tx", "i = first + ty", "one tile", "comes from ty"),
        "the bias of the place": ("bias[o]", "bias[tx]", "20 × 24 × 36", "bias[o], not bias[tx]"),
        "half a tile further": ("first += 16", "first += 8", "one tile", "added twice"),
    },
}
