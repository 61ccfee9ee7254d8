// The CUDA driver for rows. The threads of a row hold it in registers, so that memory is read once;
// warps summarise what they hold and exchange their summaries, then every thread writes its
// results.
//
// A block has a few rows at a time. Where results are summed over rows, or loads go ahead, the grid
// is small, and a block goes on to further rows; the next row's loads are then already under way in
// registers (RowCut's ahead), or those of several in shared memory (its ring). Rows longer than
// what the threads hold (not whole) are read twice.
//
//   row_share_cuda.h     threads and rows, vectors and edges
//   row_places_cuda.h    rows, vectors, columns
//   row_ring_cuda.h      rows to come
//   row_pieces_cuda.h    what a warp holds, and its summary
//   row_exchange_cuda.h  summaries of other warps
//   row_sums_cuda.h      sums over rows
#pragma once

#include "row_sums_cuda.h"

namespace mf {

template <class K, int kVector, class Cut, class Index>
struct RowsCuda : RowSums<K, kVector, Cut, Index> {
  using Base = RowSums<K, kVector, Cut, Index>;
  using typename Base::Early;
  using typename Base::EarlyVectors;
  using typename Base::F;
  using typename Base::Fn;
  using typename Base::Kept;
  using typename Base::Known;
  using typename Base::Late;
  template <int N>
  using LateValues = typename Base::template LateValues<N>;
  using typename Base::Piece;
  using typename Base::Position;
  using typename Base::Total;
  using AllOutputs = typename Base::AllOutputs;
  using Row = typename Fn::Row;
  template <int O>
  using Out = typename Base::template Out<O>;
  using Base::column_of;
  using Base::functor;
  using Base::group_of;
  using Base::kInRing;
  using Base::kInUse;
  using Base::kItems;
  using Base::kLateAt;
  using Base::kStages;
  using Base::lane;
  using Base::stride;
  using Base::words;
  static constexpr bool kOneTurn = Base::kSums == 0 && Cut::whole && !Cut::ahead && Cut::ring == 0;

  __device__ __forceinline__ explicit RowsCuda(const u64* w) : Base(w) {}

  __device__ __forceinline__ void run() {
    if constexpr (K::random) {
      this->random = Random::read(words + K::rng);
      if (blockIdx.x == 0 && threadIdx.x == 0) this->random.remember(words + K::rng);
    }
    Base::open_exchange();
    if constexpr (Cut::ring > 0)
      run_ring();
    else if constexpr (Cut::whole)
      run_whole();
    else
      run_long();
  }

 private:
  // ---- one row after the other

  __device__ __forceinline__ void run_whole() {
    const Index ahead = Base::rows_ahead();
    Index at = this->first_row();
    Position p = this->position(at);
    EarlyVectors fetched[kItems];
    this->fetch_beside(p);
    this->fetch(p, 0, fetched, Early());
    if constexpr (Base::kHoldsLate) this->hold_late(Late());
    if constexpr (Cut::cluster > 1) wait_for_cluster();
    if constexpr (kOneTurn) {
      Piece piece;
      this->load(p, 0, fetched, piece);
      whole_row(p, piece);
    } else {
      // All threads of a block take the same number of turns.
      for (; this->block_has_row(at); at += ahead) {
        Piece piece;
        this->load(p, 0, fetched, piece);
        const Position now = p;
        p = this->position(at + ahead);
        this->fetch_beside(p);
        if constexpr (Cut::ahead) this->fetch(p, 0, fetched, Early());
        whole_row(now, piece);
        if constexpr (!Cut::ahead) this->fetch(p, 0, fetched, Early());
      }
      this->write_sums(AllOutputs());
    }
  }
  __device__ __forceinline__ void whole_row(const Position& p, Piece& piece) {
    const Total local = this->summary(p, 0, piece);
    this->post(local);
    finish(p, 0, piece, local, this->collect(local));
  }

  // Rows that are read twice.
  __device__ __forceinline__ void run_long() {
    if constexpr (Cut::cluster > 1) wait_for_cluster();
    const Index ahead = Base::rows_ahead();
    const Index first = this->first_row();
    for (Index at = first; this->block_has_row(at); at += ahead) long_row(this->position(at));
    if constexpr (Cut::shifted)
      if (!this->block_has_row(first)) this->write_zeros(AllOutputs());
  }
  __device__ __forceinline__ void long_row(Position p) {
    this->fetch_beside(p);
    constexpr Index kPiece = Index(kItems) * Base::kShare;
    EarlyVectors fetched[kItems];
    Piece piece;
    Total total = Base::start(p, Known());
    for (Index base = 0; base < this->groups; base += kPiece) {
      this->fetch(p, base, fetched, Early());
      this->load(p, base, fetched, piece);
      total = functor.merged(total, this->summary(p, base, piece));
    }
    this->post(total);
    total = this->collect(total);
    for (Index base = 0; base < this->groups; base += kPiece) {
      this->fetch(p, base, fetched, Early());
      this->load(p, base, fetched, piece);
      finish(p, base, piece, this->summary(p, base, piece), total);
    }
  }

