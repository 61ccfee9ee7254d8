// x + bias, then relu, straight through memory: every byte that arrives is
// used. One float at a time: the empty asm hides `c` from the compiler,
// which would make SIMD code of the loop.
#include "bias_act.h"

using mf::i64;

extern "C" void add(const float* x, const float* bias, float* y, i64 rows,
                    i64 cols, i64 part, i64 parts) {
  const i64 last = rows * (part + 1) / parts;
  for (i64 row = rows * part / parts; row < last; ++row) {
    for (i64 c = 0; c < cols; ++c) {
      asm volatile("" : "+r"(c));
      y[row * cols + c] = x[row * cols + c] + bias[c];
    }
  }
}

extern "C" void relu(const float* y, float* out, i64 rows, i64 cols,
                     i64 part, i64 parts) {
  const i64 last = rows * cols * (part + 1) / parts;
  for (i64 i = rows * cols * part / parts; i < last; ++i) {
    asm volatile("" : "+r"(i));
    out[i] = mf::Relu::value(y[i]);
  }
}
