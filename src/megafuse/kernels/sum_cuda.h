// The CUDA driver for backwards that also sum: the index space is (outer A, kept K, inner B), and
// results with walk 'r' are summed over A and B. Each block writes one row of partial sums; they
// are added up afterwards, so the result does not depend on the order blocks run in. With segments
// dimension B counts these, and results are summed over A alone.
#pragma once

#include "pointwise_cuda.h"

namespace mf {

template <class K, int kVector, class Index, int kThreads = 256>
struct SumCuda : PointwiseCuda<K, kVector, 1, Index> {
  using Base = PointwiseCuda<K, kVector, 1, Index>;
  using F = typename K::Compute;
  using Place = typename Base::Place;
  using AllInputs = typename Base::AllInputs;
  using AllOutputs = typename Base::AllOutputs;
  template <int O>
  using Out = typename Base::template Out<O>;
  using Base::stride;
  using Base::words;

  static constexpr int kWide = 32;                // threads side by side over columns
  static constexpr int kTall = kThreads / kWide;  // rows at a time

  F sums[K::outputs][kVector] = {};
  Index segment = 0;

  __device__ __forceinline__ explicit SumCuda(const u64* w) : Base(w) {}

  __device__ __forceinline__ Place place(Index b, Index k, Index a) const {
    Place p;
#pragma unroll
    for (int op = 0; op < K::operands; ++op)
      p.offset[op] = b * stride(op, 0) + k * stride(op, 1) + a * stride(op, 2);
    return p;
  }

  // N elements from p: stores the whole results, adds the summed ones to `sums`.
  template <int kAlong, int N, int... O>
  __device__ __forceinline__ void add(const Place& p, Indices<O...>) {
    const auto group = Base::template load_all<N, kAlong>(p, AllInputs());
    const auto results = Base::template compute<N>(group, 0, AllInputs());
    (keep<kAlong, O>(p, results.item), ...);
  }

  // A vector of each of kCount rows from `a` on, all loaded before the first is added.
  template <int kCount, int... O>
  __device__ __forceinline__ void add_rows(Index k, Index a, Index step, Indices<O...>) {
    decltype(Base::template load_all<kVector, 1>(Place(), AllInputs())) groups[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      groups[i] = Base::template load_all<kVector, 1>(place(segment, k, a + i * step), AllInputs());
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto results = Base::template compute<kVector>(groups[i], 0, AllInputs());
      (keep<1, O>(place(segment, k, a + i * step), results.item), ...);
    }
  }

  template <int kAlong, int O, class R, int N>
  __device__ __forceinline__ void keep(const Place& p, const R (&results)[N]) {
    if constexpr (Out<O>::walk == 'r') {
#pragma unroll
      for (int v = 0; v < N; ++v) sums[O][v] += F(pick<Out<O>::result>(results[v]));
    } else {
      Base::template store<Out<O>, N, kAlong>(O, p.offset[O], results);
    }
  }

  template <int O>
  __device__ __forceinline__ void write(Index part, Index k, F total) const {
    using T = typename Out<O>::T;
    const Index first = segment * Index(words[K::size + 1]);
    reinterpret_cast<T*>(words[O])[part * stride(O, 2) + first + k] = cast<T>(total);
  }

  // B == 1. A block sums kWide vectors of columns over its share of the rows (blockIdx.y).
  __device__ __forceinline__ void columns() {
    const Index kept = Index(words[K::size + 1]);
    columns(blockIdx.x, kept, Index(words[K::numel]) / kept, AllOutputs());
  }
  // The same of one segment: its blocks follow each other.
  __device__ __forceinline__ void segments() {
    const Index kept = Index(words[K::size + 1]), count = Index(words[K::size]);
    const Index tiles = Index(gridDim.x) / count;
    segment = Index(blockIdx.x) / tiles;
    columns(Index(blockIdx.x) - segment * tiles, kept, Index(words[K::numel]) / count / kept,
            AllOutputs());
  }

  template <int... O>
  __device__ __forceinline__ void columns(Index tile, Index kept, Index outer, Indices<O...> all) {
    const int x = threadIdx.x % kWide, y = threadIdx.x / kWide;
    const Index k = (tile * kWide + x) * kVector;
    const Index step = Index(gridDim.y) * kTall;
    Index a = Index(blockIdx.y) * kTall + y;
    if (k < kept) {
      // Bare sums, such as those of partial sums, have too few blocks to wait for each row.
      constexpr int kUnderWay = K::outputs == 1 ? 8 : 4;
      constexpr bool kBare = ((Out<O>::walk == 'r') && ...);
      if constexpr (kBare && K::operands == 2 * K::outputs)
        for (; a + (kUnderWay - 1) * step < outer; a += kUnderWay * step)
          add_rows<kUnderWay>(k, a, step, all);
      for (; a < outer; a += step) add<1, kVector>(place(segment, k, a), all);
    }
    (finish_columns<O>(k, kept, x, y), ...);
  }

