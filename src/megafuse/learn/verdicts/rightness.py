"""Verdicts on errors: what "right" means for floats."""

from __future__ import annotations

from megafuse.learn.verdicts.rule import times


def bits(differ: float, theirs: float, ours: float, fused: bool) -> str:
    """Whether two ways gave the same bits, and which was nearer."""
    if not fused:
        return "They are the same code here, so the same bits: this machine compiles no kernels."
    if differ == 0:
        return "Here they are, in every float. On another machine they may not be."
    text = f"No: {differ:.0%} of the floats differ in their last bits. "
    if differ < 0.005:
        text = "Not everywhere: a few floats differ in their last bits. "
    if ours <= theirs:
        nearer = "at worst the fused one errs no more than PyTorch's"
    elif ours <= 2 * theirs + 1e-6:
        nearer = (
            f"at worst the fused one errs {times(ours / theirs)} as much, within the rule below"
        )
    else:
        return text + "And the fused one errs more than it should: please report that."
    return text + f"Neither is wrong: {nearer}. A test for equal bits would call it a failure."


def orders(results: list[float], exact: float) -> str:
    """Sums of the same numbers in several orders."""
    different = len(set(results))
    if different == 1:
        return "This time all orders agree; with other numbers they will not."
    worst = max(results, key=lambda value: abs(value - exact))
    return (
        f"{different} different results, each of them what its order gives in float32; the worst "
        f"is off by {abs(worst - exact) / abs(exact):.1e} of the sum. A fused kernel adds in an "
        "order of its own, so its last bits are its own too."
    )


def rounding(apart: float, fused: float, really_fused: bool) -> str:
    """bfloat16: mean relative errors of two operations and of one kernel."""
    text = f"Mean error against float64: two operations {apart:.1e}, megafuse {fused:.1e}"
    if not really_fused:
        return text + ", the same, because it runs as two operations here."
    if fused < 0.95 * apart:
        return text + f": fusing made it {times(apart / fused)} as accurate."
    if fused <= 1.05 * apart:
        return text + ": about the same here."
    return text + ": worse here, which it should not be. Please report that."


def too_lax(wrong: float, right: float) -> str:
    """Another formula altogether, and eager's own error."""
    return (
        f"And a tolerance that is too wide tests nothing: another formula altogether, "
        f"x·sigmoid(1.702·x), errs by {wrong:.3f} at most here. A test with atol=0.1 would "
        f"{'let it pass' if wrong < 0.1 else 'just catch it'}; eager's own error is {right:.1e}, "
        f"{wrong / max(right, 1e-12):,.0f} times less."
    )


RULE = (
    "So the rule here is: the error against float64 may be at most twice that of PyTorch's own "
    "operations in the same dtype, plus a rounding or two. It asks of a kernel what PyTorch itself "
    "reaches for these numbers, and it fails when a kernel is wrong. Every op of megafuse is held "
    "to it, NaN and Inf included."
)
