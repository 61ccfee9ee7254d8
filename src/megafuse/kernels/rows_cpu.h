// The CPU driver for rows. A piece of a row is kept as floats in buffers that stay in the cache (or
// read where it lies, if it is stored so); loops over them become SIMD code. The host gives each
// thread a range of rows, and a row of partial sums, `slot`, for what is summed over rows.
#pragma once

#include "lanes_cpu.h"
#include "pointwise_cpu.h"
#include "rows.h"
#include "same.h"

namespace mf {

// Whether a Total is of moments (layer_norm.h).
template <class T>
constexpr auto is_of_moments(const T& total) -> decltype(total.squares, true) {
  return true;
}
constexpr bool is_of_moments(...) { return false; }

template <class K>
struct RowsCpu : PointwiseCpu<K> {
  using Base = PointwiseCpu<K>;
  using Fn = typename K::Functor;
  using F = typename K::Compute;
  using Kept = Pack<F, Fn::kept>;
  using Total = typename Fn::Total;
  using Row = typename Fn::Row;
  using Early = typename MakeIndices<Fn::early>::type;
  using Known = typename MakeIndices<Fn::known>::type;
  static constexpr int kLateAt = Fn::early + Fn::known;
  using Late = typename MakeIndices<K::inputs - kLateAt>::type;
  using AllParts = typename MakeIndices<Fn::kept>::type;
  using AllOutputs = typename Base::AllOutputs;
  template <int I>
  using In = typename Base::template In<I>;
  template <int I>
  using LateIn = typename Base::template In<kLateAt + I>;
  template <int O>
  using Out = typename Base::template Out<O>;
  using Base::functor;
  using Base::offset;
  using Base::stride;
  using Base::words;

  static constexpr i64 kPiece = 65536;  // elements: with a few kept of each, what an L2 cache holds
  static constexpr i64 kMostHeld = 4 * kPiece;  // numbers of a row that are kept in a buffer
  static constexpr int kLanes = 64;             // elements summed side by side
  static constexpr i64 kRun = 2048;             // elements summed before their sums are
  static constexpr int kRows = 32;  // rows summed in F before they are added to the partial sums

  static constexpr u64 kLine = 64;  // bytes of a cache line

  template <class Op>
  static constexpr bool is_plain = Op::walk == 'c' && is_same<typename Op::T, F>;
  template <int... O>
  static constexpr bool any_sums(Indices<O...>) {
    return ((Out<O>::walk == 'r') || ...);
  }
  static constexpr bool has_sums = any_sums(AllOutputs());

  // Where results are summed over rows, so many rows are finished at once: sums and weights are
  // then read, and sums written, once for all of them (1.3 to 1.6 times as fast).
  static constexpr int kTogether =
      has_sums && !Base::staged && !K::random && !Fn::causal && Fn::keeps_inputs ? 4 : 1;

  static constexpr int kArrays = kTogether * Fn::kept + (has_sums ? K::outputs : 0);

  i64 slot, cols;
  i64 rows = 0;  // of this thread
  Random random = {};
  void* allocated;
  F* buffer;          // for what is kept, part by part; then for the sums, output by output
  F* part[Fn::kept];  // the piece: its numbers, here or in the input

  RowsCpu(const u64* w, i64 s) : Base(w), slot(s), cols(i64(w[K::size])) {
    if constexpr (K::random) random = Random::read(words + K::rng);
    const i64 totals = holds() ? (cols / kPiece + 1) * i64(sizeof(Total) / sizeof(F)) : 0;
    allocated = __builtin_malloc(
        u64(kArrays * length_of_buffer() + widened_length() + totals) * sizeof(F) + kLine);
    buffer = reinterpret_cast<F*>((reinterpret_cast<u64>(allocated) + kLine - 1) / kLine * kLine);
    use_buffer(0);
  }
  // For the piece of the r-th of the rows that are finished together.
  MF_INLINE void use_buffer(int r) {
    for (int p = 0; p < Fn::kept; ++p) part[p] = buffer + (r * Fn::kept + p) * length_of_buffer();
  }
  i64 length_of_buffer() const {
    const i64 length = cols < kPiece || (holds() && !kInOutput) ? cols : kPiece;
    return (length + kLanes - 1) / kLanes * kLanes;
  }

