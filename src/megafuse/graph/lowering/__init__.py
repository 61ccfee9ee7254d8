"""ATen → IR, a family of operations in each file; lower.py runs their rules over a traced graph."""

from megafuse.graph.lowering.lower import lower  # first: the rules must be there

from megafuse.graph.lowering.decompose import decompositions  # isort: skip

__all__ = ["decompositions", "lower"]
