// The CPU driver for generated row-wise kernels: a row is gone through once a step, in loops that
// become SIMD code, and stays in the cache in between. The host gives each thread a range of rows;
// with sums over segments (walk 'g') a range of parts of these.
#pragma once

#include "graph_lanes_cpu.h"
#include "kept_cpu.h"
#include "pointwise_cpu.h"

namespace mf {

// kWide elements are folded side by side: 64 in long rows, as in rows_cpu.h, and 32 in others. (Not
// 16: GCC 12 unrolls such loops and then fails to vectorise them.) Either is right for rows of any
// length. A kernel has one of the two, since both would take twice as long to compile.
template <class K, int kWide = 32>
struct GraphRowsCpu : PointwiseCpu<K> {
  using Base = PointwiseCpu<K>;
  using Fn = typename K::Functor;
  using Row = typename Fn::Row;
  using Kept = typename Fn::Kept;
  using typename Base::AllOutputs;
  // The inputs, then the loads that are done in runs: those lie in a buffer, one after the other.
  using GivenInputs = typename Base::AllInputs;
  using AllInputs = typename MakeIndices<K::inputs + Fn::runs>::type;
  using Runs = typename MakeIndices<Fn::runs>::type;
  template <class G, int R, int... I>  // G is Fn, which may have no loads
  static auto loaded(Indices<I...>) -> decltype(some<const G&>().load(
      Run<R>(), i64(), some<typename Base::template Value<typename Base::template In<I>>>()...));
  template <int I, bool kRun>
  struct InputOf {
    using type = typename Base::template In<I>;
  };
  template <int I>
  struct InputOf<I, true> {
    using type = Operand<decltype(loaded<Fn, I - K::inputs>(GivenInputs())), 'c'>;
  };
  template <int I>
  using In = typename InputOf<I, (I >= K::inputs)>::type;
  template <int O>
  using Out = typename Base::template Out<O>;
  template <class Op>
  using Value = typename Base::template Value<Op>;
  using Base::functor;
  using Base::offset;
  using Base::stride;
  using Base::words;

  static constexpr i64 kRun = 2048;  // elements summed before their sums are
  static constexpr i64 kRows = 32;   // rows summed as computed before they are added to the sums

  i64 slot, cols;
  void* allocated;
  u64 buffer;  // what is kept of the row, its float16 inputs as floats, loads in runs, sums over
               // rows
  u64 widened[K::inputs + 1] = {};  // where those came from
  i64 segment = 0, part = 0;        // of the rows that are being summed
  bool is_begun = false;            // whether partial sums of these have been written

  // `slot` is this thread's row of partial sums, for what is summed over rows.
  GraphRowsCpu(const u64* w, i64 s) : Base(w), slot(s), cols(i64(w[K::size])) {
    const u64 bytes = sums_at() + (any_summed(AllOutputs()) ? K::outputs * sums_bytes() : 0);
    allocated = __builtin_malloc(bytes + kLine);
    buffer = whole_lines(reinterpret_cast<u64>(allocated));
  }
  ~GraphRowsCpu() { __builtin_free(allocated); }
  GraphRowsCpu(const GraphRowsCpu&) = delete;

  MF_INLINE u64 inputs_at() const { return KeptCpu<Fn>::bytes(cols); }
  MF_INLINE u64 runs_at() const {
    return inputs_at() + (Base::staged ? K::inputs * whole_lines(cols * sizeof(float)) : 0);
  }
  MF_INLINE u64 sums_at() const { return runs_at() + Fn::runs * sums_bytes(); }
  MF_INLINE u64 sums_bytes() const { return whole_lines(cols * sizeof(double)); }

  // ---- the operands of a row

