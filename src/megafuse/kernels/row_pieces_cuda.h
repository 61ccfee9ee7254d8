// What a warp holds of a row is a piece: loaded, kept in registers (or read again from the ring),
// and summarised by shuffles alone.
#pragma once

#include "row_ring_cuda.h"

namespace mf {

template <class K, int kVector, class Cut, class Index>
struct RowPieces : RowRing<K, kVector, Cut, Index> {
  using Base = RowRing<K, kVector, Cut, Index>;
  using typename Base::Early;
  using typename Base::EarlyVectors;
  using typename Base::F;
  using typename Base::Fn;
  using typename Base::Known;
  using typename Base::Late;
  using typename Base::Position;
  using Kept = Pack<F, Fn::kept>;
  using Total = typename Fn::Total;
  using LateVectors = Loaded<typename K::Inputs, kVector, Late>;
  template <int I>
  using In = typename Base::template In<I>;
  using Base::column_of;
  using Base::functor;
  using Base::group_of;
  using Base::kInRing;
  using Base::kItems;
  using Base::kLate;
  using Base::kLateAt;
  using Base::kWidth;
  // Not where a block has one row only: the registers cost more blocks than the wait (4096 columns
  // of bfloat16: 73 % of a copy so, 91 % not).
  static constexpr bool kHoldsLate = Cut::whole && Cut::ahead && kLate > 0;

  // What is kept of this thread's vectors; with kInRing, of the one at hand.
  struct Piece {
    Kept kept[kInRing ? 1 : kItems][kVector];
    Kept edge[1];
    int stage;
  };
  template <int N>
  using LateValues = F[kLate + 1][N];  // the late inputs of N elements

  LateVectors weights[kHoldsLate ? kItems : 1];

  __device__ __forceinline__ explicit RowPieces(const u64* w) : Base(w) {}

