// Where rows are on the GPU: which threads have which rows, and how a row is cut into vectors.
//
// Rows whose length is a multiple of the vector are cut from their first element on. All others are
// shifted: their vectors are those at aligned addresses, and what is left at both ends of a row,
// its edges, are single elements of its first threads. Rows that are kVector apart start at the
// same place in a vector; a thread's rows are, so its columns stay the same from row to row. (8192
// x 50257 softmax in bfloat16, element by element: 14 % of a copy.)
#pragma once

#include "pointwise_cuda.h"

namespace mf {

// Cut (RowCut, GraphCut) says how rows are shared out: `threads` threads of each of `cluster`
// blocks have a row, `items` vectors each; a block has `rows` of them at a time, which start
// anywhere in a vector where they are `shifted`.
template <class K, int kVector, class Cut, class Index>
struct RowShare : PointwiseCuda<K, kVector, 1, Index> {
  using Base = PointwiseCuda<K, kVector, 1, Index>;
  using Place = typename Base::Place;
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

  // The first output that is summed over the rows of each segment (walk 'g'), or -1. Segments are
  // as long as each other and follow each other; a block then has rows of one of them alone: of the
  // blockIdx.x-th, which gridDim.y blocks share.
  template <int... O>
  static MF_INLINE constexpr int first_of_segments(Indices<O...>) {
    int found = -1;
    ((found < 0 && At<O, typename K::Outputs>::type::walk == 'g' ? void(found = O) : void()), ...);
    return found;
  }
  static constexpr int kOfSegments = first_of_segments(typename Base::AllOutputs());
  static_assert(kOfSegments < 0 || Cut::cluster == 1, "a block has a part of a segment");

  Index cols;
  Index rows;     // with segments: up to the end of this one
  Index groups;   // vectors in a row
  int lane;       // this thread among those of its row
  int which;      // its row among those of the block
  int head = 0;   // elements before a row's first vector
  int edges = 0;  // and those after its last, too

  __device__ __forceinline__ explicit RowShare(const u64* w)
      : Base(w), lane(threadIdx.x % Cut::threads), which(threadIdx.x / Cut::threads) {
    if constexpr (Cut::shifted)
      cols = Index(words[K::size]);
    else
      cols = Index(words[K::size]) * kVector;
    rows = Index(words[K::numel]) / cols;
    if constexpr (kOfSegments >= 0) rows = Index(blockIdx.x + 1) * stride(kOfSegments, 0);
    if constexpr (Cut::shifted) {
      // How far on in a vector each row starts than the one before: cols, or 0 where rows have gaps
      // so that they all start at one.
      const u32 pitch = u32(words[K::divider]);
      head = int((kVector - u32(first_row()) * pitch % kVector) % kVector);
      groups = (cols - head) / kVector;
      edges = int(cols - groups * kVector);
    } else {
      groups = Index(words[K::size]);
    }
  }

  // ---- rows

  // This thread's first row, and how far on the next one is. Where rows are shifted there are as
  // many blocks (or clusters, or parts of a segment) as a multiple of kVector, and a block's rows
  // are kVector apart.
  __device__ __forceinline__ Index first_row() const {
    Index block = blockIdx.x / Cut::cluster, before = 0;
    if constexpr (kOfSegments >= 0)
      block = blockIdx.y, before = Index(blockIdx.x) * stride(kOfSegments, 0);
    if constexpr (Cut::shifted)
      return before + block / kVector * (Cut::rows * kVector) + which * kVector + block % kVector;
    else
      return before + block * Cut::rows + which;
  }
  __device__ __forceinline__ static Index rows_ahead() {
    const Index blocks = kOfSegments < 0 ? gridDim.x / Cut::cluster : gridDim.y;
    return blocks * Cut::rows;
  }
  // Whether any thread of the block has a row in the turn in which this one's would be `at`.
  __device__ __forceinline__ bool block_has_row(Index at) const {
    return at - which * kApart < rows;
  }

  // A row's coordinate along a dimension; `rest` is its number among those from there on.
  __device__ __forceinline__ Index coordinate(int dim, Index& rest) const {
    Index at = rest;
    if (dim < K::dims - 1) {
      const Index size = Index(words[K::size + dim]);
      if constexpr (sizeof(Index) == 4)
        rest = Index(divide(u32(rest), words[K::divider + dim]));
      else
        rest = rest / size;
      at -= rest * size;
    }
    return at;
  }
  __device__ __forceinline__ Place start_of(Index row) const {
    Place p{};
#pragma unroll
    for (int dim = 1; dim < K::dims; ++dim) {
      const Index at = coordinate(dim, row);
#pragma unroll
      for (int op = 0; op < K::operands; ++op) p.offset[op] += at * stride(op, dim);
    }
    return p;
  }

  // ---- columns

  // The column a vector starts at, and that of this thread's edge.
  __device__ __forceinline__ Index column_of(Index group) const {
    if constexpr (Cut::shifted)
      return head + group * kVector;
    else
      return group * kVector;
  }
  __device__ __forceinline__ Index edge_column() const {
    return lane < head ? lane : groups * kVector + lane;
  }

  // N elements of the I-th input, from a column on: a vector, or one.
  template <int I, int N>
  __device__ __forceinline__ auto read(const Place& start, Index column) const {
    constexpr int op = K::outputs + I;
    using T = typename In<I>::T;
    const Index offset = start.offset[op] + column * stride(op, 0);
    if constexpr (In<I>::walk != 'u') {
      return Base::template load<In<I>, N, 0>(op, offset);
    } else {
      const T* const from = reinterpret_cast<const T*>(words[op]) + offset;
      if constexpr (N == 1)
        return Vector<T, 1>{read_once(from)};
      else
        return read_unaligned<Vector<T, N>>(from);
    }
  }
};

}  // namespace mf