  // ---- rows of several pieces of which everything is kept

  // Softmax takes each exponential once and keeps it until the row's total is known: in the output
  // where that holds F, else in a buffer of the whole row. 13 x 151936 in float32 takes 3.7 ms so
  // and 7.1 ms with exponentials taken twice (eager 4.9); in 16 bits 1.8 and 1.35 times eager's
  // speed, and 0.97 and 0.72. (Pieces that fit into L1 would not be faster.) float16 rows are kept
  // too, since reading them again means to convert them again. Longer 16-bit rows do so: a thread
  // should not need megabytes.
  template <int... I>
  static constexpr bool all_staged(Indices<I...>) {
    return (Base::template is_staged<In<I>> && ...);
  }
  static constexpr bool kInOutput =
      Fn::changes_kept && Fn::kept == 1 && K::outputs == 1 && is_plain<Out<0>>;
  static constexpr bool kHolds = Fn::changes_kept || (Fn::keeps_inputs && all_staged(Early()));
  MF_INLINE bool holds() const {
    return kHolds && cols > kPiece && (kInOutput || cols * Fn::kept <= kMostHeld);
  }
  // Where the kept numbers of the row from `column` on are held.
  MF_INLINE void use_held(i64 column) {
    for (int p = 0; p < Fn::kept; ++p)
      part[p] = kInOutput ? reinterpret_cast<F*>(access<Out<0>>(0, column).base)
                          : buffer + p * length_of_buffer() + column;
  }
  MF_INLINE Total* totals_of_pieces() const {
    return reinterpret_cast<Total*>(buffer + kArrays * length_of_buffer() + widened_length());
  }
  ~RowsCpu() { __builtin_free(allocated); }
  RowsCpu(const RowsCpu&) = delete;

  // ---- operands over a block of a row, kBlock elements at most

  struct Access {
    u64 base;
    i64 step;
    F fixed;
  };
  template <class Op>
  MF_INLINE Access access(int operand, i64 column) const {
    const i64 at = offset[operand] + column * stride(operand, 0);
    return {words[operand] + u64(at) * sizeof(typename Op::T), stride(operand, 0),
            fixed_value<Op, F>(words[operand], at)};
  }
  template <class Op>
  MF_INLINE Access reader(int operand, i64 column, i64 n, float* staging) const {
    Access from = access<Op>(operand, column);
    Base::template stage<Op>(from.base, staging, n);
    return from;
  }
  // The same of a late input. Of float16 rows it is converted once, where it is read more often:
  // for each row the weight's conversion was a seventh of a layer norm's time. Not beside long
  // sums, which leave no room in the cache.
  template <int L>
  MF_INLINE Access late_reader(i64 column, i64 n, float* staging) const {
    if constexpr (Base::template is_staged<LateIn<L>>)
      if (widens_late()) return {reinterpret_cast<u64>(widened_late<L>() + column), 1, F(0)};
    return reader<LateIn<L>>(K::outputs + kLateAt + L, column, n, staging);
  }
  MF_INLINE bool widens_late() const { return (rows > 1 || Fn::weighs) && widened_length() > 0; }
  MF_INLINE i64 widened_length() const {
    const bool fits = cols <= (has_sums ? kPiece : kMostHeld);
    return Base::staged && fits ? (K::inputs - kLateAt) * cols : 0;
  }
  template <int L>
  MF_INLINE float* widened_late() const {
    return reinterpret_cast<float*>(buffer + kArrays * length_of_buffer() + L * cols);
  }
  template <int... L>
  MF_INLINE void widen_late(Indices<L...>) const {
    if (widens_late()) (widen_late<L>(), ...);
  }
  template <int L>
  MF_INLINE void widen_late() const {
    if constexpr (Base::template is_staged<LateIn<L>>)
      widen(reinterpret_cast<const half*>(words[K::outputs + kLateAt + L]), widened_late<L>(),
            cols);
  }
  template <class Op>
  static MF_INLINE F read(const Access& from, i64 i) {
    return Base::template load<Op>(from.base, from.fixed, from.step, i);
  }
  // Buffers for operands that pass through one (half_cpu.h).
  template <int N>
  struct Staging {
    alignas(64) float row[Base::staged && N ? N : 1][Base::staged && N ? kBlock : 1];
    MF_INLINE float* operator[](int i) { return row[Base::staged && N ? i : 0]; }
  };

