// An optimizer's step on a CPU: a thread does some of the pieces, each a few elements at a time, so
// that what is widened to floats stays in the nearest cache.
#pragma once

#include "half_cpu.h"
#include "optimizer.h"

namespace mf::optimizer {

template <class Rule, class T, class F>
struct Cpu {
  static constexpr int kTogether = 256;  // elements: five columns of floats are 5 KB

  // Pieces [begin, end) of those of a table with `rows` rows.
  static void run(const u64* table, i64 rows, i64 begin, i64 end) {
    for (i64 piece = begin; piece < end; ++piece) {
      const Piece at(table, rows, piece);
      double numbers[kRow - kNumbers];
      for (int n = 0; n < kRow - kNumbers; ++n) numbers[n] = bits_as<double>(at.row[kNumbers + n]);
      const Rule rule(numbers);
      for (i64 done = 0; done < at.count; done += kTogether)
        some(rule, at, at.first + done,
             int(at.count - done < kTogether ? at.count - done : kTogether));
    }
  }

 private:
  static MF_INLINE T* column(const Piece& at, int c, i64 element) {
    return reinterpret_cast<T*>(at.row[kColumns + c]) + element;
  }

  static void some(const Rule& rule, const Piece& at, i64 first, int count) {
    if constexpr (sizeof(T) == sizeof(F)) {
      T* x[Rule::kOperands];
      for (int c = 0; c < Rule::kOperands; ++c) x[c] = column(at, c, first);
#pragma GCC ivdep
      for (int i = 0; i < count; ++i) rule.step(x, i);
      return;
    }
    alignas(64) F x[Rule::kOperands][kTogether];
    for (int c = 0; c < Rule::kOperands; ++c) read(column(at, c, first), x[c], count);
    for (int i = 0; i < count; ++i) rule.step(x, i);
    for (int c = 0; c < Rule::kOperands; ++c)
      if (c != 1) write(x[c], column(at, c, first), count);  // the gradient stays as it is
  }

  static MF_INLINE void read(const T* from, F* to, int count) {
    if constexpr (is_half<T>) return widen(from, to, count);
    for (int i = 0; i < count; ++i) to[i] = cast<F>(from[i]);
  }
  static MF_INLINE void write(const F* from, T* to, int count) {
    if constexpr (is_half<T>) return narrow(from, to, count);
    for (int i = 0; i < count; ++i) to[i] = cast<T>(from[i]);
  }
};

}  // namespace mf::optimizer
