// The CPU driver: walks a range of the index space row by row along the innermost
// dimension, in a loop that the compiler turns into SIMD code. The host gives each
// thread a range [begin, end) of its own.
//
// Rows of a few elements are not worth a loop each: kAcross goes through them in blocks, outputs
// and the inputs that lie as they do as one long row, the others ('e') gathered first.
#pragma once

#include "half_cpu.h"
#include "pointwise.h"

#if defined(__clang__)
#define MF_VECTOR_LOOP _Pragma("clang loop vectorize(enable) interleave(enable)")
#else
#define MF_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

// The same for a loop around a functor: on Arm four vectors at a time. A Neoverse-N1 does not look
// far enough ahead to begin one vector's polynomial while another's is under way. GCC lets the
// four overlap if it knows that a store does not change what is loaded next, and with -fweb
// (runtime/cpp.py), which gives each its own registers. x86 looks further by itself.
#if defined(__aarch64__) && !defined(__clang__)
#define MF_FUNCTOR_LOOP _Pragma("GCC unroll 4") MF_VECTOR_LOOP
#else
#define MF_FUNCTOR_LOOP MF_VECTOR_LOOP
#endif

namespace mf {

// Elements per block, where a row is cut into blocks: 2 KB of float, so that the buffers
// of a few operands stay in L1.
constexpr int kBlock = 512;

template <class K, bool kAcross = false>
struct PointwiseCpu {
  using F = typename K::Compute;
  using AllInputs = typename MakeIndices<K::inputs>::type;
  using AllOutputs = typename MakeIndices<K::outputs>::type;
  template <int I>
  using In = typename At<I, typename K::Inputs>::type;
  template <int O>
  using Out = typename At<O, typename K::Outputs>::type;
  template <class Op>
  using Value = typename K::template Value<Op>;

  // Operands that are gathered first.
  template <class Op>
  static constexpr bool is_gathered = Op::walk == 'e' || (kAcross && Op::walk == 'i');

  // Operands that pass through a buffer of floats on their way (half_cpu.h).
  template <class Op>
  static constexpr bool is_staged =
      kStageHalf && is_half<typename Op::T> && (Op::walk == 'c' || Op::walk == 'e');
  template <int... I, int... O>
  static constexpr bool any_staged(Indices<I...>, Indices<O...>) {
    return (is_staged<In<I>> || ...) || (is_staged<Out<O>> || ...);
  }
  static constexpr bool staged = any_staged(AllInputs(), AllOutputs());

  const u64* words;
  typename K::Functor functor;
  i64 offset[K::operands] = {};  // of the current row's first element, in elements
  alignas(64) u8 gathered[kAcross ? K::operands : 1][kAcross ? (kBlock + 8) * sizeof(u64) : 1];
  u64 gathered_at[kAcross ? K::operands : 1];  // where the block's elements of an operand 'e' are

  explicit PointwiseCpu(const u64* w) : words(w), functor(make_functor<K>(w)) {
    for (int op = 0; op < (kAcross ? K::operands : 0); ++op)
      gathered_at[op] = reinterpret_cast<u64>(gathered[op]);
  }

  i64 stride(int operand, int dim) const { return i64(words[K::stride + operand * K::dims + dim]); }

  template <class Op>
  MF_INLINE u64 address(int operand) const {
    if constexpr (is_gathered<Op>) return gathered_at[operand];
    return words[operand] + u64(offset[operand]) * sizeof(typename Op::T);
  }

  template <class Op>
  static MF_INLINE Value<Op> load(u64 address, Value<Op> fixed, i64 step, i64 i) {
    using T = typename Choose<is_staged<Op>, float, typename Op::T>::type;
    [[maybe_unused]] const auto* base = reinterpret_cast<const T*>(address);
    if constexpr (Op::walk == 'c' || is_gathered<Op>) return cast<Value<Op>>(base[i]);
    if constexpr (Op::walk == 's') return cast<Value<Op>>(base[i * step]);
    if constexpr (Op::walk == 'i') return Value<Op>(fixed + step * i);
    return fixed;
  }