  // ---- a piece of a row: n elements from `column` on

  // Whether the I-th input is kept just as it is stored.
  template <int I>
  static constexpr bool is_direct =
      Fn::keeps_inputs && In<I>::walk == 'c' && is_same<typename In<I>::T, F>;
  MF_INLINE void gather(i64 index, i64 column, i64 n) {
    if constexpr (Fn::keeps_inputs)
      fill(column, n, Early());
    else
      load(index, column, n, Early(), AllParts());
  }

  template <int... I>
  MF_INLINE void fill(i64 column, i64 n, Indices<I...>) {
    (fill<I>(access<In<I>>(K::outputs + I, column), n), ...);
  }
  template <int I>
  MF_INLINE void fill(const Access& from, i64 n) {
    if constexpr (is_direct<I>) {
      part[I] = reinterpret_cast<F*>(from.base);
    } else if constexpr (Base::template is_staged<In<I>> && is_same<F, float>) {
      widen(reinterpret_cast<const half*>(from.base), part[I], n);
    } else {
      F* const to = part[I];
      MF_VECTOR_LOOP
      for (i64 i = 0; i < n; ++i)
        to[i] = Base::template load<In<I>>(from.base, from.fixed, from.step, i);
    }
  }

  template <int... I, int... P>
  MF_INLINE void load(i64 index, i64 column, i64 n, Indices<I...>, Indices<P...>) {
    constexpr bool draws = K::random && !Fn::draws_late;
    const auto fn = functor;
    F* const to[] = {part[P]...};
    for (i64 done = 0; done < n; done += kBlock) {
      const i64 count = n - done < kBlock ? n - done : kBlock;
      [[maybe_unused]] Staging<Fn::early> staging;
      const Access from[] = {reader<In<I>>(K::outputs + I, column + done, count, staging[I])...};
      u32 drawn[draws ? kBlock + 4 : 1];
      [[maybe_unused]] const u32* here = drawn;
      if constexpr (draws) here = Base::draw(random, index + column + done, count, drawn);
      MF_VECTOR_LOOP
      for (i64 i = 0; i < count; ++i) {
        Kept kept;
        if constexpr (draws)
          kept = fn.load(read<In<I>>(from[I], i)..., here[i]);
        else
          kept = fn.load(read<In<I>>(from[I], i)...);
        ((to[P][done + i] = rounded(kept[P])), ...);
      }
      if constexpr (rounds_by_block) (round_all(to[P] + done, count), ...);
    }
  }

  // As KeptAs would hold it. float16 is rounded by the block, as half_cpu.h converts it.
  static constexpr bool rounds_by_block =
      kStageHalf && is_half<typename Fn::KeptAs> && is_same<F, float>;
  static MF_INLINE F rounded(F value) {
    if constexpr (rounds_by_block) return value;
    return Rounded<typename Fn::KeptAs>::to(value);
  }
  static MF_INLINE void round_all(float* values, i64 n) {
    half rounded[kBlock];
    for (i64 done = 0; done < n; done += kBlock) {
      const i64 count = n - done < kBlock ? n - done : kBlock;
      narrow(values + done, rounded, count);
      widen(rounded, values + done, count);
    }
  }

