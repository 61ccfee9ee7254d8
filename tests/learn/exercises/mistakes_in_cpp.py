"""Typical mistakes in the C++ exercises."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "functor": {
        "shift is forgotten": (
            "scale * x + shift",
            "scale * x",
            "float32",
            "x * sigmoid(1.3 * x - 0.4)",
        ),
        "libm in a functor": (
            '#include "pointwise.h"',
            '#include "pointwise.h"\n#include <cmath>',
            "for the GPU",
            "no system headers",
        ),
        "a functor that is not a product": (
            "x * gate",
            "gate",
            "float32",
            "far on the right it is x",
        ),
        "the wrong activation": (
            "Sigmoid::value",
            "Tanh::value",
            "float32",
            "The result should be x * sigmoid",
        ),
    },
    "walk": {
        "four columns at a time": (
            "  for (long r = 0; r < rows; ++r) {\n    for (long c = 0; c < cols; ++c) {",
            (
                "  for (long b = 0; b < cols; b += 4) for (long r = 0; r < rows; ++r) {\n"
                "    for (long c = b; c < b + 4 && c < cols; ++c) {"
            ),
            "bytes moved",
            "32 bytes travel for each float",
        ),
        "a step too far": (
            "r < rows",
            "r <= rows",
            "stays inside",
            "In C++ nothing stops such an access",
        ),
        "the last column is left out": ("c < cols", "c < cols - 1", "37 × 29", "never written"),
    },
    "cut_a_pass": {
        "divided by cols - 1": (
            "squares / cols",
            "squares / (cols - 1)",
            "short rows",
            "not by cols - 1",
        ),
        "the root is forgotten": (
            "1 / std::sqrt(variance + 1e-5f)",
            "1 / (variance + 1e-5f)",
            "short rows",
            "sqrt(variance + 1e-5)",
        ),
        "a pass too many": (
            "float mean = sum / cols;",
            (
                "sum = 0; for (long c = 0; c < cols; ++c) sum += row[c] - first;\n"
                "    float mean = sum / cols;"
            ),
            "bytes moved",
            "two readings are what is left",
        ),
    },
    "stable_sums": {
        "stable with a pass more": (
            "float largest = -3e38f, sum = 0;",
            (
                "float largest = -3e38f, sum = 0;\n"
                "  for (long i = 0; i < n; ++i) largest = std::fmax(largest, x[i]);\n"
            ),
            "reads",
            "twice would do",
        ),
        "masked first": ("-3e38f", "-INFINITY", "masked", "-inf - (-inf)"),
        "the sum is not mended in C++": (
            "sum = sum * std::exp(largest - v) + 1",
            "sum = sum + 1",
            "softmax",
            "the results add up to 1",
        ),
    },
}
