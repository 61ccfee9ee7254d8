// Blocks of a summing kernel on the CPU: which elements go through the functor together, and where
// their terms go. sum_cpu.h has the drivers.
//
// Rows shorter than a block go through the functor together, as many as fill it, and inputs that do
// not lie there one element after the other are copied so first. scale_bias_sigmoid of 43909 x 4
// with its gradients is 1.3 times as fast as eager so, and was 0.5 times with a loop for each row;
// with a number for each row it is 1.05 (0.42), and 1.25 (0.6) at 55383 x 47.
#pragma once

#include "lanes_cpu.h"
#include "pointwise_cpu.h"

namespace mf {

// K with all inputs in walk 'e' (but numbers and indices), and so terms in place of sums.
template <class F, class Ops>
struct Gathered;
template <class F, class... Ops>
struct Gathered<F, Operands<Ops...>> {
  using Ins =
      Operands<Operand<typename Ops::T, Ops::walk == 'v' || Ops::walk == 'i' ? Ops::walk : 'e'>...>;
  using Outs = Operands<Operand<typename Choose<Ops::walk == 'r', F, typename Ops::T>::type,
                                Ops::walk == 'r' ? 'e' : Ops::walk, Ops::result>...>;
};
template <class K>
using Gathering = Kernel<typename K::Declared, typename K::Compute, K::dims,
                         typename Gathered<typename K::Compute, typename K::Outputs>::Outs,
                         typename Gathered<typename K::Compute, typename K::Inputs>::Ins>;

// What both kinds share: blocks of rows. A row runs along K where B is 1 (kColumns), else along B.
template <class K, bool kColumns>
struct SumCpu : PointwiseCpu<Gathering<K>, true> {
  using Base = PointwiseCpu<Gathering<K>, true>;
  using F = typename K::Compute;
  using AllInputs = typename Base::AllInputs;
  using AllOutputs = typename Base::AllOutputs;
  template <int I>
  using In = typename Base::template In<I>;
  template <int O>
  using Out = typename At<O, typename K::Outputs>::type;
  using Base::gathered;
  using Base::gathered_at;
  using Base::offset;
  using Base::stride;
  using Base::words;

  static constexpr int kAlong = kColumns ? 1 : 0;

  i64 slot;
  struct Held {
    i64 whose = -1, n = 0;
  } held[K::operands];  // what `gathered` has of each operand (is_there)

  SumCpu(const u64* w, i64 s) : Base(w), slot(s) {}

  i64 kept() const { return i64(words[K::size + 1]); }
  i64 length() const { return i64(words[K::size + kAlong]); }

  // n elements of one row, or of several; then the last is the last of its row, unless the work
  // ends before.
  struct Block {
    i64 row, column, n;
  };
  i64 offset_of(int op, i64 row, i64 column) const {
    const i64 start = kColumns ? row * stride(op, 2)
                               : row % kept() * stride(op, 1) + row / kept() * stride(op, 2);
    return start + column * stride(op, kAlong);
  }

  // Whether operand `op` has one element after the other there.
  bool is_flat(int op, const Block& at) const {
    if (stride(op, kAlong) != 1) return false;
    const i64 rows = (at.column + at.n + length() - 1) / length();
    if (rows == 1) return true;
    if (kColumns) return stride(op, 2) == length();
    const bool one_outer = at.row % kept() + rows <= kept();
    return stride(op, 1) == length() && (one_outer || stride(op, 2) == length() * kept());
  }
  template <int... O>
  bool outputs_are_flat(const Block& at, Indices<O...>) const {
    return ((Out<O>::walk == 'r' || is_flat(O, at)) && ...);
  }

  template <class Op>
  void gather(int op, const Block& at) {
    if constexpr (Op::walk == 'i') count(op, at);
    if constexpr (Op::walk == 'e') {
      using T = typename Op::T;
      const T* from = reinterpret_cast<const T*>(words[op]) + offset_of(op, at.row, at.column);
      T* const to = reinterpret_cast<T*>(gathered[op]);
      const bool flat = is_flat(op, at);
      gathered_at[op] = reinterpret_cast<u64>(flat ? from : to);
      if (flat || is_there(op, at)) return;
      const i64 apart = stride(op, kAlong);
      i64 k = kColumns ? 0 : at.row % kept(), column = at.column;
      for (i64 done = 0; done < at.n; column = 0) {
        const i64 left = at.n - done, count = length() - column < left ? length() - column : left;
        Base::copy(from, apart, to + done, count);
        done += count;
        const bool next_outer = kColumns || ++k == kept();  // of the next row
        from += (next_outer ? stride(op, 2) : stride(op, 1)) - column * apart;
        if (!kColumns && next_outer) from -= (kept() - 1) * stride(op, 1), k = 0;
      }
    }
  }
  // The indices of a block (walk 'i').
  void count(int op, const Block& at) {
    i64* const to = reinterpret_cast<i64*>(gathered[op]);
    i64 row = at.row, column = at.column;
    for (i64 done = 0; done < at.n; ++row, column = 0) {
      const i64 left = at.n - done, n = length() - column < left ? length() - column : left;
      const i64 first = i64(words[op]) + offset_of(op, row, column);
      for (i64 i = 0; i < n; ++i) to[done + i] = first + i * stride(op, kAlong);
      done += n;
    }
  }
  // Whether `gathered` has what this block needs, from a block before: of an operand that all rows
  // share (whose = 0), as many whole rows of it; of one that has a number for each row (whose = the
  // row's number + 1), that row's as many times. What is neither (whose = -1) is copied each time.
  MF_INLINE bool is_there(int op, const Block& at) {
    const bool one_row = at.column + at.n <= length();
    const bool same = stride(op, 2) == 0 && (kColumns || stride(op, 1) == 0);
    i64 whose = -1;
    if (one_row && stride(op, kAlong) == 0) whose = at.row + 1;
    if (!one_row && at.column == 0 && same) whose = 0;
    const bool there = whose >= 0 && whose == held[op].whose && at.n <= held[op].n;
    if (!there) held[op] = {whose, at.n};
    return there;
  }

