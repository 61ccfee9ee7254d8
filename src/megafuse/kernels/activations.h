// Activation functions and their derivatives, each a struct that kernels take as a parameter:
// value(x) and derivative(x). NaN and Inf give what eager PyTorch gives, float and double; a zero
// of gelu may differ in sign.
#pragma once

#include "math.h"

namespace mf {

// Phi(-y), the normal distribution's tail. Float: 2^(y h(y) - 1) for y in [0, 12.95], where it
// reaches 0; h is fitted so that gelu is within 1.3e-7 of itself for |x| < 1, within 2.1e-8 beyond,
// and the tail within 2.1 % up to y = 8.
MF_INLINE float normal_tail(float y) {
  const float h = polynomial(y, -1.15111029f, -0.459159702f, -0.0526489727f, 0.00728536583f,
                             -0.000303181383f, -0.000121417652f, 2.77533672e-05f, -2.39850124e-06f,
                             7.42567607e-08f);  // log2_normal_tail
#if MF_ON_GPU
  return exp2_in_range(fma(y, h, -1.0f));
#else
  return exp2_in_range<-1>(y * h);  // the -1 costs nothing in the exponent, and no digits near 0
#endif
}
MF_INLINE double normal_tail(double y) {
  constexpr double sqrt_half = 0.70710678118654752440;
#if MF_ON_GPU
  return 0.5 * erfc(y * sqrt_half);
#else
  return 0.5 * __builtin_erfc(y * sqrt_half);
#endif
}

// Phi(-y) - y phi(y) for y >= 0: what gelu'(y) lacks to 1, and gelu'(-y). Float: e^(-y^2 / 2) times
// a polynomial, within 2e-8; exactly 0 from y = 13.25 on. The polynomial's argument stops at 6,
// from where on it is good for the sign and the size only: it would turn positive at 7 and grow,
// while the true factor goes down as -0.4 y. NaN may be lost.
MF_INLINE float gelu_slope_tail(float y) {
  y = at_most(y, 13.25f);
  float r = polynomial(at_most(y, 6.0f), 0.5f, -0.797883451f, 0.249977708f, -0.132826358f,
                       0.0619684272f, -0.0255291816f, 0.00905026961f, -0.00261418591f,
                       0.000571638171f, -8.63993992e-05f, 7.89438309e-06f,
                       -3.2456748e-07f);  // gelu_slope_tail
  return exp2_in_range(y * y * (-0.5f * log2_e)) * r;
}
MF_INLINE double gelu_slope_tail(double y) {
  constexpr double inverse_sqrt_2pi = 0.39894228040143267794;
  y = min(y, 100.0);
  return normal_tail(y) - y * inverse_sqrt_2pi * exp(-0.5 * y * y);
}

// What every smooth activation's gradient is.
template <class Act>
struct Smooth {
  template <class F>
  static MF_INLINE F gradient(F grad, F x) {
    return grad * Act::derivative(x);
  }
};

// max(x, 0)
struct Relu {
  template <class F>
  static MF_INLINE F value(F x) {
    return max(x, F(0));
  }
  // 1 at NaN, as in PyTorch.
  template <class F>
  static MF_INLINE F derivative(F x) {
    return select(x <= F(0), F(0), F(1));
  }
  // Selected, not multiplied: 0 also where the incoming gradient is Inf or NaN.
  template <class F>
  static MF_INLINE F gradient(F grad, F x) {
    return select(x <= F(0), F(0), grad);
  }
};

// x Phi(x) = max(x, 0) - |x| Phi(-|x|): no cancellation in the negative tail, where PyTorch's
// 1 + erf has lost all digits from x = -5.5 on.
struct Gelu : Smooth<Gelu> {
  template <class F>
  static MF_INLINE F value(F x) {
    F y = abs(x);
    F positive_part = fma(F(0.5), x, F(0.5) * y);       // NaN at -Inf, which max(x, 0) would hide
    F c = at_most(y, F(sizeof(F) == 4 ? 12.95 : 100));  // the tail is 0 there: no Inf * 0
    return fma(-c, normal_tail(c), positive_part);
  }
  // Phi(x) + x phi(x); NaN at Inf.
  template <class F>
  static MF_INLINE F derivative(F x) {
#if MF_ON_GPU
    // CUDA's erf and exp are more accurate than the tail below, and there is time for them.
    const F density = F(0.39894228040143267794) * mf::exp(F(-0.5) * x * x);
    return fma(x, density, fma(F(0.5), mf::erf(x * F(0.70710678118654752440)), F(0.5)));
#else
    // The tail itself for x < 0, so that nothing cancels there; 0 x is for Inf and NaN.
    const F tail = gelu_slope_tail(abs(x));
    return fma(x, F(0), select(x < F(0), tail, F(1) - tail));
#endif
  }
};

constexpr double minus_log2_e = -1.44269504088896340736;

// s = 1 / (1 + e) and s (1 - s) = s (s e), e = 2^v: no cancellation for s near 1, no underflow
// before the result does. Both are 0 from the v on where e overflows, as in PyTorch, so that an
// infinite gradient times 0 is NaN there too. NaN may be lost.
template <class F>
struct Logistic {
  F value, slope;
  MF_INLINE explicit Logistic(F v) {
    constexpr F most = sizeof(F) == 4 ? 127 : 1023;
    F e = exp2_flushed(at_most(v, most));
    F s = reciprocal(F(1) + e);
    value = select(v > most, F(0), s);
    slope = value * (s * e);
  }
};

// x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3): equals x (1 + tanh u) / 2 with one exp
// and without its cancellation. The exponent is in base 2.
struct GeluTanh : Smooth<GeluTanh> {
  static constexpr double a = -2.3022081981443248891;  // -2 sqrt(2 / pi) log2(e)
  static constexpr double b = a * 0.044715;

