// The CPU driver for rows shorter than a vector: many side by side, turned so that a vector holds
// one column of several rows. Alone, a row of 8 would leave half of a vector empty and end each
// step in shuffles: so turned, its softmax takes a fifth of the time and its layer norm a quarter.
// A row of 24 would still take three fifths, but is added up column by column here: of 16 equal
// numbers the mean would not be that number, as it is in pairs.
#pragma once

#include "rows_cpu.h"

namespace mf {

template <class K>
struct ShortRowsCpu : RowsCpu<K> {
  using Base = RowsCpu<K>;
  using Fn = typename K::Functor;
  using F = typename K::Compute;
  using Kept = typename Base::Kept;
  using Total = typename Base::Total;
  using Row = typename Base::Row;
  using Early = typename Base::Early;
  using Late = typename Base::Late;
  using AllParts = typename Base::AllParts;
  using AllOutputs = typename Base::AllOutputs;
  template <int I>
  using In = typename Base::template In<I>;
  template <int I>
  using LateIn = typename Base::template LateIn<I>;
  template <int O>
  using Out = typename Base::template Out<O>;
  using Access = typename Base::Access;
  using Base::cols;
  using Base::functor;
  using Base::offset;
  using Base::random;
  using Base::stride;
  using Base::words;

  static constexpr int kMost = 15;   // columns (runtime/host/rows.h)
  static constexpr int kSide = 32;   // rows: GCC 12 makes scalars of loops over 16
  static constexpr int kTiles = 16;  // tiles summed in F before they are added to the partial sums

  static_assert(kMost * kSide <= kBlock, "a tile is rounded as one block");

  // Element (row, column) of a tile is at column * kSide + row.
  struct Tile {
    alignas(64) F at[kMost * kSide];
  };
  Tile read_tile[Fn::early], kept_tile[Fn::kept], written[K::outputs];
  Tile sum_tile[Base::has_sums ? K::outputs : 1];
  F late[K::inputs - Base::kLateAt + 1][kMost];
  alignas(64) u32 drawn[K::random ? kMost * kSide : 1];
  i64 place_of[K::operands][kSide];
  i64 length[kSide];  // elements that count
  int count;          // rows of the tile, at most kSide

  using Base::Base;

  // ---- in and out of a tile

  template <class Op>
  MF_INLINE void turn_in(int operand, Tile& tile) const {
    if constexpr (Op::walk == 'v') {
      const F value = fixed_value<Op, F>(words[operand], 0);
      for (int i = 0; i < int(cols) * kSide; ++i) tile.at[i] = value;
    } else {
      for (int row = 0; row < count; ++row) {
        const Access from = access<Op>(operand, row);
        [[maybe_unused]] float wide[kMost];
        if constexpr (PointwiseCpu<K>::template is_staged<Op>)
          widen(reinterpret_cast<const half*>(from.base), wide, cols);
        const u64 base =
            PointwiseCpu<K>::template is_staged<Op> ? reinterpret_cast<u64>(wide) : from.base;
        for (int c = 0; c < int(cols); ++c)
          tile.at[c * kSide + row] =
              PointwiseCpu<K>::template load<Op>(base, from.fixed, from.step, c);
      }
    }
  }
  template <int O>
  MF_INLINE void turn_out(const Tile& tile) const {
    using Op = Out<O>;
    if constexpr (Op::walk != 'c' && Op::walk != 's') return;
    for (int row = 0; row < count; ++row) {
      const Access to = access<Op>(O, row);
      [[maybe_unused]] float wide[kMost];
      const u64 base =
          PointwiseCpu<K>::template is_staged<Op> ? reinterpret_cast<u64>(wide) : to.base;
      for (int c = 0; c < int(cols); ++c)
        PointwiseCpu<K>::template store<Op>(base, to.step, c, tile.at[c * kSide + row]);
      PointwiseCpu<K>::template unstage<Op>(to.base, wide, cols);
    }
  }
  template <class Op>
  MF_INLINE Access access(int operand, int row) const {
    const i64 at = place_of[operand][row];
    return {words[operand] + u64(at) * sizeof(typename Op::T), stride(operand, 0),
            fixed_value<Op, F>(words[operand], at)};
  }

