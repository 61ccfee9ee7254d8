"""kernels/portable.h, math.h, activations.h and what is done in double (in_double.h) on this CPU,
compiled as the runtime compiles them.

References are fp64: numpy and math for the functions, PyTorch's float64 for the activations and for
what is done in double. A float64 reference is off by about 1e-9 float ulp, so it stands for the
exact value.
"""

import ctypes
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

KERNELS = Path(__file__).resolve().parents[1] / "src" / "megafuse" / "kernels"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math"]

FUNCTIONS = ["exp", "sigmoid", "tanh", "erf", "abs", "rint_even", "reciprocal"]
ACTIVATIONS = {
    "Relu": F.relu,
    "Gelu": F.gelu,
    "GeluTanh": lambda x: F.gelu(x, approximate="tanh"),
    "Silu": F.silu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
}
IN_DOUBLE = ["sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"]
IN_DOUBLE += ["erfc", "erfinv"]
OF_TWO = ["pow", "atan2", "hypot", "fmod", "mod", "floor_div"]
SPECIALS = [0.0, 1e-40, 88.0, 200.0, 3e38, math.inf, math.nan]
SPECIALS += [-x for x in SPECIALS]


def loops():
    """name -> (C++ type out, type in, expression of x)"""
    table = {}
    for kind in ("float", "double"):
        for name in FUNCTIONS:
            table[f"{name}_{kind}"] = (kind, kind, f"mf::{name}(x)")
        for name in ("min", "max"):
            table[f"{name}_{kind}"] = (kind, kind, f"mf::{name}(x, {kind}(0.5))")
        for name in ACTIVATIONS:
            for part in ("value", "derivative"):
                table[f"{name}_{part}_{kind}"] = (kind, kind, f"mf::{name}::{part}(x)")
    for name in IN_DOUBLE:
        table[f"{name}_float"] = ("float", "float", f"mf::{name}(x)")
    for name in OF_TWO:
        table[f"{name}_float"] = ("float", "float", f"mf::{name}(x, y)")
    for name in ("half", "bfloat16"):
        table[f"from_{name}"] = ("float", f"mf::{name}", "mf::to_float(x)")
        table[f"to_{name}"] = (f"mf::{name}", "float", f"mf::to_{name}(x)")
    return table


class Library:
    def __init__(self, directory):
        lines = ['#include "prims.h"']
        self.line = {}
        for name, (out, into, expression) in loops().items():
            self.line[name] = len(lines) + 1
            lines.append(
                f'extern "C" void {name}({out}* __restrict o, const {into}* __restrict a, '
                f"const {into}* __restrict b, long n) {{ for (long i = 0; i < n; ++i) "
                f"{{ {into} x = a[i]; [[maybe_unused]] {into} y = b[i]; o[i] = {expression}; }} }}"
            )
        source, binary = directory / "loops.cpp", directory / "loops.so"
        source.write_text("\n".join(lines) + "\n")
        command = [COMPILER, *FLAGS, "-shared", "-fPIC", f"-I{KERNELS}", source, "-o", binary]
        version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True).stdout
        self.is_gcc = "Free Software Foundation" in version
        if self.is_gcc:
            # Without -fno-ipa-icf two equal loops are merged and reported once.
            command += ["-fopt-info-vec-optimized", "-fno-ipa-icf"]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        pattern = r"loops\.cpp:(\d+):\d+: optimized: loop vectorized"
        self.vectorised = {int(n) for n in re.findall(pattern, result.stderr)}
        self.library = ctypes.CDLL(str(binary))

    def __call__(self, name, x, dtype=None, y=None):
        x = np.ascontiguousarray(x)
        y = x if y is None else np.ascontiguousarray(y)
        out = np.empty(x.shape, dtype or x.dtype)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, x, y)]
        getattr(self.library, name)(*pointers, ctypes.c_long(x.size))
        return out


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler: set CXX, or put g++ or clang++ on PATH")
    return Library(tmp_path_factory.mktemp("math"))


