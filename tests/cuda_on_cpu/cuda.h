// The words of CUDA C++ that our kernels use, in C++: included before the source of every kernel
// that is compiled for the emulator.
#pragma once

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "emulated.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
// All of a kernel's are then one piece of memory, which the driver finds and fills with NaN.
#define __shared__ static thread_local

#define threadIdx (*emulated_thread)
#define blockIdx emulated_block
#define blockDim emulated_block_size
#define gridDim emulated_grid_size

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

inline void __syncthreads() { emulated_whole_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulated_shuffle(mask, 0, emulated_thread->x % 32);
}

// ---- shuffles, of 32 or 64 bits

template <class T>
inline T emulated_shuffle_of(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take 32 or 64 bits");
  uint32_t words[sizeof(T) / 4];
  memcpy(words, &value, sizeof value);
  for (uint32_t& word : words) word = emulated_shuffle(mask, word, from);
  memcpy(&value, words, sizeof value);
  return value;
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emulated_shuffle_of(mask, value, (emulated_thread->x % 32) ^ unsigned(bits));
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from) {
  return emulated_shuffle_of(mask, value, unsigned(from) % 32);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  const unsigned lane = emulated_thread->x % 32;
  return emulated_shuffle_of(mask, value, lane + by < 32 ? lane + by : lane);
}

// ---- memory that blocks share. Threads of a block take turns; blocks run one after the other, but
// at once in a cooperative launch, whose kernels add integers.

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T, class V>
inline T atomicAdd(T* address, V value) {
  if constexpr (T(1) / T(2) == T(0)) {
    return __atomic_fetch_add(address, T(value), __ATOMIC_RELAXED);
  } else {
    const T before = *address;
    *address = T(before + T(value));
    return before;
  }
}
template <class T, class V>
inline T atomicMax(T* address, V value) {
  const T before = *address;
  if (T(value) > before) *address = T(value);
  return before;
}

// ---- loads, bits, arithmetic

template <class T>
inline T __ldg(const T* address) {
  return *address;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
inline int __float2int_rn(float value) { return int(lrintf(value)); }
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;
  return product;
}
inline double __dmul_rn(double a, double b) {
  volatile double product = a * b;
  return product;
}
inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
// erf(y) = x by Newton's method; beyond 1/2 by erfc(y) = 1 - x, whose digits do not cancel.
inline double erfinv(double x) {
  const double t = fabs(x);
  if (!(t < 1.0)) return t == 1.0 ? x * INFINITY : NAN;
  double y = t < 0.5 ? t : sqrt(-log((1.0 - t) * 2.0));
  for (int turn = 0; turn < 60; ++turn) {
    const double left = t < 0.5 ? erf(y) - t : (1.0 - t) - erfc(y);
    y -= left / (M_2_SQRTPI * exp(-y * y));
  }
  return copysign(y, x);
}
inline float erfinvf(float x) { return float(erfinv(double(x))); }
inline size_t __cvta_generic_to_shared(const void* shared) { return size_t(shared); }

#include "ptx.h"