  template <class F>
  static MF_INLINE F value(F x) {
    F v = x * fma(x * x, F(b), F(a));
    return quotient(x, F(1) + exp2_flushed(v));
  }
  // s + s (1 - s) x d(2u)/dx, s = sigmoid(2u)
  template <class F>
  static MF_INLINE F derivative(F x) {
    constexpr double minus_ln2 = -0.69314718055994530942;
    F z = x * x;
    Logistic<F> f(x * fma(z, F(b), F(a)));
    F x_slope = x * fma(z, F(3 * minus_ln2 * b), F(minus_ln2 * a));
    return fma(f.slope, x_slope, f.value);
  }
};

// x / (1 + e^-x)
struct Silu : Smooth<Silu> {
  template <class F>
  static MF_INLINE F value(F x) {
    return x * sigmoid(x);
  }
  // s + s (1 - s) x, s = sigmoid(x)
  template <class F>
  static MF_INLINE F derivative(F x) {
    Logistic<F> f(x * F(minus_log2_e));
    return fma(f.slope, x, f.value);
  }
};

// 1 / (1 + e^-x)
struct Sigmoid : Smooth<Sigmoid> {
  template <class F>
  static MF_INLINE F value(F x) {
    return sigmoid(x);
  }
  // s (1 - s), s = sigmoid(x)
  template <class F>
  static MF_INLINE F derivative(F x) {
    return select(x == x, Logistic<F>(x * F(minus_log2_e)).slope, x);
  }
};

// (e^x - e^-x) / (e^x + e^-x)
struct Tanh : Smooth<Tanh> {
  template <class F>
  static MF_INLINE F value(F x) {
    return tanh(x);
  }
  // 1 - tanh^2 = 4 s (1 - s), s = sigmoid(2x)
  template <class F>
  static MF_INLINE F derivative(F x) {
    return select(x == x, F(4) * Logistic<F>(x * F(2 * minus_log2_e)).slope, x);
  }
};

}  // namespace mf
