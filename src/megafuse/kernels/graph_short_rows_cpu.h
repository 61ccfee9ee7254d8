// The CPU driver for generated row-wise kernels whose rows are a few vectors at most: many rows
// side by side, turned so that a vector holds one column of several rows, as in short_rows_cpu.h.
// Alone, a row of 8 takes five times as long for a softmax.
#pragma once

#include "graph_rows_cpu.h"

namespace mf {

// A row's numbers for each of kSide rows: field by field where all are of one type (E), as an array
// of structs would have to be shuffled into vectors for each column.
template <class Row, class E, int kSide>
struct RowsSide {
  static constexpr int kFields = sizeof(Row) / sizeof(E);
  using AllFields = typename MakeIndices<kFields>::type;
  alignas(64) E field[kFields][kSide] = {};
  MF_INLINE Row operator[](int row) const { return get(row, AllFields()); }
  MF_INLINE void set(int row, const Row& value) { set(row, value, AllFields()); }
  template <int... I>
  MF_INLINE Row get(int row, Indices<I...>) const {
    return Row{field[I][row]...};
  }
  template <int... I>
  MF_INLINE void set(int row, const Row& value, Indices<I...>) {
    const char* const from = reinterpret_cast<const char*>(&value);
    (__builtin_memcpy(&field[I][row], from + I * sizeof(E), sizeof(E)), ...);
  }
};
template <class Row, int kSide>
struct RowsSide<Row, Nothing, kSide> {
  Row row[kSide] = {};
  MF_INLINE const Row& operator[](int i) const { return row[i]; }
  MF_INLINE void set(int i, const Row& value) { row[i] = value; }
};

template <class K>
struct GraphShortRowsCpu : GraphRowsCpu<K> {
  using Base = GraphRowsCpu<K>;
  using Fn = typename K::Functor;
  using Row = typename Fn::Row;
  using Kept = typename Fn::Kept;
  using AllInputs = typename Base::AllInputs;
  using AllOutputs = typename Base::AllOutputs;
  template <int I>
  using In = typename Base::template In<I>;
  template <int O>
  using Out = typename Base::template Out<O>;
  template <class Op>
  using Value = typename Base::template Value<Op>;
  using Base::cols;
  using Base::functor;
  using Base::offset;
  using Base::stride;
  using Base::words;

  static constexpr int kMost = 63;  // columns
  static constexpr int kSide = 32;  // rows: GCC 12 makes scalars of loops over 16
  static constexpr int kRun = 8;    // columns joined before their totals are
  static constexpr int kTiles = 8;  // tiles summed as computed before they are added to the sums

  // Element (row, column) of a tile is at column * kSide + row.
  template <class E>
  struct Tile {
    alignas(64) E at[kMost * kSide];
  };
  // What a tile of results holds: for sums over rows what was computed, added up over tiles.
  template <int O, bool kSummed>
  struct Made {
    using type = typename Register<typename Out<O>::T>::type;
  };
  template <int O>
  struct Made<O, true> {
    using type = typename Base::template Term<O>;
  };
  template <class Is, class Os>
  struct Tiles;
  template <int... I, int... O>
  struct Tiles<Indices<I...>, Indices<O...>> {
    Tuple<Tile<Value<In<I>>>...> in;
    Tuple<Tile<typename Made<O, Base::template is_summed<O>>::type>...> out;
  };

  Tiles<AllInputs, AllOutputs> tiles;
  alignas(64) char kept_at[Fn::fields * kMost * kSide * sizeof(double) + 1];
  RowsSide<Row, typename Fn::RowField, kSide> rows;
  i64 place_of[K::operands][kSide];
  bool is_read[K::inputs + 1] = {};  // inputs that are the same for all rows, once they are here
  int count;                         // rows of the tile, at most kSide

  using Base::Base;

  // ---- in and out of a tile

