"""Random programs, fused and held against eager and float64.

python -m megafuse.compiler.fuzz --programs 200 --seed 0 [--modules]

    grammar.py    a random Program: Python source, valid in eager
    network_grammar.py  a random Network: a model, its layers from layers.py
    trial.py      runs one (runs.py), ours (subject.py) and eager, and judges it (judge.py)
    child.py      does so in another process, which may crash
    shrink.py     makes a failing program small
    report.py     a pytest case of it, and the summary
"""

from __future__ import annotations

from megafuse.compiler.fuzz.network import Network
from megafuse.compiler.fuzz.program import Argument, Program, Statement
from megafuse.compiler.fuzz.trial import Outcome, check, trial

__all__ = ["Argument", "Network", "Outcome", "Program", "Statement", "check", "trial"]
