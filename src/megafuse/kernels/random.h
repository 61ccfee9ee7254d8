// Random numbers from a counter: Philox4x32 with 7 rounds (the fewest that pass
// BigCrush for this generator; Salmon et al. 2011). The i-th element of a tensor
// always draws lane i%4 of counter i/4, whatever the layout, the vector width or
// the processor, so a backward pass can draw the forward's numbers again.
#pragma once

#include "portable.h"

namespace mf {

struct Random {
  // seed, offset: the values, or (captured != 0) addresses of them, as a CUDA graph
  // replays with new ones; shift: added to the offset; sink: null, or where to
  // write the seed and offset in use for a later backward pass.
  static constexpr int words = 5;
  u64 seed, offset;

  static MF_INLINE Random read(const u64* words) {
    Random random{words[0], words[1]};
    if (words[3]) {
      random.seed = *reinterpret_cast<const u64*>(words[0]);
      random.offset = *reinterpret_cast<const u64*>(words[1]);
    }
    random.offset += words[2];
    return random;
  }

  MF_INLINE void remember(const u64* words) const {
    if (u64* sink = reinterpret_cast<u64*>(words[4])) {
      sink[0] = seed;
      sink[1] = offset;
    }
  }

  // The four words of one counter.
  MF_INLINE void draw(u64 counter, u32 (&out)[4]) const {
    u32 a = u32(counter), b = u32(counter >> 32), c = u32(offset), d = u32(offset >> 32);
    u32 key0 = u32(seed), key1 = u32(seed >> 32);
#if MF_ON_GPU
#pragma unroll
#endif
    for (int round = 0; round < 7; ++round) {
      u64 left = u64(a) * 0xD2511F53u, right = u64(c) * 0xCD9E8D57u;
      a = u32(right >> 32) ^ b ^ key0;
      c = u32(left >> 32) ^ d ^ key1;
      b = u32(right);
      d = u32(left);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
  }

  MF_INLINE u32 draw_one(u64 index) const {
    u32 four[4];
    draw(index >> 2, four);
    u32 lane = u32(index) & 3u;
    return lane < 2 ? (lane == 0 ? four[0] : four[1]) : (lane == 2 ? four[2] : four[3]);
  }
};

}  // namespace mf
