// Random numbers as generated functors draw them: of a seed and an offset, which are the call's,
// and of the element's place. The place alone decides, so that a backward pass draws the same
// numbers.
//
// Philox2x32 with 7 rounds (the fewest that pass BigCrush; Salmon et al. 2011) of the place. Two
// words for each element, and one multiplication a round: random.h's Philox4x32, of which each
// element would take one word of four, took twice the time (11.4 and 5.6 ns an element, on one core
// of a Neoverse-N1).
#pragma once

#include "prims.h"

namespace mf {

// One of the call's streams. The 32 bits of a key are few for all streams that there will ever be,
// so the counter is masked by 64 more.
struct Stream {
  u32 key, low, high;
  MF_INLINE Stream(i64 seed, i64 offset) {
    u64 mixed = u64(offset) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 32)) * 0x94D049BB133111EBu;
    key = u32(mixed >> 32);
    low = u32(mixed) ^ u32(seed);
    high = u32(u64(seed) >> 32);
  }
  MF_INLINE void draw(u64 counter, u32& a, u32& b) const {
    a = u32(counter) ^ low, b = u32(counter >> 32) ^ high;
    u32 round_key = key;
#if MF_ON_GPU
#pragma unroll
#endif
    for (int round = 0; round < 7; ++round) {
      const u64 product = u64(a) * 0xD256D193u;
      a = u32(product >> 32) ^ round_key ^ b;
      b = u32(product);
      round_key += 0x9E3779B9u;
    }
  }
};

template <class F>
struct Drawn;

template <>
struct Drawn<float> {
  // In [0, 1): in steps of 2^-32 near 0, where a small probability is compared with it.
  static MF_INLINE float uniform(const Stream& stream, u64 place) {
    u32 a, b;
    stream.draw(place, a, b);
    return min(float(a) * 0x1p-32f, 0x1.fffffep-1f);
  }
  // Box and Muller: two words make a point of the plane, of which this is one coordinate.
  static MF_INLINE float normal(const Stream& stream, u64 place) {
    u32 a, b;
    stream.draw(place, a, b);
    const float share = fma(float(a), 0x1p-32f, 0x1p-33f);  // in (0, 1]
    return sqrt(-2.0f * log(share)) * cosine(b);
  }

 private:
  // Of a whole turn times angle / 2^32. The two highest bits are the quarter, the rest is an angle
  // between -pi/4 and pi/4.
  static MF_INLINE float cosine(u32 angle) {
    const float x = float(i32(angle << 2)) * float(1.5707963267948966 * 0x1p-32);
    const float y = x * x;
    const float across =
        x * polynomial(y, 1.0f, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880);
    const float along = polynomial(y, 1.0f, -0.5f, 1.0f / 24, -1.0f / 720, 1.0f / 40320);
    const u32 quarter = angle >> 30;
    const float size = select((quarter & 1u) != 0, across, along);
    return select(((quarter + 1u) & 2u) != 0, -size, size);
  }
};

template <>
struct Drawn<double> {
  static MF_INLINE double uniform(const Stream& stream, u64 place) {
    u32 a, b;
    stream.draw(place, a, b);
    return double((u64(a) << 21) | (b >> 11)) * 0x1p-53;
  }
  static MF_INLINE double normal(const Stream& stream, u64 place) {
    const double share = uniform(stream, 2 * place) + 0x1p-54;
    const double turn = uniform(stream, 2 * place + 1);
    return sqrt(-2.0 * log(share)) * cos(6.283185307179586 * turn);
  }
};

template <class F>
MF_INLINE F uniform(i64 seed, i64 offset, i64 place) {
  return Drawn<F>::uniform(Stream(seed, offset), u64(place));
}
template <class F>
MF_INLINE F normal(i64 seed, i64 offset, i64 place) {
  return Drawn<F>::normal(Stream(seed, offset), u64(place));
}

}  // namespace mf