  // Issues the loads of this thread's vectors from `base` on.
  template <int... I>
  __device__ __forceinline__ void fetch(const Position& p, Index base,
                                        EarlyVectors (&fetched)[kItems], Indices<I...>) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      if (this->is_wanted(p, group))
        ((slot<I>(fetched[item]) = this->template read<I>(p, group)), ...);
    }
  }

  // Issues the loads of what is known of the row, and of this thread's edge.
  __device__ __forceinline__ void fetch_beside(Position& p) const {
    fetch_known(p, Known());
    if (this->has_edge(p) && this->edge_column() < p.length) fetch_edge(p, Early());
  }
  template <int... I>
  __device__ __forceinline__ void fetch_edge(Position& p, Indices<I...>) const {
    ((slot<I>(p.edge) = this->template read_edge<I>(p)), ...);
  }
  template <int... I>
  __device__ __forceinline__ void fetch_known(Position& p, Indices<I...>) const {
    (fetch_known<I>(p), ...);
  }
  template <int I>
  __device__ __forceinline__ void fetch_known(Position& p) const {
    F values[kVector];
    Base::template convert<In<Fn::early + I>, kVector>(
        K::outputs + Fn::early + I, this->template read<Fn::early + I>(p, 0), values);
    p.known[I] = values[0];
  }

  // What is kept of the N elements from `column` on.
  template <int N, class Fetched, int... I>
  __device__ __forceinline__ void keep(const Position& p, Index column, const Fetched& fetched,
                                       Kept (&kept)[N], Indices<I...>) const {
    constexpr bool draws = K::random && !Fn::draws_late;
    F values[Fn::early][N];
    (Base::template convert<In<I>, N>(K::outputs + I, slot<I>(fetched), values[I]), ...);
    u32 drawn[N] = {};
    if constexpr (draws) Base::draw(this->element(p, column), drawn);
#pragma unroll
    for (int v = 0; v < N; ++v) {
      if constexpr (draws)
        kept[v] = functor.load(values[I][v]..., drawn[v]);
      else
        kept[v] = functor.load(values[I][v]...);
      if constexpr (!Fn::keeps_inputs) {
#pragma unroll
        for (int i = 0; i < Fn::kept; ++i)
          kept[v][i] = Rounded<typename Fn::KeptAs>::to(kept[v][i]);
      }
      if constexpr (Fn::causal)
        if (column + v >= p.length) kept[v] = functor.left_out();
    }
  }
  __device__ __forceinline__ void load(const Position& p, Index base,
                                       const EarlyVectors (&fetched)[kItems], Piece& piece) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item)
      keep(p, column_of(group_of(base, item)), fetched[item], piece.kept[item], Early());
    load_edge(p, piece);
  }
  __device__ __forceinline__ void load_from_ring(const Position& p, int stage, Piece& piece) const {
    piece.stage = stage;
    if constexpr (!kInRing) {
#pragma unroll
      for (int item = 0; item < kItems; ++item)
        keep(p, column_of(group_of(0, item)), this->from_ring(p, stage, item, Early()),
             piece.kept[item], Early());
      load_edge(p, piece);
    }
  }
  __device__ __forceinline__ void load_edge(const Position& p, Piece& piece) const {
    if constexpr (Cut::shifted) keep(p, this->edge_column(), p.edge, piece.edge, Early());
  }
  __device__ __forceinline__ auto& kept_of(const Position& p, Index base, Piece& piece,
                                           int item) const {
    if constexpr (kInRing) {
      keep(p, column_of(group_of(base, item)), this->from_ring(p, piece.stage, item, Early()),
           piece.kept[0], Early());
      return piece.kept[0];
    } else {
      return piece.kept[item];
    }
  }
  __device__ __forceinline__ Kept& edge_of(const Position& p, Piece& piece) const {
    if constexpr (kInRing) load_edge(p, piece);
    return piece.edge[0];
  }

  template <int... I>
  __device__ __forceinline__ void hold_late(Indices<I...>) {
    const Position p = this->position(0);
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(0, item);
      if (group < this->groups) ((slot<I>(weights[item]) = this->template read<I>(p, group)), ...);
    }
  }
  template <int... I>
  __device__ __forceinline__ void read_late(const Position& p, Index group, int item,
                                            LateValues<kVector>& late, Indices<I...>) const {
    (Base::template convert<In<I>, kVector>(K::outputs + I, late_vector<I>(p, group, item),
                                            late[I - kLateAt]),
     ...);
  }
  template <int... I>
  __device__ __forceinline__ void read_late_edge(const Position& p, LateValues<1>& late,
                                                 Indices<I...>) const {
    (Base::template convert<In<I>, 1>(K::outputs + I, this->template read_edge<I>(p),
                                      late[I - kLateAt]),
     ...);
  }

  // The total of this warp's elements.
  __device__ __forceinline__ Total summary(const Position& p, Index base, Piece& piece) const {
    Total total = start(p, Known());
    if constexpr (Fn::pivots)
      total = Fn::around(__shfl_sync(0xffffffffu, kept_of(p, base, piece, 0)[0][0], 0, kWidth));
    steps<Fn::steps - 1>(p, base, piece, total);
    return total;
  }
  template <int... I>
  __device__ __forceinline__ static Total start(const Position& p, Indices<I...>) {
    return Fn::start(p.known[I]...);
  }

 private:
  template <int I>
  __device__ __forceinline__ auto late_vector(const Position& p, Index group, int item) const {
    if constexpr (kHoldsLate)
      return slot<I>(weights[item]);
    else if constexpr (Cut::ring > 0)
      return this->template from_ring<I>(p, group, 0, item);
    else
      return this->template read<I>(p, group);
  }

  template <int S, int N, int... I>
  __device__ __forceinline__ auto term(Kept& kept, const Total& known,
                                       const F (&late)[kLate + 1][N], int v, Indices<I...>) const {
    if constexpr (Fn::weighs)
      return functor.template term<S>(kept, known, late[I - kLateAt][v]...);
    else
      return functor.template term<S>(kept, known);
  }

  template <int S>
  __device__ __forceinline__ void step(const Position& p, Index base, Piece& piece,
                                       Total& total) const {
    constexpr bool kMax = Fn::template takes_max<S>;
    using Term = decltype(term<S>(piece.kept[0][0], total,
                                  *static_cast<LateValues<kVector>*>(nullptr), 0, Late()));
    Term mine = Neutral<kMax, Term>::value();
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      if (group >= p.groups) continue;
      LateValues<kVector> late;
      if constexpr (Fn::weighs) read_late(p, group, item, late, Late());
      auto& kept = kept_of(p, base, piece, item);
#pragma unroll
      for (int v = 0; v < kVector; ++v)
        mine = joined<kMax>(mine, term<S>(kept[v], total, late, v, Late()));
    }
    if constexpr (Cut::shifted) {
      if (base == 0 && this->has_edge(p)) {
        LateValues<1> late;
        if constexpr (Fn::weighs) read_late_edge(p, late, Late());
        mine = joined<kMax>(mine, term<S>(edge_of(p, piece), total, late, 0, Late()));
      }
    }
#pragma unroll
    for (int bit = kWidth / 2; bit > 0; bit /= 2) mine = joined<kMax>(mine, across(mine, bit));
    functor.template fold<S>(total, mine, F(this->elements_of_warp(p, base)));
  }
  template <int S>
  __device__ __forceinline__ void steps(const Position& p, Index base, Piece& piece,
                                        Total& total) const {
    if constexpr (S > 0) steps<S - 1>(p, base, piece, total);
    step<S>(p, base, piece, total);
  }
};

}  // namespace mf
