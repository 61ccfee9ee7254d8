"""Every primitive in every dtype that it takes, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from codegen.bodies import DTYPES, cast, load, op
from codegen.judging import check
from codegen.running import run
from megafuse.codegen.body import Body
from megafuse.codegen.prims import PRIMS

# Every primitive in every dtype; tests/compiler runs most of them through fuse.
pytestmark = pytest.mark.slow

FLOATS = ("Float", "Double", "Half", "BFloat16")
INTEGERS = ("Byte", "Char", "Short", "Int", "Long")
ALL = (*FLOATS, *INTEGERS, "Bool")


def slope(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def derivative(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    return derivative


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


REFERENCE: dict[str, Callable[..., Tensor]] = {
    "minimum": torch.minimum,
    "brief_exp": torch.exp,
    "div": torch.true_divide,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "bit_not": torch.bitwise_not,
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "gelu_slope": slope(F.gelu),
    "gelu_tanh_slope": slope(gelu_tanh),
    "silu_slope": slope(F.silu),
}
SIMPLE = frozenset(  # of float32 no libm: SIMD code
    {"floor", "ceil", "trunc", "round", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "sign"}
    | {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf"}
    | {"isnan", "isinf", "add", "sub", "mul", "div", "minimum", "maximum", "fmin", "fmax"}
    | {"sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh"}
    | {"atanh", "erfc", "erfinv", "pow", "hypot", "fmod", "mod", "floor_div"}
    | {"brief_exp", "copysign", "eq", "ne", "lt", "le", "gt", "ge"}
)
SPECIALS = [0.0, 1e-40, 0.5, 1.5, 2.5, 1.0, 2.0, 3.0, 88.0, 200.0, 3e38, float("inf")]
SPECIALS = [*SPECIALS, *(-x for x in SPECIALS), float("nan")]


def reference(name: str) -> Callable[..., Tensor]:
    return REFERENCE.get(name) or getattr(torch, name)


def dtypes_of(name: str) -> tuple[str, ...]:
    return {
        "float": FLOATS,
        "integer": INTEGERS,
        "bool": ("Bool",),
        "number": (*FLOATS, *INTEGERS),
        "any": ALL,
    }[PRIMS[name].kind]


def values(dtype: str, which: int) -> Tensor:
    """Numbers on all scales with every pair of specials, in an odd number."""
    torch.manual_seed(which)
    kind = DTYPES[dtype]
    if kind == torch.bool:
        return torch.rand(4099) < 0.5
    if not kind.is_floating_point:
        info = torch.iinfo(kind)
        wide = torch.randint(info.min, info.max, (1500,), dtype=torch.int64)
        small = torch.randint(0 if info.min == 0 else -12, 70, (2599,))
        return torch.cat([wide, small]).to(kind)
    near = torch.randn(3000, dtype=torch.float64) * 3
    far = torch.randn(474, dtype=torch.float64) * torch.logspace(-30, 30, 474, dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.tensor(SPECIALS), torch.tensor(SPECIALS))[:, which]
    return torch.cat([near, far, pairs.double()]).to(kind)


def bodies() -> dict[str, tuple[str, list[str]]]:
    """Label → dtype and the primitives of one kernel: those without libm apart, as SIMD code."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name, prim in PRIMS.items():
        if name in ("where", "cast", "demote") or prim.gives == "float":
            continue  # random numbers: tests/compiler/test_random.py
        for dtype in dtypes_of(name):
            label = f"{dtype}-{prim.operands}-{'simple' if name in SIMPLE else 'other'}"
            found.setdefault(label, (dtype, []))[1].append(name)
    return found


BODIES = bodies()


@pytest.mark.parametrize("label", BODIES)
def test_primitives_are_as_accurate_as_eager(label: str) -> None:
    dtype, names = BODIES[label]
    operands = PRIMS[names[0]].operands
    given = [values(dtype, i) for i in range(operands)]
    if not DTYPES[dtype].is_floating_point and dtype != "Bool" and operands == 2:
        given[1] = torch.where(given[1] == 0, torch.ones_like(given[1]), given[1])
    loads = [load(i, dtype) for i in range(operands)]
    body = Body("prims", (dtype,) * operands, tuple(op(name, *loads) for name in names))
    results = run(body, given, given[0].shape)
    for name, got in zip(names, results, strict=True):
        eager = reference(name)(*given)
        wide = [g.double() if g.is_floating_point() else g for g in given]
        exact = reference(name)(*wide)
        if "gelu" in name or "silu" in name:
            # Tails are as good as the whole needs (kernels/activations.h), and fp64's own are off:
            # 1 + erf cancels. x^3 overflows from 1e12 on.
            keep = ~(given[0].abs().double() > 1e12) | given[0].isinf()
            few = 256.0 if dtype == "Double" else 4.0
            check(f"{name} of {dtype}", got[keep], eager[keep], exact[keep], few, least=0.125)
        else:
            # fp64's erfinv is 90 ulps off near 1 by itself.
            few = 256.0 if dtype == "Double" and name in ("erfinv", "digamma", "lgamma") else 4.0
            least = 0.5 if name in ("digamma", "lgamma") else 0.0  # they cross 0
            check(f"{name} of {dtype}", got, eager, exact, few, least)


@pytest.mark.parametrize("source", ALL)
def test_casts_are_as_in_pytorch(source: str) -> None:
    given = values(source, 0)
    if given.is_floating_point():  # beyond an integer's range C++ and so PyTorch promise nothing
        given = given[given.isfinite() & (given.abs() < 2**31)]
    outputs = []
    for target in ALL:
        value = load(0, source)
        outputs.append(op("where", op("eq", value, value), *[cast(value, target)] * 2))
    body = Body("casts", (source,), tuple(outputs))
    for target, got in zip(ALL, run(body, [given], given.shape), strict=True):
        narrow = given.is_floating_point() and target in ("Char", "Short", "Byte")
        keep = given.abs() < 100 if narrow else torch.ones_like(given, dtype=torch.bool)
        if narrow and target == "Byte":
            keep &= given > -1
        expected = given.to(DTYPES[target])
        same = (got == expected) | ((got != got) & (expected != expected))
        assert same[keep].all(), f"{source} to {target}"


def test_where_takes_every_dtype() -> None:
    which = torch.rand(1001) < 0.5
    for dtype in ALL:
        a, b = values(dtype, 0)[:1001], values(dtype, 1)[:1001]
        body = Body(
            "choice",
            ("Bool", dtype, dtype),
            (op("where", load(0, "Bool"), load(1, dtype), load(2, dtype)),),
        )
        (got,) = run(body, [which, a, b], a.shape)
        assert torch.equal(got.nan_to_num(), torch.where(which, a, b).nan_to_num()), dtype


def test_integer_division_by_zero_does_not_trap() -> None:
    for dtype in INTEGERS:
        loads = [load(0, dtype), load(1, dtype)]
        names = ["floor_div", "trunc_div", "mod", "fmod"]
        body = Body("by_zero", (dtype, dtype), tuple(op(name, *loads) for name in names))
        a = torch.tensor([torch.iinfo(DTYPES[dtype]).min, 5, 0]).to(DTYPES[dtype])
        b = torch.tensor([-1 if dtype != "Byte" else 1, 0, 0]).to(DTYPES[dtype])
        got = run(body, [a, b], a.shape)
        assert got[0][1] == 0
        assert got[2][1] == 0
