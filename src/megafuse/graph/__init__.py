"""From a traced graph to a program: the IR, capture, the cut into kernels, and what the host runs.

The files, from the bottom up: ir.py (values, graphs; primitives are those of codegen/prims.py),
validate.py and show.py (checks and prints them), interpret.py (runs them with torch, for tests);
capture.py with tracing.py, guards.py, errors.py and origin.py (a Python function to torch's traced
graph), lowering/ (that graph to IR), clean.py (passes over it, with coordinates.py); partition.py
(which values share a kernel), program.py (the steps that the C++ host runtime runs).
"""
