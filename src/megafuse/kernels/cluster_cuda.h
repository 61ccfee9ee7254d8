// The machine's words for what the blocks of a cluster tell each other.
#pragma once

#include "pointwise.h"

namespace mf {

// A block writes into another's shared memory with stores that count down a barrier there. A
// cluster barrier that orders ordinary stores (arrive.release) would do too, but is a fence for the
// whole GPU, about 1 us.
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

}  // namespace mf
