"""Typical mistakes in the C++ exercises."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "functor": {
        "silu": ("Sigmoid::value", "Silu::value", "float32", "has a factor too many"),
        "relu": ("Sigmoid::value", "Relu::value", "float32", "That is x * relu"),
        "a sigmoid turned round": (
            "Sigmoid::value(scale * x + shift)",
            "F(1) / (F(1) + exp(scale * x + shift))",
            "float32",
            "The sigmoid is turned round",
        ),
        "numbers outside": (
            "Sigmoid::value(scale * x + shift)",
            "scale * Sigmoid::value(x) + shift",
            "float32",
            "scale and shift stand outside",
        ),
        "a sum": ("x * gate", "x + gate", "float32", "x is added to the gate"),
        "scaled twice": ("x * gate", "scale * x * gate", "float32", "in front of the gate, too"),
        "the gate squared": (
            "x * gate",
            "gate * gate",
            "float32",
            "The gate is multiplied by itself",
        ),
        "a float in between": (
            "F gate",
            "float gate",
            "float64",
            "Something in the functor is a `float`",
        ),
        "nothing returned": ("return x * gate;", "", "returns", "ends without `return`"),
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
        "no eps": ("variance + 1e-5f", "variance", "nearly constant", "1e-5 is left out"),
        "eps outside the root": (
            "1 / std::sqrt(variance + 1e-5f)",
            "1 / (std::sqrt(variance) + 1e-5f)",
            "nearly constant",
            "1e-5 is added to the root",
        ),
        "multiplied by the root": (
            "1 / std::sqrt",
            "std::sqrt",
            "short rows",
            "It is multiplied by the root",
        ),
        "the mean is added": (
            "row[c] - first - mean",
            "row[c] - first + mean",
            "short rows",
            "The mean of the distances from the first element is added",
        ),
        "the mean, not its square": (
            "- mean * mean",
            "- mean",
            "short rows",
            "its square belongs there",
        ),
        "the mean of squares": (
            " - mean * mean",
            "",
            "short rows",
            "The square of the mean is not subtracted",
        ),
        "the square is added": (
            "- mean * mean",
            "+ mean * mean",
            "short rows",
            "The square of the mean is added",
        ),
        "squares are not divided": (
            "squares / cols",
            "squares",
            "short rows",
            "The sum of the squares is not divided",
        ),
        "the mean of cols - 1": (
            "sum / cols",
            "sum / (cols - 1)",
            "short rows",
            "The mean was divided by cols - 1",
        ),
        "sums go on": (
            ("  for (long r = 0", "    float sum = 0, squares = 0;\n#"),
            ("  float sum = 0, squares = 0;\n  for (long r = 0", "#"),
            "short rows",
            "The sums go on from row to row",
        ),
        "a quotient of whole numbers": (
            ("sum / cols", "squares / cols"),
            ("sum * (1 / cols)", "squares * (1 / cols)"),
            "short rows",
            "1 / cols is 0",
        ),
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
        "the correction turned round": (
            "std::exp(largest - v) + 1",
            "std::exp(v - largest) + 1",
            "softmax",
            "It is the other way round",
        ),
        "nothing is added": (
            "std::exp(largest - v) + 1",
            "std::exp(largest - v)",
            "softmax",
            "adds nothing itself",
        ),
        "begun anew": (
            "sum = sum * std::exp(largest - v) + 1",
            "sum = 1",
            "softmax",
            "The sum began anew",
        ),
        "begins with 0": ("-3e38f", "0", "below 0", "must begin below any float"),
        "begins with x[0]": ("-3e38f", "x[0]", "masked", "Begin with a largest that is finite"),
        "the largest is left out at the end": (
            "std::exp(x[i] - largest) / sum",
            "std::exp(x[i]) / sum",
            "softmax",
            "The largest is not subtracted where the result",
        ),
        "not divided": (" / sum;", ";", "softmax", "The division by the sum is missing"),
        "exp(x) is added": (
            "std::exp(v - largest)",
            "std::exp(v)",
            "softmax",
            "An element added exp(x) to the sum",
        ),
        "a root": (
            "return squares / n",
            "return std::sqrt(squares / n)",
            "variance",
            "That is the root of the variance",
        ),
        "not divided by n": (
            "return squares / n",
            "return squares",
            "variance",
            "is not divided by n",
        ),
        "both from the old mean": (
            "before * (v - mean)",
            "before * before",
            "around 10,000",
            "Both distances are from the old mean",
        ),
        "divided by i": (
            "before / (i + 1)",
            "before / i",
            "variance",
            "the first element is divided by 0",
        ),
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
            "The sum stayed as it was when a larger one came",
        ),
    },
}
