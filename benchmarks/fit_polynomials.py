"""Make the coefficients in kernels/math.h, logarithms.h, activations.h and what is done in double
(in_double.h and what includes it): the c with the least largest |w (c(x) - f(x))|.

Each fit is the better of a Remez exchange and a Lawson iteration (least squares whose weights grow
where the error is large), run in float64 on a Chebyshev grid. Coefficients are then rounded to
float one at a time, the lowest power first, and the rest are fitted again, so that rounding costs
almost nothing. The printed error is that of the rounded coefficients. Those of IN_DOUBLE stay
float64. Takes about 20 s:

    python benchmarks/fit_polynomials.py            # every fit
    python benchmarks/fit_polynomials.py exp tanh   # fits whose name contains one of these words
"""

import sys

import mpmath
import numpy as np

POINTS = 2000


def grid(low, high):
    """Chebyshev points on [low, high]: dense at the ends, where minimax errors peak."""
    angle = np.pi * (np.arange(POINTS) + 0.5) / POINTS
    return 0.5 * (low + high) - 0.5 * (high - low) * np.cos(angle)


def tabulate(function, points):
    """`function` in 40 digits, rounded to float64."""
    with mpmath.workdps(40):
        return np.array([float(function(mpmath.mpf(float(x)))) for x in points])


def lawson(columns, target, iterations=200):
    """c that nearly minimises max |columns @ c - target|: least squares, reweighted by error."""
    weight = np.ones(len(target))
    best, best_error = None, np.inf
    for _ in range(iterations):
        root = np.sqrt(weight)
        solution = np.linalg.lstsq(columns * root[:, None], target * root, rcond=None)[0]
        error = np.abs(columns @ solution - target)
        if error.max() < best_error:
            best, best_error = solution, error.max()
        weight *= error / error.max() + 1e-9
        weight /= weight.sum()
    return best


def remez(columns, target, exchanges=40):
    """The same by exchange: exact where the error alternates, else the best that was seen."""
    points, count = columns.shape
    signs = (-1.0) ** np.arange(count + 1)
    reference = np.linspace(0, points - 1, count + 1).round().astype(int)
    best, best_error = None, np.inf
    for _ in range(exchanges):
        system = np.column_stack([columns[reference], signs])
        solution = np.linalg.lstsq(system, target[reference], rcond=None)[0][:-1]
        error = columns @ solution - target
        if np.abs(error).max() < best_error:
            best, best_error = solution, np.abs(error).max()
        # One extremum per run of equal sign; the smaller end goes until count + 1 are left.
        runs = np.split(np.arange(points), np.flatnonzero(np.diff(np.sign(error))) + 1)
        peaks = [run[np.argmax(np.abs(error[run]))] for run in runs]
        if len(peaks) < count + 1:
            break
        while len(peaks) > count + 1:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        reference = np.array(peaks)
    return best


def minimax(columns, target):
    """The better of both. Columns that vanish inside the interval break the alternation."""
    scale = np.abs(columns).max(axis=0)
    found = [method(columns / scale, target) for method in (remez, lawson)]
    return min(found, key=lambda c: np.abs(columns / scale @ c - target).max()) / scale


def round_in_turn(columns, target, fixed=()):
    """Minimax with float coefficients, column 0 rounded first; the first len(fixed) are given."""
    count = columns.shape[1]
    coefficients = np.zeros(count)
    coefficients[: len(fixed)] = fixed
    for done in range(len(fixed), count):
        rest = target - columns[:, :done] @ coefficients[:done]
        coefficients[done] = np.float32(minimax(columns[:, done:], rest)[0])
    return coefficients, np.abs(columns @ coefficients - target).max()


def polynomial(function, low, high, degree, fixed=(), weight=None):
    """function(x) ~ sum c_i x^i; the error is relative unless a weight(x) is given."""
    return round_in_turn(*weighted(function, low, high, degree, weight), fixed)


def in_double(function, low, high, degree):
    """The same with float64 coefficients."""
    columns, target = weighted(function, low, high, degree)
    coefficients = minimax(columns, target)
    return coefficients, np.abs(columns @ coefficients - target).max()


def weighted(function, low, high, degree, weight=None):
    x = grid(low, high)
    f = tabulate(function, x)
    w = 1 / f if weight is None else weight(x)
    return x[:, None] ** np.arange(degree + 1) * w[:, None], f * w


def normal_tail(y):
    """Phi(-y), the tail of the normal distribution."""
    return mpmath.erfc(y / mpmath.sqrt(2)) / 2


def log2_tail_weight(y):
    """Turns an error of (log2(2 Phi(-y))) / y into one of gelu, 1 being what is wanted: 6.3e-8 of
    the result for y < 1 and 1e-8 from there on (they meet at 1), but 1 % of the tail itself up to
    y = 8. Beyond, 2^2 in the tail: it must only fall to 2^-127, where a float of it is 0."""
    tail = tabulate(normal_tail, y)
    of_gelu = np.log(2) * np.where(y < 1, 1 / 6.3e-8, y * tail * 1e8)
    return y * np.maximum(of_gelu, np.where(y < 8, np.log(2) / 0.01, 1 / 2))