  // Step S over it, kWide elements side by side.
  template <int S, int kWide, int... L, int... P>
  MF_INLINE void step(Total& total, i64 column, i64 n, Indices<L...>, Indices<P...>) {
    constexpr bool kMax = Fn::template takes_max<S>;
    using Term = decltype(functor.template term<S>(*static_cast<Kept*>(nullptr), total, F(L)...));
    constexpr int kTerms = Count<Term>::value;
    alignas(64) F lanes[kTerms][kWide];
    for (int t = 0; t < kTerms; ++t)
      for (int lane = 0; lane < kWide; ++lane) lanes[t][lane] = Neutral<kMax, F>::value();
    // 40,000 squares added up in the lanes alone are five times as far off as eager, in float64.
    const bool in_runs = !kMax && kWide == kLanes && n > kRun;
    alignas(64) F runs[kTerms][kWide];
    if (in_runs) __builtin_memset(runs, 0, sizeof runs);
    const auto fn = functor;
    const Total known = total;
    F* const held[] = {part[P]...};
    for (i64 done = 0; done < n; done += kBlock) {
      const i64 count = n - done < kBlock ? n - done : kBlock;
      [[maybe_unused]] Staging<sizeof...(L)> staging;
      const Access from[sizeof...(L) + 1] = {late_reader<L>(column + done, count, staging[L])...};
      auto add = [&](i64 i, int lane, bool counts) __attribute__((always_inline)) {
        Kept kept{held[P][done + i]...};
        const Term term = fn.template term<S>(kept, known, read<LateIn<L>>(from[L], i)...);
        if constexpr (!Fn::keeps_inputs)
          ((held[P][done + i] = select(counts, kept[P], held[P][done + i])), ...);
        for (int t = 0; t < kTerms; ++t)
          lanes[t][lane] = joined<kMax>(lanes[t][lane],
                                        select(counts, result(term, t), Neutral<kMax, F>::value()));
      };
      i64 i = 0;
      for (; i + kWide <= count; i += kWide) {
        MF_VECTOR_LOOP
        for (int lane = 0; lane < kWide; ++lane) add(i + lane, lane, true);
      }
      const int rest = int(count - i);
      if (i > 0 && rest % 16) {
        // A loop over the rest would end in scalars: the last kWide, of which only the rest counts.
        MF_VECTOR_LOOP
        for (int lane = 0; lane < kWide; ++lane)
          add(count - kWide + lane, lane, lane >= kWide - rest);
      } else {
        MF_VECTOR_LOOP
        for (int lane = 0; lane < rest; ++lane) add(i + lane, lane, true);
      }
      if (in_runs && ((done + kBlock) % kRun == 0 || done + kBlock >= n))
        for (int t = 0; t < kTerms; ++t)
          for (int lane = 0; lane < kWide; ++lane) {
            runs[t][lane] += lanes[t][lane];
            lanes[t][lane] = F(0);
          }
    }
    Pack<F, kTerms> sum;
    for (int t = 0; t < kTerms; ++t) sum[t] = across<kMax>(in_runs ? runs[t] : lanes[t]);
    if constexpr (kTerms == 1)
      functor.template fold<S>(total, sum[0], F(n));
    else
      functor.template fold<S>(total, sum, F(n));
  }

  template <int S, int kWide>
  MF_INLINE void steps(Total& total, i64 column, i64 n) {
    if constexpr (S > 0) steps<S - 1, kWide>(total, column, n);
    step<S, kWide>(total, column, n, typename Choose<Fn::weighs, Late, Indices<>>::type(),
                   AllParts());
  }
  template <int... I>
  MF_INLINE Total start(Indices<I...>) const {
    return Fn::start(
        read<In<Fn::early + I>>(access<In<Fn::early + I>>(K::outputs + Fn::early + I, 0), 0)...);
  }
  MF_INLINE Total summary(i64 column, i64 n) {
    Total total = start(Known());
    if (n >= 4 * kLanes)
      steps<Fn::steps - 1, kLanes>(total, column, n);
    else  // not 16 lanes: GCC 12 unrolls loops of 16 and then fails to vectorise them
      steps<Fn::steps - 1, 32>(total, column, n);
    if constexpr (has_mean)
      if (is_level(total)) settle(total, column, n);
    return total;
  }

