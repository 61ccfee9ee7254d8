// What this GPU can do at best, each loop of one kind only. Results go out
// through `sink` under a condition that never holds, so that the compiler
// cannot leave the work away.
#include "math.h"

using mf::i64;

constexpr int kChains = 8;
constexpr int kThreads = 256;

// Registers: each thread does rounds * kChains multiply-adds that touch no
// memory at all.
extern "C" __global__ void arithmetic(float* sink, i64 rounds) {
  float chains[kChains];
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain)
    chains[chain] = threadIdx.x + chain;
  for (i64 round = 0; round < rounds; ++round) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain)
      chains[chain] = mf::fma(chains[chain], 0.999f, 0.001f);
  }
  float sum = 0;
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) sum += chains[chain];
  if (sum == -1.0f) sink[0] = sum;
}

// Shared memory: each thread reads 16 bytes a round, conflict-free.
extern "C" __global__ void shared_memory(float* sink, i64 rounds) {
  __shared__ float4 held[2 * kThreads];
  for (int i = threadIdx.x; i < 2 * kThreads; i += kThreads)
    held[i] = make_float4(i, i + 1, i + 2, i + 3);
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
  int at = threadIdx.x;
  for (i64 round = 0; round < rounds; ++round) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(mf::u32(__cvta_generic_to_shared(&held[at]))));
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
    at ^= kThreads;
  }
  if (sum.x + sum.y + sum.z + sum.w == -1.0f) sink[0] = sum.x;
}

// L2 or HBM, by how much there is: all threads read n floats, so many
// times.
extern "C" __global__ void bandwidth(const float* x, float* sink, i64 n,
                                     i64 times) {
  const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  const i64 threads = i64(gridDim.x) * blockDim.x;
  float4 sum = make_float4(0, 0, 0, 0);
  for (i64 time = 0; time < times; ++time) {
#pragma unroll 4
    for (i64 i = thread; i < n / 4; i += threads) {
      const float4 v =
          __ldcg(reinterpret_cast<const float4*>(x) + i);  // past L1
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    }
  }
  if (sum.x + sum.y + sum.z + sum.w == -1.0f) sink[0] = sum.x;
}

// Latency: each place says where the next is, one in every 128 bytes, so a
// load cannot begin before the last one has arrived. One thread walks.
extern "C" __global__ void chase(const float* memory, float* sink,
                                 i64 steps) {
  const char* begin = reinterpret_cast<const char*>(memory);
  i64 at = 0;
  for (i64 i = 0; i < steps; ++i)
    at = __ldcg(reinterpret_cast<const i64*>(begin + at));
  if (at == -1) sink[0] = float(at);
}

// The budget: a copy that does so many multiply-adds with each float on its
// way.
extern "C" __global__ void work(const float* x, float* out, i64 n,
                                i64 times) {
  const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  const i64 threads = i64(gridDim.x) * blockDim.x;
  for (i64 i = thread; i < n / 4; i += threads) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    for (i64 time = 0; time < times; ++time) {
      v.x = mf::fma(0.999f, 0.001f, v.x);
      v.y = mf::fma(0.999f, 0.001f, v.y);
      v.z = mf::fma(0.999f, 0.001f, v.z);
      v.w = mf::fma(0.999f, 0.001f, v.w);
    }
    reinterpret_cast<float4*>(out)[i] = v;
  }
}
