// The next token from a row of logits: repetition penalty, temperature, top-k, top-p and a draw, in
// that order, as transformers does them. Nothing is sorted: the least value that top-k or top-p
// keeps is found digit by digit of the floats' bits, from histograms of counts or of probabilities.
// What equals that value is kept too.
#pragma once

#include "decode.h"
#include "math.h"
#include "random.h"

namespace mf::decode {

// The largest key such that all scores from it on weigh at least `wanted`, where chances[i], or 1,
// is the weight of a score, and only those from `least` on count.
inline u32 threshold(const float* scores, const float* chances, i64 n, u32 least, double wanted) {
  constexpr int kBits[3] = {11, 11, 10};
  double bins[1 << 11], above = 0;
  u32 prefix = 0;
  int shift = 32;
  for (int digit = 0; digit < 3; ++digit) {
    const int width = kBits[digit], upper = shift;
    shift -= width;
    const u32 mask = (1u << width) - 1;
    for (u32 i = 0; i <= mask; ++i) bins[i] = 0;
    for (i64 i = 0; i < n; ++i) {
      const u32 key = ordered(scores[i]);
      if (key < least || (upper < 32 && (key >> upper) != (prefix >> upper))) continue;
      bins[(key >> shift) & mask] += chances ? double(chances[i]) : 1.0;
    }
    u32 bin = mask, lowest = mask;  // lowest: of those that hold something, should rounding run out
    for (;; --bin) {
      if (bins[bin] > 0) lowest = bin;
      if (bins[bin] > 0 && above + bins[bin] >= wanted) break;
      if (bin == 0) {
        bin = lowest;
        break;
      }
      above += bins[bin];
    }
    prefix |= bin << shift;
  }
  return prefix;
}

struct Sampling {
  double temperature, top_p, penalty;
  i64 top_k;
  u64 seed;
};

// logits stay as they are; scores and chances are scratch; `draw` counts the tokens of a row, and
// picks its random number.
inline i64 sample(const Sampling& how, const float* logits, const u8* seen, float* scores,
                  float* chances, i64 n, i64 row, u64 draw) {
  const float penalty = float(how.penalty);
  for (i64 i = 0; i < n; ++i) {
    const float x = logits[i], punished = x < 0 ? x * penalty : x / penalty;
    scores[i] = seen[i] ? punished : x;
  }
  float most = scores[0];
  i64 best = 0;
  for (i64 i = 1; i < n; ++i)
    if (scores[i] > most) most = scores[i], best = i;
  if (how.temperature == 0) return best;

  const float rate = float(1.0 / how.temperature);
  u32 least = 0;
  if (how.top_k > 0 && how.top_k < n) least = threshold(scores, nullptr, n, 0, double(how.top_k));
  for (i64 i = 0; i < n; ++i) chances[i] = exp((scores[i] - most) * rate);
  double total = 0;
  for (i64 i = 0; i < n; ++i) total += ordered(scores[i]) >= least ? double(chances[i]) : 0.0;
  if (how.top_p < 1) {
    least = threshold(scores, chances, n, least, how.top_p * total);
    total = 0;
    for (i64 i = 0; i < n; ++i) total += ordered(scores[i]) >= least ? double(chances[i]) : 0.0;
  }
  u32 words[4];
  const Random random{how.seed, draw};
  random.draw(u64(row), words);
  const u64 high = (u64(words[0]) << 21) ^ words[1];  // 53 bits
  const double target = double(high & ((u64(1) << 53) - 1)) * 0x1p-53 * total;
  double sum = 0;
  i64 chosen = best;
  for (i64 i = 0; i < n; ++i) {
    if (ordered(scores[i]) < least || !(chances[i] > 0)) continue;
    chosen = i;
    sum += chances[i];
    if (sum > target) break;
  }
  return chosen;
}

}  // namespace mf::decode
