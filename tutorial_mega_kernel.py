"""Kernel fusion in fifteen minutes: nine steps, each measured on the machine you sit at.

    python tutorial_mega_kernel.py               from the first step on, Enter leads to the next
    python tutorial_mega_kernel.py --list        what the steps are
    python tutorial_mega_kernel.py --step 4      one step alone
    python tutorial_mega_kernel.py --no-pause --html tutorial.html

It climbs two ladders of real kernels, from the naive one to the one that is shipped; the kernels
lie in src/megafuse/learn/ladder/kernels/, the steps in src/megafuse/learn/tutorial/. On a GPU the
CUDA kernels are compiled and run; without one the same arithmetic runs on the CPU.
"""

import sys

from megafuse.learn.tutorial import command

if __name__ == "__main__":
    sys.exit(command.main())
