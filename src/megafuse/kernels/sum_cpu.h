// The CPU driver for backwards that also sum: the index space is (outer A, kept K, inner B), and
// results with walk 'r' are summed over A and B. A thread adds into a row of partial sums of its
// own, `slot`; sums are taken in blocks first, so that rounding errors stay those of short sums.
#pragma once

#include "pointwise_cpu.h"

namespace mf {

template <class K>
struct SumCpu : PointwiseCpu<K> {
  using Base = PointwiseCpu<K>;
  using F = typename K::Compute;
  template <int O>
  using Out = typename Base::template Out<O>;
  using Base::offset;
  using Base::stride;
  using Base::words;

  // Elements summed side by side, kBlock at a time: with 256 of them the short runs in memory made
  // a gelu's gradient with its sum 1.4x that without one (512 x 3072), with these 1.1x.
  static constexpr int kLanes = 2048;
  static constexpr int kRows = 32;  // rows per block

  i64 slot;
  F sums[K::outputs][kLanes];

  SumCpu(const u64* w, i64 s) : Base(w), slot(s) {}

  i64 inner() const { return i64(words[K::size]); }
  i64 kept() const { return i64(words[K::size + 1]); }

  void place(i64 b, i64 k, i64 a) {
    for (int op = 0; op < K::operands; ++op)
      offset[op] = b * stride(op, 0) + k * stride(op, 1) + a * stride(op, 2);
  }

  // n <= kBlock elements from the current place along dimension kAlong: stores the whole
  // results, adds the summed ones to `sums` from `lane` on.
  template <int kAlong>
  MF_INLINE void add(int n, int lane) {
    auto keep = [this, lane](auto output, u64 base, i64 step, i64 i, F value) {
      constexpr int o = decltype(output)::value;
      if constexpr (Out<o>::walk == 'r')
        sums[o][lane + i] += value;
      else
        Base::template store<Out<o>>(base, step, i, value);
    };
    Base::template block<kAlong>(n, nullptr, keep, typename Base::AllInputs(),
                                 typename Base::AllOutputs());
  }

  void clear(int n) {
    for (int o = 0; o < K::outputs; ++o)
      for (int i = 0; i < n; ++i) sums[o][i] = F(0);
  }

  // Adds this thread's share to its row of the partial sums.
  template <int O>
  MF_INLINE void add_to(i64 k, F value) const {
    using T = typename Out<O>::T;
    T* to = reinterpret_cast<T*>(words[O]) + slot * stride(O, 2) + k;
    *to = cast<T>(cast<double>(*to) + double(value));
  }

  template <int... O>
  void flush_columns(i64 k, int n, Indices<O...>) {
    (flush_columns<O>(k, n), ...);
  }
  template <int O>
  MF_INLINE void flush_columns(i64 k, int n) {
    if constexpr (Out<O>::walk == 'r')
      for (int i = 0; i < n; ++i) add_to<O>(k + i, sums[O][i]);
  }

  template <int... O>
  void flush_row(i64 k, int n, Indices<O...>) {
    (flush_row<O>(k, n), ...);
  }
  template <int O>
  MF_INLINE void flush_row(i64 k, int n) {
    if constexpr (Out<O>::walk == 'r') {
      while (n > 1) {  // in pairs: rounding errors grow with the logarithm of n
        const int half = (n + 1) / 2;
        for (int i = 0; i + half < n; ++i) sums[O][i] += sums[O][i + half];
        n = half;
      }
      add_to<O>(k, sums[O][0]);
    }
  }

  // B == 1: rows [begin, end) of the outer dimension, each summed column by column.
  void columns(i64 begin, i64 end) {
    for (i64 first = begin; first < end; first += kRows) {
      const i64 last = first + kRows < end ? first + kRows : end;
      for (i64 k = 0; k < kept(); k += kLanes) {
        const int n = int(kept() - k < kLanes ? kept() - k : kLanes);
        clear(n);
        for (i64 a = first; a < last; ++a)
          for (int lane = 0; lane < n; lane += kBlock) {
            place(0, k + lane, a);
            add<1>(n - lane < kBlock ? n - lane : kBlock, lane);
          }
        flush_columns(k, n, typename Base::AllOutputs());
      }
    }
  }

  // B > 1: elements [begin, end) of the whole index space, each row summed to one number.
  void rows(i64 begin, i64 end) {
    while (begin < end) {
      const i64 b = begin % inner(), row = begin / inner();
      const i64 k = row % kept(), a = row / kept();
      const i64 length = inner() - b < end - begin ? inner() - b : end - begin;
      // Long rows are cut, so that no sum has more than kRows terms per lane.
      for (i64 done = 0; done < length;) {
        const i64 piece = length - done < kLanes * kRows ? length - done : i64(kLanes) * kRows;
        const int lanes = int(piece < kLanes ? piece : kLanes);
        clear(lanes);
        for (i64 i = 0; i < piece; i += kBlock) {
          place(b + done + i, k, a);
          add<0>(int(piece - i < kBlock ? piece - i : kBlock), int(i % kLanes));
        }
        flush_row(k, lanes, typename Base::AllOutputs());
        done += piece;
      }
      begin += length;
    }
  }
};

}  // namespace mf
