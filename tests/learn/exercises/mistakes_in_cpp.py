"""Typical mistakes in the C++ exercises."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "functor": {
        "shift is forgotten": (
            "scale * x + shift",
            "scale * x",
            "float32",
            "The shift is left out",
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
            "The product with x is missing",
        ),
        "the wrong activation": (
            "Sigmoid::value",
            "Tanh::value",
            "float32",
            "That is x * tanh(scale * x + shift)",
        ),
    },
    "walk": {
        "the scale of the row": ("scale[c]", "scale[r]", "29 × 37", "The scale is taken by row"),
        "a sum": ("* scale[c]", "+ scale[c]", "29 × 37", "The scale is added"),
        "one scale for all": ("scale[c]", "scale[0]", "29 × 37", "the factor of the first one"),
        "only x is walked down": (
            "= x[r * cols + c]",
            "= x[c * rows + r]",
            "29 × 37",
            "rows became columns",
        ),
        "both are walked down": (
            "[r * cols + c]",
            "[c * rows + r]",
            "29 × 37",
            "was walked at c * rows + r",
        ),
        "rows as a row's length": (
            "[r * cols + c]",
            "[r * rows + c]",
            "29 × 37",
            "it begins at r * cols",
        ),
        "the column is the place modulo rows": (
            "scale[c]",
            "scale[(r * cols + c) % rows]",
            "29 × 37",
            "and not modulo rows",
        ),
        "added to what is not there": (
            "out[r * cols + c] =",
            "out[r * cols + c] +=",
            "written first",
            "`+=` reads before it writes",
        ),
        "not scaled": (" * scale[c]", "", "29 × 37", "The scale is left out"),
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
        "the last column is left out": (
            "c < cols",
            "c < cols - 1",
            "29 × 37",
            "Never written: column 36 of 0 to 36",
        ),
    },
    "cut_a_pass": {
        "the first element stays": (
            "row[c] - first - mean",
            "row[c] - mean",
            "short rows",
            "subtract that element, too",
        ),
        "divided by cols - 1": (
            "squares / cols",
            "squares / (cols - 1)",
            "short rows",
            "was divided by cols - 1",
        ),
        "the root is forgotten": (
            "1 / std::sqrt(variance + 1e-5f)",
            "1 / (variance + 1e-5f)",
            "short rows",
            "The root is forgotten",
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
