"""Kernels as text: from what a call needs to the C++ or CUDA source of exactly that kernel.

variant.py and shape.py are the data: an op's functors, which kernel of theirs over which operands,
and how it is launched. tuning/ chooses the launch, render.py writes the source. Nothing here
compiles or runs anything.
"""
