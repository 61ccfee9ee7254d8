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
// A float that one block leaves for others, in one word with the number of the phase that made it:
// who sees the number that it waits for has the float as well. So nobody waits for stores to
// arrive, nor for a barrier and then for a load.
__device__ __forceinline__ void leave(u64* to, float value, u32 number) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to),
               "l"(u64(number) << 32 | bits_as<u32>(value))
               : "memory");
}
__device__ __forceinline__ u64 load_left(const u64* from) {
  u64 word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
// Two neighbours, of which the first is at a multiple of 16 bytes.
__device__ __forceinline__ void load_left(const u64* from, u64& first, u64& second) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ float left_value(u64 word) { return bits_as<float>(u32(word)); }
__device__ __forceinline__ u32 left_number(u64 word) { return u32(word >> 32); }

// Two neighbours in one word, 28 bits of each, of which 20 are digits: a model of 16 bits keeps 8
// or
// 11. 8 bits are left for the number, so such words must be 0 when a launch begins, and every layer
// must leave them again.
__device__ __forceinline__ u32 short_number(u32 number) { return number % 128 + 128; }
__device__ __forceinline__ u32 in_28_bits(float value) {
  const u32 bits = bits_as<u32>(value);
  return value != value ? 0x7fc0000u : (bits + 7 + (bits >> 4 & 1)) >> 4;
}
__device__ __forceinline__ void leave_two(u64* to, float first, float second, u32 number) {
  const u64 both = u64(in_28_bits(second)) << 28 | in_28_bits(first);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to),
               "l"(u64(short_number(number)) << 56 | both)
               : "memory");
}
__device__ __forceinline__ float first_value(u64 word) { return bits_as<float>(u32(word) << 4); }
__device__ __forceinline__ float second_value(u64 word) {
  return bits_as<float>(u32(word >> 28) << 4);
}
__device__ __forceinline__ u32 left_short_number(u64 word) { return u32(word >> 56); }

// Registers of a thread, by groups of four warps, where that can be changed: what one group gives
// back another one gets.
template <int kCount>
__device__ __forceinline__ void have_fewer_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void have_more_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// The first threads of the block, so many, wait for each other.
template <int kThreads>
__device__ __forceinline__ void together() {
  asm volatile("bar.sync %0, %1;" ::"n"(1), "n"(kThreads) : "memory");
}

// An arrival passes when so many threads have arrived, and all bytes that were expected. Then it is
// for the next ones: the passes are even and odd by turns.
__device__ __forceinline__ void open_arrival(u64* arrival, u32 threads) {
  const u64 place = __cvta_generic_to_shared(arrival);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"l"(place), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrivals_are_open() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive(u64* arrival) {
  const u64 place = __cvta_generic_to_shared(arrival);
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"l"(place)
               : "memory");
}
// Whether the last pass of an even or odd number was: now, or within some time where the GPU can
// wait for it.
__device__ __forceinline__ bool passed_by_now(u64* arrival, u32 parity) {
  const u64 place = __cvta_generic_to_shared(arrival);
  u32 done;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "l"(place), "r"(parity)
      : "memory");
  return done;
}
__device__ __forceinline__ bool passed(u64* arrival, u32 parity) {
#if __CUDA_ARCH__ >= 900
  const u64 place = __cvta_generic_to_shared(arrival);
  u32 done;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "l"(place), "r"(parity)
      : "memory");
  return done;
#else
  return passed_by_now(arrival, parity);
#endif
}

// Copies from global to shared memory that an arrival tells the end of. Where there is a unit for
// it, one thread expects all bytes and sends for many at once. Else every lane of a warp fetches 16
// at a time and then arrives as soon as they are there.
#if __CUDA_ARCH__ >= 900
constexpr bool kCopiesArriveOnce = true;
#else
constexpr bool kCopiesArriveOnce = false;
#endif
__device__ __forceinline__ void expect(u64* arrival, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  const u64 done = __cvta_generic_to_shared(arrival);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"l"(done), "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void send(char* to, const char* from, u32 bytes, u64* arrival) {
#if __CUDA_ARCH__ >= 900
  const u64 done = __cvta_generic_to_shared(arrival), place = __cvta_generic_to_shared(to);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "l"(place),
      "l"(from), "r"(bytes), "l"(done)
      : "memory");
#endif
}
__device__ __forceinline__ void fetch(void* to, const void* from) {
  const u64 place = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"l"(place), "l"(from) : "memory");
}
__device__ __forceinline__ void arrive_after_fetches(u64* arrival) {
  const u64 done = __cvta_generic_to_shared(arrival);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"l"(done) : "memory");
}

// ---- tensor cores

__device__ __forceinline__ u32 two_bfloat16(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// What two floats are more than the two bfloat16 made of them.
__device__ __forceinline__ u32 left_over(float low, float high, u32 both) {
  return two_bfloat16(low - bits_as<float>(both << 16), high - bits_as<float>(both & 0xffff0000u));
}
// 16 rows by 16 columns of bfloat16 from shared memory, as a tensor core wants them: lane i tells
// where 8 columns of a row are, of rows 0 to 15 the first 8, then the second.
__device__ __forceinline__ uint4 matrix_at(u64 address) {
  uint4 raw;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(address)
               : "memory");
  return raw;
}
// These rows by 16 rows of 8 columns, added to sums of 16 by 8.
__device__ __forceinline__ void multiply_add(float* sum, uint4 a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// The same of int8, 32 columns.
__device__ __forceinline__ void multiply_add(int* sum, uint4 a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
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
struct alignas(8) Two {
  float value[2];
};
__device__ __forceinline__ Two two_at(const float* from) {
  return *reinterpret_cast<const Two*>(from);
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

}  // namespace mf::decode
