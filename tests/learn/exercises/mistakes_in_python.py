"""Typical mistakes in the Python exercises."""

from __future__ import annotations

from exercises.checked import Mistakes

MISTAKES: Mistakes = {
    "count_bytes": {
        "one pass counted as separate": (
            '"separate": 20',
            '"separate": 12',
            "swiglu",
            "PyTorch writes each result out and reads it back",
        ),
        "a byte count too low": (
            '"separate": 24',
            '"separate": 16',
            "scale_bias_sigmoid",
            "8 too few",
        ),
        "a fused count too high": (
            '"separate": 24, "fused": 8',
            '"separate": 24, "fused": 24',
            "scale_bias_sigmoid",
            "stays in a register",
        ),
        "a row is missing": ('"swiglu"', '"swish"', "swiglu", "Keep the form of the starter"),
    },
    "fuse_chain": {
        "half fused": (
            "mf.add_mul_add(h, residual, scale, shift)",
            "(h + residual) * scale + shift",
            "operations",
            "4 operations are 4 launches",
        ),
        "the wrong gelu": ('"gelu"', '"relu"', "33 × 7", "The activation is relu"),
        "a function is gone": ("def block", "def blocks", "complete", "The check calls `block`"),
        "nothing is returned": ("return ", "h = ", "33 × 7", "without `return`"),
    },
    "backward": {
        "the derivative of sigmoid, not of silu": (
            "slope = s + gate * s * (1 - s)",
            "slope = s * (1 - s)",
            "of gate",
            "The slope is that of sigmoid",
        ),
        "saves what it could recompute": (
            "ctx.save_for_backward(gate, up)",
            "ctx.save_for_backward(gate, up)\n        ctx.s = torch.sigmoid(gate)",
            "forward",
            "in one launch",
        ),
        "leaves it to the library": (
            "swiglu = Swiglu.apply",
            "swiglu = mf.swiglu",
            "by hand",
            "The exercise is the Function",
        ),
    },
    "fuse_or_not": {
        "own loops for a large product": (
            '"fuse": False, "number": 2 *',
            '"fuse": True, "number": 2 *',
            "gemm",
            "waits for arithmetic",
        ),
        "a count that is off": ("28 / 12", "28 / 8", "chain", "count as in exercise 1"),
        "fuse is a word": (
            '"fuse": True, "number": 28',
            '"fuse": "yes", "number": 28',
            "chain",
            "fuse is True or False",
        ),
    },
    "in_a_model": {
        "only the first level": ("list(model.modules())", "[model[0]]", "replaced", "lie deeper"),
        "a number that is written down": (
            "kernel, child.scale, child.shift",
            "kernel, 1.0, 0.3",
            "result",
            "All three gates have the numbers of gate 1",
        ),
        "swapped": (
            "child.scale, child.shift",
            "child.shift, child.scale",
            "result",
            "scale and shift have changed places",
        ),
        "PyTorch's operations again": (
            "self.kernel(x, self.scale, self.shift)",
            "x * (self.scale * x + self.shift).sigmoid()",
            "operations",
            "one call of the kernel",
        ),
        "nothing is counted": (
            "return found",
            "return None",
            "replaced",
            "how many gates there were",
        ),
    },
    "your_own": {
        "a wrong count": (
            "OPERATIONS = 5",
            "OPERATIONS = 4",
            "operations",
            "also a product with a number",
        ),
        "two kernels foretold": (
            "KERNELS = 1",
            "KERNELS = 2",
            "kernels",
            "shares a kernel with its neighbours",
        ),
        "no result": ("return h *", "h = h *", "result", "Without `return`"),
        "a few floats": ("1024", "8", "inputs", "a call costs more than its work"),
        "random numbers": (
            "torch.sigmoid(gate)",
            "torch.rand_like(gate)",
            "repeats",
            "Draw them in inputs()",
        ),
    },
}