def every_exponent(count=4_000_000):
    """Random bit patterns: all exponents, both signs, subnormals; then where functions bend."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = random.uniform(-20, 20, count // 2).astype(np.float32)
    far = random.uniform(-110, 110, count // 2).astype(np.float32)
    return np.concatenate([bits[np.isfinite(bits)], near, far])


def error_in_ulp(value, exact):
    """|value - exact| in units of the last place of exact as a float; 2^-149 below the normals."""
    _, exponent = np.frexp(exact)
    return np.abs(value - exact) / np.ldexp(1.0, np.maximum(exponent - 24, -149))


REFERENCE = {
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": lambda x: torch.erf(torch.from_numpy(x)).numpy(),
    "abs": np.abs,
    "reciprocal": lambda x: 1 / x,
}
# Half an ulp is perfect rounding; 2 is what eager PyTorch's vector functions promise.
LIMIT = {"exp": 2, "sigmoid": 2, "tanh": 2.01, "erf": 2, "abs": 0, "reciprocal": 0.5}


@pytest.mark.parametrize("name", LIMIT)
def test_error_against_float64(library, name):
    x = every_exponent()
    value = library(f"{name}_float", x)
    with np.errstate(over="ignore", divide="ignore"):
        exact = REFERENCE[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    error = error_in_ulp(value[finite].astype(np.float64), exact[finite])
    worst = error.argmax()
    assert error[worst] <= LIMIT[name], f"{error[worst]:.2f} ulp at {x[finite][worst]!r}"
    assert np.array_equal(value[~finite], rounded[~finite])


def of_torch(name, *operands):
    """PyTorch's function of these numpy arrays in float64."""
    function = getattr(torch, name, None) or getattr(torch.special, name)
    return function(*(torch.from_numpy(x).double() for x in operands)).numpy()


def assert_half_an_ulp(name, value, exact, *operands):
    """The nearest float, or next to it where the exact value is all but half way; where that is 0,
    Inf or NaN, just that, with its sign."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    error = error_in_ulp(value[finite].astype(np.float64), exact[finite])
    worst = error.argmax()
    where = [float(x[finite][worst]) for x in operands]
    assert error[worst] <= 0.52, f"{name}: {error[worst]:.2f} ulp at {where}"
    np.testing.assert_array_equal(value[~finite], rounded[~finite])
    nothing = rounded == 0
    np.testing.assert_array_equal(np.signbit(value[nothing]), np.signbit(rounded[nothing]))


def with_specials(x):
    return np.concatenate([x, np.array([*SPECIALS, 0.5, -0.5, 1.0, -1.0], np.float32)])


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_DOUBLE)
def test_what_is_done_in_double(library, name):
    """Everywhere, also where arguments are so large that 2 pi has to be known to 200 bits."""
    inside = np.random.default_rng(1).uniform(-1, 1, 1_000_000).astype(np.float32)
    x = with_specials(np.concatenate([every_exponent(2_000_000), inside]))
    assert_half_an_ulp(name, library(f"{name}_float", x), of_torch(name, x), x)


def pairs(name):
    """All exponents in both, then what is near, then every pair of specials."""
    random = np.random.default_rng(2)
    x, y = every_exponent(1_000_000), random.permutation(every_exponent(1_000_000))
    low = 0 if name == "pow" else -20
    near = [random.uniform(low, 20, 500_000).astype(np.float32) for _ in range(2)]
    whole = [random.integers(-20, 20, 100_000).astype(np.float32) for _ in range(2)]
    special = [x.ravel() for x in np.meshgrid(*[with_specials(np.arange(-5, 6))] * 2)]
    n = min(x.size, y.size)
    parts = [x[:n], y[:n]], near, whole, special
    return tuple(np.concatenate(side).astype(np.float32) for side in zip(*parts, strict=True))


@pytest.mark.parametrize("name", ["pow", "atan2", "hypot"])
def test_what_is_done_of_two_in_double(library, name):
    x, y = pairs(name)
    assert_half_an_ulp(name, library(f"{name}_float", x, y=y), of_torch(name, x, y), x, y)


def test_remainders_are_exact(library):
    """fmod is; the quotient by which PyTorch makes the others of it is float's."""
    x, y = pairs("fmod")
    with np.errstate(all="ignore"):
        left = np.fmod(x, y)
        below = (left != 0) & ((left < 0) != (y < 0))
        mod = np.where(below, left + y, left)
    for name, expected in (("fmod", left), ("mod", mod)):
        value = library(f"{name}_float", x, y=y)
        np.testing.assert_array_equal(value, expected)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(value[number]), np.signbit(expected[number]))
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    expected = torch.div(a, b, rounding_mode="floor").numpy()
    np.testing.assert_array_equal(library("floor_div_float", x, y=y), expected)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_and_at_most_one(library, name):
    x = np.abs(every_exponent(1_000_000))
    value = library(f"{name}_float", x)
    assert value.max() == 1.0
    assert np.array_equal(library(f"{name}_float", -x), -value)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS[:4])
