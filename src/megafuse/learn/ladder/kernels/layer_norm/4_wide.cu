// One block a row, read once, 16 bytes with each load. Threads of a warp
// add up their sums by shuffles, from register to register; only the sums
// of whole warps meet in shared memory.
#include "layer_norm.h"

constexpr int kThreads = 256;
constexpr int kKept =
    4;  // times four floats a thread: rows of at most 4096

__device__ float block_sum(float mine) {
  __shared__ float part[kThreads / 32];
  for (int away = 16; away > 0; away /= 2)
    mine += __shfl_xor_sync(0xffffffffu, mine, away);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += part[warp];
  __syncthreads();  // all have read them before the next sum overwrites
                    // them
  return sum;
}

// Floats c to c + 3 of a row, 0 beyond its end. Only rows of 4 n floats all
// begin at 16 bytes.
__device__ float4 load(const float* row, long long c, long long cols) {
  if (cols % 4 == 0 && c < cols)
    return *reinterpret_cast<const float4*>(row + c);
  float4 v;
  v.x = c < cols ? row[c] : 0;
  v.y = c + 1 < cols ? row[c + 1] : 0;
  v.z = c + 2 < cols ? row[c + 2] : 0;
  v.w = c + 3 < cols ? row[c + 3] : 0;
  return v;
}

__device__ void store(float* row, long long c, long long cols, float4 v) {
  if (cols % 4 == 0) {
    if (c < cols) *reinterpret_cast<float4*>(row + c) = v;
    return;
  }
  if (c < cols) row[c] = v.x;
  if (c + 1 < cols) row[c + 1] = v.y;
  if (c + 2 < cols) row[c + 2] = v.z;
  if (c + 3 < cols) row[c + 3] = v.w;
}

__device__ float squared(float x, float mean, bool inside) {
  return inside ? (x - mean) * (x - mean) : 0;
}

extern "C" __global__ void layer_norm(const float* x, const float* weight,
                                      const float* bias, float* out,
                                      float eps, long long rows,
                                      long long cols) {
  float4 kept[kKept];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    kept[k] =
        load(x + blockIdx.x * cols, (threadIdx.x + k * kThreads) * 4, cols);
    sum += (kept[k].x + kept[k].y) + (kept[k].z + kept[k].w);
  }
  const float mean = block_sum(sum) / cols;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const long long c = (threadIdx.x + k * kThreads) * 4;
    squares += squared(kept[k].x, mean, c < cols) +
               squared(kept[k].y, mean, c + 1 < cols);
    squares += squared(kept[k].z, mean, c + 2 < cols) +
               squared(kept[k].w, mean, c + 3 < cols);
  }
  const float scale = mf::inverse_sqrt(block_sum(squares) / cols + eps);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const long long c = (threadIdx.x + k * kThreads) * 4;
    const float4 w = load(weight, c, cols), b = load(bias, c, cols);
    float4 v = kept[k];
    v.x = mf::fma((v.x - mean) * scale, w.x, b.x);
    v.y = mf::fma((v.y - mean) * scale, w.y, b.y);
    v.z = mf::fma((v.z - mean) * scale, w.z, b.z);
    v.w = mf::fma((v.w - mean) * scale, w.w, b.w);
    store(out + blockIdx.x * cols, c, cols, v);
  }
}