  // A sum of 7 equal numbers is rounded, and its seventh may not be that number, as PyTorch's mean
  // is: x - mean is then a unit in the last place, over a deviation of 0. Adding up in pairs would
  // help powers of two only. So where all numbers are close to their mean, the mean of x - mean,
  // which is exact, is added to it. Few rows are so, and only they are gone through again.
  static constexpr bool has_mean = is_of_moments(Total());
  static MF_INLINE bool is_level(const Total& total) {
    const F close = total.mean * F(1.0 / 256);
    return (total.mean != F(0)) & (total.squares <= total.n * close * close);
  }
  __attribute__((noinline)) void settle(Total& total, i64 column, i64 n) {
    static_assert(Fn::steps == 2 && !Fn::weighs, "the mean, then what needs it");
    const F* const x = part[Fn::kept - 1];
    const F mean = total.mean;
    alignas(64) F lanes[kLanes] = {};
    i64 i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      MF_VECTOR_LOOP
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] - mean;
    }
    for (int lane = 0; lane < n - i; ++lane) lanes[lane] += x[i + lane] - mean;
    total.mean += across<false>(lanes) / F(n);
    step<1, kLanes>(total, column, n, Indices<>(), AllParts());
  }

  // Writes its results. kBuffered: sums over rows gather in a buffer first.
  template <bool kBuffered, int... L, int... O, int... P>
  MF_INLINE void finish(i64 index, i64 column, i64 n, const Row& row, Indices<L...>, Indices<O...>,
                        Indices<P...>) {
    constexpr bool draws = K::random && Fn::draws_late;
    const auto fn = functor;
    const Row known = row;
    const F* const held[] = {part[P]...};
    for (i64 done = 0; done < n; done += kBlock) {
      const i64 count = n - done < kBlock ? n - done : kBlock, first = column + done;
      [[maybe_unused]] Staging<sizeof...(L)> read_staging;
      [[maybe_unused]] Staging<sizeof...(O)> write_staging;
      const Access from[sizeof...(L) + 1] = {late_reader<L>(first, count, read_staging[L])...};
      const Access to[] = {target<O, kBuffered>(first, write_staging[O])...};
      u32 drawn[draws ? kBlock + 4 : 1];
      [[maybe_unused]] const u32* here = drawn;
      if constexpr (draws) here = Base::draw(random, index + first, count, drawn);
      MF_VECTOR_LOOP
      for (i64 i = 0; i < count; ++i) {
        const Kept kept{held[P][done + i]...};
        const auto made = [&] {
          if constexpr (draws)
            return fn.result(kept, known, read<LateIn<L>>(from[L], i)..., here[i]);
          else
            return fn.result(kept, known, read<LateIn<L>>(from[L], i)...);
        }();
        (write<O, kBuffered>(to[O], i, result(made, Out<O>::result)), ...);
      }
      (Base::template unstage<Out<O>>(access<Out<O>>(O, first).base, write_staging[O], count), ...);
    }
  }

  template <int O, bool kBuffered>
  MF_INLINE Access target(i64 column, float* staging) const {
    if constexpr (Out<O>::walk == 'r')
      return {kBuffered ? reinterpret_cast<u64>(sums<O>() + column)
                        : reinterpret_cast<u64>(partial<O>(column)),
              1, F(0)};
    Access to = access<Out<O>>(O, column);
    if (Base::template is_staged<Out<O>>) to.base = reinterpret_cast<u64>(staging);
    return to;
  }
  template <int O, bool kBuffered>
  static MF_INLINE void write(const Access& to, i64 i, F value) {
    if constexpr (Out<O>::walk == 'r') {
      using Sum = typename Choose<kBuffered, F, typename Out<O>::T>::type;
      reinterpret_cast<Sum*>(to.base)[i] += Sum(value);
    } else {
      Base::template store<Out<O>>(to.base, to.step, i, value);
    }
  }

  // Writes what is left out of a row, from `length` on.
  template <int... O>
  MF_INLINE void finish_left_out(i64 length, const Row& row, Indices<O...>) const {
    if constexpr (Fn::causal) {
      const auto made = functor.left_out_result(row);
      (fill_rest<O>(access<Out<O>>(O, length), cols - length, result(made, Out<O>::result)), ...);
    }
  }
  template <int O>
  static MF_INLINE void fill_rest(const Access& to, i64 n, F value) {
    using T = typename Out<O>::T;
    auto* const base = reinterpret_cast<T*>(to.base);
    const T stored = cast<T>(value);
    if constexpr (Out<O>::walk == 'c')
      for (i64 i = 0; i < n; ++i) base[i] = stored;
    if constexpr (Out<O>::walk == 's')
      for (i64 i = 0; i < n; ++i) base[i * to.step] = stored;
  }

  // ---- sums over rows

  // In F first, where there is a buffer for that, and rows enough; else straight into the partial
  // sums.
  static constexpr i64 kFewRows = 2;
  MF_INLINE bool sums_in_buffer() const { return has_sums && cols <= kPiece && rows > kFewRows; }

  template <int O>
  MF_INLINE F* sums() const {
    return buffer + (kTogether * Fn::kept + O) * length_of_buffer();
  }
  template <int O>
  MF_INLINE typename Out<O>::T* partial(i64 column) const {
    return reinterpret_cast<typename Out<O>::T*>(words[O]) + slot * stride(O, 1) + column;
  }
  template <int O>
  MF_INLINE void clear_sum() const {
    if constexpr (Out<O>::walk == 'r')
      for (i64 i = 0; i < cols; ++i) sums<O>()[i] = F(0);
  }
  template <int... O>
  MF_INLINE void clear_sums(Indices<O...>) const {
    (clear_sum<O>(), ...);
  }
  template <int O>
  MF_INLINE void flush_sum() const {
    if constexpr (Out<O>::walk == 'r') {
      auto* const to = partial<O>(0);
      const F* const from = sums<O>();
      MF_VECTOR_LOOP
      for (i64 i = 0; i < cols; ++i) to[i] += from[i];
    }
  }
  template <int... O>
  MF_INLINE void flush_sums(Indices<O...>) const {
    (flush_sum<O>(), ...);
  }

  // ---- rows

  template <int O>
  MF_INLINE void write_once(const Row& row) const {
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'w')
      *reinterpret_cast<T*>(access<Out<O>>(O, 0).base) =
          cast<T>(result(functor.row_result(row), Out<O>::result));
  }
  template <int... O>
  MF_INLINE void write_once(const Row& row, Indices<O...>) const {
    (write_once<O>(row), ...);
  }

  // Moves to a row; returns how many of its elements count.
  MF_INLINE i64 place(i64 row) {
    for (int op = 0; op < K::operands; ++op) offset[op] = 0;
    i64 length = cols, rest = row;
    for (int dim = 1; dim < K::dims; ++dim) {
      i64 at = rest;
      if (dim < K::dims - 1) {
        const i64 size = i64(words[K::size + dim]);
        at = rest % size;
        rest /= size;
      }
      if (Fn::causal && dim == 1 && at + 1 < cols) length = at + 1;
      for (int op = 0; op < K::operands; ++op) offset[op] += at * stride(op, dim);
    }
    return length;
  }

  // One loop for rows of one piece and of several, whose pieces come twice, first for the total:
  // the compiler then makes one copy of each step.
  MF_INLINE void row(i64 row) {
    const i64 length = place(row), index = row * cols;
    const i64 pieces = (length + kPiece - 1) / kPiece;
    const bool held = holds() && pieces > 1;
    Total total = start(Known());
    for (i64 turn = 0; turn < (pieces > 1 ? 2 * pieces : 1); ++turn) {
      const bool is_first = turn < pieces;
      const i64 piece = is_first ? turn : turn - pieces, column = piece * kPiece;
      const i64 n = length - column < kPiece ? length - column : kPiece;
      if (held) use_held(column);
      if (is_first || !held) gather(index, column, n);
      Total local = total;
      if (is_first || (Fn::changes_kept && !held)) local = summary(column, n);
      if (held) {
        Total& here = totals_of_pieces()[piece];
        if (is_first) here = local;
        local = here;
      }
      if (is_first) total = pieces > 1 ? functor.merged(total, local) : local;
      if (is_first && pieces > 1) continue;
      const Row found = functor.row(total, local, F(cols));
      if (sums_in_buffer())
        finish<true>(index, column, n, found, Late(), AllOutputs(), AllParts());
      else
        finish<false>(index, column, n, found, Late(), AllOutputs(), AllParts());
      if (column > 0) continue;
      finish_left_out(length, found, AllOutputs());
      write_once(found, AllOutputs());
    }
  }

  // Rows of one piece each, from `first` on.
  template <int... R, int... O>
  MF_INLINE void several_rows(i64 first, Indices<R...>, Indices<O...>) {
    Row found[kTogether];
    F* held[kTogether][Fn::kept];
    u64 to[kTogether][K::outputs];
    for (int r = 0; r < kTogether; ++r) {
      place(first + r);
      use_buffer(r);
      gather((first + r) * cols, 0, cols);
      const Total total = summary(0, cols);
      found[r] = functor.row(total, total, F(cols));
      write_once(found[r], AllOutputs());
      for (int p = 0; p < Fn::kept; ++p) held[r][p] = part[p];
      ((to[r][O] = access<Out<O>>(O, 0).base), ...);
    }
    use_buffer(0);
    finish_several(found, held, to, Indices<R...>(), Late(), AllOutputs(), AllParts());
  }
  template <int... R, int... L, int... O, int... P>
  MF_INLINE void finish_several(const Row (&found)[kTogether],
                                F* const (&held)[kTogether][Fn::kept],
                                const u64 (&to)[kTogether][K::outputs], Indices<R...>,
                                Indices<L...>, Indices<O...>, Indices<P...>) {
    const auto fn = functor;
    const Row row[] = {found[R]...};
    const Access from[sizeof...(L) + 1] = {access<LateIn<L>>(K::outputs + kLateAt + L, 0)...};
    const i64 step[] = {stride(O, 0)...};
    F* const totals[] = {sums<O>()...};
    MF_VECTOR_LOOP
    for (i64 i = 0; i < cols; ++i) {
      F sum[K::outputs] = {};
      auto one = [&](auto which) __attribute__((always_inline)) {
        constexpr int r = decltype(which)::value;
        const auto made = fn.result(Kept{held[r][P][i]...}, row[r], read<LateIn<L>>(from[L], i)...);
        (add_or_store<O>(sum[O], to[r][O], step[O], i, result(made, Out<O>::result)), ...);
      };
      (one(Number<R>()), ...);
      (add_sum<O>(totals[O], i, sum[O]), ...);
    }
  }
  template <int O>
  static MF_INLINE void add_or_store(F& sum, u64 to, i64 step, i64 i, F value) {
    if constexpr (Out<O>::walk == 'r')
      sum += value;
    else
      Base::template store<Out<O>>(to, step, i, value);
  }
  template <int O>
  static MF_INLINE void add_sum(F* totals, i64 i, F sum) {
    if constexpr (Out<O>::walk == 'r') totals[i] += sum;
  }

  void run(i64 begin, i64 end) {
    if constexpr (K::random) {
      if (begin == 0) random.remember(words + K::rng);
    }
    rows = end - begin;
    if constexpr (Fn::does_rows && K::dims == 2) {
      if (functor.rows(*this, begin, end)) return;
    }
    widen_late(Late());
    for (i64 first = begin; first < end;) {
      const i64 last = sums_in_buffer() && first + kRows < end ? first + kRows : end;
      if (sums_in_buffer()) clear_sums(AllOutputs());
      if constexpr (kTogether > 1)
        for (; sums_in_buffer() && first + kTogether <= last; first += kTogether)
          several_rows(first, typename MakeIndices<kTogether>::type(), AllOutputs());
      for (; first < last; ++first) row(first);
      if (sums_in_buffer()) flush_sums(AllOutputs());
    }
  }
};

}  // namespace mf
