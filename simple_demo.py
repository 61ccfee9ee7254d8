"""Kernel fusion in two minutes: the same arithmetic, as two operations and as one.

    python simple_demo.py                      on this machine's GPU, or its CPU
    python simple_demo.py --quick              smaller sizes, a few seconds
    python simple_demo.py --html report.html   also the figures, as a page

A processor computes much faster than memory delivers. Two PyTorch operations in a row send the
first result out to memory only to fetch it again:

    x ──> gelu ──> memory ──> multiply ──> memory       2 operations, 16 bytes per float

A fused kernel keeps it in a register:

    x ──> gelu, multiply ──> memory                     1 operation,   8 bytes per float

The two functions below are all that is compared. The rest, in src/megafuse/learn/demo.py, counts
what they do, predicts from that how long they will take, checks that they agree, times them and
explains the numbers it got. Next: tutorial_mega_kernel.py, and LEARN.md.
"""

import sys

from torch import Tensor
from torch.nn import functional as F

import megafuse as mf
from megafuse.learn import demo


def separate(x: Tensor) -> Tensor:
    activated = F.gelu(x, approximate="tanh")  # reads x, writes `activated`
    return activated * demo.SCALE  # reads `activated`, writes the result


def fused(x: Tensor) -> Tensor:
    return mf.gelu_scale(x, demo.SCALE)  # reads x, writes the result


if __name__ == "__main__":
    sys.exit(demo.main(separate=separate, fused=fused))
