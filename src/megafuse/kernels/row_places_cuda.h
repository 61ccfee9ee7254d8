// Where rows are on the GPU: how they are cut into vectors, which thread has which, how one is
// read.
//
// Rows whose length is a multiple of the vector are cut from their first element on. All others are
// shifted: their vectors are those at aligned addresses, and what is left at both ends of a row,
// its edges, are single elements of its first threads. Rows that are kVector apart start at the
// same place in a vector; a thread's rows are, so its columns stay the same from row to row. (8192
// x 50257 softmax in bfloat16, element by element: 14 % of a copy.)
#pragma once

#include "exchange_cuda.h"
#include "pointwise_cuda.h"
#include "rows.h"

namespace mf {

// N indices from the first on.
template <int First, class Is>
struct ShiftIndices;
template <int First, int... I>
struct ShiftIndices<First, Indices<I...>> {
  using type = Indices<First + I...>;
};

// How rows are shared out (codegen/tuning/rows.py decides): `threads` threads of each of `cluster`
// blocks have a row, `items` vectors each; a block has `rows` of them at a time.
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
struct RowPlaces : PointwiseCuda<K, kVector, 1, Index> {
  using Base = PointwiseCuda<K, kVector, 1, Index>;
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
  using Base::stride;
  using Base::words;

  static constexpr int kItems = Cut::items;
  static constexpr int kShare = Cut::threads * Cut::cluster;            // threads of a row
  static constexpr int kWidth = Cut::threads < 32 ? Cut::threads : 32;  // those in one warp
  static constexpr int kWarps = kShare / kWidth;
  static constexpr int kBlock = Cut::threads * Cut::rows;    // threads of a block
  static constexpr int kApart = Cut::shifted ? kVector : 1;  // rows of a block
  static_assert(!Cut::shifted || kShare >= 2 * kVector - 2, "a thread for each edge");

  Index cols;
  Index rows;
  Index groups;   // vectors in a row
  int lane;       // this thread among those of its row
  int which;      // its row among those of the block
  int head = 0;   // elements before a row's first vector
  int edges = 0;  // and those after its last, too

  __device__ __forceinline__ explicit RowPlaces(const u64* w)
      : Base(w), lane(threadIdx.x % Cut::threads), which(threadIdx.x / Cut::threads) {
    if constexpr (Cut::shifted) {
      cols = Index(words[K::size]);
      rows = Index(words[K::numel]) / cols;
      head = int((kVector - u32(first_row()) * u32(cols) % kVector) % kVector);
      groups = (cols - head) / kVector;
      edges = int(cols - groups * kVector);
    } else {
      groups = Index(words[K::size]);
      cols = groups * kVector;
      rows = Index(words[K::numel]) / cols;
    }
    if constexpr (Cut::cluster > 1) lane += rank_in_cluster() * Cut::threads;
  }

  // ---- rows

  // This thread's first row, and how far on the next one is. Where rows are shifted there are as
  // many blocks (or clusters) as a multiple of kVector, and a block's rows are kVector apart.
  __device__ __forceinline__ Index first_row() const {
    const Index block = blockIdx.x / Cut::cluster;
    if constexpr (Cut::shifted)
      return block / kVector * (Cut::rows * kVector) + which * kVector + block % kVector;
    else
      return block * Cut::rows + which;
  }
  __device__ __forceinline__ static Index rows_ahead() {
    return Index(gridDim.x / Cut::cluster) * Cut::rows;
  }
  // Whether any thread of the block has a row in the turn in which this one's would be `at`.
  __device__ __forceinline__ bool block_has_row(Index at) const {
    return at - which * kApart < rows;
  }

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
    Index rest = row < rows ? row : 0;
#pragma unroll
    for (int dim = 1; dim < K::dims; ++dim) {
      Index at = rest;
      if (dim < K::dims - 1) {
        const Index size = Index(words[K::size + dim]);
        if constexpr (sizeof(Index) == 4)
          rest = Index(divide(u32(rest), words[K::divider + dim]));
        else
          rest = rest / size;
        at -= rest * size;
      }
      if (Fn::causal && dim == 1 && at + 1 < p.length) p.length = at + 1;
#pragma unroll
      for (int op = 0; op < K::operands; ++op) p.start.offset[op] += at * stride(op, dim);
    }
    return p;
  }

  // ---- vectors

  // The vector that is this thread's item-th of those from `base` on, and the column it starts at.
  __device__ __forceinline__ Index group_of(Index base, int item) const {
    return base + item * kShare + lane;
  }
  __device__ __forceinline__ Index column_of(Index group) const {
    if constexpr (Cut::shifted)
      return head + group * kVector;
    else
      return group * kVector;
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
    constexpr int op = K::outputs + I;
    using T = typename In<I>::T;
    const Index offset = p.start.offset[op] + column_of(group) * stride(op, 0);
    if constexpr (In<I>::walk == 'u')
      return read_unaligned<Vector<T, kVector>>(reinterpret_cast<const T*>(words[op]) + offset);
    else
      return Base::template load<In<I>, kVector, 0>(op, offset);
  }

  // ---- edges

  // Whether this thread has one, and its column.
  __device__ __forceinline__ bool has_edge(const Position& p) const {
    return Cut::shifted && lane < edges && p.groups > 0;
  }
  __device__ __forceinline__ Index edge_column() const {
    return lane < head ? lane : groups * kVector + lane;
  }
  template <int I>
  __device__ __forceinline__ auto read_edge(const Position& p) const {
    constexpr int op = K::outputs + I;
    using T = typename In<I>::T;
    Vector<T, 1> one{};
    if constexpr (In<I>::walk != 'v')
      one.item[0] = read_once(reinterpret_cast<const T*>(words[op]) + p.start.offset[op] +
                              edge_column() * stride(op, 0));
    return one;
  }
};

}  // namespace mf
