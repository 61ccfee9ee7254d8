// The CPU driver: walks a range of the index space row by row along the innermost
// dimension, in a loop that the compiler turns into SIMD code. The host gives each
// thread a range [begin, end) of its own.
#pragma once

#include "pointwise.h"

#if defined(__clang__)
#define MF_VECTOR_LOOP _Pragma("clang loop vectorize(enable) interleave(enable)")
#else
#define MF_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

namespace mf {

// Random words are drawn this many at a time, in a loop of their own: four lanes
// that leave together would keep the functor's loop from being vectorised.
constexpr int kDrawBlock = 512;

template <class K>
struct PointwiseCpu {
  using F = typename K::Compute;
  using AllInputs = typename MakeIndices<K::inputs>::type;
  using AllOutputs = typename MakeIndices<K::outputs>::type;
  template <int I>
  using In = typename At<I, typename K::Inputs>::type;
  template <int I>
  using Out = typename At<I, typename K::Outputs>::type;

  const u64* words;
  typename K::Functor functor;
  i64 offset[K::operands] = {};  // of the current row's first element, in elements

  explicit PointwiseCpu(const u64* w) : words(w), functor(make_functor<K>(w)) {}

  i64 stride(int operand, int dim) const { return i64(words[K::stride + operand * K::dims + dim]); }

  template <class Op>
  static MF_INLINE F load(u64 address, F fixed, i64 step, i64 i) {
    [[maybe_unused]] const auto* base = reinterpret_cast<const typename Op::T*>(address);
    if constexpr (Op::walk == 'c') return cast<F>(base[i]);
    if constexpr (Op::walk == 's') return cast<F>(base[i * step]);
    return fixed;
  }

  template <class Op>
  static MF_INLINE void store(u64 address, i64 step, i64 i, F value) {
    [[maybe_unused]] auto* base = reinterpret_cast<typename Op::T*>(address);
    if constexpr (Op::walk == 'c') base[i] = cast<typename Op::T>(value);
    if constexpr (Op::walk == 's') base[i * step] = cast<typename Op::T>(value);
  }

  template <class Op>
  MF_INLINE u64 address(int operand) const {
    return words[operand] + u64(offset[operand]) * sizeof(typename Op::T);
  }

  // n elements of one row. `index` is the first one's place in the index space.
  template <int... I, int... O>
  MF_INLINE void row(i64 n, i64 index, Indices<I...>, Indices<O...>) {
    const auto fn = functor;
    const F fixed[] = {
        fixed_value<In<I>, F>(words[K::outputs + I], offset[K::outputs + I])..., F(0)};
    // Copies on the stack, which no store through an output can change: without them a
    // one-byte output, which may alias anything, keeps the loop from being vectorised.
    const i64 step[] = {stride(O, 0)..., stride(K::outputs + I, 0)...};
    const u64 base[] = {address<Out<O>>(O)..., address<In<I>>(K::outputs + I)...};
    if constexpr (K::random) {
      const Random random = Random::read(words + K::rng);
      u32 drawn[kDrawBlock + 4];
      for (i64 done = 0; done < n; done += kDrawBlock) {
        const i64 count = n - done < kDrawBlock ? n - done : kDrawBlock;
        const u64 first = u64(index + done) >> 2;
        const int skip = int((index + done) & 3);
        MF_VECTOR_LOOP
        for (i64 block = 0; block < (skip + count + 3) / 4; ++block) {
          u32 four[4];
          random.draw(first + u64(block), four);
          for (int lane = 0; lane < 4; ++lane) drawn[block * 4 + lane] = four[lane];
        }
        MF_VECTOR_LOOP
        for (i64 i = 0; i < count; ++i) {
          const auto r = fn(load<In<I>>(base[K::outputs + I], fixed[I], step[K::outputs + I],
                                        done + i)...,
                            drawn[skip + i]);
          (store<Out<O>>(base[O], step[O], done + i, result(r, Out<O>::result)), ...);
        }
      }
    } else {
      MF_VECTOR_LOOP
      for (i64 i = 0; i < n; ++i) {
        const auto r =
            fn(load<In<I>>(base[K::outputs + I], fixed[I], step[K::outputs + I], i)...);
        (store<Out<O>>(base[O], step[O], i, result(r, Out<O>::result)), ...);
      }
    }
  }

  void run(i64 begin, i64 end) {
    if constexpr (K::random) {
      if (begin == 0) Random::read(words + K::rng).remember(words + K::rng);
    }
    i64 inner = K::dims > 1 ? i64(words[K::size]) : i64(words[K::numel]);
    while (begin < end) {
      // Where `begin` lies: its column in the row, and the row's place in the outer dimensions.
      i64 column = K::dims > 1 ? begin % inner : begin;
      i64 rest = K::dims > 1 ? begin / inner : 0;
      for (int op = 0; op < K::operands; ++op) offset[op] = column * stride(op, 0);
      for (int dim = 1; dim < K::dims; ++dim) {
        i64 at = rest;
        if (dim < K::dims - 1) {
          i64 size = i64(words[K::size + dim]);
          at = rest % size;
          rest /= size;
        }
        for (int op = 0; op < K::operands; ++op) offset[op] += at * stride(op, dim);
      }
      i64 n = inner - column < end - begin ? inner - column : end - begin;
      row(n, begin, AllInputs(), AllOutputs());
      begin += n;
    }
  }
};

}  // namespace mf
