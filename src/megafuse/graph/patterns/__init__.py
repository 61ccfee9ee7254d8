"""Parts of a graph that have a better way than the general one, a file for each.

gelu.py         GELU as models write it out → the primitive, which is more accurate and shorter
mish.py         tanh(softplus(x)) → a fraction of exp(x)
gathered.py     one element of each row of what is computed → of what it is computed from
one_term.py     a sum with one term of each row that is not 0 → the term
product.py      a matrix product, and the activation after it → one step of our GEMM family
padded.py       its factors that kernels compute or products share → rows of whole 16 bytes

A pattern takes a Graph and returns another that means the same: CONTRIBUTING.md tells of new ones.
"""

from __future__ import annotations

from megafuse.graph.clean import clean, dead
from megafuse.graph.cost import Device
from megafuse.graph.ir import Graph
from megafuse.graph.patterns.gathered import with_early_gathers
from megafuse.graph.patterns.gelu import whole_gelu
from megafuse.graph.patterns.mish import short_mish
from megafuse.graph.patterns.one_term import without_one_term_sums
from megafuse.graph.patterns.padded import with_padding
from megafuse.graph.patterns.product import PRODUCT, with_products


def matched(graph: Graph, device: Device, rounds: bool) -> Graph:
    """The graph with what was found. `rounds`: rounding="eager", which wants the parts' bits."""
    if not rounds:
        graph = clean(short_mish(whole_gelu(graph)))
    graph = clean(without_one_term_sums(clean(with_early_gathers(graph))))
    if device != "cuda":
        return graph
    graph = clean(with_products(graph, activations=not rounds))
    return dead(with_padding(graph, PRODUCT))


__all__ = ["matched"]