def log2_erfc_weight(y):
    """Turns an error of log2(erfc(y)) / y into a relative error of erf(y)."""
    erfc = tabulate(mpmath.erfc, y)
    return y * erfc / (1 - erfc) * np.log(2)


LN2 = float(np.log(2))
WIDE = 1.001  # the reduced argument may pass the end of its interval by a rounding error

# name: (function, low, high, degree, coefficients that are given, weight or None for 1 / function)
FITS = {
    "exp_wide": (mpmath.exp, -LN2 * WIDE, LN2 * WIDE, 7, (1, 1), None),
    "exp_narrow": (mpmath.exp, -LN2 / 2 * WIDE, LN2 / 2 * WIDE, 6, (1, 1), None),
    "exp2_narrow": (lambda f: mpmath.mpf(2) ** f, -WIDE / 2, WIDE / 2, 5, (1,), None),
    "exp2_minus_1": (lambda f: (mpmath.mpf(2) ** f - 1) / f, -WIDE / 2, WIDE / 2, 5, (), None),
    "tanh": (lambda r: -mpmath.expm1(-2 * r) / (2 * r), -LN2 / 4, LN2 / 4, 5, (1,), None),
    "log2_erfc": (
        lambda y: mpmath.log(mpmath.erfc(y), 2) / y,
        *(1e-6, 4, 8, (), log2_erfc_weight),
    ),
    "log2_normal_tail": (
        lambda y: mpmath.log(2 * normal_tail(y), 2) / y,
        *(1e-6, 13.4, 8, (), log2_tail_weight),
    ),
    "gelu_slope_tail": (
        lambda y: mpmath.exp(y * y / 2) * normal_tail(y) - y / mpmath.sqrt(2 * mpmath.pi),
        *(0, 6, 11, (0.5,), lambda y: np.maximum(np.exp(-y * y / 2), 1e-9)),
    ),
    "expm1": (
        lambda r: (mpmath.expm1(r) - r) / r**2,
        *(-LN2 / 2 * WIDE, LN2 / 2 * WIDE, 5, (0.5,), lambda r: r * r / np.expm1(r)),
    ),
    "log1p": (
        lambda f: (mpmath.log1p(f) - f + f * f / 2) / f**3,
        *(2**-0.5 - 1, 2**0.5 - 1, 7, (), lambda f: f**3 / np.log1p(f)),
    ),
}

TINY = 1e-9  # in place of 0, where the formula divides by it


def of_square(function):
    """function(x) / x of z = x x, for an odd function."""
    return lambda z: function(mpmath.sqrt(z)) / mpmath.sqrt(z)


def scaled_erfc(u):
    """erfc(x) e^(x x) of u = (x - 3) / (x + 3)."""
    x = 3 * (1 + u) / (1 - u)
    return mpmath.exp(x * x) * mpmath.erfc(x)


def inverse_erf(w):
    """erfinv(x) / x of w = -log(1 - x x)."""
    x = mpmath.sqrt(-mpmath.expm1(-w))
    return mpmath.erfinv(x) / x


# name: (function, low, high, degree): good to 2^-29 and better, of the value itself.
IN_DOUBLE = {
    "sin_pi": (of_square(lambda r: mpmath.sin(mpmath.pi * r)), TINY, 0.2501, 5),
    "tan_pi": (of_square(lambda r: mpmath.tan(mpmath.pi * r)), TINY, 0.0626, 8),
    "asin": (of_square(mpmath.asin), TINY, 0.2501, 6),
    "atan": (of_square(mpmath.atan), TINY, 1, 10),
    "ln": (lambda f: mpmath.log1p(f) / f, 2**-0.5 - 1, 2**0.5 - 1.0001, 12),
    "expm1_double": (lambda r: mpmath.expm1(r) / r, -LN2 / 2 * WIDE, LN2 / 2 * WIDE, 6),
    "scaled_erfc": (scaled_erfc, -1, 7.3 / 13.3, 12),
    "erfinv_near": (inverse_erf, TINY, 5, 11),
    "erfinv_far": (lambda s: inverse_erf(s * s), 5**0.5, 4.1, 10),
}


def main(words):
    kinds = (FITS, polynomial, lambda c: f"{c:.9g}f"), (IN_DOUBLE, in_double, lambda c: f"{c:.17g}")
    for fits, fit, spelled in kinds:
        for name, arguments in fits.items():
            if not words or any(word in name for word in words):
                coefficients, error = fit(*arguments)
                print(f"{name}: largest weighted error {error:.3g}")
                print("  " + ", ".join(spelled(c) for c in coefficients))


if __name__ == "__main__":
    main(sys.argv[1:])
