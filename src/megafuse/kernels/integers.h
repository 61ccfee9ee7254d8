// Integer arithmetic as PyTorch does it: at the width of the type, wrapping around, with Python's
// signs where it divides. What PyTorch refuses (division by 0) gives 0 and does not trap.
#pragma once

#include "math.h"

namespace mf {

template <class T>
constexpr bool is_signed = T(-1) < T(0);

// Unsigned, so that overflow is defined, and no wider than the processor likes.
template <int kBytes>
struct Unsigned {
  using type = u32;
};
template <>
struct Unsigned<8> {
  using type = u64;
};
template <class T>
using Wrapping = typename Unsigned<sizeof(T)>::type;

template <class T>
MF_INLINE T add(T a, T b) {
  return T(Wrapping<T>(a) + Wrapping<T>(b));
}
template <class T>
MF_INLINE T sub(T a, T b) {
  return T(Wrapping<T>(a) - Wrapping<T>(b));
}
template <class T>
MF_INLINE T mul(T a, T b) {
  return T(Wrapping<T>(a) * Wrapping<T>(b));
}
template <class T>
MF_INLINE T neg(T a) {
  return T(Wrapping<T>(0) - Wrapping<T>(a));
}

// select of math.h for whatever is no float.
template <class T>
MF_INLINE T select(bool which, T a, T b) {
  return which ? a : b;
}

// A divisor that cannot trap: 1 for 0, and for -1, which the smallest number cannot be divided by.
template <class T>
MF_INLINE bool divides_badly(T b) {
  return b == T(0) || (is_signed<T> && b == T(-1));
}
template <class T>
MF_INLINE T trunc_div(T a, T b) {
  const T q = T(a / (divides_badly(b) ? T(1) : b));
  return b == T(0) ? T(0) : (divides_badly(b) ? neg(a) : q);
}
template <class T>
MF_INLINE T fmod(T a, T b) {
  return divides_badly(b) ? T(0) : T(a % (divides_badly(b) ? T(1) : b));
}
// Whether both are below 2^32, as places and sizes nearly always are, and b is no 0: the GPU
// divides 32 bits in a fifth of the time.
template <class T>
MF_INLINE bool divides_briefly(T a, T b) {
#if MF_ON_GPU
  return sizeof(T) == 8 && b != T(0) && (u64(a) | u64(b)) >> 32 == 0;
#else
  return false;
#endif
}
template <class T>
MF_RARELY T mod_at_length(T a, T b) {
  const T r = fmod(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? add(r, b) : r;
}
template <class T>
MF_RARELY T floor_div_at_length(T a, T b) {
  const T q = trunc_div(a, b), r = fmod(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? sub(q, T(1)) : q;
}
template <class T>
MF_INLINE T mod(T a, T b) {
  return divides_briefly(a, b) ? T(u32(a) % u32(b)) : mod_at_length(a, b);
}
template <class T>
MF_INLINE T floor_div(T a, T b) {
  return divides_briefly(a, b) ? T(u32(a) / u32(b)) : floor_div_at_length(a, b);
}

// a^b; for negative b what rounding towards 0 leaves of it.
template <class T>
MF_INLINE T pow(T a, T b) {
  if (b < T(0)) {
    const T odd = b & T(1) ? a : T(1);
    return a == T(1) || (is_signed<T> && a == T(-1)) ? odd : T(0);
  }
  T result = T(1);
  for (; b > T(0); b = T(b >> 1), a = mul(a, a))
    if (b & T(1)) result = mul(result, a);
  return result;
}

template <class T>
MF_INLINE T bit_not(T a) {
  return T(~a);
}
template <class T>
MF_INLINE T bit_and(T a, T b) {
  return T(a & b);
}
template <class T>
MF_INLINE T bit_or(T a, T b) {
  return T(a | b);
}
template <class T>
MF_INLINE T bit_xor(T a, T b) {
  return T(a ^ b);
}

// Beyond the width nothing is left but, to the right, the sign.
template <class T>
MF_INLINE T shift_left(T a, T b) {
  const bool inside = b >= T(0) && b < T(sizeof(T) * 8);
  return inside ? T(Wrapping<T>(a) << (inside ? b : T(0))) : T(0);
}
template <class T>
MF_INLINE T shift_right(T a, T b) {
  constexpr T most = T(sizeof(T) * 8 - is_signed<T>);
  const T by = b < T(0) || b > most ? most : b;
  return T(a >> by);
}

template <class T>
MF_INLINE T abs(T a) {
  return a < T(0) ? neg(a) : a;
}
template <class T>
MF_INLINE T sign(T a) {
  return T((a > T(0)) - (a < T(0)));
}
template <class T>
MF_INLINE T minimum(T a, T b) {
  return a < b ? a : b;
}
template <class T>
MF_INLINE T maximum(T a, T b) {
  return a > b ? a : b;
}

}  // namespace mf