  // Goes through a block with the functor: the terms of sums are then in `terms`.
  template <int... I>
  MF_INLINE void run_block(const Block& at, Indices<I...>) {
    (gather<In<I>>(K::outputs + I, at), ...);
    for (int o = 0; o < K::outputs; ++o) offset[o] = offset_of(o, at.row, at.column);
    Base::template row<kAlong>(at.n, 0);
  }
  template <int O>
  MF_INLINE const F* terms() const {
    return reinterpret_cast<const F*>(gathered[O]);
  }

  // ---- without a buffer of terms

  template <int... O>
  static constexpr bool all_summed(Indices<O...>) {
    return ((Out<O>::walk == 'r') && ...);
  }
  // Whether terms go from the functor right to their sums: where every result is one. x.sum(0) of
  // 1024 x 1024 took 1.6 times as long by way of the buffer, x.sum() twice as long.
  static constexpr bool direct = all_summed(AllOutputs()) && !K::random && !Base::staged;

  static constexpr int kSumLanes = K::outputs == 1 ? 64 : 32;

  template <class Ins, class Outs>
  struct Direct;
  template <int... I, int... O>
  struct Direct<Indices<I...>, Indices<O...>> {
    using Fixed = Tuple<typename Base::template Value<In<I>>...>;
    template <class Op>
    static MF_INLINE auto one(const typename Op::T* from, typename Base::template Value<Op> fixed,
                              i64 i) {
      if constexpr (Base::template is_gathered<Op>)
        return cast<typename Base::template Value<Op>>(from[i]);
      else
        return fixed;
    }

    // to[i] += the term of element i; functions of their own, as in PointwiseCpu::Straight.
    static __attribute__((noinline)) void add(i64 n, const typename K::Functor& given,
                                              const Fixed& fixed_values,
                                              typename Each<F, O>::type* __restrict... to,
                                              const typename In<I>::T* __restrict... from) {
      const auto fn = given;
      const auto fixed = fixed_values;
      MF_VECTOR_LOOP
      for (i64 i = 0; i < n; ++i) {
        const auto made = fn(one<In<I>>(from, get<I>(fixed), i)...);
        ((to[i] += F(pick<Out<O>::result>(made))), ...);
      }
    }
    // The terms of n elements, added up in lanes.
    static __attribute__((noinline)) void total(i64 n, const typename K::Functor& given,
                                                const Fixed& fixed_values, F (&sum)[K::outputs],
                                                const typename In<I>::T* __restrict... from) {
      constexpr int kWide = kSumLanes;
      const auto fn = given;
      const auto fixed = fixed_values;
      F lanes[K::outputs][kWide] = {};
      i64 done = 0;
      for (; done + kWide <= n; done += kWide) {
        MF_VECTOR_LOOP
        for (int lane = 0; lane < kWide; ++lane) {
          const auto made = fn(one<In<I>>(from, get<I>(fixed), done + lane)...);
          ((lanes[O][lane] += F(pick<Out<O>::result>(made))), ...);
        }
      }
      MF_VECTOR_LOOP
      for (int lane = 0; lane < int(n - done); ++lane) {
        const auto made = fn(one<In<I>>(from, get<I>(fixed), done + lane)...);
        ((lanes[O][lane] += F(pick<Out<O>::result>(made))), ...);
      }
      ((sum[O] = across<false>(lanes[O])), ...);
    }

    // The elements of a block that has been gathered, from `first` on.
    static MF_INLINE Fixed fixed(const SumCpu& at) {
      return Fixed(
          fixed_value<In<I>, typename Base::template Value<In<I>>>(at.words[K::outputs + I], 0)...);
    }
    static MF_INLINE void add(const SumCpu& at, i64 n, typename Each<F, O>::type*... to) {
      add(n, at.functor, fixed(at), to...,
          reinterpret_cast<const typename In<I>::T*>(at.gathered_at[K::outputs + I])...);
    }
    static MF_INLINE void total(const SumCpu& at, i64 first, i64 n, F (&sum)[K::outputs]) {
      total(n, at.functor, fixed(at), sum,
            reinterpret_cast<const typename In<I>::T*>(at.gathered_at[K::outputs + I]) + first...);
    }
    static MF_INLINE void gather(SumCpu& to, const Block& at) {
      (to.template gather<In<I>>(K::outputs + I, at), ...);
    }
    // Whether nothing is copied, so that a block may be longer than the buffers.
    static MF_INLINE bool lies_flat(const SumCpu& from, const Block& at) {
      return ((In<I>::walk == 'v' || (In<I>::walk == 'e' && from.is_flat(K::outputs + I, at))) &&
              ...);
    }
  };
  using AsSummed = Direct<AllInputs, AllOutputs>;

  // This thread's row of the partial sums, from k on.
  template <int O>
  MF_INLINE typename Out<O>::T* partial(i64 k) const {
    return reinterpret_cast<typename Out<O>::T*>(words[O]) + slot * stride(O, 2) + k;
  }
  template <int O, class Sum>
  MF_INLINE void add_to(i64 k, Sum value) const {
    auto* const to = partial<O>(k);
    *to = cast<typename Out<O>::T>(cast<double>(*to) + double(value));
  }
};

}  // namespace mf
