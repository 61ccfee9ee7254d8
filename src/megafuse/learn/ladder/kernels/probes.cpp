// What this CPU can do at best, each loop of one kind only. Results go out
// through `sink`, so that the compiler cannot leave the work away.
#include "math.h"

using mf::i64;

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
constexpr int kWide = kBytes / 4;
constexpr int kChains = 10;  // enough to hide an FMA's 4 cycles twice over,
                             // and few enough registers
typedef float Vector __attribute__((vector_size(kBytes)));

static Vector filled(float value) { return Vector{} + value; }

// sum + a b, in place: SIMD instructions of ARM and x86 add to a register
// that they also read. Any other order needs a move beside each of them,
// which takes the same units: 11 G operations a second instead of 39 on a
// Neoverse-N1.
static inline Vector add_product(Vector sum, Vector a, Vector b) {
  for (int lane = 0; lane < kWide; ++lane)
    sum[lane] = mf::fma(a[lane], b[lane], sum[lane]);
  return sum;
}

static float total(const Vector (&chains)[kChains]) {
  float sum = 0;
  for (int chain = 0; chain < kChains; ++chain)
    for (int lane = 0; lane < kWide; ++lane) sum += chains[chain][lane];
  return sum;
}

// Registers: rounds * floats_per_round() multiply-adds that touch no memory
// at all. Loops over the chains are unrolled, or they would be an array in
// memory.
extern "C" i64 floats_per_round() { return kChains * kWide; }

extern "C" void arithmetic(float* sink, i64 rounds, i64 part, i64 parts) {
  Vector chains[kChains];
#pragma GCC unroll 16
  for (int chain = 0; chain < kChains; ++chain)
    chains[chain] = filled(1.0f / (1 + chain));
  const Vector a = filled(0.999f), b = filled(0.001f);
  for (i64 round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int chain = 0; chain < kChains; ++chain)
      chains[chain] = add_product(chains[chain], a, b);
  }
  sink[part] = total(chains);
}

// Bandwidth: every part reads its share of n floats, so many times.
extern "C" void bandwidth(const float* x, float* sink, i64 n, i64 times,
                          i64 part, i64 parts) {
  constexpr i64 step = kChains * kWide;
  const i64 share = n / parts / step * step;
  const float* mine = x + share * part;
  Vector chains[kChains] = {};
  for (i64 time = 0; time < times; ++time) {
    asm volatile("" : "+r"(mine));  // or one reading would do for all
    for (i64 i = 0; i < share; i += step) {
#pragma GCC unroll 16
      for (int chain = 0; chain < kChains; ++chain) {
        Vector loaded;
        __builtin_memcpy(&loaded, mine + i + chain * kWide, kBytes);
        chains[chain] += loaded;
      }
    }
  }
  sink[part] = total(chains);
}

// Latency: each place says where the next is, one in every 64 bytes, so a
// load cannot begin before the last one has arrived. One thread walks.
extern "C" void chase(const float* memory, float* sink, i64 steps, i64 part,
                      i64 parts) {
  const char* begin = reinterpret_cast<const char*>(memory);
  i64 at = 0;
  for (i64 i = 0; i < steps; ++i)
    at = *reinterpret_cast<const i64*>(begin + at);
  sink[0] = float(at);
}

// The budget: a copy that does so many multiply-adds with each float on its
// way.
extern "C" void work(const float* __restrict x, float* __restrict out,
                     i64 n, i64 times, i64 part, i64 parts) {
  constexpr i64 step = kChains * kWide;
  const i64 groups = n / step, last = groups * (part + 1) / parts;
  const Vector a = filled(0.999f), b = filled(0.001f);
  for (i64 group = groups * part / parts; group < last; ++group) {
    Vector chains[kChains];
#pragma GCC unroll 16
    for (int chain = 0; chain < kChains; ++chain)
      __builtin_memcpy(&chains[chain], x + group * step + chain * kWide,
                       kBytes);
    for (i64 time = 0; time < times; ++time) {
#pragma GCC unroll 16
      for (int chain = 0; chain < kChains; ++chain)
        chains[chain] = add_product(chains[chain], a, b);
    }
#pragma GCC unroll 16
    for (int chain = 0; chain < kChains; ++chain)
      __builtin_memcpy(out + group * step + chain * kWide, &chains[chain],
                       kBytes);
  }
}