  void draw(i64 first) {
    u32 in_order[kMost * kSide + 4];
    const u32* here = PointwiseCpu<K>::draw(random, first * cols, cols * count, in_order);
    for (int row = 0; row < count; ++row)
      for (int c = 0; c < int(cols); ++c) drawn[c * kSide + row] = here[row * cols + c];
  }

  // ---- a tile

  template <int... I, int... P>
  MF_INLINE void load(Indices<I...>, Indices<P...>) {
    (turn_in<In<I>>(K::outputs + I, Fn::keeps_inputs ? kept_tile[I] : read_tile[I]), ...);
    if constexpr (!Fn::keeps_inputs) {
      const auto fn = functor;
      MF_VECTOR_LOOP
      for (int i = 0; i < int(cols) * kSide; ++i) {
        Kept kept;
        if constexpr (K::random && !Fn::draws_late)
          kept = fn.load(read_tile[I].at[i]..., drawn[i]);
        else
          kept = fn.load(read_tile[I].at[i]...);
        ((kept_tile[P].at[i] = Base::rounded(kept[P])), ...);
      }
      if constexpr (Base::rounds_by_block) (Base::round_block(kept_tile[P].at, cols * kSide), ...);
    }
    if constexpr (Fn::causal) {
      const Kept none = functor.left_out();
      for (int row = 0; row < count; ++row)
        for (int c = int(length[row]); c < int(cols); ++c)
          ((kept_tile[P].at[c * kSide + row] = none[P]), ...);
    }
  }

  template <int... I>
  MF_INLINE Total start([[maybe_unused]] int row, Indices<I...>) const {
    return Fn::start(Base::template read<In<Fn::early + I>>(
        access<In<Fn::early + I>>(K::outputs + Fn::early + I, row), 0)...);
  }

  template <int S, int... L, int... P>
  MF_INLINE void step(Total (&totals)[kSide], Indices<L...>, Indices<P...>) {
    constexpr bool kMax = Fn::template takes_max<S>;
    using Term =
        decltype(functor.template term<S>(*static_cast<Kept*>(nullptr), totals[0], F(L)...));
    constexpr int kTerms = Count<Term>::value;
    alignas(64) F sums[kTerms][kSide];
    for (int t = 0; t < kTerms; ++t)
      for (int row = 0; row < kSide; ++row) sums[t][row] = Neutral<kMax, F>::value();
    const auto fn = functor;
    for (int c = 0; c < int(cols); ++c) {
      const F shared[] = {late[L][c]..., F(0)};
      MF_VECTOR_LOOP
      for (int row = 0; row < kSide; ++row) {
        Kept kept{kept_tile[P].at[c * kSide + row]...};
        const Term term = fn.template term<S>(kept, totals[row], shared[L]...);
        if constexpr (!Fn::keeps_inputs) ((kept_tile[P].at[c * kSide + row] = kept[P]), ...);
        for (int t = 0; t < kTerms; ++t) sums[t][row] = joined<kMax>(sums[t][row], result(term, t));
      }
    }
    MF_VECTOR_LOOP
    for (int row = 0; row < kSide; ++row) {
      if constexpr (kTerms == 1) {
        fn.template fold<S>(totals[row], sums[0][row], F(cols));
      } else {
        Pack<F, kTerms> sum;
        for (int t = 0; t < kTerms; ++t) sum[t] = sums[t][row];
        fn.template fold<S>(totals[row], sum, F(cols));
      }
    }
  }
  template <int S>
  MF_INLINE void steps(Total (&totals)[kSide]) {
    if constexpr (S > 0) steps<S - 1>(totals);
    step<S>(totals, typename Choose<Fn::weighs, Late, Indices<>>::type(), AllParts());
  }

