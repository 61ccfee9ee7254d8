// A float32 matrix as two of float16, for tensor cores: each row is scaled by a power of two so
// that its largest element lies in [2^14, 2^15), then
//
//   high = half(x scale)      low = half((x scale - high) 2^11)      exponent = -log2(scale)
//
// Together they have the 24 bits of x for all elements within a factor 2^28 of the row's largest;
// below that an element loses what the largest one's rounding hides. A row with Inf or NaN becomes
// zeros and its exponent NaN: what its products are is for split_mend.h to say.
#pragma once

#include "math.h"
#include "rows.h"

namespace mf {

constexpr int split_low_bits = 11;

// 2^n for an integer n in [-126, 127].
MF_INLINE float power_of_two(float n) { return bits_as<float>(u32(i32(n) + 127) << 23); }

// The largest n with 2^n <= x, at least -126.
MF_INLINE float exponent_of(float x) {
  const i32 field = i32(bits_as<u32>(x) >> 23);
  return float(field > 0 ? field - 127 : -126);
}

template <class F>
struct SplitHalves : RowFunctor<F, 1, 1, 1>, Scalars<0> {
  using Total = Pack<F, 1>;
  struct Row {
    F scale, exponent;
  };
  template <int S>
  static constexpr bool takes_max = true;

  MF_INLINE explicit SplitHalves(const F*) {}
  MF_INLINE Pack<F, 1> load(F x) const { return {x}; }
  static MF_INLINE Total start() { return {F(0)}; }
  template <int S>
  MF_INLINE F term(const Pack<F, 1>& x, const Total&) const {
    return abs(x[0]);
  }
  template <int S>
  MF_INLINE void fold(Total& total, F most, F) const {
    total[0] = most;
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const { return {larger(a[0], b[0])}; }
  MF_INLINE Row row(const Total& total, const Total&, F) const { return row(total); }
  static MF_INLINE Row row(const Total& total) {
    const F most = total[0];
    if (!(most < infinity<F>())) return {F(0), most - most};
    const F up = most > F(0) ? F(14) - exponent_of(most) : F(0);
    const F n = up > F(126) ? F(126) : up;
    return {power_of_two(n), -n};
  }
  // low, high
  MF_INLINE Pack<F, 2> result(const Pack<F, 1>& x, const Row& row) const {
    const F scaled = row.scale > F(0) ? x[0] * row.scale : F(0);
    const F high = Rounded<half>::to(scaled);
    return {(scaled - high) * F(1 << split_low_bits), high};
  }
  MF_INLINE F row_result(const Row& row) const { return row.exponent; }
};

}  // namespace mf