def test_limits(library, name, kind):
    suffix = "float" if kind is np.float32 else "double"
    low, zero = {"exp": (0, 1), "sigmoid": (0, 0.5), "tanh": (-1, 0), "erf": (-1, 0)}[name]
    high = math.inf if name == "exp" else 1
    x = np.array([-math.inf, -3e38, -0.0, 0.0, 3e38, math.inf, math.nan, -math.nan], kind)
    expected = np.array([low, low, zero, zero, high, high, math.nan, math.nan], kind)
    np.testing.assert_array_equal(library(f"{name}_{suffix}", x), expected)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_min_and_max_keep_nan(library, kind):
    suffix = "float" if kind is np.float32 else "double"
    x = np.array([math.nan, -math.nan, 0.25, 0.5, 0.75, math.inf, -math.inf], kind)
    np.testing.assert_array_equal(library(f"min_{suffix}", x), np.minimum(x, kind(0.5)))
    np.testing.assert_array_equal(library(f"max_{suffix}", x), np.maximum(x, kind(0.5)))


def test_rint_even(library):
    ties = np.arange(-(2**22) + 1, 2**22, dtype=np.float32) / 2
    x = np.concatenate([ties, np.random.default_rng(0).uniform(-2e6, 2e6, 10**6)], dtype=np.float32)
    np.testing.assert_array_equal(library("rint_even_float", x), np.rint(x))