  // With a ring, a row is summarised while the one before it is still on its way between the warps.
  __device__ __forceinline__ void run_ring() {
    const Index ahead = Base::rows_ahead();
    Index at = this->first_row();
    if constexpr (Base::kHoldsLate)
      this->hold_late(Late());
    else
      this->copy_row(this->position(0), 0, Late());
#pragma unroll
    for (int s = 0; s < kStages - kInUse; ++s) {
      this->copy_row(this->position(at + s * ahead), s, Early());
      end_group_of_copies();
    }
    Position p = this->position(at), next = this->position(at + ahead);
    this->fetch_beside(p);
    this->fetch_beside(next);
    if constexpr (Cut::cluster > 1) wait_for_cluster();
    int stage = 0;
    Total local{};
    Piece piece;
    if constexpr (kInUse == 2) {
      this->copy_ahead(at, ahead, stage);
      // Not for a block without a row: it would end while others of its cluster still write to it.
      if (this->block_has_row(at)) local = begun(p, stage, piece);
    }
    for (; this->block_has_row(at); at += ahead) {
      const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
      if constexpr (kInUse == 2) {
        Total next_local{};
        this->copy_ahead(at + ahead, ahead, next_stage);
        if (this->block_has_row(at + ahead)) next_local = begun(next, next_stage, piece);
        piece.stage = stage;
        finish(p, 0, piece, local, this->collect(local));
        local = next_local;
      } else {
        this->copy_ahead(at, ahead, stage);
        local = begun(p, stage, piece);
        if constexpr (kInRing) asm volatile("" ::: "memory");  // read again: registers are few
        finish(p, 0, piece, local, this->collect(local));
      }
      stage = next_stage;
      p = next;
      next = this->position(at + 2 * ahead);
      this->fetch_beside(next);
    }
    wait_for_copies<0>();
    this->write_sums(AllOutputs());
  }
  __device__ __forceinline__ Total begun(const Position& p, int stage, Piece& piece) {
    this->load_from_ring(p, stage, piece);
    const Total local = this->summary(p, 0, piece);
    this->post(local);
    return local;
  }

  // ---- results

  // Writes what this thread has of a row, from the total of the row and that of its piece.
  __device__ __forceinline__ void finish(const Position& p, Index base, Piece& piece,
                                         const Total& local, const Total& total) {
    finish(p, base, piece, functor.row(total, local, F(this->cols)), AllOutputs());
  }
  template <int... O>
  __device__ __forceinline__ void finish(const Position& p, Index base, Piece& piece,
                                         const Row& row, Indices<O...>) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      if (group >= p.groups) continue;
      const Index column = column_of(group);
      LateValues<kVector> late;
      this->read_late(p, group, item, late, Late());
      const auto made = results_of(p, column, this->kept_of(p, base, piece, item), row, late);
      (write<O>(p, column, item, made.item), ...);
    }
    if (base == 0 && this->has_edge(p)) {
      LateValues<1> late;
      this->read_late_edge(p, late, Late());
      const Kept kept[1] = {this->edge_of(p, piece)};
      const auto made = results_of(p, this->edge_column(), kept, row, late);
      (write_edge<O>(p, made.item[0]), ...);
    }
    if (base == 0 && lane == 0 && p.groups > 0) (write_once<O>(p, row), ...);
  }

  // The results of the N elements from `column` on.
  template <int N>
  __device__ __forceinline__ auto results_of(const Position& p, Index column, const Kept (&kept)[N],
                                             const Row& row, const LateValues<N>& late) const {
    u32 drawn[N] = {};
    if constexpr (K::random && Fn::draws_late) Base::draw(this->element(p, column), drawn);
    Results<decltype(result_of(kept[0], row, late, 0, 0u, Late())), N> made;
#pragma unroll
    for (int v = 0; v < N; ++v) {
      made.item[v] = result_of(kept[v], row, late, v, drawn[v], Late());
      if constexpr (Fn::causal)
        if (column + v >= p.length) made.item[v] = functor.left_out_result(row);
    }
    return made;
  }
  template <int N, int... I>
  __device__ __forceinline__ auto result_of(const Kept& kept, const Row& row,
                                            const F (&late)[Base::kLate + 1][N], int v, u32 drawn,
                                            Indices<I...>) const {
    if constexpr (K::random && Fn::draws_late)
      return functor.result(kept, row, late[I - kLateAt][v]..., drawn);
    else
      return functor.result(kept, row, late[I - kLateAt][v]...);
  }

  template <int O, class R>
  __device__ __forceinline__ void write(const Position& p, Index column, int item,
                                        const R (&results)[kVector]) {
    if constexpr (Out<O>::walk != 'r') {
      Base::template store<Out<O>, kVector, 0>(O, p.start.offset[O] + column * stride(O, 0),
                                               results);
    } else {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const F value = result(results[v], Out<O>::result);
        if constexpr (Cut::whole)
          this->sums[Base::template sum_of<O>][item][v] += value;
        else
          add_to_partial<O>(p, column + v, value);
      }
    }
  }
  template <int O, class R>
  __device__ __forceinline__ void write_edge(const Position& p, const R& results) {
    const Index column = this->edge_column();
    const auto value = result(results, Out<O>::result);
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'c')
      reinterpret_cast<T*>(words[O])[p.start.offset[O] + column] = cast<T>(value);
    else if constexpr (Out<O>::walk == 'r' && Cut::whole)
      this->edge_sums[Base::template sum_of<O>] += value;
    else if constexpr (Out<O>::walk == 'r')
      add_to_partial<O>(p, column, value);
  }
  template <int O>
  __device__ __forceinline__ void add_to_partial(const Position& p, Index column, F value) const {
    using T = typename Out<O>::T;
    T& sum = *this->template partial<O>(column);
    sum = cast<T>(p.row == this->first_row() ? value : sum + value);
  }

  // A result that the row has once.
  template <int O>
  __device__ __forceinline__ void write_once(const Position& p, const Row& row) const {
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'w')
      reinterpret_cast<T*>(words[O])[p.start.offset[O]] =
          cast<T>(result(functor.row_result(row), Out<O>::result));
  }
};

}  // namespace mf
