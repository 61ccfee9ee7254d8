// The CPU driver for backwards that also sum: the index space is (outer A, kept K, inner B), and
// results with walk 'r' are summed over A and B. A thread adds into a row of partial sums of its
// own, `slot`; sums are taken in blocks first, so that rounding errors stay those of short sums.
#pragma once

#include "sum_blocks_cpu.h"

namespace mf {

// Whether a functor may do the rows of a block itself: columns(driver, first, last, column, width,
// sums) adds them to the sums, and returns true.
template <class Fn>
constexpr auto does_columns(int) -> decltype(Fn::does_columns) {
  return Fn::does_columns;
}
template <class Fn>
constexpr bool does_columns(...) {
  return false;
}

// B == 1: rows [begin, end) of the outer dimension, summed column by column.
template <class K>
struct SumColumnsCpu : SumCpu<K, true> {
  using Base = SumCpu<K, true>;
  using F = typename K::Compute;
  using AllOutputs = typename Base::AllOutputs;
  using Base::Base;
  using Base::kept;

  // Columns summed side by side, kBlock at a time: with 256 of them the short runs in memory made
  // a gelu's gradient with its sum 1.4x that without one (512 x 3072), with these 1.1x.
  static constexpr int kLanes = 2048;
  static constexpr int kTerms = 32;  // added up in F
  alignas(64) F sums[K::outputs][kLanes];

  void run(i64 begin, i64 end) {
    i64 together = kept() < kBlock ? kBlock / kept() : 1;
    if (!Base::outputs_are_flat({0, 0, together * kept()}, AllOutputs())) together = 1;
    for (i64 first = begin; first < end; first += kTerms * together) {
      const i64 last = first + kTerms * together < end ? first + kTerms * together : end;
      for (i64 k = 0; k < kept(); k += kLanes) {
        const i64 width = kept() - k < kLanes ? kept() - k : kLanes;
        clear(width * together);
        if constexpr (does_columns<typename K::Functor>(0)) {
          if (Base::functor.columns(*this, first, last, k, width, sums)) {
            flush(k, width, 1, AllOutputs());
            continue;
          }
        }
        for (i64 row = first; row < last; row += together)
          add({row, k, width * (last - row < together ? last - row : together)});
        flush(k, width, together, AllOutputs());
      }
    }
  }

  void clear(i64 n) {
    for (int o = 0; o < K::outputs; ++o)
      for (i64 i = 0; i < n; ++i) sums[o][i] = F(0);
  }
  void add(const typename Base::Block& at) {
    for (i64 lane = 0; lane < at.n; lane += kBlock) {
      const i64 count = at.n - lane < kBlock ? at.n - lane : kBlock;
      const typename Base::Block here{at.row, at.column + lane, count};
      if constexpr (Base::direct) {
        Base::AsSummed::gather(*this, here);
        add_direct(lane, count, AllOutputs());
      } else {
        Base::run_block(here, typename Base::AllInputs());
        add_terms(lane, count, AllOutputs());
      }
    }
  }
  template <int... O>
  MF_INLINE void add_direct(i64 lane, i64 n, Indices<O...>) {
    Base::AsSummed::add(*this, n, (sums[O] + lane)...);
  }
  template <int... O>
  MF_INLINE void add_terms(i64 lane, i64 n, Indices<O...>) {
    (add_terms<O>(lane, n), ...);
  }
  template <int O>
  MF_INLINE void add_terms(i64 lane, i64 n) {
    if constexpr (Base::template Out<O>::walk == 'r') {
      F* const to = sums[O] + lane;
      const F* const from = Base::template terms<O>();
      MF_VECTOR_LOOP
      for (i64 i = 0; i < n; ++i) to[i] += from[i];
    }
  }
  // n columns from k on, of each of so many rows.
  template <int... O>
  void flush(i64 k, i64 n, i64 rows, Indices<O...>) {
    (flush<O>(k, n, rows), ...);
  }
  template <int O>
  void flush(i64 k, i64 n, i64 rows) {
    if constexpr (Base::template Out<O>::walk == 'r') {
      F* const all = sums[O];
      for (i64 half; rows > 1; rows = half) {  // in pairs: errors grow with the logarithm of rows
        half = (rows + 1) / 2;
        const F* const other = all + half * n;
        MF_VECTOR_LOOP
        for (i64 i = 0; i < rows / 2 * n; ++i) all[i] += other[i];
      }
      add_all(all, Base::template partial<O>(k), n);
    }
  }
  template <class T>
  static void add_all(const F* from, T* to, i64 n) {
    MF_VECTOR_LOOP
    for (i64 i = 0; i < n; ++i) to[i] = cast<T>(cast<double>(to[i]) + double(from[i]));
  }
  // float16 by the block: one by one, a layer norm's gradients of 1 x 39841 took longest here.
  static void add_all(const F* from, half* to, i64 n) {
    float sum[kLanes];
    widen(to, sum, n);
    MF_VECTOR_LOOP
    for (i64 i = 0; i < n; ++i) sum[i] = float(double(sum[i]) + double(from[i]));
    narrow(sum, to, n);
  }
};

// B counts segments, each summed column by column over A: parts [begin, end) of segments, whose
// number of rows is a word. A part is what SumColumnsCpu sums, with addresses of its segment's.
template <class K>
struct SumSegmentsCpu {
  const u64* words;

  SumSegmentsCpu(const u64* w, i64) : words(w) {}

