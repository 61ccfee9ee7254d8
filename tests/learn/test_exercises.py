"""Exercises: solutions pass, starters and typical mistakes fail with the sentence that helps, and
nothing that a learner writes can hurt the checker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import megafuse
from megafuse.learn.exercises import catalog, roof, runner
from megafuse.learn.exercises.child import findings
from megafuse.learn.exercises.findings import Finding, passed
from megafuse.learn.exercises.native import Counts, Native
from megafuse.learn.exercises.work import Work
from megafuse.runtime import cpp, nvrtc

# Each compiles, or starts a process of its own.
pytestmark = pytest.mark.slow

EXERCISES = {exercise.name: exercise for exercise in catalog.exercises()}
NEEDS_COMPILER = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
EACH = pytest.mark.parametrize(
    "name",
    [n if e.is_python else pytest.param(n, marks=NEEDS_COMPILER) for n, e in EXERCISES.items()],
)


@pytest.fixture(autouse=True, scope="module")
def compiled_hastily():
    """Each kernel runs once, on a few floats."""
    cpp.compile_hastily(True)
    yield
    cpp.compile_hastily(False)


@pytest.fixture(autouse=True)
def short_timings(monkeypatch):
    """Times are shown, not judged: a test need not wait for good ones."""
    monkeypatch.setattr(roof, "_BUDGET", 0.01)


def check(name: str, path: Path, device: str = "cpu") -> list[Finding]:
    """In this process: for code that ends and does not crash."""
    return list(findings(Work(EXERCISES[name], path, device)))


def written(name: str, text: str, folder: Path) -> Path:
    path = folder / EXERCISES[name].file
    path.write_text(text, encoding="utf-8")
    return path


def failed(found: list[Finding]) -> Finding:
    """The first thing that is wrong."""
    wrong = [finding for finding in found if finding.ok is False]
    assert wrong, found
    return wrong[0]


# ---- what every exercise is


def test_there_are_enough_in_order():
    assert [e.number for e in EXERCISES.values()] == list(range(1, len(EXERCISES) + 1))
    assert len(EXERCISES) >= 20
    cuda = [exercise for exercise in EXERCISES.values() if exercise.starter.suffix == ".cu"]
    assert 2 * len(cuda) >= len(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_texts_fit_80_columns(name):
    exercise = EXERCISES[name]
    assert len(exercise.hints) >= 2
    assert len(name) <= 14  # the list's column
    assert exercise.starter.suffix == exercise.solution.suffix
    for file in (exercise.starter, exercise.solution):  # a diff puts one more in front
        assert max(map(len, file.read_text(encoding="utf-8").splitlines())) <= 79
    verbatim = [line for line in exercise.task.splitlines() if line.startswith("    ")]
    assert max(map(len, verbatim), default=0) <= 80
    assert max(map(len, exercise.picture.splitlines())) <= 80


@EACH
def test_solution_passes(name, device):
    before = dict(megafuse.OPS)
    found = check(name, EXERCISES[name].solution, device)
    assert passed(found), found
    assert any(finding.what == "of the roof" for finding in found)
    assert dict(megafuse.OPS) == before  # the learner's functor is no op of the library


TEACHES = {
    "count_bytes": "count 4 bytes for every large tensor that it reads",
    "functor": "The result should be x * sigmoid",
    "walk": "Let the inner loop step from one float to the next",
    "fuse_chain": "one op for act(x + bias)",
    "cut_a_pass": "can one loop collect all that mean and variance need",
    "stable_sums": "Sum squares of distances from something near the mean",
    "backward": "gate would never learn",
    "fuse_or_not": "count as in exercise 1",
    "cuda_index": "must come from blockIdx.x",
    "grid_2d": "some threads have a row that does not exist",
    "stage": "every third float",
    "transpose": "rows of 33 words",
    "warp_sum": "lane 0's own sum alone",
    "block_sum": "a barrier at every level",
    "wide_loads": "A float4 is 16 bytes with one instruction",
    "online_softmax": "x is read three times",
    "norm_forward": "take mean, variance and result from",
    "norm_backward": "g alone would be the gradient of a plain scale",
    "gemm_tile": "use each float 16 times",
    "grid_barrier": "Blocks do not wait for each other by themselves",
    "megakernel": "every block computes all of h for itself",
    "in_a_model": "go through model.modules()",
    "your_own": "Put something of yours in its place",
}


@EACH
def test_starter_fails_and_teaches(name):
    found = check(name, EXERCISES[name].starter)
    assert not passed(found)
    assert TEACHES[name] in failed(found).says


def test_starters_of_wrong_numerics_name_both_mistakes():
    if cpp.find() is None:
        pytest.skip("needs a C++ compiler")
    found = check("stable_sums", EXERCISES["stable_sums"].starter)
    wrong = {finding.what: finding for finding in found if finding.ok is False}
    assert set(wrong) == {"around 10,000", "up to 400", "at full speed"}
    assert "inf / inf is nan" in wrong["up to 400"].says


# ---- typical mistakes: what of the solution becomes what, and which finding says what

MISTAKES = {
    "one pass counted as separate": (
        *("count_bytes", '"separate": 20', '"separate": 12'),
        *("swiglu", "PyTorch writes each result out and reads it back"),
    ),
    "a byte count too low": (
        *("count_bytes", '"separate": 24', '"separate": 16'),
        *("scale_bias_sigmoid", "8 too few"),
    ),
    "a fused count too high": (
        *("count_bytes", '"separate": 24, "fused": 8', '"separate": 24, "fused": 24'),
        *("scale_bias_sigmoid", "stays in a register"),
    ),
    "a row is missing": (
        *("count_bytes", '"swiglu"', '"swish"'),
        *("swiglu", "Keep the form of the starter"),
    ),
    "shift is forgotten": (
        *("functor", "scale * x + shift", "scale * x"),
        *("float32", "x * sigmoid(1.3 * x - 0.4)"),
    ),
    "libm in a functor": (
        *("functor", '#include "pointwise.h"', '#include "pointwise.h"\n#include <cmath>'),
        *("for the GPU", "no system headers"),
    ),
    "four columns at a time": (
        "walk",
        "  for (long r = 0; r < rows; ++r) {\n    for (long c = 0; c < cols; ++c) {",
        "  for (long b = 0; b < cols; b += 4) for (long r = 0; r < rows; ++r) {\n"
        "    for (long c = b; c < b + 4 && c < cols; ++c) {",
        *("bytes moved", "32 bytes travel for each float"),
    ),
    "a step too far": (
        *("walk", "r < rows", "r <= rows"),
        *("stays inside", "In C++ nothing stops such an access"),
    ),
    "the last column is left out": (
        *("walk", "c < cols", "c < cols - 1"),
        *("37 × 29", "never written"),
    ),
    "half fused": (
        "fuse_chain",
        "mf.add_mul_add(h, residual, scale, shift)",
        "(h + residual) * scale + shift",
        *("operations", "4 operations are 4 launches"),
    ),
    "the wrong gelu": (
        *("fuse_chain", '"gelu"', '"relu"'),
        *("33 × 7", "It must compute what the starter does"),
    ),
    "a function is gone": (
        *("fuse_chain", "def block", "def blocks"),
        *("complete", "The check calls `block`"),
    ),
    "nothing is returned": (
        *("fuse_chain", "return ", "h = "),
        *("33 × 7", "without `return`"),
    ),
    "divided by cols - 1": (
        *("cut_a_pass", "squares / cols", "squares / (cols - 1)"),
        *("short rows", "not by cols - 1"),
    ),
    "stable with a pass more": (
        "stable_sums",
        "float largest = -3e38f, sum = 0;",
        "float largest = -3e38f, sum = 0;\n"
        "  for (long i = 0; i < n; ++i) largest = std::fmax(largest, x[i]);\n",
        *("reads", "twice would do"),
    ),
    "masked first": (
        *("stable_sums", "-3e38f", "-INFINITY"),
        *("masked", "-inf - (-inf)"),
    ),
    "the derivative of sigmoid, not of silu": (
        *("backward", "slope = s + gate * s * (1 - s)", "slope = s * (1 - s)"),
        *("of gate", "s + v * s * (1 - s)"),
    ),
    "saves what it could recompute": (
        "backward",
        "ctx.save_for_backward(gate, up)",
        "ctx.save_for_backward(gate, up)\n        ctx.s = torch.sigmoid(gate)",
        *("forward", "in one launch"),
    ),
    "leaves it to the library": (
        *("backward", "swiglu = Swiglu.apply", "swiglu = mf.swiglu"),
        *("by hand", "The exercise is the Function"),
    ),
    "own loops for a large product": (
        *("fuse_or_not", '"fuse": False, "number": 2 *', '"fuse": True, "number": 2 *'),
        *("gemm", "waits for arithmetic"),
    ),
    "a count that is off": (
        *("fuse_or_not", "28 / 12", "28 / 8"),
        *("chain", "count as in exercise 1"),
    ),
    "fuse is a word": (
        *("fuse_or_not", '"fuse": True, "number": 28', '"fuse": "yes", "number": 28'),
        *("chain", "fuse is True or False"),
    ),
    "no bounds check": (
        *("cuda_index", "if (i < n) ", ""),
        *("stays inside", "whose i is not below n must do nothing"),
    ),
    "two kinds of index mixed": (
        *("cuda_index", "+ threadIdx.x;", "+ threadIdx.x * 4;"),
        *("no races", "two rounds or two threads overlap"),
    ),
    "elements written twice": (
        *("cuda_index", "k * blockDim.x", "k * (blockDim.x - 1)"),
        *("no races", "two rounds or two threads overlap"),
    ),
    "the block is forgotten": (
        *("cuda_index", "blockIdx.x * blockDim.x * 4 + ", ""),
        *("no races", "must come from blockIdx.x"),
    ),
    "a functor that is not a product": (
        *("functor", "x * gate", "gate"),
        *("float32", "far on the right it is x"),
    ),
    "the wrong activation": (
        *("functor", "Sigmoid::value", "Tanh::value"),
        *("float32", "The result should be x * sigmoid"),
    ),
    "the root is forgotten": (
        *("cut_a_pass", "1 / std::sqrt(variance + 1e-5f)", "1 / (variance + 1e-5f)"),
        *("short rows", "sqrt(variance + 1e-5)"),
    ),
    "a pass too many": (
        *(
            "cut_a_pass",
            "float mean = sum / cols;",
            "sum = 0; for (long c = 0; c < cols; ++c) "
            "sum += row[c] - first;\n    float mean = sum / cols;",
        ),
        *("bytes moved", "two readings are what is left"),
    ),
    "the sum is not mended in C++": (
        *("stable_sums", "sum = sum * std::exp(largest - v) + 1", "sum = sum + 1"),
        *("softmax", "the results add up to 1"),
    ),
    # ---- CUDA
    "rows are not bounded": (
        *("grid_2d", "r < rows && ", ""),
        *("stays inside", "some threads have a row that does not exist"),
    ),
    "columns are not bounded": (
        *("grid_2d", " && c < cols", ""),
        *("stays inside", "some a column, and both must be asked"),
    ),
    "x counts rows": (
        "grid_2d",
        "int c = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  int r = blockIdx.y * blockDim.y + threadIdx.y;",
        "int r = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  int c = blockIdx.y * blockDim.y + threadIdx.y;",
        *("bytes moved", "x goes along the row"),
    ),
    "the number of rows as their length": (
        *("grid_2d", "out[r * cols + c]", "out[r * rows + c]"),
        *("no races", "Or two blocks have the same elements"),
    ),
    "nobody waits for the pixels": (
        *("stage", "  __syncthreads();\n", ""),
        *("no races", "at a __syncthreads() between the fetching and the computing"),
    ),
    "fetching is bounded by pixels": (
        *("stage", "if (first + at < 3 * n) ", ""),
        *("stays inside", "Fetching is bounded by 3 * n"),
    ),
    "a shared array that is too short": (
        *("stage", "pixels[384]", "pixels[128]"),
        *("stays inside", "384 floats: that is how long"),
    ),
    "threads return before the barrier": (
        "stage",
        "  int first = blockIdx.x * 384;",
        "  if (blockIdx.x * blockDim.x + threadIdx.x >= n) return;\n"
        "  int first = blockIdx.x * 384;",
        *("barriers", "may still have floats to fetch for others"),
    ),
    "the other dimension is padded": (
        *("transpose", "tile[32][33]", "tile[33][32]"),
        *("shared banks", "neighbours in a column lie in neighbouring banks"),
    ),
    "nobody waits for the tile": (
        *("transpose", "  __syncthreads();\n", ""),
        *("no races", "there must be a __syncthreads()"),
    ),
    "written down the columns": (
        "transpose",
        "int r = blockIdx.y * 32 + threadIdx.x;\n"
        "  for (int k = threadIdx.y; k < 32; k += 8) {\n"
        "    int c = blockIdx.x * 32 + k;\n"
        "    if (r < rows && c < cols) out[c * rows + r] = tile[threadIdx.x][k];",
        "int d = blockIdx.x * 32 + threadIdx.x;\n"
        "  for (int k = threadIdx.y; k < 32; k += 8) {\n"
        "    int r = blockIdx.y * 32 + k;\n"
        "    if (r < rows && d < cols) out[d * rows + r] = tile[k][threadIdx.x];",
        *("bytes moved", "The tile turns it round"),
    ),
    "the tile is not turned": (
        *("transpose", "tile[threadIdx.x][k]", "tile[k][threadIdx.x]"),
        *("one tile", "rows and columns change places"),
    ),
    "a round is missing": (
        *("warp_sum", "d > 0", "d > 1"),
        *("rows of 32", "Fewer rounds"),
    ),
    "a shuffle in a condition": (
        *("warp_sum", "    sum += __shfl", "    if (lane < d) sum += __shfl"),
        *("shuffles", "it must come to the shuffle"),
    ),
    "lanes without a float return": (
        *("warp_sum", "if (row >= rows) return;", "if (row >= rows || lane >= cols) return;"),
        *("shuffles", "A lane without an element adds 0"),
    ),
    "half of the lanes in the mask": (
        *("warp_sum", "0xffffffffu", "0x0000ffffu"),
        *("shuffles", "0xffffffff names all 32"),
    ),
    "each lane a stretch": (
        "warp_sum",
        "for (int c = lane; c < cols; c += 32) sum += x[row * cols + c];",
        "int each = (cols + 31) / 32;\n"
        "  for (int k = 0; k < each; ++k) {\n"
        "    if (lane * each + k < cols) sum += x[row * cols + lane * each + k];\n  }",
        *("bytes moved", "each lane walks a stretch of its own"),
    ),
    "no barrier before the sums are read": (
        *("block_sum", "  __syncthreads();\n", ""),
        *("no races", "who reads another warp's sum must wait for it"),
    ),
    "a barrier for one warp": (
        *("block_sum", "  __syncthreads();\n", "  if (warp == 0) __syncthreads();\n"),
        *("barriers", "cannot stand in an `if` that only some take"),
    ),
    "a place for four warps": (
        *("block_sum", "sums[8]", "sums[4]"),
        *("stays inside", "a place for each of them"),
    ),
    "one warp's sum": (
        *("block_sum", "w < 8", "w < 1"),
        *("rows of 256", "One warp's alone"),
    ),
    "the end is left out": (
        *("wide_loads", "else if (i == n / 4)", "else if (false)"),
        *("4,099", "those three are taken one by one"),
    ),
    "the last group is taken whole": (
        *("wide_loads", "i < n / 4", "i < (n + 3) / 4"),
        *("stays inside", "would reach over the end"),
    ),
    "an offset in floats": (
        *(
            "wide_loads",
            "reinterpret_cast<const float4*>(x)[i]",
            "*reinterpret_cast<const float4*>(x + i)",
        ),
        *("aligned", "begins in the middle of a group"),
    ),
    "three of four": (
        *("wide_loads", "    v.w *= factor;\n", ""),
        *("4,096", "all four of them"),
    ),
    "the sum is not mended": (
        *(
            "online_softmax",
            "s = s * expf(m - larger) + expf(v - larger)",
            "s = s + expf(v - larger)",
        ),
        *("rows of 77", "its own sum must be multiplied too"),
    ),
    "lanes' sums are added as they are": (
        *("online_softmax", "s = s * expf(m - both) + os * expf(om - both)", "s = s + os"),
        *("rows of 32", "each sum is multiplied by exp(its m - m)"),
    ),
    "begins with -inf": (
        *("online_softmax", "-3e38f", "-INFINITY"),
        *("far from 0", "begin with a large negative number"),
    ),
    "every lane for itself": (
        *("online_softmax", "int d = 16; d > 0", "int d = 16; d > 16"),
        *("rows of 32", "not the lane's own"),
    ),
    "empty places in the squares": (
        *("norm_forward", "if (k * 32 + lane < cols) squares", "squares"),
        *("rows of 100", "must add nothing to the squares"),
    ),
    "cols - 1": (
        *("norm_forward", "warp_sum(squares) / cols", "warp_sum(squares) / (cols - 1)"),
        *("rows of 100", "not by cols - 1"),
    ),
    "the mean of squares": (
        *("norm_forward", "squares += away * away", "squares += kept[k] * kept[k] - mean * mean"),
        *("around 1,000", "what is left is noise"),
    ),
    "weight by row": (
        *("norm_forward", "* weight[c]", "* weight[row]"),
        *("rows of 1,024", "weight and bias go with the column"),
    ),
    "the residual is forgotten": (
        *("norm_forward", "a[c] + b[c]", "a[c]"),
        *("rows of 1,024", "s = x + residual"),
    ),
    "the mean of g is forgotten": (
        *("norm_backward", "g[k] - mg - ", "g[k] - "),
        *("one row, dx", "x moves the row's mean"),
    ),
    "the variance is a constant": (
        *("norm_backward", " - h[k] * mgh", ""),
        *("one row, dx", "its variance too"),
    ),
    "rows add as if they were alone": (
        *("norm_backward", "atomicAdd(&dweight[c], up * h[k])", "dweight[c] += up * h[k]"),
        *("no races", "does it in one step"),
    ),
    "x in place of h": (
        *(
            "norm_backward",
            "atomicAdd(&dweight[c], up * h[k])",
            "atomicAdd(&dweight[c], up * x[row * cols + c])",
        ),
        *("one row, dweight", "not of grad * x"),
    ),
    "the tile is overwritten too early": (
        *("gemm_tile", "ws[tx][k];\n    __syncthreads();", "ws[tx][k];"),
        *("no races", "a fast warp overwrites what a slow one still reads"),
    ),
    "the tile is used too early": (
        *("gemm_tile", "    __syncthreads();\n    for", "    for"),
        *("no races", "Two barriers a tile"),
    ),
    "no zeros at the edge": (
        *("gemm_tile", "r < rows && i < ins ? x[r * ins + i] : 0", "x[r * ins + i]"),
        *("stays inside", "must hold 0"),
    ),
    "the bias is left out": (
        *("gemm_tile", "sum + bias[o]", "sum"),
        *("one tile", "the bias of the column"),
    ),
    "the wrong row of weight": (
        *("gemm_tile", "ws[tx][k]", "ws[ty][k]"),
        *("one tile", "weight's row is the thread's x"),
    ),
    "unpadded tiles": (
        *("gemm_tile", "[17]", "[16]"),
        *("shared banks", "pad its rows to 17"),
    ),
    "no fence": (
        *("grid_barrier", "    __threadfence();\n", ""),
        *("no races", "after a __threadfence()"),
    ),
    "one arrival too many is waited for": (
        *("grid_barrier", "< gridDim.x) {", "< gridDim.x + 1) {"),
        *("ends", "The goal is gridDim.x arrivals"),
    ),
    "one arrival too few": (
        *("grid_barrier", "< gridDim.x) {", "< gridDim.x - 1) {"),
        *("no races", "let nobody through before every block has counted itself"),
    ),
    "every thread counts": (
        *("grid_barrier", "if (threadIdx.x == 0) {\n    __thread", "{\n    __thread"),
        *("no races", "thread 0 of each block adds 1"),
    ),
    "a plain look": (
        *("grid_barrier", "while (atomicAdd(arrived, 0u) <", "while (*arrived <"),
        *("no races", "keep it in a register"),
    ),
    "the others do not wait": (
        *("grid_barrier", "    }\n  }\n  __syncthreads();", "    }\n  }"),
        *("no races", "wait for thread 0"),
    ),
    "no barrier between the phases": (
        *("megakernel", "  grid_barrier(arrived);\n", ""),
        *("no races", "between the phases"),
    ),
    "a barrier in the loop": (
        *(
            "megakernel",
            "h[j] = fmaxf(v + b1[j], 0.0f);\n  }\n  grid_barrier(arrived);",
            "h[j] = fmaxf(v + b1[j], 0.0f);\n    grid_barrier(arrived);\n  }",
        ),
        *("no races", "between the phases"),
    ),
    "one block comes to the barrier": (
        *(
            "megakernel",
            "  grid_barrier(arrived);\n",
            "  if (blockIdx.x > 0) grid_barrier(arrived);\n",
        ),
        *("no races", "everyone must meet at grid_barrier"),
    ),
    "a block per row": (
        *("megakernel", "blockIdx.x * 2 + here", "blockIdx.x"),
        *("no races", "that is a race"),
    ),
    "the activation is forgotten": (
        *("megakernel", "fmaxf(v + b1[j], 0.0f)", "v + b1[j]"),
        *("one block", "relu(b1[j]"),
    ),
    # ---- the model, and a function of one's own
    "only the first level": (
        *("in_a_model", "list(model.modules())", "[model[0]]"),
        *("replaced", "lie deeper"),
    ),
    "a number that is written down": (
        *("in_a_model", "kernel, child.scale, child.shift", "kernel, 1.0, 0.3"),
        *("result", "Each gate has a scale and a shift of its own"),
    ),
    "swapped": (
        *("in_a_model", "child.scale, child.shift", "child.shift, child.scale"),
        *("result", "the order is kernel(x, scale, shift)"),
    ),
    "PyTorch's operations again": (
        *(
            "in_a_model",
            "self.kernel(x, self.scale, self.shift)",
            "x * (self.scale * x + self.shift).sigmoid()",
        ),
        *("operations", "one call of the kernel"),
    ),
    "nothing is counted": (
        *("in_a_model", "return found", "return None"),
        *("replaced", "how many gates there were"),
    ),
    "a wrong count": (
        *("your_own", "OPERATIONS = 5", "OPERATIONS = 4"),
        *("operations", "also a product with a number"),
    ),
    "two kernels foretold": (
        *("your_own", "KERNELS = 1", "KERNELS = 2"),
        *("kernels", "shares a kernel with its neighbours"),
    ),
    "no result": (
        *("your_own", "return h *", "h = h *"),
        *("result", "Without `return`"),
    ),
    "a few floats": (
        *("your_own", "1024", "8"),
        *("inputs", "a call costs more than its work"),
    ),
    "random numbers": (
        *("your_own", "torch.sigmoid(gate)", "torch.rand_like(gate)"),
        *("repeats", "Draw them in inputs()"),
    ),
}


def test_every_exercise_has_three_mistakes_that_are_named():
    named = [mistake[0] for mistake in MISTAKES.values()]
    assert not {name: named.count(name) for name in EXERCISES if named.count(name) < 3}
    assert all(len(mistake[4]) > 8 for mistake in MISTAKES.values()), "a sentence for each"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_typical_mistakes(mistake, tmp_path):
    name, right, wrong, what, says = MISTAKES[mistake]
    if not EXERCISES[name].is_python and cpp.find() is None:
        pytest.skip("needs a C++ compiler")
    if what == "for the GPU" and nvrtc.problem() is not None:
        pytest.skip("needs NVRTC")
    text = EXERCISES[name].solution.read_text(encoding="utf-8")
    assert right in text, "the solution has changed"
    found = failed(check(name, written(name, text.replace(right, wrong), tmp_path)))
    assert (found.what, says in found.says) == (what, True), found
    assert "Traceback" not in found.found + found.says


@NEEDS_COMPILER
def test_right_and_uncoalesced(tmp_path):
    """Four neighbours a thread: right everywhere, and four times the sectors."""
    source = """extern "C" __global__ void axpy(Input x, Input y, Output out, float a, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  for (int i = first; i < first + 4 && i < n; ++i) out[i] = a * x[i] + y[i];
}"""
    found = check("cuda_index", written("cuda_index", source, tmp_path))
    wrong = [finding for finding in found if finding.ok is False]
    assert [finding.what for finding in wrong] == ["bytes moved"]
    assert "480,000 asked for, goal 120,000" in wrong[0].found
    assert "16 sectors" in wrong[0].says
    assert "█···█···" in wrong[0].drawn


def test_a_saved_result_is_counted(tmp_path):
    text = EXERCISES["backward"].solution.read_text(encoding="utf-8")
    for right, wrong in (
        ("return mf.swiglu(gate, up)", "return out"),
        ("ctx.save_for", "out = mf.swiglu(gate, up)\n        ctx.save_for"),
        ("ctx.save_for_backward(gate, up)", "ctx.save_for_backward(gate, up, out)"),
        ("gate, up = ctx", "gate, up, _ = ctx"),
    ):
        assert right in text
        text = text.replace(right, wrong)
    found = failed(check("backward", written("backward", text, tmp_path)))
    assert (found.what, found.found[:8]) == ("saved", "12 bytes")
    assert "stays in memory until the backward has run" in found.says


@NEEDS_COMPILER
def test_sums_that_cancel_pass_with_a_word(tmp_path):
    """Sum and sum of squares cut the pass; that they lose digits far from 0 is told."""
    text = EXERCISES["cut_a_pass"].solution.read_text(encoding="utf-8")
    path = written("cut_a_pass", text.replace("first = row[0]", "first = 0"), tmp_path)
    found = check("cut_a_pass", path)
    assert passed(found), found
    (told,) = [finding for finding in found if finding.what == "far from 0"]
    assert "Exercise 6" in told.says


# ---- what is counted


def counts(body: str, folder: Path, size: int = 4096) -> tuple[Counts, torch.Tensor]:
    """What `body` moves, with Input x, Output out and n."""
    path = folder / "code.cpp"
    path.write_text(f"void run(Input x, Output out, long n) {{ {body} }}\n")
    harness = folder / "harness.cpp"
    harness.write_text(
        "void exercise(const Arrays& a, const long long* n) "
        "{ run(a.input(0), a.output(1), long(n[0])); }\n"
    )
    x, out = torch.arange(size, dtype=torch.float32), torch.zeros(size)
    return Native(path, harness).counted({"x": x, "out": out}, (size,)), out


@NEEDS_COMPILER
def test_counted_memory(tmp_path):
    lines = 4096 // 16
    copied, out = counts("for (long i = 0; i < n; ++i) out[i] = x[i];", tmp_path)
    assert (copied.read_lines, copied.written_lines) == (lines, lines)
    assert (copied.read_elements, copied.written_elements) == (4096, 4096)
    assert copied.bytes_moved == 8 * 4096
    assert torch.equal(out, torch.arange(4096.0))

    # 512 lines stay; of 513 read in turn, the next one is always the one that has just gone.
    twice = "for (int k = 0; k < 2; ++k) for (long i = 0; i < n; i += 16) s += x[i];"
    assert counts(f"float s = 0; {twice} out[0] = s;", tmp_path, 512 * 16 - 16)[0].read_lines == 511
    assert counts(f"float s = 0; {twice} out[0] = s;", tmp_path, 513 * 16)[0].read_lines == 1026

    moved = "Input p = x + 3; ++p; p += 2; out[1] = *p + p[-1]; out[1] *= 2; out[0] = out[1];"
    stepped, out = counts(moved, tmp_path)
    assert out[:2].tolist() == [22, 22]
    assert (stepped.read_elements, stepped.written_elements) == (4, 3)


# ---- broken code


@pytest.mark.parametrize(
    ("text", "what", "told"),
    [
        ("def block(:\n    pass\n", "runs", "line 1: "),
        ("def block(*a):\n    return a[0] / 0 + b\n", "runs", "line 2: NameError"),
        ("import sys\nsys.exit(3)\n", "runs", "line 2: SystemExit: 3"),
        ("def block(x, *a):\n    return x[0]\n", "33 × 7", "shape [7], expected [33, 7]"),
        ("def block(x, *a):\n    return x.double()\n", "33 × 7", "dtype float64"),
        ("def block(x, *a):\n    return 3.0\n", "33 × 7", "a float came back"),
    ],
)
def test_broken_python(text, what, told, tmp_path):
    found = failed(check("fuse_chain", written("fuse_chain", text, tmp_path)))
    assert found.what == what
    assert told in found.found


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("text", "what", "told"),
    [
        ("void scale_columns(Input x) {\n  int a = 3\n}\n", "compiles", "line 3: expected"),
        ("void scaled(Input x) {}\n", "compiles", "scale_columns"),
        (
            "void scale_columns(Input x, Input s, Output out, long r, long c) {\n"
            "  out[0] =\n    x[-1];\n}\n",
            *("stays inside", "line 3: x[-1] is read; x has 1073 floats"),
        ),
    ],
)
def test_broken_cpp(text, what, told, tmp_path):
    found = failed(check("walk", written("walk", text, tmp_path)))
    assert found.what == what
    assert told in found.found


@NEEDS_COMPILER
def test_broken_functor_names_the_line(tmp_path):
    text = EXERCISES["functor"].solution.read_text(encoding="utf-8")
    found = failed(check("functor", written("functor", text.replace("value(", "valu("), tmp_path)))
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "value(" in row)
    assert found.what == "compiles"
    assert f"line {line}: " in found.found
    assert "Sigmoid::valu(" in found.says


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print('so far')\nwhile True:\n    pass\n", "still running after 2 s"),
        ("import os\nprint('so far')\nos._exit(5)\n", "ended early, with status 5"),
    ],
)
def test_python_that_does_not_return(text, told, tmp_path):
    path = written("fuse_chain", text, tmp_path)
    report = runner.check(EXERCISES["fuse_chain"], path, "cpu", limit=2)
    assert not report.passed
    assert told in failed(report.findings).found
    assert "while your file was run" in failed(report.findings).says
    assert report.printed == "so far"
    if "still" in told:
        assert re.match("line [23]: ", failed(report.findings).found)


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("volatile int* nowhere = nullptr;\n  *nowhere = 3;", "crashed"),
        ("for (;;) out[0] = 1;", "still running after 3 s"),
    ],
)
def test_cpp_that_does_not_return(body, told, tmp_path):
    head = "void scale_columns(Input x, Input s, Output out, long r, long c) {"
    text = f"{head}\n  out[0] = x[0];\n  {body}\n}}\n"
    report = runner.check(EXERCISES["walk"], written("walk", text, tmp_path), "cpu", limit=3)
    assert told in failed(report.findings).found
    assert re.match("after the access in line [23]: ", failed(report.findings).found)


# ---- without a compiler


@pytest.mark.parametrize("name", ["count_bytes", "fuse_or_not"])
def test_python_exercises_need_none(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    report = runner.check(EXERCISES[name], EXERCISES[name].solution, "cpu")
    assert report.passed, report
    assert not report.printed
