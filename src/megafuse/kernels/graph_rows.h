// What a generated row-wise kernel is, for every processor: steps, each over the whole row.
//
//   for each step S:  found = the terms of all elements, folded; a row knows more after each step
//   then              out... = functor.results(row, kept, inputs...)  of each element
//
// rows.h summarises pieces of a row that can be merged. A chain that somebody wrote has no such
// rule, so here a step is complete before the next begins: a row that is not held in registers is
// read again for each, from the cache. The words are those of pointwise.h: dimension 0 is the row.
//
// A functor inherits Typed<scalars> and has
//   steps                             how many; 0 where nothing is asked of a row
//   held                              bits: the inputs that steps need, so that they are held
//   Row                               what is known of a row
//   RowField                          the type of all its numbers, or Nothing where they differ
//   Kept                              what is kept of an element from one step to the next, since
//                                     it costs more to compute than to keep; Nothing for nothing
//   fields                            how many numbers that is. Of each:
//   kept_in[N]                        the step that keeps it
//   field(Nth<N>, kept)              the number
//   keeps(S)                          whether step S keeps something:
//   keep(Step<S>, kept, row, inputs...)     puts it there
//   terms(Step<S>, row, kept, inputs...)    a Tuple of Sum{x}, Largest{x}, …
//   fold(Step<S>, row, found)       found is a Tuple of their totals
//   results(row, kept, inputs...)     of each element: a value or a Tuple
//   row_results(row, inputs...)       of each row (walk 'w'), with the inputs at column 0
//   runs                              how many loads the driver does for the functor, since
//                                     they are the same for runs of elements; they come after the
//                                     inputs, and 0 is none. Of each:
//   length(Run<R>)                    how many columns a run has; the first begins at column 0
//   run_like[R]                       the first whose runs are as long
//   load(Run<R>, run, inputs...)      the element, for this run of the row
// Outputs with walk 'r' are summed over all rows, column by column, as in rows.h; those with walk
// 'g' over the rows of each segment: stride 0 is how many these are, and partial sums lie as
// [part][sum][segment][column], from part to part in steps of stride 1.
#pragma once

#include "pointwise.h"
#include "prims.h"

namespace mf {

template <int S>
struct Step {};
struct Nothing {};
template <int R>
struct Run {};
template <int N>
struct Nth {};

// What a row keeps before step S.
template <class Fn>
MF_INLINE constexpr bool keeps_before(int step) {
  for (int s = 0; s < step; ++s)
    if (Fn::keeps(s)) return true;
  return false;
}

template <class T>
MF_INLINE T chosen(bool which, const T& a, const T& b) {
  return select(which, a, b);
}

// The kinds of reductions: a term of one of them is of(term, column) in a lane, none() is a lane
// without any, joined(a, b) is both, and found(lane) the result. `rounds`: whether errors grow
// with the number of terms, so that many are joined in runs.
template <class T>
struct Sum {
  T value;
  using Lane = T;
  static constexpr bool rounds = is_floating<T>;
  static MF_INLINE Lane none() { return T(0); }
  static MF_INLINE Lane of(const Sum& term, i64) { return term.value; }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) {
    if constexpr (is_floating<T>)
      return a + b;
    else
      return add(a, b);
  }
  static MF_INLINE T found(const Lane& lane) { return lane; }
};
template <class T>
struct Product {
  T value;
  using Lane = T;
  static constexpr bool rounds = is_floating<T>;
  static MF_INLINE Lane none() { return T(1); }
  static MF_INLINE Lane of(const Product& term, i64) { return term.value; }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) {
    if constexpr (is_floating<T>)
      return a * b;
    else
      return mul(a, b);
  }
  static MF_INLINE T found(const Lane& lane) { return lane; }
};

// The least and the greatest number of a type.
template <class T>
MF_INLINE T least() {
  if constexpr (is_floating<T>)
    return -infinity<T>();
  else
    return is_signed<T> ? T(T(1) << (sizeof(T) * 8 - 1)) : T(0);
}
template <class T>
MF_INLINE T greatest() {
  if constexpr (is_floating<T>)
    return infinity<T>();
  else
    return T(~least<T>());
}
template <>
MF_INLINE bool least<bool>() {
  return false;
}
template <>
MF_INLINE bool greatest<bool>() {
  return true;
}

