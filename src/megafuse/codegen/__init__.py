"""From arithmetic to source: what a kernel computes, the text of it, and how it is launched.

Which kernel, as data: variant.py (an op's functors, and one of them over certain operands) and
shape.py (its launch); tuning/ chooses the launch, render.py writes the source. What a generated
kernel computes: body.py, made of prims.py. activations.py names those that ops know. Nothing here
compiles or runs anything.
"""
