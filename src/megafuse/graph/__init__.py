"""From a traced graph to a program: the IR, capture, the cut into kernels, and what the host runs.

The files, from the bottom up: ir.py (values, graphs; primitives are those of codegen/prims.py),
capture.py and lowering/ (torch's traced graph to IR), partition.py (which values share a kernel),
program.py (the steps that the C++ host runtime runs).
"""