  template <int I>
  MF_INLINE void turn_in() {
    using Op = In<I>;
    constexpr int operand = K::outputs + I;
    auto* const tile = get<I>(tiles.in).at;
    if constexpr (Op::walk == 'v' || Op::walk == 'i' || Op::walk == 'b') {
      for (int row = 0; row < kSide; ++row) {
        const i64 at = place_of[operand][row], apart = stride(operand, 0);
        const auto first = fixed_value<Op, Value<Op>>(words[operand], at);
        for (int c = 0; c < int(cols); ++c)
          tile[c * kSide + row] = Op::walk == 'i' ? Value<Op>(first + c * apart) : first;
      }
    } else {
      using T = typename Op::T;
      const T* from[kSide];
      for (int row = 0; row < kSide; ++row)
        from[row] = reinterpret_cast<const T*>(words[operand]) + place_of[operand][row];
      turn<I, T>(from, tile);
    }
  }
  template <int I, class T, class E>
  MF_INLINE void turn(const T* const (&from)[kSide], E* tile) {
    if (is_read[I]) return;
    bool is_shared = true;
    for (int dim = 1; dim < K::dims; ++dim) is_shared &= stride(K::outputs + I, dim) == 0;
    is_read[I] = is_shared;
    if constexpr (In<I>::walk == 'c' && is_one_type<T, E> && sizeof(E) == 4) {
      if (cols >= 4 && !is_shared)
        return turn_squares<false>(const_cast<T* const(&)[kSide]>(from), tile);
    }
    const i64 apart = In<I>::walk == 'c' ? 1 : stride(K::outputs + I, 0);
    for (int row = 0; row < kSide; ++row)
      for (int c = 0; c < int(cols); ++c) tile[c * kSide + row] = cast<E>(from[row][c * apart]);
  }
  // Four rows and columns at a time; the last four columns may overlap those before them.
  template <bool kOut, class E>
  MF_INLINE void turn_squares(E* const (&lines)[kSide], E* tile) const {
    const i64 n = cols, fours = kOut ? count / 4 * 4 : kSide;
    for (i64 row = 0; row < fours; row += 4)
      for (i64 c = 0; c < n; c += 4) {
        const i64 at = c < n - 4 ? c : n - 4;
        E* const columns = tile + at * kSide + row;
        Square<E> square;
        for (int i = 0; i < 4; ++i)
          square.load(i, kOut ? columns + i * kSide : lines[row + i] + at);
        square.turn();
        for (int i = 0; i < 4; ++i)
          square.store(i, kOut ? lines[row + i] + at : columns + i * kSide);
      }
    for (i64 row = fours; kOut && row < count; ++row)
      for (i64 c = 0; c < n; ++c) lines[row][c] = tile[c * kSide + row];
  }
  template <int O>
  MF_INLINE void turn_out() {
    if constexpr (Base::template is_whole<O> && !Base::template is_summed<O>) {
      using T = typename Out<O>::T;
      auto* const tile = get<O>(tiles.out).at;
      T* to[kSide];
      for (int row = 0; row < kSide; ++row)
        to[row] = reinterpret_cast<T*>(words[O]) + place_of[O][row];
      if constexpr (Out<O>::walk == 'c' && sizeof(T) == 4 &&
                    is_one_type<T, typename Register<T>::type>) {
        if (cols >= 4) return turn_squares<true>(to, tile);
      }
      const i64 apart = Out<O>::walk == 'c' ? 1 : stride(O, 0);
      for (int row = 0; row < count; ++row)
        for (int c = 0; c < int(cols); ++c) to[row][c * apart] = cast<T>(tile[c * kSide + row]);
    }
  }

  // Rows of the tile; those beyond the last repeat it.
  MF_INLINE void place_all(i64 first) {
    if constexpr (K::dims == 2) {
      for (int op = 0; op < K::operands; ++op) {
        const i64 apart = stride(op, 1), last = first + count - 1;
        for (int row = 0; row < kSide; ++row)
          place_of[op][row] = (first + row < last ? first + row : last) * apart;
      }
      return;
    }
    for (int row = 0; row < kSide; ++row) {
      if (row < count) Base::place(first + row);
      for (int op = 0; op < K::operands; ++op) place_of[op][row] = offset[op];
    }
  }

  // ---- a tile

  MF_INLINE KeptCpu<Fn> all_kept() const { return {reinterpret_cast<u64>(kept_at), kMost * kSide}; }

  template <int S, int... I, int... T>
  MF_INLINE void step(Indices<I...>, Indices<T...>) {
    using Terms = decltype(Base::template terms_of<S>(AllInputs()));
    typename Base::template LanesOf<kSide, Terms>::type lanes, runs;
    (get<T>(runs).clear(), ...);
    const auto fn = functor;
    const auto kept = all_kept();
    for (int first = 0; first < int(cols); first += kRun) {
      const int end = first + kRun < int(cols) ? first + kRun : int(cols);
      (get<T>(lanes).clear(), ...);
      for (int c = first; c < end; ++c) {
        MF_VECTOR_LOOP
        for (int row = 0; row < kSide; ++row) {
          const int i = c * kSide + row;
          const Row known = rows[row];
          Kept here = kept.template before<S>(i);
          if constexpr (Fn::keeps(S)) {
            fn.keep(Step<S>(), here, known, get<I>(tiles.in).at[i]...);
            kept.template put<S>(i, here);
          }
          const Terms terms = fn.terms(Step<S>(), known, here, get<I>(tiles.in).at[i]...);
          (Base::fold_one(get<T>(lanes), get<T>(terms), c, row, true), ...);
        }
      }
      (get<T>(runs).join(get<T>(lanes)), ...);
    }
    MF_VECTOR_LOOP
    for (int row = 0; row < kSide; ++row) {
      Row known = rows[row];
      fn.fold(Step<S>(), known, Tuple(found(get<T>(runs), row)...));
      rows.set(row, known);
    }
  }
  template <class R>
  static MF_INLINE auto found(const Lanes<R, kSide>& lanes, int row) {
    return R::found(lanes.lane[row]);
  }
  template <int S>
  MF_INLINE void steps() {
    if constexpr (S > 0) steps<S - 1>();
    using Terms = decltype(Base::template terms_of<S>(AllInputs()));
    step<S>(AllInputs(), typename MakeIndices<Terms::count>::type());
  }

