// The next token from a row of logits, by a block of the decode megakernel: decode_sample.h's
// rules, with histograms of integers, so that the order in which threads add changes nothing.
#pragma once

#include "decode.h"
#include "decode_memory_cuda.h"
#include "math.h"
#include "random.h"

namespace mf::decode {

// A score, then the first of those that have it: the largest key is the likeliest token's.
MF_INLINE u64 key_of(float score, i64 token) {
  return u64(ordered(score)) << 32 | u32(~u32(token));
}
MF_INLINE i64 token_of(u64 key) { return i64(u32(~u32(key))); }

template <int kThreads>
struct Sampler {
  static_assert(kThreads <= 2048 - 1, "drawn_from has a word for each, and three more");
  static constexpr int kScratch = 8 * (2048 + 2);  // bytes, of `threshold`

  const Step& s;
  char* const scratch;  // in shared memory

  // A probability as an integer, so that the order in which many are added changes nothing.
  __device__ static u64 weight_of(float chance) { return u64(double(chance) * 0x1p40); }

  __device__ u64 block_total(u64 value, u64* room) const {
    together<kThreads>();
    if (threadIdx.x == 0) *room = 0;
    together<kThreads>();
    if (value) atomicAdd(room, value);
    together<kThreads>();
    return *room;
  }

  // The largest key such that all scores from it on weigh at least `wanted`: decode_sample.h.
  __device__ u32 threshold(const float* scores, const float* chances, u32 least, u64 wanted) const {
    u64* const bins = reinterpret_cast<u64*>(scratch);
    u64* const found = bins + 2048;  // the bin, and what lies above it
    u32 prefix = 0;
    u64 above = 0;
    int shift = 32;
    for (int digit = 0; digit < 3; ++digit) {
      const int bits = digit < 2 ? 11 : 10, upper = shift;
      shift -= bits;
      const u32 mask = (1u << bits) - 1;
      together<kThreads>();
      for (u32 i = threadIdx.x; i <= mask; i += kThreads) bins[i] = 0;
      together<kThreads>();
      for (i64 i = threadIdx.x; i < i64(s.vocab); i += kThreads) {
        const u32 key = ordered(scores[i]);
        if (key < least || (upper < 32 && (key >> upper) != (prefix >> upper))) continue;
        atomicAdd(&bins[(key >> shift) & mask], chances ? weight_of(chances[i]) : u64(1));
      }
      together<kThreads>();
      if (threadIdx.x == 0) {
        u32 bin = mask, lowest = mask;
        for (;; --bin) {
          if (bins[bin]) lowest = bin;
          if (bins[bin] && above + bins[bin] >= wanted) break;
          if (bin == 0) {
            bin = lowest;
            break;
          }
          above += bins[bin];
        }
        found[0] = bin, found[1] = above;
      }
      together<kThreads>();
      prefix |= u32(found[0]) << shift;
      above = found[1];
    }
    return prefix;
  }

  // The first index whose weights, with those before it, are more than `target`: each thread adds
  // up a part of the row, one adds up the parts, and the thread of the part in question looks
  // again.
  __device__ i64 drawn_from(const float* scores, const float* chances, u32 least,
                            u64 target) const {
    u64* const sums = reinterpret_cast<u64*>(scratch);
    i64* const chosen = reinterpret_cast<i64*>(sums + kThreads);
    const i64 n = i64(s.vocab), me = threadIdx.x;
    const i64 from = n * me / kThreads, to = n * (me + 1) / kThreads;
    u64 sum = 0;
    for (i64 i = from; i < to; ++i)
      if (ordered(scores[i]) >= least) sum += weight_of(chances[i]);
    together<kThreads>();
    sums[me] = sum;
    together<kThreads>();
    if (me == 0) {
      u64 before = 0;
      i64 last = -1;  // with any weight
      chosen[0] = -1;
      for (int t = 0; t < kThreads; ++t) {
        const u64 mine = sums[t];
        if (mine) last = t;
        if (mine && before + mine > target) {
          chosen[0] = t;
          break;
        }
        before += mine;
      }
      if (chosen[0] < 0) chosen[0] = last;
      chosen[1] = i64(before);
    }
    together<kThreads>();
    if (me == chosen[0]) {
      u64 before = u64(chosen[1]);
      i64 best = from;
      for (i64 i = from; i < to; ++i) {
        const u64 mine = ordered(scores[i]) >= least ? weight_of(chances[i]) : 0;
        if (mine == 0) continue;
        best = i;
        before += mine;
        if (before > target) break;
      }
      chosen[2] = best;
    }
    together<kThreads>();
    return chosen[2];
  }

  __device__ i64 next_token(i64 b, u64 draw) const {
    const i64 n = i64(s.vocab);
    const u8* const seen = at<const u8>(s.seen) + b * n;
    const float* const logits = at<const float>(s.logits) + b * n;
    float* const scores = at<float>(s.scores) + b * n;
    float* const chances = at<float>(s.chances) + b * n;
    const float penalty = float(number(s.penalty));
    u64* const room = reinterpret_cast<u64*>(scratch);
    u64 best = 0;
    for (i64 i = threadIdx.x; i < n; i += kThreads) {
      const float x = logits[i], punished = x < 0 ? x * penalty : x / penalty;
      const float score = seen[i] ? punished : x;
      scores[i] = score;
      const u64 key = key_of(score, i);
      best = key > best ? key : best;
    }
    together<kThreads>();
    if (threadIdx.x == 0) *room = 0;
    together<kThreads>();
    atomicMax(room, best);
    together<kThreads>();
    best = *room;
    const i64 first = token_of(best);
    const double temperature = number(s.temperature), top_p = number(s.top_p);
    if (temperature == 0) return first;
    const float most = scores[first], rate = float(1.0 / temperature);
    u32 least = 0;
    if (s.top_k > 0 && i64(s.top_k) < n) least = threshold(scores, nullptr, 0, s.top_k);
    u64 sum = 0;
    for (i64 i = threadIdx.x; i < n; i += kThreads) {
      chances[i] = exp((scores[i] - most) * rate);
      if (ordered(scores[i]) >= least) sum += weight_of(chances[i]);
    }
    u64 total = block_total(sum, room);
    if (top_p < 1) {
      least = threshold(scores, chances, least, u64(top_p * double(total)));
      sum = 0;
      for (i64 i = threadIdx.x; i < n; i += kThreads)
        if (ordered(scores[i]) >= least) sum += weight_of(chances[i]);
      total = block_total(sum, room);
    }
    u32 words[4];
    const Random random{s.seed, draw};
    random.draw(u64(b), words);
    const u64 high = ((u64(words[0]) << 21) ^ words[1]) & ((u64(1) << 53) - 1);
    return drawn_from(scores, chances, least, u64(double(high) * 0x1p-53 * double(total)));
  }
};

// Not inlined: it is long, and a text that takes the likeliest tokens never comes here.
template <int kThreads>
__device__ __noinline__ i64 sampled(const Step& s, char* scratch, i64 b, u64 draw) {
  return Sampler<kThreads>{s, scratch}.next_token(b, draw);
}

}  // namespace mf::decode