def eager(name, x):
    """PyTorch's value and derivative, element by element where it matters: its vector path gives
    gelu(Inf) = NaN, its scalar path Inf."""
    x = x.clone().requires_grad_()
    value = ACTIVATIONS[name](x)
    (slope,) = torch.autograd.grad(value, x, torch.ones_like(value))
    return {"value": value.detach(), "derivative": slope}


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("part", ["value", "derivative"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_specials(library, name, part, kind):
    x = torch.tensor(SPECIALS, dtype=getattr(torch, kind))
    expected = torch.cat([eager(name, one)[part] for one in x.split(1)])
    actual = torch.from_numpy(library(f"{name}_{part}_{kind}", x.numpy()))
    # 1e-30: eager float gelu is 0 from -5.5 on, ours goes on to 1e-38.
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("part", ["value", "derivative"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_error(library, name, part):
    """At most twice eager's error, relative to max(1, |exact|), or 3 ulp of 1 if that is more."""
    x = torch.cat([torch.linspace(-20, 20, 1_000_001), torch.linspace(-200, 200, 100_001)])
    exact = eager(name, x.double())[part]
    scale = exact.abs().clamp(min=1)
    theirs = ((eager(name, x)[part].double() - exact).abs() / scale).max()
    ours = torch.from_numpy(library(f"{name}_{part}_float", x.numpy())).double()
    error = (ours - exact).abs() / scale
    worst = error.argmax()
    limit = max(2 * float(theirs), 3 * 2**-23)
    assert error[worst] <= limit, f"{error[worst] * 2**23:.2f} ulp at {x[worst]:.6g}"
    double = torch.from_numpy(library(f"{name}_{part}_double", x.double().numpy()))
    assert ((double - exact).abs() / scale).max() < 1e-14


def normal_tail(y):
    """Phi(-y), which math.erfc gives to every digit where 1 + erf has none left."""
    return np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in y.astype(np.float64)])


def test_gelu_negative_tail(library):
    """Where 1 + erf(x) has no digit left: within 3 % of x Phi(x) down to x = -8, and 0 in the end,
    with no step up on the way."""
    x = np.linspace(-8, -1, 10_001, dtype=np.float32)
    exact = x.astype(np.float64) * normal_tail(-x)
    assert np.abs(library("Gelu_value_float", x) / exact - 1).max() < 0.03
    far = library("Gelu_value_float", np.linspace(-100, -8, 100_001, dtype=np.float32))
    assert np.all(np.diff(far) <= 0)
    assert far[0] == 0


def test_gelu_near_zero(library):
    """4 eps of the result itself: 1.1 from the fit, the rest from rounding. Eager is within 1.1."""
    x = np.linspace(-1, 1, 200_000, dtype=np.float32)  # an even number of points leaves out 0
    exact = x.astype(np.float64) * normal_tail(-x)
    assert np.abs(library("Gelu_value_float", x) / exact - 1).max() < 4 * 2**-23
    tiny = np.linspace(-1e-3, 1e-3, 20_000, dtype=np.float32)
    exact = tiny.astype(np.float64) * normal_tail(-tiny)
    assert np.abs(library("Gelu_value_float", tiny) / exact - 1).max() < 1.5 * 2**-23


def test_gelu_slope_far_out(library):
    """Phi(x) + x phi(x) is negative below -0.76, and so is ours as long as it is not 0."""
    x = np.linspace(-20, -1, 100_001, dtype=np.float32)
    slope = library("Gelu_derivative_float", x).astype(np.float64)
    y = -x.astype(np.float64)
    density = np.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    exact = normal_tail(y) - y * density
    assert np.all(slope <= 0)
    assert np.all(slope[x > -13] < 0)
    assert np.abs(slope - exact).max() < 1e-7  # the fit 2e-8, the rest rounding
    beyond = (x < -6) & (x > -13)
    assert np.abs(np.log2(slope[beyond] / exact[beyond])).max() < 1


@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_widening_is_exact(library, name):
    bits = np.arange(2**16, dtype=np.uint16)
    dtype = getattr(torch, name)
    expected = torch.from_numpy(bits.view(np.int16)).view(dtype).float().numpy()
    np.testing.assert_array_equal(library(f"from_{name}", bits, np.float32), expected)


@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_narrowing_rounds_to_nearest_even(library, name):
    """Around every value of the 16-bit type and every tie between two of them, and at random."""
    dtype = getattr(torch, name)
    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float().numpy()
    around = values.view(np.uint32)[:, None]
    half_step = np.uint32(2**12 if name == "half" else 2**15)
    offsets = np.array([0, half_step - 1, half_step, half_step + 1, 2 * half_step], np.uint32)
    random = np.random.default_rng(1).integers(0, 2**32, 8_000_000, dtype=np.uint32)
    tiny = np.arange(-(2**12), 2**12) * 2.0**-26  # half's subnormals, with their ties
    near_tiny = np.nextafter(tiny.astype(np.float32), np.float32(np.inf))
    x = np.concatenate([(around + offsets).ravel(), (around - offsets).ravel(), random])
    x = np.concatenate([x.view(np.float32), tiny.astype(np.float32), near_tiny, -near_tiny])
    expected = torch.from_numpy(x).to(dtype)
    actual = torch.from_numpy(library(f"to_{name}", x, np.int16)).view(dtype)
    number = ~torch.from_numpy(np.isnan(x))
    assert bool(actual[~number].isnan().all())
    assert torch.equal(actual[number].view(torch.int16), expected[number].view(torch.int16))


def test_float_loops_are_vectorised(library):
    if not library.is_gcc:
        pytest.skip("only GCC reports what it vectorised in a form this test reads")
    scalar = [n for n, line in library.line.items() if line not in library.vectorised]
    assert not [name for name in scalar if not name.endswith("_double")]