  template <int... L, int... P, int... O>
  MF_INLINE void finish(const Row (&rows)[kSide], Indices<L...>, Indices<P...>, Indices<O...>) {
    const auto fn = functor;
    for (int c = 0; c < int(cols); ++c) {
      const F shared[] = {late[L][c]..., F(0)};
      MF_VECTOR_LOOP
      for (int row = 0; row < kSide; ++row) {
        const int i = c * kSide + row;
        const Kept kept{kept_tile[P].at[i]...};
        const auto made = [&] {
          if constexpr (K::random && Fn::draws_late)
            return fn.result(kept, rows[row], shared[L]..., drawn[i]);
          else
            return fn.result(kept, rows[row], shared[L]...);
        }();
        (write<O>(i, row, result(made, Out<O>::result)), ...);
      }
    }
  }
  template <int O>
  MF_INLINE void write(int i, int row, F value) {
    if constexpr (Out<O>::walk == 'r')
      sum_tile[O].at[i] += row < count ? value : F(0);
    else
      written[O].at[i] = value;
  }

  template <int... O, int... P>
  MF_INLINE void tile(i64 first, Indices<O...> all, Indices<P...> parts) {
    for (int row = 0; row < count; ++row) {
      length[row] = Base::place(first + row);
      for (int op = 0; op < K::operands; ++op) place_of[op][row] = offset[op];
    }
    if constexpr (K::random) draw(first);
    load(Early(), parts);
    Total totals[kSide];
    for (int row = 0; row < kSide; ++row)
      totals[row] = start(row < count ? row : 0, typename Base::Known());
    steps<Fn::steps - 1>(totals);
    Row rows[kSide];
    MF_VECTOR_LOOP
    for (int row = 0; row < kSide; ++row)
      rows[row] = functor.row(totals[row], totals[row], F(cols));
    finish(rows, Late(), parts, all);
    if constexpr (Fn::causal) leave_out(rows, all);
    (turn_out<O>(written[O]), ...);
    (write_once<O>(rows), ...);
  }
  template <int... O>
  MF_INLINE void leave_out(const Row (&rows)[kSide], Indices<O...>) {
    for (int row = 0; row < count; ++row) {
      const auto made = functor.left_out_result(rows[row]);
      for (int c = int(length[row]); c < int(cols); ++c)
        ((written[O].at[c * kSide + row] = result(made, Out<O>::result)), ...);
    }
  }
  template <int O>
  MF_INLINE void write_once(const Row (&rows)[kSide]) const {
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'w')
      for (int row = 0; row < count; ++row)
        *reinterpret_cast<T*>(access<Out<O>>(O, row).base) =
            cast<T>(result(functor.row_result(rows[row]), Out<O>::result));
  }

  // ---- sums over rows

  template <int... O>
  MF_INLINE void clear_sums(Indices<O...>) {
    for (int o = 0; o < (Base::has_sums ? K::outputs : 0); ++o)
      for (int i = 0; i < int(cols) * kSide; ++i) sum_tile[o].at[i] = F(0);
  }
  template <int... O>
  MF_INLINE void flush_sums(Indices<O...>) {
    (flush_sum<O>(), ...);
  }
  template <int O>
  MF_INLINE void flush_sum() {
    if constexpr (Out<O>::walk == 'r')
      for (int c = 0; c < int(cols); ++c) {
        typename Out<O>::T sum = 0;
        for (int row = 0; row < kSide; ++row) sum += sum_tile[O].at[c * kSide + row];
        *Base::template partial<O>(c) += sum;
      }
  }

  template <int... L>
  MF_INLINE void read_late(Indices<L...>) {
    (read_late<L>(), ...);
  }
  template <int L>
  MF_INLINE void read_late() {
    const Access from = Base::template access<LateIn<L>>(K::outputs + Base::kLateAt + L, 0);
    using T = typename LateIn<L>::T;
    for (int c = 0; c < int(cols); ++c)
      late[L][c] = LateIn<L>::walk == 'c' || LateIn<L>::walk == 's'
                       ? cast<F>(reinterpret_cast<const T*>(from.base)[c * from.step])
                       : from.fixed;
  }

  void run(i64 begin, i64 end) {
    if constexpr (K::random) {
      if (begin == 0) random.remember(words + K::rng);
    }
    read_late(Late());
    for (i64 first = begin; first < end;) {
      clear_sums(AllOutputs());
      for (int n = 0; n < kTiles && first < end; ++n) {
        count = int(end - first < kSide ? end - first : kSide);
        tile(first, AllOutputs(), AllParts());
        first += count;
      }
      flush_sums(AllOutputs());
    }
  }
};

}  // namespace mf
