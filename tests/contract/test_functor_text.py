"""Functors that are text and no header: compiled, run and cached by their text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megafuse.codegen.variant import Functors
from megafuse.registry import OPS, Autograd, Op, Pointwise, op
from megafuse.runtime import build, cpp, loader

pytestmark = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")

TEXT = """
#include "math.h"
#include "pointwise.h"

namespace mf {

template <class F>
struct Generated : Scalars<1> {
  F scale;
  MF_INLINE explicit Generated(const F* s) : scale(s[0]) {}
  MF_INLINE F operator()(F x, F y) const { return fma(x, scale, y); }
};
template <class F>
struct GeneratedBackward : Scalars<1> {
  F scale;
  MF_INLINE explicit GeneratedBackward(const F* s) : scale(s[0]) {}
  MF_INLINE Pack<F, 2> operator()(F grad) const { return {grad * scale, grad}; }
};

}  // namespace mf
"""


@pytest.fixture(scope="module")
def generated() -> Op:
    def generated(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return x * scale + y

    op(
        kernel=Pointwise("Generated<{F}>", "GeneratedBackward<{F}>", text=TEXT),
        autograd=Autograd(grads={"x": 0, "y": 1}),
        flops=(2, 1),
        sample=lambda draw: (draw.full(), draw.full(), 2.0),
    )(generated)
    return OPS.pop("generated")


def run(made: Op, text: str) -> tuple[Tensor, Tensor]:
    """What the op gives with these functors, and what its reference gives."""
    assert made.functors is not None
    build.declare(made.name, replace(made.functors, text=text))
    host = loader.load()
    assert host is not None
    host.forget_kernels()
    found = []
    for call in (made.fused, made.reference):
        x, y = torch.linspace(-2, 2, 35).reshape(7, 5), torch.linspace(0, 1, 5)
        given = x.requires_grad_(), y.requires_grad_()
        out = call(*given, 3.0)
        found.append(
            torch.cat([t.flatten() for t in (out, *torch.autograd.grad(out.sum(), given))])
        )
    return found[0], found[1]


def test_a_text_is_compiled_and_its_edit_is_compiled_again(generated: Op) -> None:
    """Value and gradients, one of them of a broadcast argument; then with another text in the same
    cache."""
    torch.testing.assert_close(*run(generated, TEXT))
    fused, exact = run(generated, TEXT.replace("grad * scale, grad", "grad * scale + F(1), grad"))
    changed = slice(35, 70)  # the gradient of x
    torch.testing.assert_close(fused[changed], exact[changed] + 1)
    torch.testing.assert_close(fused[:35], exact[:35])


def test_an_error_in_a_text_comes_through(generated: Op) -> None:
    with pytest.raises(cpp.CompileError, match="nonsense"):
        run(generated, TEXT.replace("fma(x, scale, y)", "nonsense"))


def test_functors_come_from_a_header_or_from_a_text() -> None:
    for given in ({}, {"header": "swiglu.h", "text": TEXT}):
        with pytest.raises(ValueError, match="header= or text="):
            Functors("Generated<{F}>", **given)