  template <class Op>
  struct Access {
    u64 base;
    i64 step;
    Value<Op> fixed;
  };
  template <int I>
  MF_INLINE Access<In<I>> access() {
    constexpr int operand = K::outputs + I;
    using T = typename In<I>::T;
    u64 base = words[operand] + u64(offset[operand]) * sizeof(T);
    if constexpr (Base::template is_staged<In<I>>) {
      const u64 to = buffer + inputs_at() + I * whole_lines(cols * sizeof(float));
      if (widened[I] != base)
        widen(reinterpret_cast<const half*>(base), reinterpret_cast<float*>(to), cols);
      widened[I] = base;
      base = to;
    }
    return {base, stride(operand, 0),
            fixed_value<In<I>, Value<In<I>>>(words[operand], offset[operand])};
  }
  template <class Op>
  static MF_INLINE Value<Op> read(const Access<Op>& from, i64 i) {
    return Base::template load<Op>(from.base, from.fixed, from.step, i);
  }
  template <class Is>
  struct AccessesOf;
  template <int... I>
  struct AccessesOf<Indices<I...>> {
    using type = Tuple<Access<In<I>>...>;
  };
  using Accesses = typename AccessesOf<AllInputs>::type;
  template <int... I, int... R>
  MF_INLINE Accesses accesses(Indices<I...>, Indices<R...>) {
    return Accesses(access<I>()..., access_run<R>(GivenInputs())...);
  }
  template <int R, int... I>
  MF_INLINE Access<In<K::inputs + R>> access_run(Indices<I...>) {
    using T = typename In<K::inputs + R>::T;
    const auto fn = functor;
    const u64 base = buffer + runs_at() + R * sums_bytes();
    const i64 length = fn.length(Run<R>());
    const Tuple<Access<In<I>>...> from(access<I>()...);
    T* const to = reinterpret_cast<T*>(base);
    for (i64 i = 0, run = 0; i < cols; ++run) {
      const T value = fn.load(Run<R>(), run, read<In<I>>(get<I>(from), i)...);
      const i64 n = length < cols - i ? length : cols - i;
      for (i64 k = 0; k < n; ++k) to[i + k] = value;
      i += n;
    }
    return {base, 1, T()};
  }

  MF_INLINE void place(i64 row) {
    for (int op = 0; op < K::operands; ++op) offset[op] = 0;
    i64 rest = row;
    for (int dim = 1; dim < K::dims; ++dim) {
      i64 at = rest;
      if (dim < K::dims - 1) {
        const i64 size = i64(words[K::size + dim]);
        at = rest % size;
        rest /= size;
      }
      for (int op = 0; op < K::operands; ++op) offset[op] += at * stride(op, dim);
    }
  }

  // ---- a step

  template <int S, int... I>
  static auto terms_of(Indices<I...>)
      -> decltype(some<const Fn&>().terms(Step<S>(), some<const Row&>(), some<const Kept&>(),
                                          some<Value<In<I>>>()...));
  template <int kSide, class Terms>
  struct LanesOf;
  template <int kSide, class... R>
  struct LanesOf<kSide, Tuple<R...>> {
    using type = Tuple<Lanes<R, kSide>...>;
    static constexpr bool rounds = (R::rounds || ...);
  };

  template <int S, int... I, int... T>
  MF_INLINE void step(Row& row, const Accesses& given, Indices<I...>, Indices<T...>) {
    using Terms = decltype(terms_of<S>(AllInputs()));
    // Two reductions of 64 lanes do not fit 32 registers of four floats.
    constexpr int kSide = Terms::count > 1 && kWide > 32 ? 32 : kWide;
    using All = LanesOf<kSide, Terms>;
    typename All::type lanes, runs;
    (get<T>(lanes).clear(), ...);
    const i64 n = cols;
    const bool in_runs = All::rounds && n > kRun;
    if (in_runs) (get<T>(runs).clear(), ...);
    const auto fn = functor;
    const Row known = row;
    const Accesses from = given;
    const KeptCpu<Fn> kept{buffer, cols};
    auto fold = [&](i64 i, int lane, bool counts) __attribute__((always_inline)) {
      Kept here = kept.template before<S>(i);
      if constexpr (Fn::keeps(S)) {
        fn.keep(Step<S>(), here, known, read<In<I>>(get<I>(from), i)...);
        kept.template put<S>(i, here);
      }
      const Terms terms = fn.terms(Step<S>(), known, here, read<In<I>>(get<I>(from), i)...);
      (fold_one(get<T>(lanes), get<T>(terms), i, lane, counts), ...);
    };
    i64 done = 0;
    while (done + kSide <= n) {
      const i64 last = in_runs && done + kRun < n ? done + kRun : n;
      for (; done + kSide <= last; done += kSide) {
        MF_VECTOR_LOOP
        for (int lane = 0; lane < kSide; ++lane) fold(done + lane, lane, true);
      }
      if (in_runs) (flush(get<T>(lanes), get<T>(runs)), ...);
    }
    const int rest = int(n - done);
    if (done > 0 && rest % 16) {
      // A loop over the rest would end in scalars: the last kSide, of which only the rest counts.
      MF_VECTOR_LOOP
      for (int lane = 0; lane < kSide; ++lane) fold(n - kSide + lane, lane, lane >= kSide - rest);
    } else {
      MF_VECTOR_LOOP
      for (int lane = 0; lane < rest; ++lane) fold(done + lane, lane, true);
    }
    if (in_runs) (get<T>(lanes).join(get<T>(runs)), ...);
    fn.fold(Step<S>(), row, Tuple(get<T>(lanes).found()...));
  }
  template <class R, int kSide>
  static MF_INLINE void fold_one(Lanes<R, kSide>& lanes, const R& term, i64 i, int lane,
                                 bool counts) {
    lanes.lane[lane] = R::joined(lanes.lane[lane], chosen(counts, R::of(term, i), R::none()));
  }
  template <class R, int kSide>
  static MF_INLINE void flush(Lanes<R, kSide>& lanes, Lanes<R, kSide>& runs) {
    runs.join(lanes);
    lanes.clear();
  }

