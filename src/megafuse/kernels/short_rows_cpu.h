// The CPU driver for rows of a few vectors at most: many side by side, turned so that a vector
// holds one column of several rows. Alone, a row of 8 would leave half of a vector empty and end
// each step in shuffles: so turned, its softmax takes a fifth of the time and its layer norm a
// quarter, and at 32 columns still a half.
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

  static constexpr int kMost = 63;   // columns (runtime/host/core/rows.h)
  static constexpr int kSide = 32;   // rows: GCC 12 makes scalars of loops over 16
  static constexpr int kRun = 4;     // columns added up before their sums are
  static constexpr int kLevels = 5;  // of such sums
  static constexpr int kTiles = 16;  // tiles summed in F before they are added to the partial sums
  static_assert(kMost <= kRun << (kLevels - 1), "sums of all columns have a level");

  // Element (row, column) of a tile is at column * kSide + row.
  struct Tile {
    alignas(64) F at[kMost * kSide];
  };
  // The Total or Row, a struct of F, of every row of a tile: field by field, as an array of structs
  // would have to be shuffled into vectors for each column.
  template <class T>
  struct PerRow {
    static constexpr int kFields = sizeof(T) / sizeof(F);
    alignas(64) F field[kFields][kSide];
    using AllFields = typename MakeIndices<kFields>::type;
    MF_INLINE T operator[](int row) const { return get(row, AllFields()); }
    MF_INLINE void set(int row, const T& value) { set(row, value, AllFields()); }
    template <int... I>
    MF_INLINE T get(int row, Indices<I...>) const {
      return T{field[I][row]...};
    }
    template <int... I>
    MF_INLINE void set(int row, const T& value, Indices<I...>) {
      const char* const from = reinterpret_cast<const char*>(&value);
      (__builtin_memcpy(&field[I][row], from + I * sizeof(F), sizeof(F)), ...);
    }
  };
  using Totals = PerRow<Total>;
  using Rows = PerRow<Row>;

  Tile read_tile[Fn::keeps_inputs ? 1 : Fn::early], kept_tile[Fn::kept], written[K::outputs];
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
      [[maybe_unused]] Tile straight;
      F* rows[kSide];
      if constexpr (is_direct<Op>) {
        for (int row = 0; row < count; ++row)
          rows[row] = reinterpret_cast<F*>(access<Op>(operand, row).base);
      } else {
        const int together = rows_together<Op>(operand);
        for (int row = 0; row < count; row += together)
          convert_in<Op>(access<Op>(operand, row), straight.at + row * cols, together * cols);
        for (int row = 0; row < count; ++row) rows[row] = straight.at + row * cols;
      }
      turn<false>(rows, tile.at);
    }
  }
  template <int O>
  MF_INLINE void turn_out(Tile& tile) const {
    using Op = Out<O>;
    if constexpr (Op::walk == 'c' || Op::walk == 's') {
      [[maybe_unused]] Tile straight;
      F* rows[kSide];
      for (int row = 0; row < count; ++row)
        rows[row] = is_direct<Op> ? reinterpret_cast<F*>(access<Op>(O, row).base)
                                  : straight.at + row * cols;
      turn<true>(rows, tile.at);
      if constexpr (!is_direct<Op>) {
        const int together = rows_together<Op>(O);
        for (int row = 0; row < count; row += together)
          convert_out<Op>(straight.at + row * cols, access<Op>(O, row), together * cols);
      }
    }
  }

  template <class Op>
  static constexpr bool is_direct = Op::walk == 'c' && is_same<typename Op::T, F>;

  // How many rows can be converted as one: all of the tile, or one.
  template <class Op>
  MF_INLINE int rows_together(int operand) const {
    bool is_whole = Op::walk == 'c';
    for (int row = 1; row < count; ++row)
      is_whole &= place_of[operand][row] == place_of[operand][0] + row * cols;
    return is_whole ? count : 1;
  }
  template <class Op>
  static MF_INLINE void convert_in(const Access& from, F* to, i64 n) {
    if constexpr (PointwiseCpu<K>::template is_staged<Op> && is_same<F, float>) {
      widen(reinterpret_cast<const half*>(from.base), to, n);
    } else {
      MF_VECTOR_LOOP
      for (i64 i = 0; i < n; ++i) to[i] = load<Op>(from, i);
    }
  }
  template <class Op>
  static MF_INLINE void convert_out(const F* from, const Access& to, i64 n) {
    if constexpr (PointwiseCpu<K>::template is_staged<Op> && is_same<F, float>) {
      narrow(from, reinterpret_cast<half*>(to.base), n);
    } else {
      auto* const base = reinterpret_cast<typename Op::T*>(to.base);
      MF_VECTOR_LOOP
      for (i64 i = 0; i < n; ++i)
        base[Op::walk == 'c' ? i : i * to.step] = cast<typename Op::T>(from[i]);
    }
  }
  template <class Op>
  static MF_INLINE F load(const Access& from, i64 i) {
    const auto* const base = reinterpret_cast<const typename Op::T*>(from.base);
    if constexpr (Op::walk == 'c') return cast<F>(base[i]);
    if constexpr (Op::walk == 's') return cast<F>(base[i * from.step]);
    return from.fixed;
  }

  // Four rows and columns at a time, in vectors that every CPU has: one by one they took longer
  // than the rest of a norm. The last four columns may overlap those before them. kOut: from the
  // tile into the rows.
  template <bool kOut, class E>
  MF_INLINE void turn(E* const (&rows)[kSide], E* tile) const {
    const i64 n = cols, fours = n < 4 ? 0 : count / 4 * 4, all = count;
    for (i64 row = 0; row < fours; row += 4)
      for (i64 c = 0; c < n; c += 4) {
        const i64 at = c < n - 4 ? c : n - 4;
        E* const columns = tile + at * kSide + row;
        Square<E> square;
        for (int i = 0; i < 4; ++i) square.load(i, kOut ? columns + i * kSide : rows[row + i] + at);
        square.turn();
        for (int i = 0; i < 4; ++i)
          square.store(i, kOut ? rows[row + i] + at : columns + i * kSide);
      }
    for (i64 row = fours; row < all; ++row)
      for (i64 c = 0; c < n; ++c) {
        E &in_row = rows[row][c], &in_tile = tile[c * kSide + row];
        (kOut ? in_row : in_tile) = kOut ? in_tile : in_row;
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
    u32* const here = PointwiseCpu<K>::draw(random, first * cols, cols * count, in_order);
    u32* rows[kSide];
    for (int row = 0; row < count; ++row) rows[row] = here + row * cols;
    turn<false>(rows, drawn);
  }

  // ---- a tile

  template <int... I, int... P>
  MF_INLINE void load(Indices<I...>, Indices<P...>) {
    (turn_in<In<I>>(K::outputs + I, (Fn::keeps_inputs ? kept_tile : read_tile)[I]), ...);
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
      if constexpr (Base::rounds_by_block) (Base::round_all(kept_tile[P].at, cols * kSide), ...);
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
  MF_INLINE void step(Totals& totals, Indices<L...>, Indices<P...>) {
    constexpr bool kMax = Fn::template takes_max<S>;
    using Term =
        decltype(functor.template term<S>(*static_cast<Kept*>(nullptr), totals[0], F(L)...));
    constexpr int kTerms = Count<Term>::value;
    // Sums of kRun columns, and of 1, 2, 4... times as many: two of a size are added as soon as
    // there are two, so that rounding errors grow with the logarithm of the length.
    alignas(64) F sums[kTerms][kSide], pairs[kLevels][kTerms][kSide];
    auto clear = [&]() __attribute__((always_inline)) {
      for (int t = 0; t < kTerms; ++t)
        for (int row = 0; row < kSide; ++row) sums[t][row] = Neutral<kMax, F>::value();
    };
    auto join = [&](const F(&more)[kTerms][kSide]) __attribute__((always_inline)) {
      for (int t = 0; t < kTerms; ++t)
        for (int row = 0; row < kSide; ++row)
          sums[t][row] = joined<kMax>(sums[t][row], more[t][row]);
    };
    const auto fn = functor;
    int runs = 0;
    for (int first = 0; first < int(cols); first += kRun, ++runs) {
      const int end = first + kRun < int(cols) ? first + kRun : int(cols);
      clear();
      for (int c = first; c < end; ++c) {
        const F shared[] = {late[L][c]..., F(0)};
        MF_VECTOR_LOOP
        for (int row = 0; row < kSide; ++row) {
          Kept kept{kept_tile[P].at[c * kSide + row]...};
          const Term term = fn.template term<S>(kept, totals[row], shared[L]...);
          if constexpr (!Fn::keeps_inputs) ((kept_tile[P].at[c * kSide + row] = kept[P]), ...);
          for (int t = 0; t < kTerms; ++t)
            sums[t][row] = joined<kMax>(sums[t][row], result(term, t));
        }
      }
      int level = 0;
      for (; runs >> level & 1; ++level) join(pairs[level]);
      __builtin_memcpy(pairs[level], sums, sizeof sums);
    }
    clear();
    for (int level = 0; level < kLevels; ++level)
      if (runs >> level & 1) join(pairs[level]);
    MF_VECTOR_LOOP
    for (int row = 0; row < kSide; ++row) {
      Total total = totals[row];
      if constexpr (kTerms == 1) {
        fn.template fold<S>(total, sums[0][row], F(cols));
      } else {
        Pack<F, kTerms> sum;
        for (int t = 0; t < kTerms; ++t) sum[t] = sums[t][row];
        fn.template fold<S>(total, sum, F(cols));
      }
      totals.set(row, total);
    }
  }
  template <int S>
  MF_INLINE void steps(Totals& totals) {
    if constexpr (S > 0) steps<S - 1>(totals);
    step<S>(totals, typename Choose<Fn::weighs, Late, Indices<>>::type(), AllParts());
  }

  // As in rows_cpu.h. Other rows' means stay: a row's result does not depend on its neighbours.
  __attribute__((noinline)) void settle(Totals& totals) {
    const F* const x = kept_tile[Fn::kept - 1].at;
    for (int row = 0; row < kSide; ++row) {
      Total total = totals[row];
      if (!Base::is_level(total)) continue;
      F left = 0;
      for (int c = 0; c < int(cols); ++c) left += x[c * kSide + row] - total.mean;
      total.mean += left / F(cols);
      totals.set(row, total);
    }
    step<1>(totals, Indices<>(), AllParts());
  }

  template <int... L, int... P, int... O>
  MF_INLINE void finish(const Rows& rows, Indices<L...>, Indices<P...>, Indices<O...>) {
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

  MF_INLINE void place(i64 first) {
    if constexpr (K::dims == 2 && !Fn::causal) {
      for (int op = 0; op < K::operands; ++op) {
        const i64 apart = stride(op, 1);
        for (int row = 0; row < kSide; ++row) place_of[op][row] = (first + row) * apart;
      }
    } else {
      for (int row = 0; row < count; ++row) {
        length[row] = Base::place(first + row);
        for (int op = 0; op < K::operands; ++op) place_of[op][row] = offset[op];
      }
    }
  }

  template <int... O, int... P>
  MF_INLINE void tile(i64 first, Indices<O...> all, Indices<P...> parts) {
    place(first);
    if constexpr (K::random) draw(first);
    load(Early(), parts);
    Totals totals;
    for (int row = 0; row < kSide; ++row)
      totals.set(row, start(row < count ? row : 0, typename Base::Known()));
    steps<Fn::steps - 1>(totals);
    if constexpr (Base::has_mean) {
      typename Choose<sizeof(F) == 8, i64, i32>::type any = 0;  // as wide as F: becomes SIMD code
      for (int row = 0; row < kSide; ++row) any |= Base::is_level(totals[row]) ? 1 : 0;
      if (any) settle(totals);
    }
    Rows rows;
    const auto fn = functor;
    const F n = F(cols);
    MF_VECTOR_LOOP
    for (int row = 0; row < kSide; ++row) rows.set(row, fn.row(totals[row], totals[row], n));
    finish(rows, Late(), parts, all);
    if constexpr (Fn::causal) leave_out(rows, all);
    (turn_out<O>(written[O]), ...);
    (write_once<O>(rows), ...);
  }
  template <int... O>
  MF_INLINE void leave_out(const Rows& rows, Indices<O...>) {
    for (int row = 0; row < count; ++row) {
      const auto made = functor.left_out_result(rows[row]);
      for (int c = int(length[row]); c < int(cols); ++c)
        ((written[O].at[c * kSide + row] = result(made, Out<O>::result)), ...);
    }
  }
  template <int O>
  MF_INLINE void write_once(const Rows& rows) const {
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
        typename Out<O>::T sums[8] = {}, sum = 0;
        const F* const terms = sum_tile[O].at + c * kSide;
        for (int row = 0; row < kSide; row += 8)
          for (int i = 0; i < 8; ++i) sums[i] += terms[row + i];
        for (int i = 0; i < 8; ++i) sum += sums[i];
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
