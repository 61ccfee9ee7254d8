"""The index-th program of a seed, or the index-th network."""

from __future__ import annotations

from megafuse.compiler.fuzz import grammar, network_grammar
from megafuse.compiler.fuzz.program import Program


def generate(seed: int, index: int, modules: bool = False) -> Program:
    return network_grammar.generate(seed, index) if modules else grammar.generate(seed, index)
