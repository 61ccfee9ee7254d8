// Sine, cosine, tangent and their inverses. Of float on the CPU in double (in_double.h); the
// builtins of double, and on the GPU CUDA's functions.
#pragma once

#include "in_double.h"

namespace mf {

MF_DOUBLE_FUNCTION(sin)
MF_DOUBLE_FUNCTION(cos)
MF_DOUBLE_FUNCTION(tan)
MF_DOUBLE_FUNCTION(asin)
MF_DOUBLE_FUNCTION(acos)
MF_DOUBLE_FUNCTION(atan)

#if MF_ON_GPU
MF_FLOAT_FUNCTION(sin)
MF_FLOAT_FUNCTION(cos)
MF_FLOAT_FUNCTION(tan)
MF_FLOAT_FUNCTION(asin)
MF_FLOAT_FUNCTION(acos)
MF_FLOAT_FUNCTION(atan)

MF_INLINE float atan2(float y, float x) { return ::atan2f(y, x); }
MF_INLINE double atan2(double y, double x) { return ::atan2(y, x); }
#else

// x / pi, less `whole`, a number of half turns that leaves little: `part`, to some 2^-30 of itself
// for every finite x, however large. 1 / pi comes in pieces of 28 bits, of which a product with x
// is exact, and each product leaves out multiples of 2. Their sum cancels from the left, exactly.
struct HalfTurns {
  double pieces[6];
  MF_INLINE explicit HalfTurns(float x) {
    const double wide = x;
    const double inverse_pi[] = {0x1.45f306cp-2, 0x1.c9c882ap-30,  0x1.4fe13a8p-60,
                                 0x1.f47d4dp-87, 0x1.bb81b6cp-114, 0x1.4acc9e21c820fp-144};
    for (int i = 0; i < 5; ++i) {
      const double even = fma(wide, inverse_pi[i], 0x1.8p53) - 0x1.8p53;
      pieces[i] = fma(wide, inverse_pi[i], -even);
    }
    pieces[5] = wide * inverse_pi[5];
  }
  MF_INLINE double about() const {
    return ((pieces[0] + pieces[1]) + (pieces[2] + pieces[3])) + (pieces[4] + pieces[5]);
  }
  MF_INLINE double part(double whole) const {
    return ((((pieces[0] - whole) + pieces[1]) + pieces[2]) + pieces[3]) + (pieces[4] + pieces[5]);
  }
};

// sin(pi part) (-1)^n of x / pi + shift = n + part, |part| <= 1/2.
MF_INLINE float sine(float x, double shift) {
  const HalfTurns turns(x);
  const double shifted = turns.about() + shift + 0x1.8p52;
  const double part = turns.part(shifted - 0x1.8p52 - shift), z = part * part;
  const double s = part * polynomial(z, 3.1415926535231788, -5.1677127620788541, 2.550163239009525,
                                     -0.59925131401198473, 0.08204639857703025,
                                     -0.0070220243580356298);  // sin_pi
  return float(in_double::turned(s, bits_as<u64>(shifted)));
}
MF_INLINE float sin(float x) { return sine(x, 0.0); }
MF_INLINE float cos(float x) { return sine(x, 0.5); }

// t = tan(pi part), or -1 / t, of 2 x / pi = n + 2 part, |part| <= 1/4.
MF_INLINE float tan(float x) {
  const HalfTurns turns(x);
  const double shifted = 2.0 * turns.about() + 0x1.8p52;
  const double part = turns.part(0.5 * (shifted - 0x1.8p52)), z = part * part;
  const double t = part * polynomial(z, 3.1415926538588157, 10.335424868297681, 40.802915899715494,
                                     162.95304614769168, 655.66102018014908, 2441.2348647007498,
                                     14672.143168702003, -18711.802589094419,
                                     583624.51190608914);  // tan_pi
  const bool odd = bits_as<u64>(shifted) & 1;
  return float(select(odd, -1.0, t) / select(odd, t, 1.0));
}

// asin(t) for t = |x| up to 1/2, from there on of the half angle: asin(t) = pi/2 - 2 asin(s), s^2 =
// (1 - t) / 2. Beyond 1 the root is NaN.
struct ArcSine {
  double angle;
  bool small;
  MF_INLINE explicit ArcSine(float x) {
    const double t = abs(double(x));
    small = t < 0.5;
    const double z = select(small, t * t, fma(t, -0.5, 0.5)),
                 s = select(small, t, __builtin_sqrt(z));
    angle = s * polynomial(z, 1.0000000002554248, 0.16666656917531056, 0.075006055440064626,
                           0.044502811019985315, 0.031903153029130035, 0.01413034774218321,
                           0.037898830458031024);  // asin
  }
};
MF_INLINE float asin(float x) {
  const ArcSine arc(x);
  return copysign(float(select(arc.small, arc.angle, fma(arc.angle, -2.0, in_double::pi / 2))), x);
}
MF_INLINE float acos(float x) {
  const ArcSine arc(x);
  const double side = select(x < 0.0f, -1.0, 1.0);
  const double near = fma(arc.angle, -side, in_double::pi / 2);
  const double far = fma(arc.angle, 2.0 * side, select(x < 0.0f, in_double::pi, 0.0));
  return float(select(arc.small, near, far));
}

// atan(t) for t in [0, 1]
MF_INLINE double arc_of_tangent(double t) {
  const double z = t * t;
  return t * polynomial(z, 0.99999999962822217, -0.33333323935170867, 0.19999604634541598,
                        -0.1427915961874755, 0.11054501203306701, -0.087987723797792045,
                        0.067161091320868477, -0.04435752835808425, 0.022274390146975746,
                        -0.0071994031499795202, 0.0010911150599310913);  // atan
}
MF_INLINE float atan(float x) {
  const double t = abs(double(x));
  const bool steep = t > 1.0;
  const double arc = arc_of_tangent(select(steep, 1.0, t) / select(steep, t, 1.0));
  return copysign(float(select(steep, in_double::pi / 2 - arc, arc)), x);
}

// The angle of (x, y). Of two zeros or infinities it is what C says: a multiple of pi / 4.
MF_INLINE float atan2(float y, float x) {
  const double up = abs(double(y)), along = abs(double(x));
  const bool steep = up > along;
  const double low = select(steep, along, up), high = select(steep, up, along);
  const double t = select(low == high, select(high == 0.0, 0.0, 1.0), low / high);
  const double arc = arc_of_tangent(t);
  const double first = select(steep, in_double::pi / 2 - arc, arc);
  const bool back = bits_as<u32>(x) >> 31;
  const double angle = select(back, in_double::pi - first, first);
  return copysign(float(angle), y);
}
MF_INLINE double atan2(double y, double x) { return __builtin_atan2(y, x); }
#endif

}  // namespace mf
