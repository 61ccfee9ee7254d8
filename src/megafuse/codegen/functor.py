"""A Body as the text of a C++ functor: what `fused.source` shows.

    struct GatedScale : Typed<1> {
      double scale;
      MF_INLINE explicit GatedScale(const u64* word) : scale(of_word<double>(word[0])) {}

      MF_INLINE auto operator()(float x, float gate) const {
        // h = x * torch.sigmoid(gate)
        const float h = x * sigmoid(gate);
        // return h * scale
        return h * float(scale);
      }
    };

Row-wise bodies become functors of several functions: row_functor.py.
"""

from __future__ import annotations

from megafuse.codegen.body import Body
from megafuse.codegen.expression import as_stored
from megafuse.codegen.names import type_name
from megafuse.codegen.row_functor import write_row_functor
from megafuse.codegen.scope import Scope
from megafuse.codegen.writer import Lines

NAMESPACE = "mf::generated"


def functor_type(body: Body) -> str:
    """The functor's C++ type, with its namespace."""
    return f"{NAMESPACE}::{type_name(body.name)}"


def functor_text(body: Body, runs: bool = False) -> str:
    """The struct alone: for people. `runs`: as kernels/graph_rows_cpu.h takes it."""
    lines = Lines()
    for line in body.about:
        lines.remark(line)
    scope = Scope(body)
    lines.open(f"struct {type_name(body.name)} : Typed<{body.scalars}> {{")
    write_words(scope, type_name(body.name), lines)
    if body.row_wise:
        write_row_functor(scope, lines, runs)
    else:
        _write_call(scope, lines)
    lines.close("};")
    return str(lines)


def definition(body: Body, runs: bool = False) -> str:
    """The struct in its namespace: for compilers."""
    text = functor_text(body, runs)
    return f"namespace {NAMESPACE} {{\n\n{text}\n}}  // namespace {NAMESPACE}\n"


def write_words(scope: Scope, name: str, lines: Lines) -> None:
    """The numbers that come with each call, and the constructor that reads them."""
    kinds = scope.slot_types()
    for slot, word in scope.slots.items():
        lines.add(f"{kinds[slot]} {word};")
    reads = ", ".join(
        f"{word}(of_word<{kinds[slot]}>(word[{slot}]))" for slot, word in scope.slots.items()
    )
    parameter = "const u64* word" if reads else "const u64*"
    lines.add(f"MF_INLINE explicit {name}({parameter}){' : ' + reads if reads else ''} {{}}")
    lines.add()


def _write_call(scope: Scope, lines: Lines) -> None:
    outputs = scope.body.outputs
    scope.enter()
    stored = [as_stored(term, scope.body.rounds) for term in outputs]
    used = scope.loads(stored)
    lines.open(f"MF_INLINE auto operator()({scope.parameters(used)}) const {{")
    scope.declare(stored, lines)
    for term in stored:
        if not scope.is_known(term):
            lines.comment(term.line)
    lines.add(f"return {scope.packed(stored)};")
    lines.close()
