// "Fused" linear and ReLU: three loops, nothing stored in between. And yet
// each output fetches a row of x and a row of weight again: 8 bytes for
// every 2 operations, and one chain of additions.
#include "math.h"

using mf::i64;

extern "C" void linear_relu(const float* x, const float* weight,
                            const float* bias, float* out, i64 rows,
                            i64 outs, i64 ins, i64 part, i64 parts) {
  for (i64 row = rows * part / parts; row < rows * (part + 1) / parts;
       ++row) {
    for (i64 o = 0; o < outs; ++o) {
      float sum = bias[o];
      for (i64 i = 0; i < ins; ++i)
        sum = mf::fma(x[row * ins + i], weight[o * ins + i], sum);
      out[row * outs + o] = sum < 0 ? 0 : sum;
    }
  }
}
