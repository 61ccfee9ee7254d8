// What the decode megakernel asks of a GPU's memory: words that other blocks or the host write
// meanwhile, copies into shared memory, loads of 16 bytes, and these bytes as floats.
#pragma once

#include "decode.h"

namespace mf::decode {

// ---- words and copies

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ u32 load_acquire(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// What this block has written is seen by who then sees the count.
__device__ __forceinline__ void count_release(u32* at) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(1u) : "memory");
}
// Words in the host's memory, which it reads and writes while the kernel runs. Each says all by
// itself, so no order among them is asked for.
__device__ __forceinline__ u64 load_from_host(u64 address) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(at<const u64>(address))
               : "memory");
  return value;
}
__device__ __forceinline__ void store_to_host(i64* to, i64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(u64(value)) : "memory");
}
// 16 or 8 bytes from global to shared memory, which arrive some time before fetched() returns.
__device__ __forceinline__ void fetch(void* to, const void* from) {
  const u64 place = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"l"(place), "l"(from) : "memory");
}
__device__ __forceinline__ void fetch_word(void* to, const void* from) {
  const u64 place = __cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"l"(place), "l"(from) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Copies from global to shared memory that `arrival` tells the end of, by a warp: one instruction
// where there is a unit for it, else every lane copies what it will read itself.
__device__ __forceinline__ void open_arrival(u64* arrival) {
  const u64 place = __cvta_generic_to_shared(arrival);
  constexpr u32 kWho = __CUDA_ARCH__ >= 900 ? 1 : 32;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"l"(place), "r"(kWho) : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void send(char* to, const char* from, u32 bytes, u64* arrival) {
  const u64 done = __cvta_generic_to_shared(arrival), place = __cvta_generic_to_shared(to);
  const u32 lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  if (lane) return;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"l"(done), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "l"(place),
      "l"(from), "r"(bytes), "l"(done)
      : "memory");
#else
  for (u32 i = 16 * lane; i < bytes; i += 16 * 32) fetch(to + i, from + i);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"l"(done) : "memory");
#endif
}
// Whether the copy is there that was the last one of an even or odd number.
__device__ __forceinline__ bool arrived(u64* arrival, u32 parity) {
  const u64 place = __cvta_generic_to_shared(arrival);
  u32 done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "l"(place), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "l"(place), "r"(parity)
      : "memory");
#endif
  return done;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, bit);
    value = other > value ? other : value;
  }
  return value;
}

struct alignas(16) Four {
  float value[4];
};
__device__ __forceinline__ Four four_at(const float* from) {
  return *reinterpret_cast<const Four*>(from);
}
__device__ __forceinline__ uint4 sixteen_at(const void* from) {
  return *static_cast<const uint4*>(from);
}
// 16 bytes of shared memory, by an address in it: a load that need not find out where it is.
__device__ __forceinline__ uint4 sixteen_in_shared(u64 address) {
  uint4 raw;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(address)
               : "memory");
  return raw;
}
__device__ __forceinline__ Four four_in_shared(u64 address) {
  return bits_as<Four>(sixteen_in_shared(address));
}

// 16 bytes of weights or of the cache as floats.
template <class W>
struct Sixteen {
  static constexpr int count = 16 / int(sizeof(W));
  float value[count];
  __device__ __forceinline__ explicit Sixteen(uint4 raw) {
    const auto held = bits_as<Pack<W, count>>(raw);
#pragma unroll
    for (int i = 0; i < count; ++i) value[i] = cast<float>(held[i]);
  }
};
template <>
struct Sixteen<bfloat16> {
  static constexpr int count = 8;
  float value[count];
  __device__ __forceinline__ explicit Sixteen(uint4 raw) {
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[2 * i] = bits_as<float>(words[i] << 16);
      value[2 * i + 1] = bits_as<float>(words[i] & 0xffff0000u);
    }
  }
};
// As the last digits of 2^23 + 128 + value: the conversion of integers runs at a tenth of the rate.
template <>
struct Sixteen<i8> {
  static constexpr int count = 16;
  float value[count];
  __device__ __forceinline__ explicit Sixteen(uint4 raw) {
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const u32 byte = (words[i / 4] ^ 0x80808080u) >> (8 * (i % 4)) & 0xffu;
      value[i] = bits_as<float>(0x4b000000u | byte) - 8388736.0f;
    }
  }
};

// A lane has 16 bytes of weights and, of float32 input, the same 2 or 4 times that. If all lanes of
// a warp took the first 16 of these bytes first, they would go to the same half, or quarter, of the
// banks; so a lane begins with another one than its neighbours, and turns its weights accordingly.
template <class W>
struct Turn {
  static constexpr int kFours = 4 / int(sizeof(W));  // of a lane's input: 1, 2 or 4
  int by;
  __device__ __forceinline__ explicit Turn(int lane) : by(lane * kFours / 8 % kFours) {}
  __device__ __forceinline__ uint4 operator()(uint4 raw) const {
    if constexpr (kFours >= 2) {  // the last digit of `by`: 16 / kFours bytes change places
      const bool swap = by & 1;
      if constexpr (kFours == 2)
        raw = swap ? uint4{raw.z, raw.w, raw.x, raw.y} : raw;
      else
        raw = swap ? uint4{raw.y, raw.x, raw.w, raw.z} : raw;
    }
    if constexpr (kFours == 4) raw = by & 2 ? uint4{raw.z, raw.w, raw.x, raw.y} : raw;
    return raw;
  }
};

}  // namespace mf::decode
