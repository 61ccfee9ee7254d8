// The words of CUDA C++, in C++: in front of a learner's kernel.
#pragma once

#include <math.h>
#include <stdint.h>

#include "memory.h"

#define threadIdx emulator::places.thread
#define blockIdx emulator::places.block
#define blockDim emulator::places.block_size
#define gridDim emulator::places.grid

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __restrict
#define __launch_bounds__(...)

using Input = emulator::Pointer<const float>;
using Output = emulator::Pointer<float>;
using Counter = emulator::Pointer<unsigned>;

namespace emulator {
template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<Cell<T>> {
  using type = T;
};
template <class A, class B>
using Common = std::common_type_t<typename ValueOf<std::decay_t<A>>::type,
                                  typename ValueOf<std::decay_t<B>>::type>;
}  // namespace emulator

template <class A, class B>
emulator::Common<A, B> min(A a, B b) {
  const emulator::Common<A, B> x = a, y = b;
  return y < x ? y : x;
}
template <class A, class B>
emulator::Common<A, B> max(A a, B b) {
  const emulator::Common<A, B> x = a, y = b;
  return x < y ? y : x;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
template <class T>
auto __ldg(const T& p) {
  return *p;
}

// ---- barriers and shuffles

#define __syncthreads() emulator::core->barrier(__LINE__)
#define __threadfence() emulator::core->fence()
#define __nanosleep(n) emulator::core->look()
#define __syncwarp(...) emulator::sync_warp(__LINE__, emulator::Mask{__VA_ARGS__})
#define __shfl_sync(...) emulator::shuffle(__LINE__, 0, __VA_ARGS__)
#define __shfl_xor_sync(...) emulator::shuffle(__LINE__, 1, __VA_ARGS__)
#define __shfl_down_sync(...) emulator::shuffle(__LINE__, 2, __VA_ARGS__)
#define __shfl_up_sync(...) emulator::shuffle(__LINE__, 3, __VA_ARGS__)
#define atomicAdd(...) emulator::atomic_add(__LINE__, __VA_ARGS__)
#define atomicExch(...) emulator::atomic_exchange(__LINE__, __VA_ARGS__)
#define atomicMax(...) emulator::atomic_max(__LINE__, __VA_ARGS__)

namespace emulator {

struct Mask {
  uint32_t lanes = 0xffffffffu;
};
inline void sync_warp(int line, Mask mask) { core->shuffle(mask.lanes, 0, core->lane(), line); }

template <class Given>
auto shuffle(int line, int kind, uint32_t mask, Given given, int by, int width = 32) {
  using T = typename ValueOf<Given>::type;
  const T value = given;
  static_assert(sizeof(T) <= 8, "shuffles take 32 or 64 bits");
  const int lane = core->lane(), first = lane / width * width, last = first + width - 1;
  int from = lane;
  if (kind == 0) from = first + by % width;
  if (kind == 1) from = lane ^ by;
  if (kind == 2 && lane + by <= last) from = lane + by;
  if (kind == 3 && lane - by >= first) from = lane - by;
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = core->shuffle(mask, bits, from, line);
  T taken;
  memcpy(&taken, &bits, sizeof(T));
  return taken;
}

}  // namespace emulator