  template <int... I, int... O>
  MF_INLINE void finish(Indices<I...>, Indices<O...>) {
    const auto fn = functor;
    const auto kept = all_kept();
    for (int c = 0; c < int(cols); ++c) {
      MF_VECTOR_LOOP
      for (int row = 0; row < kSide; ++row) {
        const int i = c * kSide + row;
        const Kept here = kept.template before<Fn::steps>(i);
        const auto made = fn.results(rows[row], here, get<I>(tiles.in).at[i]...);
        (put<O>(i, row, made), ...);
      }
    }
  }
  template <int O, class R>
  MF_INLINE void put(int i, [[maybe_unused]] int row, const R& made) {
    if constexpr (Base::template is_summed<O>)
      get<O>(tiles.out).at[i] +=
          select(row < count, pick<Out<O>::result>(made), typename Base::template Term<O>(0));
    else if constexpr (Base::template is_whole<O>)
      get<O>(tiles.out).at[i] = pick<Out<O>::result>(made);
  }
  template <int... I, int... O>
  MF_INLINE void finish_rows(Indices<I...>, Indices<O...>) {
    for (int row = 0; row < count; ++row) {
      const auto made = functor.row_results(rows[row], get<I>(tiles.in).at[row]...);
      (put_once<O>(row, made), ...);
    }
  }
  template <int O, class R>
  MF_INLINE void put_once(int row, const R& made) {
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'w')
      reinterpret_cast<T*>(words[O])[place_of[O][row]] = cast<T>(pick<Out<O>::result>(made));
  }

  template <int... I, int... O>
  MF_INLINE void tile(Indices<I...> inputs, Indices<O...> outputs) {
    (turn_in<I>(), ...);
    steps<Fn::steps - 1>();
    if constexpr (Base::any_whole(AllOutputs())) finish(inputs, outputs);
    (turn_out<O>(), ...);
    if constexpr (Base::any_once(AllOutputs())) finish_rows(inputs, outputs);
  }

  template <int... O>
  MF_INLINE void clear_tiles(Indices<O...>) {
    (clear_tile<O>(), ...);
  }
  template <int O>
  MF_INLINE void clear_tile() {
    if constexpr (Base::template is_summed<O>)
      for (i64 i = 0; i < cols * kSide; ++i) get<O>(tiles.out).at[i] = 0;
  }
  template <int... O>
  MF_INLINE void flush_tiles(Indices<O...>) {
    (flush_tile<O>(), ...);
  }
  template <int O>
  MF_INLINE void flush_tile() {
    if constexpr (Base::template is_summed<O>) {
      using T = typename Out<O>::T;
      T* const to = Base::template partial<O>();
      Base::template begin_sum<O>(to);
      for (int c = 0; c < int(cols); ++c) {
        T sums[8] = {}, sum = 0;
        const auto* const terms = get<O>(tiles.out).at + c * kSide;
        for (int row = 0; row < kSide; row += 8)
          for (int i = 0; i < 8; ++i) sums[i] += T(terms[row + i]);
        for (int i = 0; i < 8; ++i) sum += sums[i];
        to[c] += sum;
      }
    }
  }

  void run(i64 begin, i64 end) {
    this->for_each_run(begin, end, [&](i64 from, i64 to) { sum_tiles(from, to); });
  }
  void sum_tiles(i64 begin, i64 end) {
    for (i64 first = begin; first < end;) {
      clear_tiles(AllOutputs());
      for (int n = 0; n < kTiles && first < end; ++n, first += kSide) {
        count = int(end - first < kSide ? end - first : kSide);
        place_all(first);
        tile(AllInputs(), AllOutputs());
      }
      flush_tiles(AllOutputs());
      this->is_begun = true;
    }
  }
};

}  // namespace mf
