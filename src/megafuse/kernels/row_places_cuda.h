// A row of a kernel of rows.h on the GPU: where it is, how far it counts, which of its vectors are
// this thread's. row_share_cuda.h has what generated kernels need as well.
#pragma once

#include "exchange_cuda.h"
#include "row_share_cuda.h"
#include "rows.h"

namespace mf {

// N indices from the first on.
template <int First, class Is>
struct ShiftIndices;
template <int First, int... I>
struct ShiftIndices<First, Indices<I...>> {
  using type = Indices<First + I...>;
};

// How rows are shared out: codegen/tuning/rows.py decides.
template <int kItems, int kThreads, int kRows, int kCluster, bool kWhole, bool kAhead, int kRing,
          bool kAgain, bool kShifted>
struct RowCut {
  static constexpr int items = kItems, threads = kThreads, rows = kRows, cluster = kCluster;
  static constexpr bool whole = kWhole;      // the threads hold all of a row: it is read once
  static constexpr bool ahead = kAhead;      // the next row's loads go out before this one is done,
                                             // and registers hold the late inputs
  static constexpr int ring = kRing;         // bytes of shared memory for rows to come
  static constexpr bool again = kAgain;      // what is there is read again, not held in registers
  static constexpr bool shifted = kShifted;  // rows start anywhere in a vector
  static_assert(cluster == 1 || rows == 1, "a cluster has one row at a time");
};

template <class K, int kVector, class Cut, class Index>
struct RowPlaces : RowShare<K, kVector, Cut, Index> {
  using Base = RowShare<K, kVector, Cut, Index>;
  using Fn = typename K::Functor;
  using F = typename K::Compute;
  using Place = typename Base::Place;
  using Early = typename MakeIndices<Fn::early>::type;
  using Known = typename MakeIndices<Fn::known>::type;
  static constexpr int kLateAt = Fn::early + Fn::known;
  static constexpr int kLate = K::inputs - kLateAt;
  using Late = typename ShiftIndices<kLateAt, typename MakeIndices<kLate>::type>::type;
  template <int I>
  using In = typename Base::template In<I>;
  using Base::cols;
  using Base::column_of;
  using Base::edge_column;
  using Base::edges;
  using Base::groups;
  using Base::kItems;
  using Base::kShare;
  using Base::kWidth;
  using Base::lane;
  using Base::rows;
  using Base::stride;
  using Base::words;

  __device__ __forceinline__ explicit RowPlaces(const u64* w) : Base(w) {
    if constexpr (Cut::cluster > 1) lane += rank_in_cluster() * Cut::threads;
  }

  // ---- rows

  // One row, or (groups == 0) none: such threads only take part in shuffles and barriers.
  struct Position {
    Place start;
    Index row;
    Index groups;
    Index length;  // elements that count: all, or up to the diagonal
    F known[Fn::known + 1];
    Loaded<typename K::Inputs, 1, Early> edge;
  };

  __device__ __forceinline__ Position position(Index row) const {
    Position p{};
    p.row = row;
    p.groups = row < rows ? groups : 0;
    p.length = row < rows ? cols : 0;
    Index there = row < rows ? row : 0;
    p.start = this->start_of(there);
    if constexpr (Fn::causal) {
      const Index at = this->coordinate(1, there);
      if (at + 1 < p.length) p.length = at + 1;
    }
    return p;
  }

  // ---- vectors

  // The vector that is this thread's item-th of those from `base` on.
  __device__ __forceinline__ Index group_of(Index base, int item) const {
    return base + item * kShare + lane;
  }
  // Whether a vector is to be read: it is the row's, and not all right of the diagonal.
  __device__ __forceinline__ bool is_wanted(const Position& p, Index group) const {
    return group < p.groups && (!Fn::causal || column_of(group) < p.length);
  }
  // An element's place among all of the tensor's, by which random numbers go.
  __device__ __forceinline__ u64 element(const Position& p, Index column) const {
    return u64(p.row) * u64(cols) + u64(i64(column));
  }

  // How many of the row's elements this warp has.
  __device__ __forceinline__ Index elements_of_warp(const Position& p, Index base) const {
    Index count = 0;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index left = p.groups - (group_of(base, item) - lane % kWidth);
      count += left < 0 ? 0 : left < kWidth ? left : kWidth;
    }
    count *= kVector;
    if constexpr (Cut::shifted) {
      const int left = edges - (lane - lane % kWidth);
      if (base == 0 && p.groups > 0) count += left < 0 ? 0 : left < kWidth ? left : kWidth;
    }
    return count;
  }

  template <int I>
  __device__ __forceinline__ auto read(const Position& p, Index group) const {
    return Base::template read<I, kVector>(p.start, column_of(group));
  }

  // ---- edges

  // Whether this thread has one.
  __device__ __forceinline__ bool has_edge(const Position& p) const {
    return Cut::shifted && lane < edges && p.groups > 0;
  }
  template <int I>
  __device__ __forceinline__ auto read_edge(const Position& p) const {
    return Base::template read<I, 1>(p.start, edge_column());
  }
};

}  // namespace mf