  template <class Op, class R>
  static MF_INLINE void store(u64 address, i64 step, i64 i, R value) {
    using T = typename Choose<is_staged<Op>, float, typename Op::T>::type;
    [[maybe_unused]] auto* base = reinterpret_cast<T*>(address);
    if constexpr (Op::walk == 'c' || Op::walk == 'e') base[i] = cast<T>(value);
    if constexpr (Op::walk == 's') base[i * step] = cast<T>(value);
  }

  // n elements from the current place along dimension kAlong; keep(index, address, stride, i,
  // value) takes each result. n <= kBlock where there are buffers or random numbers.
  template <int kAlong, class Keep, int... I, int... O>
  MF_INLINE void block(i64 n, const u32* drawn, const Keep& keep, Indices<I...>, Indices<O...>) {
    const auto fn = functor;
    const Tuple<Value<In<I>>...> fixed(
        fixed_value<In<I>, Value<In<I>>>(words[K::outputs + I], offset[K::outputs + I])...);
    // Copies on the stack, which no store through an output can change: without them a
    // one-byte output, which may alias anything, keeps the loop from being vectorised.
    const i64 step[] = {stride(O, kAlong)..., stride(K::outputs + I, kAlong)...};
    u64 base[] = {address<Out<O>>(O)..., address<In<I>>(K::outputs + I)...};
    [[maybe_unused]] const u64 target[] = {address<Out<O>>(O)..., 0};
    [[maybe_unused]] alignas(64) float buffer[staged ? K::operands : 1][staged ? kBlock : 1];
    if constexpr (staged) {
      (stage<In<I>>(base[K::outputs + I], buffer[K::outputs + I], n), ...);
      ((is_staged<Out<O>> ? void(base[O] = reinterpret_cast<u64>(buffer[O])) : void()), ...);
    }
    MF_VECTOR_LOOP
    for (i64 i = 0; i < n; ++i) {
      const auto r = [&] {
        if constexpr (K::random)
          return fn(load<In<I>>(base[K::outputs + I], get<I>(fixed), step[K::outputs + I], i)...,
                    drawn[i]);
        else
          return fn(load<In<I>>(base[K::outputs + I], get<I>(fixed), step[K::outputs + I], i)...);
      }();
      (keep(Number<O>(), base[O], step[O], i, pick<Out<O>::result>(r)), ...);
    }
    if constexpr (staged) (unstage<Out<O>>(target[O], buffer[O], n), ...);
  }