  // Segments of a few rows, or very many: a thread sums a vector of columns of one of them alone.
  __device__ __forceinline__ void short_segments() { short_segments(AllOutputs()); }

  template <int... O>
  __device__ __forceinline__ void short_segments(Indices<O...> all) {
    const Index kept = Index(words[K::size + 1]), count = Index(words[K::size]);
    const Index outer = Index(words[K::numel]) / count / kept;
    const Index vectors = kept / kVector;
    const Index at = Index(blockIdx.x) * kThreads + Index(threadIdx.x);
    segment = at / vectors;
    if (segment >= count) return;
    const Index k = (at - segment * vectors) * kVector;
    constexpr int kUnderWay = 4;
    Index a = 0;
    for (; a + kUnderWay <= outer; a += kUnderWay) add_rows<kUnderWay>(k, a, 1, all);
    for (; a < outer; ++a) add<1, kVector>(place(segment, k, a), all);
    (write_vector<O>(k), ...);
  }
  template <int O>
  __device__ __forceinline__ void write_vector(Index k) const {
    if constexpr (Out<O>::walk == 'r') {
#pragma unroll
      for (int v = 0; v < kVector; ++v) write<O>(0, k + v, sums[O][v]);
    }
  }

  // One for all sums, whatever their number. + 1: rows start in different banks.
  using Tile = F[kTall][kWide][kVector + 1];
  __device__ __forceinline__ static Tile& tile_of_block() {
    __shared__ Tile tile;
    return tile;
  }

  template <int O>
  __device__ __forceinline__ void finish_columns(Index k, Index kept, int x, int y) {
    if constexpr (Out<O>::walk == 'r') {
      Tile& tile = tile_of_block();
      __syncthreads();  // the sum before this one has been read
#pragma unroll
      for (int v = 0; v < kVector; ++v) tile[y][x][v] = sums[O][v];
      __syncthreads();
      if (y != 0 || k >= kept) return;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        F total = tile[0][x][v];
#pragma unroll
        for (int row = 1; row < kTall; ++row) total += tile[row][x][v];
        write<O>(Index(blockIdx.y), k + v, total);
      }
    }
  }

  // B > 1. kRow threads sum one row: a warp, or a block, which may also sum one of gridDim.y
  // pieces of it.
  template <int kRow>
  __device__ __forceinline__ void rows() {
    rows<kRow>(AllOutputs());
  }

  template <int kRow, int... O>
  __device__ __forceinline__ void rows(Indices<O...> all) {
    const Index inner = Index(words[K::size]), kept = Index(words[K::size + 1]);
    const Index row = Index(blockIdx.x) * (kThreads / kRow) + threadIdx.x / kRow;
    const Index k = row % kept, a = row / kept;
    const bool is_row = kRow == kThreads || row < Index(words[K::numel]) / inner;
    const Index groups = is_row ? inner / kVector : 0;
    for (Index i = Index(blockIdx.y) * kRow + threadIdx.x % kRow; i < groups;
         i += Index(gridDim.y) * kRow)
      add<0, kVector>(place(i * kVector, k, a), all);
    (finish_row<kRow, O>(k, a, is_row), ...);
  }

  template <int kRow, int O>
  __device__ __forceinline__ void finish_row(Index k, Index a, bool is_row) {
    if constexpr (Out<O>::walk == 'r') {
      F total = sums[O][0];
#pragma unroll
      for (int v = 1; v < kVector; ++v) total += sums[O][v];
#pragma unroll
      for (int away = 16; away > 0; away /= 2) total += __shfl_down_sync(0xffffffffu, total, away);
      if constexpr (kRow > 32) {
        __shared__ F warp[kThreads / 32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = total;
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll
          for (int w = 1; w < kThreads / 32; ++w) total += warp[w];
        }
      }
      if (is_row && threadIdx.x % kRow == 0)
        write<O>(a * Index(gridDim.y) + Index(blockIdx.y), k, total);
    }
  }
};

}  // namespace mf
