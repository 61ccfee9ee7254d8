"""A size that would make formulas too long becomes a constant while a model is traced.

Sizes are symbols, so that other batch sizes and lengths run what is there. But torch answers each
question about them ("is this view contiguous?") by rewriting formulas, and where a model pads to
whole windows, cuts, rolls and joins them again (Swin), each layer's sizes are quotients and
remainders of quotients of those before. Torch cannot tell that they are the same sizes again: the
formulas grow with every layer, to thousands of terms, and a model of four layers is not traced
within minutes. So the symbol that occurs most in such a question becomes the number that it is:
the height of an image, and not the batch. Another one is then captured anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

# The longest question about each of eight families of images, sound and text has up to 112 terms.
# TimeSformer's has 178; MobileViT's have 192 and took half of its time, Swin's are soon 1300.
_MOST_TERMS = 128


def constant_while_tracing() -> Callable[[], None]:
    """Until what it returns is called."""
    from torch.fx.experimental import symbolic_shapes

    environment: Any = symbolic_shapes.ShapeEnv
    if not all(hasattr(environment, name) for name in ("_evaluate_expr", "_suppress_guards_tls")):
        return lambda: None  # another torch: its formulas may grow
    usual = environment._evaluate_expr

    def evaluate(self: Any, question: Any, *rest: Any, **how: Any) -> Any:
        if _is_long(question) and not how.get("forcing_spec") and _takes_guards(self):
            _make_constant(self, question)
        return usual(self, question, *rest, **how)

    def revert() -> None:
        environment._evaluate_expr = usual

    environment._evaluate_expr = evaluate
    return revert


def _takes_guards(sizes: Any) -> bool:
    return not (sizes.frozen or sizes._suppress_guards_tls())


def _make_constant(sizes: Any, question: Any) -> None:
    """One symbol after the other, until the question is short."""
    question = sizes.replace(question)
    while _is_long(question):
        symbol = _most_frequent(question)
        value = sizes.evaluate_expr(symbol, forcing_spec=True)  # adds the guard
        question = question.xreplace({symbol: value})


def _is_long(formula: Any) -> bool:
    """Whether it has more than so many terms. Counts no further: this is asked of each question."""
    left, terms = [formula], 0
    while left:
        terms += 1
        if terms > _MOST_TERMS:
            return True
        left += left.pop().args
    return False


def _most_frequent(formula: Any) -> Any:
    """Of its symbols; the first by name where two occur as often."""
    found: Counter[Any] = Counter()
    left = [formula]
    while left:
        term = left.pop()
        if term.is_Symbol:
            found[term] += 1
        left += term.args
    return min(found, key=lambda symbol: (-found[symbol], str(symbol)))