  // The same where every operand is consecutive, fixed or counts up, and nothing is drawn here. A
  // function of its own, as GCC heeds __restrict in a function's parameters only. A single output
  // may be an input (in place): each element is loaded before it is stored, and nobody else loads
  // it. With two outputs GCC stores the first and then loads the input again for the second, as
  // __restrict allows: swiglu's backward, in place, got the gradient of up from that of gate.
  template <class Ins, class Outs>
  struct Straight;
  template <int... I, int... O>
  struct Straight<Indices<I...>, Indices<O...>> {
    template <class Op>
    static constexpr bool fits =
        Op::walk != 's' && Op::walk != 'r' && Op::walk != 'g' && !is_staged<Op>;
    template <class Op>
    static constexpr bool is_index = Op::walk == 'i' && !is_gathered<Op>;
    static constexpr bool possible = !K::random && (fits<In<I>> && ...) && (fits<Out<O>> && ...);
    static __attribute__((noinline)) void run(i64 n, const typename K::Functor& given,
                                              const Tuple<Value<In<I>>...>& fixed_values,
                                              typename Out<O>::T* __restrict... to,
                                              const typename In<I>::T* __restrict... from) {
      const auto fn = given;
      const auto fixed = fixed_values;
      auto element = [&](i64 i) __attribute__((always_inline)) {
        const auto r = fn(one<In<I>>(from, get<I>(fixed), i)...);
        (keep<Out<O>>(to, i, pick<Out<O>::result>(r)), ...);
      };
      // A vector of bytes is four of floats already.
      if constexpr (((sizeof(typename In<I>::T) == 1) || ...) ||
                    ((sizeof(typename Out<O>::T) == 1) || ...)) {
        MF_VECTOR_LOOP
        for (i64 i = 0; i < n; ++i) element(i);
      } else {
        MF_FUNCTOR_LOOP
        for (i64 i = 0; i < n; ++i) element(i);
      }
    }
    template <class Op>
    static MF_INLINE Value<Op> one(const typename Op::T* from, Value<Op> fixed, i64 i) {
      if constexpr (Op::walk == 'c' || is_gathered<Op>) return cast<Value<Op>>(from[i]);
      if constexpr (is_index<Op>) return Value<Op>(fixed + i);
      return fixed;
    }
    // Whether all indices count up by 1. Others are multiplied, which Arm cannot with vectors.
    static MF_INLINE bool counts(const PointwiseCpu& at, int along) {
      return ((!is_index<In<I>> || at.stride(K::outputs + I, along) == 1) && ...);
    }
    template <class Op, class R>
    static MF_INLINE void keep(typename Op::T* to, i64 i, R value) {
      if constexpr (Op::walk == 'c' || Op::walk == 'e') to[i] = cast<typename Op::T>(value);
    }
    static MF_INLINE bool several_in_place(const PointwiseCpu& at) {
      if constexpr (sizeof...(O) > 1) {
        const u64 to[] = {at.template address<Out<O>>(O)...};
        const u64 from[] = {at.template address<In<I>>(K::outputs + I)..., 0};
        for (u64 output : to)
          for (u64 input : from)
            if (output == input) return true;
      }
      return false;
    }
    static MF_INLINE void row(const PointwiseCpu& at, i64 n) {
      const Tuple<Value<In<I>>...> fixed(
          fixed_value<In<I>, Value<In<I>>>(at.words[K::outputs + I], at.offset[K::outputs + I])...);
      run(n, at.functor, fixed,
          reinterpret_cast<typename Out<O>::T*>(at.template address<Out<O>>(O))...,
          reinterpret_cast<const typename In<I>::T*>(
              at.template address<In<I>>(K::outputs + I))...);
    }
  };

  template <class Op>
  static MF_INLINE void stage(u64& base, float* buffer, i64 n) {
    if constexpr (is_staged<Op>) {
      widen(reinterpret_cast<const half*>(base), buffer, n);
      base = reinterpret_cast<u64>(buffer);
    }
  }
  template <class Op>
  static MF_INLINE void unstage(u64 target, const float* buffer, i64 n) {
    if constexpr (is_staged<Op>) narrow(buffer, reinterpret_cast<half*>(target), n);
  }

  // Random words for n elements from `index` on; returns where the first one's is. Drawn in a
  // loop of their own: four that leave together would keep the functor's from vectorising.
  static MF_INLINE u32* draw(const Random& random, i64 index, i64 n, u32* drawn) {
    const u64 first = u64(index) >> 2;
    const i64 skip = index & 3;
    MF_VECTOR_LOOP
    for (i64 quad = 0; quad < (skip + n + 3) / 4; ++quad) {
      u32 four[4];
      random.draw(first + u64(quad), four);
      for (int lane = 0; lane < 4; ++lane) drawn[quad * 4 + lane] = four[lane];
    }
    return drawn + skip;
  }

  // n elements of one row. `index` is the first one's place in the index space.
  template <int kAlong = 0>
  MF_INLINE void row(i64 n, i64 index) {
    auto keep = [](auto output, u64 base, i64 step, i64 i, auto value) {
      store<Out<decltype(output)::value>>(base, step, i, value);
    };
    using Simple = Straight<AllInputs, AllOutputs>;
    if constexpr (Simple::possible) {
      if (Simple::several_in_place(*this) || !Simple::counts(*this, kAlong))
        block<kAlong>(n, nullptr, keep, AllInputs(), AllOutputs());
      else
        Simple::row(*this, n);
    } else if constexpr (!K::random && !staged) {
      block<kAlong>(n, nullptr, keep, AllInputs(), AllOutputs());
    } else {
      u32 drawn[K::random ? kBlock + 4 : 1];
      for (i64 done = 0; done < n; done += kBlock) {
        const i64 count = n - done < kBlock ? n - done : kBlock;
        const u32* here = drawn;
        if constexpr (K::random)
          here = draw(Random::read(words + K::rng), index + done, count, drawn);
        block<kAlong>(count, here, keep, AllInputs(), AllOutputs());
        for (int op = 0; op < K::operands; ++op) offset[op] += count * stride(op, kAlong);
      }
    }
  }

