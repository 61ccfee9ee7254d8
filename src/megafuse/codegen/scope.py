"""Which terms of a Body get a variable, and how a term reads where it is used.

A term is declared where the user named it, where it is used twice, and where the line would become
too long; else it is written where it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from megafuse.codegen.body import (
    Applied,
    Body,
    Fetched,
    Loaded,
    Reduced,
    Scalar,
    Term,
    Written,
    arguments,
    terms,
)
from megafuse.codegen.expression import Text, expression, register
from megafuse.codegen.names import Names
from megafuse.codegen.writer import Lines

_LONG = 72  # columns of an expression that wants a name


class Scope:
    """The names of a functor, and the text of each term inside one of its functions."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.names = Names()
        self.order = terms(body)
        self.inputs = self._input_names()
        self.slots = self._slot_names()
        self.uses: Counter[Term] = Counter()
        for term in self.order:
            self.uses.update(arguments(term))
        # What is stored in 16 bits is used as it is stored: a backward that reads it computes from
        # it what the forward did. (It looks for the elements that are equal to their maximum.)
        self.stored = {t for t in (*body.outputs, *body.row_outputs) if self.uses[t]}
        self.uses.update((*body.outputs, *body.row_outputs))
        self._texts: dict[Term, Text] = {}
        self._locals = Names(self.names)

    def _input_names(self) -> list[str]:
        wanted = {t.operand: t.name for t in self.order if isinstance(t, Loaded) and t.name}
        return [self.names.fresh(wanted.get(i) or f"in{i}") for i in range(len(self.body.inputs))]

    def _slot_names(self) -> dict[int, str]:
        """Names of the words: numbers by the user's names, of a Fetched its base and strides."""
        named: dict[int, str] = {}
        for term in self.order:
            if isinstance(term, Scalar) and term.slot not in named:
                named[term.slot] = self.names.fresh(term.name or f"number{term.slot}")
            elif isinstance(term, Fetched):
                if term.base not in named:
                    named[term.base] = self.names.fresh(f"{term.name or 'memory'}_at")
                for k, slot in enumerate(term.strides):
                    if slot not in named:
                        named[slot] = self.names.fresh(f"{term.name or 'memory'}_stride{k}")
        return dict(sorted(named.items()))

    def slot_types(self) -> dict[int, str]:
        """What each word is read as."""
        kinds: dict[int, str] = {}
        for term in self.order:
            if isinstance(term, Fetched):
                kinds.setdefault(term.base, "u64")
                kinds.update(dict.fromkeys(term.strides, "i64"))
        scalars = [t for t in self.order if isinstance(t, Scalar)]
        kinds.update({t.slot: register(t.dtype) for t in scalars})
        return kinds

    # ---- texts

    def enter(self, known: dict[Term, str] | None = None) -> None:
        """Begins a function in which these terms have these names already."""
        self._locals = Names(self.names)
        self._texts = {term: Text(name) for term, name in (known or {}).items()}

    def text(self, term: Term) -> Text:
        """How `term` reads here."""
        found = self._texts.get(term)
        if found is not None:
            return found
        if isinstance(term, Loaded):
            return Text(self.inputs[term.operand])
        if isinstance(term, Scalar):
            return Text(self.slots[term.slot])
        assert not isinstance(term, Reduced), "a reduction is known before it is used"
        args = [self.text(arg) for arg in arguments(term)]
        return expression(term, args, self.slots, self.body.rounds or term in self.stored)

    def is_known(self, term: Term) -> bool:
        """Whether it has a name here already."""
        return term in self._texts or isinstance(term, (Loaded, Scalar))

    def know(self, term: Term, name: str) -> None:
        """From here on it is called so."""
        self._texts[term] = Text(name)

    def define(self, term: Term, lines: Lines, text: str | None = None) -> None:
        """A variable for a term: `text`, or its expression."""
        text = text or self.text(term).code
        lines.comment(term.line)
        name = self._locals.fresh(term.name or default_name(term))
        lines.add(f"const {register(term.dtype)} {name} = {text};")
        self.know(term, name)

    def declare(self, wanted: Iterable[Term], lines: Lines) -> None:
        """Writes the statements that the wanted terms need, each after what it is made from."""
        need = self.needed(wanted)
        for term in self.order:
            if term in need and term not in self._texts and self.is_declared(term):
                self.define(term, lines)

    def needed(self, wanted: Iterable[Term]) -> set[Term]:
        """What must be computed here for these: all below them that is not known yet."""
        found: set[Term] = set()
        stack = list(wanted)
        while stack:
            term = stack.pop()
            if term not in found and term not in self._texts:
                found.add(term)
                stack += arguments(term)
        return found

    def loads(self, wanted: Iterable[Term]) -> set[int]:
        """The operands among them."""
        return {t.operand for t in self.needed(wanted) if isinstance(t, Loaded)}

    def parameters(self, used: set[int]) -> str:
        """One element of each operand; those that are not used have no name."""
        return ", ".join(
            f"{register(dtype)} {self.inputs[i]}" if i in used else register(dtype)
            for i, dtype in enumerate(self.body.inputs)
        )

    def packed(self, values: Iterable[Term]) -> str:
        """One value, or a Tuple of several."""
        texts = [self.text(term).code for term in values]
        return texts[0] if len(texts) == 1 else f"Tuple{{{', '.join(texts)}}}"

    def is_declared(self, term: Term) -> bool:
        if isinstance(term, (Loaded, Scalar, Written, Reduced)):
            return False
        if isinstance(term, Applied) and term.prim.name in ("cast", "demote") and not term.name:
            return self.uses[term] > 1 and self.text(term) != self.text(term.args[0])
        return bool(term.name) or self.uses[term] > 1 or len(self.text(term).code) > _LONG


def default_name(term: Term) -> str:
    """For values that the user did not name."""
    if isinstance(term, Applied):
        return f"{term.prim.name}_of" if term.prim.operands == 1 else term.prim.name + "_"
    if isinstance(term, Reduced):
        return {"sum": "total", "prod": "product"}.get(term.kind, f"{term.kind}_")
    return "fetched" if isinstance(term, Fetched) else "value"