template <class T>
struct Largest {
  T value;
  using Lane = T;
  static constexpr bool rounds = false;
  static MF_INLINE Lane none() { return least<T>(); }
  static MF_INLINE Lane of(const Largest& term, i64) { return term.value; }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) { return maximum(a, b); }
  static MF_INLINE T found(const Lane& lane) { return lane; }
};
template <class T>
struct Smallest {
  T value;
  using Lane = T;
  static constexpr bool rounds = false;
  static MF_INLINE Lane none() { return greatest<T>(); }
  static MF_INLINE Lane of(const Smallest& term, i64) { return term.value; }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) { return minimum(a, b); }
  static MF_INLINE T found(const Lane& lane) { return lane; }
};

// The sum of exp(x - m) over a row, m being its largest number, without a pass to find that first:
// what was added up is scaled anew where a larger one comes. A vector at a time, so that each has
// one such factor; `with` is for drivers that take this kind.
template <class T>
struct SoftmaxSum {
  T value;
  struct Lane {
    T most, total;
  };
  static constexpr bool rounds = true;
  static MF_INLINE Lane none() { return {least<T>(), T(0)}; }
  static MF_INLINE Lane of(const SoftmaxSum& term, i64) {
    return {term.value, exp(term.value - base(term.value))};
  }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) {
    const T most = maximum(a.most, b.most), from = base(most);
    return {most, a.total * exp(a.most - from) + b.total * exp(b.most - from)};
  }
  template <int N>
  static MF_INLINE Lane with(const Lane& lane, const T (&x)[N]) {
    T most = lane.most;
    for (int v = 0; v < N; ++v) most = maximum(most, x[v]);
    const T from = base(most);
    T total = lane.total * exp(lane.most - from);
    for (int v = 0; v < N; ++v) total += exp(x[v] - from);
    return {most, total};
  }
  // Infinity less itself is NaN, as exp(x - m) is there.
  static MF_INLINE T found(const Lane& lane) { return lane.total + (lane.most - lane.most); }

 private:
  // What exponents are relative to: as long as all are -inf, so that none is NaN, 0.
  static MF_INLINE T base(T most) { return select(most == least<T>(), T(0), most); }
};
template <class R>
constexpr bool takes_vectors = false;
template <class T>
constexpr bool takes_vectors<SoftmaxSum<T>> = true;

// bool, in a word: comparisons of floats make masks of that width.
template <class T>
struct Any {
  T value;
  using Lane = i32;
  static constexpr bool rounds = false;
  static MF_INLINE Lane none() { return 0; }
  static MF_INLINE Lane of(const Any& term, i64) { return term.value ? 1 : 0; }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) { return a | b; }
  static MF_INLINE bool found(const Lane& lane) { return lane != 0; }
};
template <class T>
struct All {
  T value;
  using Lane = i32;
  static constexpr bool rounds = false;
  static MF_INLINE Lane none() { return 1; }
  static MF_INLINE Lane of(const All& term, i64) { return term.value ? 1 : 0; }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) { return a & b; }
  static MF_INLINE bool found(const Lane& lane) { return lane != 0; }
};

// A number and its column, as wide as the number where that is enough. None is at column -1.
template <class T>
struct Spot {
  using Column = typename Unsigned<sizeof(T)>::type;
  T value;
  Column column;
};
template <class T>
MF_INLINE Spot<T> chosen(bool which, const Spot<T>& a, const Spot<T>& b) {
  return {select(which, a.value, b.value), select(which, a.column, b.column)};
}
// The first of the largest (kLargest) or smallest; NaN before all others.
template <class T, bool kLargest>
struct Extreme {
  T value;
  using Lane = Spot<T>;
  static constexpr bool rounds = false;
  static MF_INLINE Lane none() {
    return {kLargest ? least<T>() : greatest<T>(), typename Lane::Column(-1)};
  }
  static MF_INLINE Lane of(const Extreme& term, i64 column) {
    return {term.value, typename Lane::Column(column)};
  }
  static MF_INLINE Lane joined(const Lane& a, const Lane& b) {
    const bool better = kLargest ? a.value > b.value : a.value < b.value;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    const bool same = (a.value == b.value) | (a_is_nan & b_is_nan);
    return chosen((better & !b_is_nan) | (a_is_nan & !b_is_nan) | (same & (a.column < b.column)), a,
                  b);
  }
  static MF_INLINE i64 found(const Lane& lane) { return i64(lane.column); }
};
template <class T>
struct ArgLargest : Extreme<T, true> {
  MF_INLINE explicit ArgLargest(T x) : Extreme<T, true>{x} {}
};
template <class T>
struct ArgSmallest : Extreme<T, false> {
  MF_INLINE explicit ArgSmallest(T x) : Extreme<T, false>{x} {}
};

}  // namespace mf
