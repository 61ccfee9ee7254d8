// Random numbers as generated functors draw them: of a seed and an offset, which are the call's,
// and of the element's place. The place alone decides, so that a backward pass draws the same
// numbers.
#pragma once

#include "prims.h"
#include "random.h"

namespace mf {

template <class F>
struct Drawn;

template <>
struct Drawn<float> {
  // In [0, 1): in steps of 2^-32 near 0, where a small probability is compared with it.
  static MF_INLINE float uniform(const Random& random, u64 index) {
    return min(float(random.draw_one(index)) * 0x1p-32f, 0x1.fffffep-1f);
  }
  // Box and Muller: two words make a point of the plane, whose coordinates are two numbers.
  static MF_INLINE float normal(const Random& random, u64 index) {
    u32 four[4];
    random.draw(index >> 2, four);
    const u32 place = u32(index);
    const bool second = (place & 2u) != 0;
    const float share = fma(float(second ? four[2] : four[0]), 0x1p-32f, 0x1p-33f);  // in (0, 1]
    return sqrt(-2.0f * log(share)) * on_circle(second ? four[3] : four[1], place & 1u);
  }

 private:
  // The cosine of a whole turn times angle / 2^32, or (1) its sine. The two highest bits are the
  // quarter, the rest is an angle between -pi/4 and pi/4.
  static MF_INLINE float on_circle(u32 angle, u32 which) {
    const float x = float(i32(angle << 2)) * float(1.5707963267948966 * 0x1p-32);
    const float y = x * x;
    const float sine = x * polynomial(y, 1.0f, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880);
    const float cosine = polynomial(y, 1.0f, -0.5f, 1.0f / 24, -1.0f / 720, 1.0f / 40320);
    const u32 quarter = (angle >> 30) - which;
    const float size = quarter & 1u ? sine : cosine;
    return (quarter + 1u) & 2u ? -size : size;
  }
};

template <>
struct Drawn<double> {
  static MF_INLINE double of(u32 high, u32 low) {  // 53 bits
    return double((u64(high) << 21) | (low >> 11)) * 0x1p-53;
  }
  static MF_INLINE double uniform(const Random& random, u64 index) {
    u32 four[4];
    random.draw(index >> 1, four);
    return index & 1 ? of(four[2], four[3]) : of(four[0], four[1]);
  }
  static MF_INLINE double normal(const Random& random, u64 index) {
    u32 four[4];
    random.draw(index, four);
    const double share = of(four[0], four[1]) + 0x1p-54;
    const double turn = of(four[2], four[3]);
    return sqrt(-2.0 * log(share)) * cos(6.283185307179586 * turn);
  }
};

template <class F>
MF_INLINE F uniform(i64 seed, i64 offset, i64 index) {
  return Drawn<F>::uniform(Random{u64(seed), u64(offset)}, u64(index));
}
template <class F>
MF_INLINE F normal(i64 seed, i64 offset, i64 index) {
  return Drawn<F>::normal(Random{u64(seed), u64(offset)}, u64(index));
}

}  // namespace mf
