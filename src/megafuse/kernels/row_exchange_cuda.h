// How the warps of a row, in one block or several, tell each other what they found.
#pragma once

#include "row_pieces_cuda.h"

namespace mf {

template <class K, int kVector, class Cut, class Index>
struct RowExchange : RowPieces<K, kVector, Cut, Index> {
  using Base = RowPieces<K, kVector, Cut, Index>;
  using Base::functor;
  using Base::kWarps;
  using Base::lane;
  using Base::which;
  using typename Base::Total;

  // A warp may be a row ahead of one that still reads; with a ring, where it has posted its next
  // row before it collects this one, three.
  static constexpr int kTurns = Cut::ring > 0 ? 4 : 2;
  static constexpr bool kArrives = kWarps > 1 && (Cut::cluster > 1 || Cut::ring > 0);
  struct Exchange {
    Total summaries[kTurns][Cut::rows][kWarps];
    u64 arrived[kTurns * Cut::rows];
  };

  int posted = 0, turn = 0;  // through which part of the exchange summaries go next, and come
  u32 phases = 0;            // of its barriers, a bit each

  __device__ __forceinline__ explicit RowExchange(const u64* w) : Base(w) {}

  __device__ __forceinline__ static void open_exchange() {
    if constexpr (kArrives) {
      open_arrivals(shared_exchange().arrived, Cut::cluster > 1 ? 1 : kWarps);
      if constexpr (Cut::cluster > 1)
        tell_cluster();
      else
        __syncthreads();
    }
  }

  // Tells all warps of the row what this one found.
  __device__ __forceinline__ void post(const Total& local) {
    if constexpr (kWarps == 1) return;
    Exchange& exchange = shared_exchange();
    Total(&there)[kWarps] = exchange.summaries[posted][which];
    u64& arrived = exchange.arrived[posted * Cut::rows + which];
    const int in_warp = threadIdx.x % 32, warp = lane / 32;
    if constexpr (Cut::cluster > 1) {
      if (threadIdx.x == 0) expect_arrivals(arrived, int(sizeof(Total)) * kWarps);
      if (in_warp < Cut::cluster) store_at(in_warp, &there[warp], local, arrived);
    } else if (in_warp == 0) {
      there[warp] = local;
      if constexpr (kArrives) arrive(arrived);
    }
    posted = (posted + 1) % kTurns;
  }

  // The total of all warps of the row, of which this one found `local`.
  __device__ __forceinline__ Total collect(const Total& local) {
    if constexpr (kWarps == 1) return local;
    Exchange& exchange = shared_exchange();
    Total(&here)[kWarps] = exchange.summaries[turn][which];
    if constexpr (kArrives) {
      wait_for_arrivals(exchange.arrived[turn * Cut::rows + which], phases >> turn & 1);
      phases ^= 1u << turn;
    } else if constexpr (Cut::rows == 1) {
      __syncthreads();
    } else {
      wait_for(which + 1, Cut::threads);
    }
    turn = (turn + 1) % kTurns;
    const int in_warp = threadIdx.x % 32;
    Total total = here[in_warp % kWarps];
#pragma unroll
    for (int w = 32; w < kWarps; w += 32) total = functor.merged(total, here[w + in_warp]);
#pragma unroll
    for (int bit = (kWarps < 32 ? kWarps : 32) / 2; bit > 0; bit /= 2)
      total = functor.merged(total, across(total, bit));
    return total;
  }

 private:
  __device__ __forceinline__ static Exchange& shared_exchange() {
    __shared__ Exchange exchange;
    return exchange;
  }
};

}  // namespace mf
