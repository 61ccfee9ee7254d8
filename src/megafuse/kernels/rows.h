// What a row-wise kernel is, for every processor: results that depend on a whole row, the last
// dimension of a broadcast index space.
//
//   kept   = functor.load(early inputs...)              of each element of the row
//   total  = the elements summarised, piece by piece, and the pieces merged
//   out... = functor.result(kept, row, late inputs...)  for each element of the row
//
// A piece is what one warp (GPU) or one buffer (CPU) holds. It is summarised in a few steps, each
// of which adds up a term of every element or takes the largest; a later step may use what an
// earlier one found, so a piece's variance is that of two passes and cancels nothing. Rows that are
// one piece, or a few side by side, are read from memory once; longer ones twice: to know their
// total, then for the results. The words are those of pointwise.h: dimension 0 is the row, and
// there is always a dimension 1.
//
// A functor has
//   early                         how many inputs `load` takes
//   known                         how many follow that have one number per row, found in an earlier
//                                 pass; the others are late: they are the same for all rows
//                                 (weights), and read where they are used
//   kept                          how many numbers are kept of an element, as Pack<F, kept>
//   keeps_inputs                  whether no step changes these, so that `load` may be called again
//   changes_kept                  whether a step changes what is kept
//   pivots                        whether the GPU starts a piece around one of its elements:
//                                 around(x), x what is kept of it first, in place of start()
//   steps                         how often a piece is gone through to summarise it
//   KeptAs                        the dtype that what is kept is rounded to, F where it is not
//   weighs                        whether `term` takes the late inputs
//   takes_max<S>                  whether step S takes the largest term instead of the sum
//   causal                        whether elements right of the diagonal are left out: they are not
//                                 read; left_out() is kept of those that share a vector with
//                                 others, and left_out_result(row) is what they give
//   does_rows                     whether rows(driver, begin, end) may do these rows in place of
//                                 the CPU's driver, which it tells by returning true
//   draws_late                    whether `result`, not `load`, takes the random word (last)
//   Total                         what is known of some elements, a struct of F
//   start(known...)               of none
//   term<S>(kept, total, [late...]) of one element, a number or a Pack; may change what is kept
//   fold<S>(total, sum, n)        puts the sum of the terms of n elements into the total
//   merged(total, total)          the total of two pieces
//   row(total, local, n)          what `result` needs of a row of n elements, and of the piece
//   result(kept, row, late...)    one value or a Pack
//   row_result(row)               the value of outputs that have one per row (walk 'w')
// Outputs with walk 'r' are summed over all rows, column by column: stride 1 is the distance
// between one block's (one thread's, on the CPU) row of partial sums and the next.
#pragma once

#include "math.h"
#include "pointwise.h"

namespace mf {

// What most functors have nothing to say about.
template <class F, int kEarly, int kKept, int kSteps>
struct RowFunctor {
  using KeptAs = F;
  static constexpr int early = kEarly;
  static constexpr int known = 0;
  static constexpr int kept = kKept;
  static constexpr int steps = kSteps;
  static constexpr bool keeps_inputs = true;
  static constexpr bool changes_kept = false;
  static constexpr bool pivots = false;
  static constexpr bool weighs = false;
  static constexpr bool causal = false;
  static constexpr bool does_rows = false;
  static constexpr bool draws_late = false;
  template <int S>
  static constexpr bool takes_max = false;
};

// The larger of two; NaN wins, as in PyTorch.
MF_INLINE float larger(float a, float b) {
#if MF_ON_GPU && __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return select((a > b) | (a != a), a, b);
#endif
}
MF_INLINE double larger(double a, double b) { return select((a > b) | (a != a), a, b); }

// Adds a term to those before it, or takes the larger, number by number.
template <bool kMax, class F>
MF_INLINE F joined(F a, F b) {
  if constexpr (kMax)
    return larger(a, b);
  else
    return a + b;
}
template <bool kMax, class F, int N>
MF_INLINE Pack<F, N> joined(const Pack<F, N>& a, const Pack<F, N>& b) {
  Pack<F, N> both;
  for (int i = 0; i < N; ++i) both[i] = joined<kMax>(a[i], b[i]);
  return both;
}

// What joins with a term without changing it.
template <bool kMax, class T>
struct Neutral {
  static MF_INLINE T value() { return kMax ? -infinity<T>() : T(0); }
};
template <bool kMax, class F, int N>
struct Neutral<kMax, Pack<F, N>> {
  static MF_INLINE Pack<F, N> value() {
    Pack<F, N> pack;
    for (int i = 0; i < N; ++i) pack[i] = Neutral<kMax, F>::value();
    return pack;
  }
};

// How many results a row-wise functor has of each element, 0 where its inputs do not fit, and how
// many of each row. As Call of pointwise.h.
template <class K>
struct RowCall {
  using F = typename K::Compute;
  using Fn = typename K::Declared;
  using Kept = Pack<F, Fn::kept>;
  static constexpr int late = K::inputs - Fn::early - Fn::known;
  static constexpr bool draws_early = K::random && !Fn::draws_late;

  template <class G, int... I>
  MF_DECLARED static auto load(Indices<I...>, Draws<false>)
      -> decltype(some<const G&>().load(some<typename Each<F, I>::type>()...));
  template <class G, int... I>
  MF_DECLARED static auto load(Indices<I...>, Draws<true>)
      -> decltype(some<const G&>().load(some<typename Each<F, I>::type>()..., u32()));
  template <class G>
  MF_DECLARED static NotCallable load(...);

  template <class G, int... I>
  MF_DECLARED static auto of(Indices<I...>, Draws<false>)
      -> decltype(some<const G&>().result(some<Kept>(), some<typename G::Row>(),
                                          some<typename Each<F, I>::type>()...));
  template <class G, int... I>
  MF_DECLARED static auto of(Indices<I...>, Draws<true>)
      -> decltype(some<const G&>().result(some<Kept>(), some<typename G::Row>(),
                                          some<typename Each<F, I>::type>()..., u32()));
  template <class G>
  MF_DECLARED static NotCallable of(...);

  template <class G>
  MF_DECLARED static auto of_row(int)
      -> decltype(some<const G&>().row_result(some<typename G::Row>()));
  template <class G>
  MF_DECLARED static NotCallable of_row(...);

  using Loaded = decltype(load<Fn>(typename MakeIndices<Fn::early>::type(), Draws<draws_early>()));
  using Made = decltype(of<Fn>(typename MakeIndices<(late < 0 ? 0 : late)>::type(),
                               Draws<K::random && Fn::draws_late>()));
  static constexpr int results = late < 0 || Count<Loaded>::value == 0 ? 0 : Count<Made>::value;
  static constexpr int row_results = Count<decltype(of_row<Fn>(0))>::value;
};

}  // namespace mf
