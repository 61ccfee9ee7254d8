// The first repair: 4 x 4 outputs at a time, so that each float that was
// fetched is used four times, and kLanes partial sums for each, so that the
// compiler can use SIMD instructions.
#include "math.h"

using mf::i64;
constexpr int kTile = 4, kLanes = 16;

static i64 least(i64 a, i64 b) { return a < b ? a : b; }

extern "C" void linear_relu(const float* x, const float* weight,
                            const float* bias, float* out, i64 rows,
                            i64 outs, i64 ins, i64 part, i64 parts) {
  const i64 first = rows * part / parts, last = rows * (part + 1) / parts;
  const i64 whole = ins / kLanes * kLanes;
  for (i64 o = 0; o < outs; o += kTile) {
    for (i64 row = first; row < last; row += kTile) {
      float sums[kTile][kTile][kLanes] = {};
      // Beyond the edge the last row comes again, and is not written.
      const float* a[kTile];
      const float* b[kTile];
      for (int t = 0; t < kTile; ++t) {
        a[t] = x + least(row + t, last - 1) * ins;
        b[t] = weight + least(o + t, outs - 1) * ins;
      }
      for (i64 i = 0; i < whole; i += kLanes)
        for (int r = 0; r < kTile; ++r)
          for (int c = 0; c < kTile; ++c)
            for (int lane = 0; lane < kLanes; ++lane)
              sums[r][c][lane] =
                  mf::fma(a[r][i + lane], b[c][i + lane], sums[r][c][lane]);
      for (int r = 0; r < least(kTile, last - row); ++r) {
        for (int c = 0; c < least(kTile, outs - o); ++c) {
          float sum = bias[o + c];
          for (int lane = 0; lane < kLanes; ++lane) sum += sums[r][c][lane];
          for (i64 i = whole; i < ins; ++i)
            sum = mf::fma(a[r][i], b[c][i], sum);
          out[(row + r) * outs + o + c] = sum < 0 ? 0 : sum;
        }
      }
    }
  }
}
