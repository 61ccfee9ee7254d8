// The machine's words for what the threads of a row tell each other, across warps and across the
// blocks of a cluster, and for copies that go on by themselves.
#pragma once

#include "pointwise.h"

namespace mf {

// ---- between the threads of a row

// The value of the thread whose index differs in `bit`, whatever its type.
template <class T>
__device__ __forceinline__ T across(const T& value, int bit) {
  static_assert(sizeof(T) % 4 == 0, "words are exchanged");
  auto words = bits_as<Pack<u32, sizeof(T) / 4>>(value);
#pragma unroll
  for (int i = 0; i < int(sizeof(T) / 4); ++i)
    words[i] = __shfl_xor_sync(0xffffffffu, words[i], bit);
  return bits_as<T>(words);
}

// Waits for `threads` threads of the block, those that name the same barrier.
__device__ __forceinline__ void wait_for(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Between the blocks of a cluster: a block writes into another's shared memory with stores that
// count down a barrier there. A cluster barrier that orders ordinary stores (arrive.release) would
// do too, but is a fence for the whole GPU, about 1 us.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 shared_word(const void* shared) {
  return u32(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ int rank_in_cluster() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}
// Barriers that wait for so many arrivals each.
template <int N>
__device__ __forceinline__ void open_arrivals(u64 (&barriers)[N], int arrivals) {
  if (threadIdx.x != 0) return;
  for (u64& barrier : barriers)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_word(&barrier)),
                 "r"(arrivals));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// That this block's are open, to the others; each waits before its first store.
__device__ __forceinline__ void tell_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void expect_arrivals(u64& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_word(&barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void wait_for_arrivals(u64& barrier, u32 phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_word(&barrier)),
      "r"(phase)
      : "memory");
}
__device__ __forceinline__ void arrive(u64& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_word(&barrier)) : "memory");
}
// Writes a value where block `rank` of the cluster has `shared`, and tells its `barrier`.
template <class T>
__device__ __forceinline__ void store_at(int rank, T* shared, const T& value, u64& barrier) {
  const auto words = bits_as<Pack<u32, sizeof(T) / 4>>(value);
  u32 address, there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_word(shared)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_word(&barrier)), "r"(rank));
#pragma unroll
  for (int i = 0; i < int(sizeof(T) / 4); ++i)
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
            address + 4 * i),
        "r"(words[i]), "r"(there)
        : "memory");
}
#else
__device__ __forceinline__ int rank_in_cluster() { return 0; }
template <int N>
__device__ __forceinline__ void open_arrivals(u64 (&)[N], int) {}
__device__ __forceinline__ void tell_cluster() {}
__device__ __forceinline__ void arrive(u64&) {}
__device__ __forceinline__ void wait_for_cluster() {}
__device__ __forceinline__ void expect_arrivals(u64&, int) {}
__device__ __forceinline__ void wait_for_arrivals(u64&, u32) {}
template <class T>
__device__ __forceinline__ void store_at(int, T*, const T&, u64&) {}
#endif

// ---- rows to come

// Starts a copy of 16 bytes from global to shared memory (where `wanted`: a branch would cost more
// than the copy), and waits for all but the last N groups of them. A thread sees its own copies
// without any barrier.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ __forceinline__ void copy_16_bytes(void* shared, const void* global, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.b32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}\n" ::"r"(u32(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(int(wanted))
      : "memory");
}
__device__ __forceinline__ void end_group_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
__device__ __forceinline__ void copy_16_bytes(void*, const void*, bool) {}
__device__ __forceinline__ void end_group_of_copies() {}
template <int N>
__device__ __forceinline__ void wait_for_copies() {}
#endif

}  // namespace mf
