// gelu, then scale, straight through memory: every byte that arrives is
// used. One float at a time: the empty asm hides `i` from the compiler,
// which would make SIMD code of the loop.
#include "gelu_scale.h"

using mf::i64;

extern "C" void gelu(const float* x, float* y, i64 n, i64 part, i64 parts) {
  const i64 last = n * (part + 1) / parts;
  for (i64 i = n * part / parts; i < last; ++i) {
    asm volatile("" : "+r"(i));
    y[i] = mf::GeluTanh::value(x[i]);
  }
}

extern "C" void scale(const float* y, float* out, float factor, i64 n,
                      i64 part, i64 parts) {
  const i64 last = n * (part + 1) / parts;
  for (i64 i = n * part / parts; i < last; ++i) {
    asm volatile("" : "+r"(i));
    out[i] = y[i] * factor;
  }
}
