"""ATen → IR, a family of operations in each file; lower.py runs their rules over a traced graph."""

from megafuse.graph.lowering.lower import decompositions, lower

__all__ = ["decompositions", "lower"]