  void run(i64 begin, i64 end) {
    const i64 kept = i64(words[K::size + 1]), segments = i64(words[K::size]);
    const i64 length = i64(words[K::numel]) / segments / kept, rows = i64(words[K::divider]);
    const i64 parts = (length + rows - 1) / rows;
    for (i64 at = begin; at < end; ++at) {
      const i64 part = at % parts, first = part * rows;
      u64 moved[K::words];
      for (int i = 0; i < K::words; ++i) moved[i] = words[i];
      move(moved, at / parts, kept, typename MakeIndices<K::outputs>::type(),
           typename MakeIndices<K::inputs>::type());
      SumColumnsCpu<K>(moved, part).run(first, first + rows < length ? first + rows : length);
    }
  }
  template <int... O, int... I>
  void move(u64* moved, i64 segment, i64 kept, Indices<O...>, Indices<I...>) const {
    (move_one<typename At<O, typename K::Outputs>::type>(moved, O, segment, kept), ...);
    (move_one<typename At<I, typename K::Inputs>::type>(moved, K::outputs + I, segment, kept), ...);
  }
  template <class Op>
  void move_one(u64* moved, int op, i64 segment, i64 kept) const {
    const i64 apart = Op::walk == 'r' ? kept : i64(words[K::stride + op * K::dims]);
    const i64 size = Op::walk == 'v' ? 0 : Op::walk == 'i' ? 1 : i64(sizeof(typename Op::T));
    moved[op] += u64(segment * apart * size);
  }
};

// B > 1: elements [begin, end) of the whole index space, each row summed to one number.
template <class K>
struct SumRowsCpu : SumCpu<K, false> {
  using Base = SumCpu<K, false>;
  using F = typename K::Compute;
  using AllOutputs = typename Base::AllOutputs;
  using Base::Base;
  using Base::kept;
  using Base::length;

  double open[K::outputs] = {};  // sums of the row that the next block goes on with

  // Shorter rows are summed from a buffer of terms: a call for each would take longer.
  static constexpr i64 kLeastDirect = 128;
  // Elements of one block where nothing is copied: 32 for each lane.
  static constexpr i64 kFlat = 32 * Base::kSumLanes;
  bool is_direct = false;

  void run(i64 begin, i64 end) {
    is_direct = Base::direct && length() >= kLeastDirect;
    while (begin < end) {
      typename Base::Block at{begin / length(), begin % length(), 0};
      const i64 left = length() - at.column;
      at.n = left < kBlock ? left : kBlock;
      if (const i64 more = (kBlock - at.n) / length() * length(); more > 0) {
        at.n += more;
        if (!Base::outputs_are_flat(at, AllOutputs())) at.n -= more;
      }
      if constexpr (Base::direct) {
        const typename Base::Block long_one{at.row, at.column, left < kFlat ? left : kFlat};
        if (is_direct && long_one.n > at.n && Base::AsSummed::lies_flat(*this, long_one))
          at.n = long_one.n;
      }
      if (at.n > end - begin) at.n = end - begin;
      if constexpr (Base::direct) {
        if (is_direct) Base::AsSummed::gather(*this, at);
      }
      if (!is_direct) Base::run_block(at, typename Base::AllInputs());
      begin += at.n;
      add(at, begin == end);
    }
  }

  // What ends a row that the block before began, whole rows, what begins one.
  void add(const typename Base::Block& at, bool is_last) {
    const i64 k = at.row % kept(), left = length() - at.column;
    i64 head = left < at.n ? left : at.n;
    const bool ends = head == left || is_last;
    if (at.column == 0 && ends)
      head = 0;
    else
      add_part(k, 0, head, ends);
    const i64 rows = (at.n - head) / length(), done = head + rows * length();
    const i64 next = head > 0 ? (k + 1) % kept() : k;
    add_rows(next, head, rows);
    if (done < at.n) add_part((next + rows) % kept(), done, at.n - done, is_last);
  }

  // The sums of n terms of the block, from `first` on.
  template <int... O>
  MF_INLINE void total(i64 first, i64 n, F (&sum)[K::outputs], Indices<O...>) const {
    if constexpr (Base::direct) {
      if (is_direct) return Base::AsSummed::total(*this, first, n, sum);
    }
    ((sum[O] =
          Base::template Out<O>::walk == 'r' ? sum_of(Base::template terms<O>() + first, n) : F(0)),
     ...);
  }
  void add_part(i64 k, i64 first, i64 n, bool ends) {
    F sum[K::outputs];
    total(first, n, sum, AllOutputs());
    for (int o = 0; o < K::outputs; ++o) open[o] += double(sum[o]);
    if (ends) close(k, AllOutputs());
  }
  template <int... O>
  void close(i64 k, Indices<O...>) {
    (add_sum<O>(k, open[O]), ...);
    for (double& sum : open) sum = 0;
  }
  template <int O, class Sum>
  MF_INLINE void add_sum(i64 k, Sum sum) const {
    if constexpr (Base::template Out<O>::walk == 'r') Base::template add_to<O>(k, sum);
  }
  void add_rows(i64 k, i64 first, i64 rows) {
    for (; rows > 0; --rows, first += length()) {
      F sum[K::outputs];
      total(first, length(), sum, AllOutputs());
      add_row(k, sum, AllOutputs());
      if (++k == kept()) k = 0;
    }
  }
  template <int... O>
  MF_INLINE void add_row(i64 k, const F (&sum)[K::outputs], Indices<O...>) const {
    (add_sum<O>(k, sum[O]), ...);
  }
};

}  // namespace mf
