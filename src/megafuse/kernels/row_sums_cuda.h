// Results that are summed over rows, column by column: every thread adds up its own columns in
// registers, and each block writes one row of partial sums.
#pragma once

#include "row_exchange_cuda.h"

namespace mf {

template <class K, int kVector, class Cut, class Index>
struct RowSums : RowExchange<K, kVector, Cut, Index> {
  using Base = RowExchange<K, kVector, Cut, Index>;
  using typename Base::F;
  using AllOutputs = typename Base::AllOutputs;
  template <int O>
  using Out = typename Base::template Out<O>;
  using Base::column_of;
  using Base::kBlock;
  using Base::kItems;
  using Base::kWidth;
  using Base::lane;
  using Base::stride;
  using Base::which;
  using Base::words;

  // How many outputs before the O-th are summed over rows.
  template <int... O>
  static MF_INLINE constexpr int sums_before(int o, Indices<O...>) {
    return ((O < o && Out<O>::walk == 'r') + ... + 0);
  }
  static constexpr int kSums = sums_before(K::outputs, AllOutputs());
  template <int O>
  static constexpr int sum_of = sums_before(O, AllOutputs());

  F sums[kSums + 1][kItems][kVector] = {};
  F edge_sums[kSums + 1] = {};

  __device__ __forceinline__ explicit RowSums(const u64* w) : Base(w) {}

  // This block's share of the columns from `column` on.
  template <int O>
  __device__ __forceinline__ typename Out<O>::T* partial(Index column) const {
    return reinterpret_cast<typename Out<O>::T*>(words[O]) +
           Index(blockIdx.x / Cut::cluster) * stride(O, 1) + column;
  }

  template <int... O>
  __device__ __forceinline__ void write_sums(Indices<O...>) {
    (write_sum<O>(), ...);
  }
  // Of a block that has no row, where rows are read twice and sums wait in memory: shifted rows
  // have as many blocks as a multiple of the vector.
  template <int... O>
  __device__ __forceinline__ void write_zeros(Indices<O...>) {
    for (Index column = lane; column < this->cols; column += Base::kShare)
      (write_zero<O>(column), ...);
  }

 private:
  template <int O>
  __device__ __forceinline__ void write_zero(Index column) const {
    if constexpr (Out<O>::walk == 'r') *partial<O>(column) = cast<typename Out<O>::T>(F(0));
  }
  template <int O>
  __device__ __forceinline__ void write_sum() {
    if constexpr (Out<O>::walk == 'r') {
      auto& mine = sums[sum_of<O>];
      if constexpr (Cut::shifted) write_edge_sums<O>(edge_sums[sum_of<O>]);
      if constexpr (Cut::ring > 0 && Cut::rows > 1) return write_sum_of_rows<O>(mine);
      add_up_rows(mine);
      if (int(threadIdx.x) / kOnce != kTimes - 1 || int(threadIdx.x) % kOnce >= Cut::threads)
        return;
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        const Index group = this->group_of(0, item);
        if (group < this->groups) write_partial<O>(group, mine[item]);
      }
    }
  }

  // Rows of partial sums follow each other without a gap: shifted ones start anywhere.
  template <int O>
  __device__ __forceinline__ void write_partial(Index group, const F (&sum)[kVector]) const {
    using T = typename Out<O>::T;
    T* const to = partial<O>(column_of(group));
    if constexpr (Cut::shifted) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) to[v] = cast<T>(sum[v]);
    } else {
      Vector<T, kVector> packed;
      narrow(sum, packed);
      *reinterpret_cast<Vector<T, kVector>*>(to) = packed;
    }
  }

  // Those of the edges: the rows of a block start alike, so they have the same columns.
  template <int O>
  __device__ __forceinline__ void write_edge_sums(F mine) const {
    if constexpr (Cut::rows > 1) {
      __shared__ F all[Cut::rows][2 * kVector];
      __syncthreads();
      if (lane < this->edges) all[which][lane] = mine;
      __syncthreads();
      mine = F(0);
      if (which == 0 && lane < this->edges)
        for (int row = 0; row < Cut::rows; ++row) mine += all[row][lane];
    }
    if (which == 0 && lane < this->edges)
      *partial<O>(this->edge_column()) = cast<typename Out<O>::T>(mine);
  }

  // The sums of all rows of the block, in its last kOnce threads. They join in the same order every
  // time: the rows of one warp by shuffles, then kOnce threads after the other.
  static constexpr int kOnce = Cut::threads < 32 ? 32 : Cut::threads;
  static constexpr int kTimes = kBlock / kOnce;
  __device__ __forceinline__ void add_up_rows(F (&mine)[kItems][kVector]) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
#pragma unroll
        for (int bit = 16; bit >= kWidth; bit /= 2) mine[item][v] += across(mine[item][v], bit);
      }
    }
    if constexpr (kTimes > 1) {
      __shared__ F so_far[kItems][kVector][kOnce];
      const int at = threadIdx.x % kOnce;
#pragma unroll 1
      for (int time = 0; time < kTimes; ++time) {
        __syncthreads();
        if (time != int(threadIdx.x) / kOnce) continue;
#pragma unroll
        for (int item = 0; item < kItems; ++item) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            if (time > 0) mine[item][v] += so_far[item][v][at];
            so_far[item][v][at] = mine[item][v];
          }
        }
      }
    }
  }

  // The same through the ring's memory, which is no longer needed, by all threads at once.
  template <int O>
  __device__ __forceinline__ void write_sum_of_rows(const F (&mine)[kItems][kVector]) const {
    using V = Vector<F, kVector>;
    constexpr int vectors = kItems * Cut::threads;
    static_assert(Cut::rows * vectors * int(sizeof(V)) <= Cut::ring);
    extern __shared__ uint4 ring[];
    V* const all = reinterpret_cast<V*>(ring);
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      V one;
#pragma unroll
      for (int v = 0; v < kVector; ++v) one.item[v] = mine[item][v];
      all[(which * kItems + item) * Cut::threads + lane] = one;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < vectors && i < this->groups; i += kBlock) {
      F total[kVector] = {};
      for (int row = 0; row < Cut::rows; ++row) {
        const V one = all[row * vectors + i];
#pragma unroll
        for (int v = 0; v < kVector; ++v) total[v] += one.item[v];
      }
      write_partial<O>(i, total);
    }
  }
};

}  // namespace mf
