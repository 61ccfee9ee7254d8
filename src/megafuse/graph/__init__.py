"""From a traced graph to a program: the IR, capture, the cut into kernels, and what the host runs.

The files, from the bottom up: prims.py (what an element can go through), ir.py (values, graphs),
capture.py and lowering/ (torch's traced graph to IR), partition.py (which values share a kernel),
program.py (the steps that the C++ host runtime runs).
"""