  template <int S>
  MF_INLINE void steps(Row& row, const Accesses& from) {
    if constexpr (S > 0) steps<S - 1>(row, from);
    using Terms = decltype(terms_of<S>(AllInputs()));
    step<S>(row, from, AllInputs(), typename MakeIndices<Terms::count>::type());
  }

  // ---- results

  template <int O>
  static constexpr bool is_by_segment = Out<O>::walk == 'g';
  template <int O>
  static constexpr bool is_summed = Out<O>::walk == 'r' || is_by_segment<O>;
  template <int O>
  static constexpr bool is_whole = Out<O>::walk == 'c' || Out<O>::walk == 's' || is_summed<O>;
  template <int... O>
  static constexpr bool any_whole(Indices<O...>) {
    return (is_whole<O> || ...);
  }
  template <int... O>
  static constexpr bool any_summed(Indices<O...>) {
    return (is_summed<O> || ...);
  }
  template <int... O>
  static constexpr bool any_once(Indices<O...>) {
    return ((Out<O>::walk == 'w') || ...);
  }

  template <int... I, int... O>
  MF_INLINE void finish(const Row& row, const Accesses& given, Indices<I...>, Indices<O...>) {
    const auto fn = functor;
    const Row known = row;
    const Accesses from = given;
    const KeptCpu<Fn> kept{buffer, cols};
    const i64 apart[] = {stride(O, 0)...};
    for (i64 done = 0; done < cols; done += kBlock) {
      const i64 count = cols - done < kBlock ? cols - done : kBlock;
      u64 to[] = {address<O>(done)...};
      [[maybe_unused]] const u64 target[] = {to[O]...};
      [[maybe_unused]] alignas(
          64) float narrow_later[Base::staged ? K::outputs : 1][Base::staged ? kBlock : 1];
      ((Base::template is_staged<Out<O>> ? void(to[O] = reinterpret_cast<u64>(narrow_later[O]))
                                         : void()),
       ...);
      MF_VECTOR_LOOP
      for (i64 i = 0; i < count; ++i) {
        const Kept here = kept.template before<Fn::steps>(done + i);
        const auto made = fn.results(known, here, read<In<I>>(get<I>(from), done + i)...);
        (write<O>(to[O], apart[O], i, made), ...);
      }
      (Base::template unstage<Out<O>>(target[O], narrow_later[Base::staged ? O : 0], count), ...);
    }
  }
  template <int O>
  MF_INLINE u64 address(i64 column) const {
    if constexpr (is_summed<O>) return reinterpret_cast<u64>(sums<O>() + column);
    return words[O] + u64(offset[O] + column * stride(O, 0)) * sizeof(typename Out<O>::T);
  }
  template <int O, class Made>
  static MF_INLINE void write(u64 to, i64 apart, i64 i, const Made& made) {
    if constexpr (is_summed<O>)
      reinterpret_cast<Term<O>*>(to)[i] += pick<Out<O>::result>(made);
    else if constexpr (is_whole<O>)
      Base::template store<Out<O>>(to, apart, i, pick<Out<O>::result>(made));
  }

  // ---- sums over rows

