"""A row-wise Body as a functor of kernels/graph_rows.h: terms, fold, keep and results."""

from __future__ import annotations

import re

from megafuse.codegen.body import Applied, Fetched, Reduced, Term, arguments
from megafuse.codegen.expression import Text, as_stored, register, storage
from megafuse.codegen.row_phases import Phases
from megafuse.codegen.scope import Scope, default_name
from megafuse.codegen.writer import Lines

_KINDS = {
    "sum": "Sum",
    "prod": "Product",
    "amax": "Largest",
    "amin": "Smallest",
    "argmax": "ArgLargest",
    "argmin": "ArgSmallest",
    "any": "Any",
    "all": "All",
    "expsum": "SoftmaxSum",
}


def write_row_functor(scope: Scope, lines: Lines, runs: bool = False) -> None:
    """What is inside the struct, after its words. `runs`: loads that are the same for a run of
    elements are given to its functions, after the operands."""
    _RowWriter(scope, lines, runs).write()


class _RowWriter:
    def __init__(self, scope: Scope, lines: Lines, runs: bool) -> None:
        found = [t for t in scope.order if isinstance(t, Fetched) and t.run is not None]
        self.fetched = found if runs else []
        self.runs: dict[Term, str] = {
            t: scope.names.fresh(t.name or default_name(t)) for t in self.fetched
        }
        self.phases = Phases(scope.body, self.fetched)
        self.scope, self.lines, phases = scope, lines, self.phases
        fields = [term for term in scope.order if phases.is_field(term)]
        self.row = {t: f"row.{scope.names.fresh(t.name or default_name(t))}" for t in fields}
        self.kept = {t: f"kept.{scope.names.fresh(t.name or default_name(t))}" for t in phases.kept}

    def write(self) -> None:
        steps = self.phases.steps
        bits = sum(1 << operand for operand in self.phases.held)
        self.lines.add(f"static constexpr int steps = {steps};")
        self.lines.add(f"static constexpr u32 held = {bits};")
        self._keeps()
        self._struct("Row", self.row)
        kinds = {register(term.dtype) for term in self.row}
        self.lines.add(f"using RowField = {kinds.pop() if len(kinds) == 1 else 'Nothing'};")
        self._kept_fields()
        self._runs()
        for step in range(steps):
            self.lines.add()
            self._keep(step)
            self._terms(step)
            self._fold(step)
        self.lines.add()
        if self.scope.body.outputs:
            self._results()
        if self.scope.body.row_outputs:
            self._row_results()

    # ---- what is known

    def _struct(self, name: str, fields: dict[Term, str]) -> None:
        self.lines.open(f"struct {name} {{")
        for term, text in fields.items():
            self.lines.add(f"{register(term.dtype)} {text.partition('.')[2]};")
        self.lines.close("};")

    def _keeps(self) -> None:
        when = sorted(set(self.phases.kept.values()))
        test = " || ".join(f"step == {step}" for step in when) or "false"
        parameter = "int step" if when else "int"
        self.lines.add(f"static MF_INLINE constexpr bool keeps({parameter}) {{ return {test}; }}")

    def _kept_fields(self) -> None:
        self.lines.add(f"static constexpr int fields = {len(self.kept)};")
        if not self.kept:
            self.lines.add("using Kept = Nothing;")
            return
        self._struct("Kept", self.kept)
        steps = ", ".join(str(self.phases.kept[term]) for term in self.kept)
        self.lines.add(f"static constexpr int kept_in[] = {{{steps}}};")
        for number, name in enumerate(self.kept.values()):
            self.lines.add("template <class K>")
            head = f"static MF_INLINE auto& field(Nth<{number}>, K& kept)"
            self.lines.add(f"{head} {{ return {name}; }}")

    def _known(self, phase: int, with_this: bool) -> dict[Term, str]:
        """Names of what is known in a phase; `with_this`: with what it keeps itself."""
        row: dict[Term, str] = {**self.runs}
        row |= {t: name for t, name in self.row.items() if self.phases.level[t] <= phase}
        last = phase if with_this else phase - 1
        return row | {t: name for t, name in self.kept.items() if self.phases.kept[t] <= last}

    # ---- loads that are the same for a run of elements

    def _runs(self) -> None:
        if not self.runs:
            return
        self.lines.add(f"static constexpr int runs = {len(self.runs)};")
        lengths = [term.run[1] for term in self.fetched if term.run is not None]
        like = ", ".join(str(lengths.index(length)) for length in lengths)
        self.lines.add(f"static constexpr int run_like[] = {{{like}}};")
        for number, (term, length) in enumerate(zip(self.fetched, lengths, strict=True)):
            body = self.lines.inner()
            self.scope.enter()
            self.scope.declare([length], body)
            body.add(f"return {self.scope.text(length).code};")
            self.lines.function(f"MF_INLINE i64 length(Run<{number}>) const", body)
            body = self.lines.inner()
            self.scope.enter(dict.fromkeys(self._turns(term), "run"))
            inputs = self.scope.parameters(self.scope.loads(arguments(term)))
            self.scope.declare(arguments(term), body)
            body.add(f"return {self.scope.text(term).code};")
            head = f"MF_INLINE {register(term.dtype)} load(Run<{number}>, i64 run, {inputs}) const"
            self.lines.function(head, body)

    def _turns(self, load: Fetched) -> list[Term]:
        """Those that say which run it is."""
        return [
            t
            for t in self.scope.order
            if isinstance(t, Applied) and t.prim.name == "floor_div" and t.args == load.run
        ]

    # ---- functions

    def _keep(self, step: int) -> None:
        made = [term for term, phase in self.phases.kept.items() if phase == step]
        if not made:
            return
        self.scope.enter(self._known(step, False))
        body = self.lines.inner()
        used = self.scope.loads(made)
        for term in made:
            self.scope.declare(arguments(term), body)
            body.comment(term.line)
            body.add(f"{self.kept[term]} = {self.scope.text(term).code};")
            self.scope.know(term, self.kept[term])
        self._function("void", f"keep(Step<{step}>, ", ["Kept& kept", "const Row& row"], used, body)

    def _terms(self, step: int) -> None:
        reductions = self.phases.reductions[step]
        wanted = [reduction.arg for reduction in reductions]
        self.scope.enter(self._known(step, True))
        used = self.scope.loads(wanted)
        body = self.lines.inner()
        self.scope.declare(wanted, body)
        for reduction in reductions:
            body.comment(reduction.line)
        listed = ", ".join(self._term(reduction) for reduction in reductions)
        body.add(f"return Tuple{{{listed}}};")
        state = ["const Row& row", "const Kept& kept"]
        self._function("auto", f"terms(Step<{step}>, ", state, used, body)

    def _term(self, reduction: Reduced) -> str:
        text = self.scope.text(reduction.arg)
        kind = register(reduction.arg.dtype)
        if reduction.kind in ("sum", "prod") and register(reduction.dtype) != kind:
            kind = register(reduction.dtype)
            text = Text(f"{kind}({text.code})")
        return f"{_KINDS[reduction.kind]}<{kind}>{{{text.code}}}"

    def _fold(self, step: int) -> None:
        reductions = self.phases.reductions[step]
        self.scope.enter(self._known(step, True))
        body = self.lines.inner()
        for k, reduction in enumerate(reductions):
            self._found(reduction, body, self._total(reduction, f"get<{k}>(found)"))
        for term in self.scope.order:
            if self.phases.uniform[term] and self.phases.level[term] == step + 1:
                self._found(term, body)
        types = ", ".join(register(reduction.dtype) for reduction in reductions)
        state = ["Row& row", f"const Tuple<{types}>& found"]
        self._function("void", f"fold(Step<{step}>, ", state, None, body)

    def _total(self, reduction: Reduced, text: str) -> str:
        """A sum of 16-bit floats is in float, and rounded where the body says so."""
        narrow = reduction.dtype in ("Half", "BFloat16") and reduction.kind in ("sum", "prod")
        if narrow and self.scope.body.rounds:
            return f"rounded<{storage(reduction.dtype)}>({text})"
        return text

    def _found(self, term: Term, body: Lines, text: str | None = None) -> None:
        """What a step finds out about the row: a field, a variable, or text where it is used."""
        if self.scope.is_known(term):
            return
        if term in self.row:
            text = text or self.scope.text(term).code
            body.comment(term.line)
            body.add(f"{self.row[term]} = {text};")
            self.scope.know(term, self.row[term])
        elif text or self.scope.is_declared(term):
            self.scope.define(term, body, text)

    def _results(self) -> None:
        known = self._known(self.phases.steps, True)
        rounds = self.scope.body.rounds
        # What is known has its name; as_stored looks below it, where a field may not reach.
        outputs = [t if t in known else as_stored(t, rounds) for t in self.scope.body.outputs]
        self.scope.enter(known)
        used = self.scope.loads(outputs)
        body = self.lines.inner()
        self._return(outputs, body)
        self._function("auto", "results(", ["const Row& row", "const Kept& kept"], used, body)

    def _row_results(self) -> None:
        outputs = list(self.scope.body.row_outputs)
        self.scope.enter({**self.runs, **self.row})
        used = self.scope.loads(outputs)
        body = self.lines.inner()
        self._return(outputs, body)
        self._function("auto", "row_results(", ["const Row& row"], used, body)

    def _return(self, outputs: list[Term], body: Lines) -> None:
        self.scope.declare(outputs, body)
        for term in outputs:
            if not self.scope.is_known(term):
                body.comment(term.line)
        body.add(f"return {self.scope.packed(outputs)};")

    def _given(self, run: Fetched, text: str) -> str:
        name, kind = self.runs[run], register(run.dtype)
        return f"{kind} {name}" if re.search(rf"\b{name}\b", text) else kind

    def _function(
        self, returns: str, name: str, state: list[str], used: set[int] | None, body: Lines
    ) -> None:
        """Parameters that the body does not use have no name."""
        text = str(body)
        parts = []
        for parameter in state:
            kind, _, word = parameter.rpartition(" ")
            parts.append(parameter if re.search(rf"\b{word}\b[.)]", text) else kind)
        inputs = "" if used is None else self.scope.parameters(used)
        given = [] if used is None else [self._given(t, text) for t in self.fetched]
        listed = ", ".join([*parts, *([inputs] if inputs else []), *given])
        self.lines.function(f"MF_INLINE {returns} {name}{listed}) const", body)