  // n elements `apart` from each other, one after the other; three more may be overwritten, so that
  // copies of one element are whole vectors.
  template <class T>
  static MF_INLINE void copy(const T* from, i64 apart, T* to, i64 n) {
    if (apart == 0) {
      const T four[] = {*from, *from, *from, *from};
      for (i64 i = 0; i < n; i += 4) __builtin_memcpy(to + i, four, sizeof four);
    } else {
      for (i64 i = 0; i < n; ++i) to[i] = from[i * apart];
    }
  }

  // Elements [begin, begin + n) of operand `op`, one after the other.
  template <class Op>
  void gather(int op, i64 begin, i64 n) {
    if constexpr (is_gathered<Op>) {
      using T = typename Op::T;
      T* const to = reinterpret_cast<T*>(gathered[op]);
      const i64 inner = i64(words[K::size]), apart = stride(op, 0);
      i64 column = begin % inner, rest = begin / inner, at[K::dims] = {}, from = 0;
      for (int dim = 1; dim < K::dims; ++dim) {
        at[dim] = dim < K::dims - 1 ? rest % i64(words[K::size + dim]) : rest;
        if (dim < K::dims - 1) rest /= i64(words[K::size + dim]);
        from += at[dim] * stride(op, dim);
      }
      for (i64 done = 0; done < n;) {
        const i64 count = inner - column < n - done ? inner - column : n - done;
        const i64 first = from + column * apart;
        if constexpr (Op::walk == 'i')
          for (i64 i = 0; i < count; ++i) to[done + i] = T(i64(words[op]) + first + i * apart);
        else
          copy(reinterpret_cast<const T*>(words[op]) + first, apart, to + done, count);
        done += count;
        column = 0;
        for (int dim = 1; dim < K::dims; ++dim) {  // to the next row
          from += stride(op, dim);
          if (dim == K::dims - 1 || ++at[dim] < i64(words[K::size + dim])) break;
          from -= at[dim] * stride(op, dim);
          at[dim] = 0;
        }
      }
    }
  }
  template <int... I>
  void run_across(i64 begin, i64 end, Indices<I...>) {
    for (i64 n; begin < end; begin += n) {
      n = end - begin < kBlock ? end - begin : kBlock;
      for (int op = 0; op < K::operands; ++op) offset[op] = begin;
      (gather<In<I>>(K::outputs + I, begin, n), ...);
      row(n, begin);
    }
  }

  void run(i64 begin, i64 end) {
    if constexpr (K::random) {
      if (begin == 0) Random::read(words + K::rng).remember(words + K::rng);
    }
    if constexpr (kAcross) return run_across(begin, end, AllInputs());
    const i64 inner = K::dims > 1 ? i64(words[K::size]) : i64(words[K::numel]);
    // Where `begin` lies: its column in the row, and the row's place in the outer dimensions.
    i64 column = begin % inner, rest = begin / inner;
    i64 at[K::dims] = {}, first[K::operands] = {};
    for (int dim = 1; dim < K::dims; ++dim) {
      at[dim] = dim < K::dims - 1 ? rest % i64(words[K::size + dim]) : rest;
      if (dim < K::dims - 1) rest /= i64(words[K::size + dim]);
      for (int op = 0; op < K::operands; ++op) first[op] += at[dim] * stride(op, dim);
    }
    while (begin < end) {
      for (int op = 0; op < K::operands; ++op) offset[op] = first[op] + column * stride(op, 0);
      const i64 n = inner - column < end - begin ? inner - column : end - begin;
      row(n, begin);
      begin += n;
      column = 0;
      for (int dim = 1; dim < K::dims; ++dim) {  // to the next row
        for (int op = 0; op < K::operands; ++op) first[op] += stride(op, dim);
        if (dim == K::dims - 1 || ++at[dim] < i64(words[K::size + dim])) break;
        for (int op = 0; op < K::operands; ++op) first[op] -= at[dim] * stride(op, dim);
        at[dim] = 0;
      }
    }
  }
};

}  // namespace mf