  template <class G, int... I>  // G is Fn, which may have results of rows alone
  static auto results_of(Indices<I...>)
      -> decltype(some<const G&>().results(some<const Row&>(), some<const Kept&>(),
                                           some<Value<In<I>>>()...));
  template <class G>
  static Nothing results_of(...);
  template <int O>
  using Term = decltype(pick<Out<O>::result>(results_of<Fn>(AllInputs())));
  template <int O>
  MF_INLINE Term<O>* sums() const {
    return reinterpret_cast<Term<O>*>(buffer + sums_at() + O * sums_bytes());
  }
  // This thread's row of partial sums, or the one of this part of a segment.
  template <int O>
  MF_INLINE typename Out<O>::T* partial() const {
    auto* const first = reinterpret_cast<typename Out<O>::T*>(words[O]);
    return first + (is_by_segment<O> ? part * stride(O, 1) + segment * cols : slot * stride(O, 1));
  }
  // What is to be added to: a thread's sums begin as 0, those of a part with its first rows.
  template <int O>
  MF_INLINE void begin_sum(typename Out<O>::T* to) const {
    if constexpr (is_by_segment<O>)
      if (!is_begun)
        for (i64 i = 0; i < cols; ++i) to[i] = 0;
  }
  template <int... O>
  MF_INLINE void clear_sums(Indices<O...>) const {
    (clear_sum<O>(), ...);
  }
  template <int O>
  MF_INLINE void clear_sum() const {
    if constexpr (is_summed<O>)
      for (i64 i = 0; i < cols; ++i) sums<O>()[i] = Term<O>(0);
  }
  template <int... O>
  MF_INLINE void flush_sums(Indices<O...>) const {
    (flush_sum<O>(), ...);
  }
  template <int O>
  MF_INLINE void flush_sum() const {
    if constexpr (is_summed<O>) {
      using T = typename Out<O>::T;
      T* const to = partial<O>();
      begin_sum<O>(to);
      const Term<O>* const from = sums<O>();
      MF_VECTOR_LOOP
      for (i64 i = 0; i < cols; ++i) to[i] += T(from[i]);
    }
  }

  template <int... I, int... O>
  MF_INLINE void finish_row(const Row& row, const Accesses& from, Indices<I...>, Indices<O...>) {
    const auto made = functor.row_results(row, read<In<I>>(get<I>(from), 0)...);
    (write_once<O>(made), ...);
  }
  template <int O, class Made>
  MF_INLINE void write_once(const Made& made) const {
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'w')
      *reinterpret_cast<T*>(address<O>(0)) = cast<T>(pick<Out<O>::result>(made));
  }

  void row(i64 at) {
    place(at);
    const Accesses from = accesses(GivenInputs(), Runs());
    Row row{};
    steps<Fn::steps - 1>(row, from);
    if constexpr (any_whole(AllOutputs())) finish(row, from, AllInputs(), AllOutputs());
    if constexpr (any_once(AllOutputs())) finish_row(row, from, AllInputs(), AllOutputs());
  }

  // each(begin, end) of runs of rows that are summed together: all, or those of parts of segments,
  // which are what the host counts then.
  template <int... O>
  static constexpr int first_by_segment(Indices<O...>) {
    int found = -1;
    ((found < 0 && is_by_segment<O> ? void(found = O) : void()), ...);
    return found;
  }
  template <class Each>
  MF_INLINE void for_each_run(i64 begin, i64 end, const Each& each) {
    constexpr int kFirst = first_by_segment(AllOutputs());
    if constexpr (kFirst < 0) {
      each(begin, end);
    } else {
      const i64 length = stride(kFirst, 0), rows = i64(words[K::divider]);
      const i64 parts = (length + rows - 1) / rows;
      for (i64 at = begin; at < end; ++at) {
        segment = at / parts, part = at % parts, is_begun = false;
        const i64 first = part * rows, last = first + rows < length ? first + rows : length;
        each(segment * length + first, segment * length + last);
      }
    }
  }

  void run(i64 begin, i64 end) {
    for_each_run(begin, end, [&](i64 from, i64 to) { sum_rows(from, to); });
  }
  void sum_rows(i64 begin, i64 end) {
    for (i64 first = begin; first < end; first += kRows) {
      clear_sums(AllOutputs());
      for (i64 at = first; at < first + kRows && at < end; ++at) row(at);
      flush_sums(AllOutputs());
      is_begun = true;
    }
  }
};

}  // namespace mf
