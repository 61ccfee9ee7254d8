// What a pointwise kernel is, for every processor.
//
//   out[i]... = functor(in[i]...)        for each i of a broadcast index space
//
// A kernel is a type: its functor, its operands and its number of dimensions are
// known when it is compiled. What changes from call to call arrives as one array
// of 64-bit words, so that the host needs no struct of its own per kernel:
//
//   operand[0..n)            address, or for walk 'v' the value itself (a double; for typed
//                            functors, typed.h, an int64 where the operand is no float), or for
//                            walk 'i' what the index starts at
//   numel                    size of the index space
//   size[0..dims-1)          sizes of all dimensions but the outermost, innermost first
//   divider[0..dims-1)       the same sizes as magic numbers for exact division (GPU; of rows the
//                            first is free, and has a number of row_share_cuda.h, or on the
//                            CPU of graph_rows_cpu.h)
//   stride[operand][dim]     in elements, innermost first
//   scalar[0..m)             doubles (for typed functors any words)
//   random[0..5)             where the random numbers come from (random.h)
//
// On the GPU size[0] counts vectors, not elements, unless vectors are cut across rows.
#pragma once

#include "portable.h"
#include "random.h"
#include "typed.h"

namespace mf {

// How an operand is stored (T) and how it moves along the innermost dimension:
//   'c' consecutive elements   'b' one element, broadcast
//   's' a stride               'v' no memory: the word is the value
//   'n' an output nobody wants
//   'e' each element where the strides say: vectors are cut across rows (pointwise)
//   'u' consecutive elements that start at any address (rows, on the GPU)
//   'i' no memory: the value is the word plus the offset that the strides make of the coordinates,
//       as an int64. A coordinate itself has one stride of 1. (typed functors)
//   'j' and 'k', on the GPU: such an index whose innermost stride is 0, or 1
//   'A' … 'L' the first of a pair of operands that take turns in memory, a stride of 2 each: what
//       x[..., ::2] is to x[..., 1::2]. 'M' … 'X' the second of the same pair. Both are moved as
//       one vector, and put together or taken apart in registers (pointwise, on the GPU)
// An output holds the functor's kResult-th result, or where that is -1 the incoming gradient, the
// first input: the gradient of an argument that is merely added.
template <class Stored, char kWalk, int kResult = 0>
struct Operand {
  using T = Stored;
  static constexpr char walk = kWalk;
  static constexpr int result = kResult;
};

MF_INLINE constexpr bool is_index(char walk) { return walk == 'i' || walk == 'j' || walk == 'k'; }

template <class... Ops>
struct Operands {
  static constexpr int count = sizeof...(Ops);
};

// The I-th operand of a list.
template <int I, class List>
struct At;
template <int I, class First, class... Rest>
struct At<I, Operands<First, Rest...>> : At<I - 1, Operands<Rest...>> {};
template <class First, class... Rest>
struct At<0, Operands<First, Rest...>> {
  using type = First;
};

// The walks of a pair, and which operand of a list has a walk (-1: none).
constexpr int kPairs = 12;
MF_INLINE constexpr bool is_first(char walk) { return walk >= 'A' && walk < 'A' + kPairs; }
MF_INLINE constexpr bool is_second(char walk) {
  return walk >= 'A' + kPairs && walk < 'A' + 2 * kPairs;
}
template <class... Ops>
MF_INLINE constexpr int find_walk(char walk, Operands<Ops...>) {
  int found = -1, at = 0;
  ((found = Ops::walk == walk ? at : found, ++at), ...);
  return found;
}

// How many numbers a functor's result is: one, or a Pack's.
template <class F>
struct Count {
  static constexpr int value = 1;
};
template <class F, int N>
struct Count<Pack<F, N>> {
  static constexpr int value = N;
};
template <class... T>
struct Count<Tuple<T...>> {
  static constexpr int value = sizeof...(T);
};

// One result or several: result(r, i) is the i-th, or for -1 the last.
template <class F>
MF_INLINE F result(F value, int) {
  return value;
}
template <class F, int N>
MF_INLINE F result(const Pack<F, N>& pack, int i) {
  return pack[i < 0 ? N + i : i];
}

// A backward functor that returns the incoming gradient too, as its last result.
template <class Fn, class F>
struct Passing : Fn {
  using Fn::Fn;
  template <class... In>
  MF_INLINE auto operator()(F grad, In... in) const {
    auto made = Fn::operator()(grad, in...);
    constexpr int kMade = Count<decltype(made)>::value;
    Pack<F, kMade + 1> all;
    for (int i = 0; i < kMade; ++i) all[i] = result(made, i);
    all[kMade] = grad;
    return all;
  }
};
template <bool kPasses, class Fn, class F>
struct WithGradient {
  using type = Fn;
};
template <class Fn, class F>
struct WithGradient<true, Fn, F> {
  using type = Passing<Fn, F>;
};
template <class... Outs>
MF_INLINE constexpr bool has_passed_gradient(Operands<Outs...>) {
  return ((Outs::result < 0) || ...);
}

// A functor over Compute (float or double) with everything fixed at compile time.
template <class Fn, class F, int kDims, class Outs, class Ins>
struct Kernel {
  using Declared = Fn;
  using Functor = typename WithGradient<has_passed_gradient(Outs()), Fn, F>::type;
  using Compute = F;
  using Outputs = Outs;
  using Inputs = Ins;
  static constexpr int dims = kDims;
  static constexpr int outputs = Outs::count;
  static constexpr int inputs = Ins::count;
  static constexpr int operands = outputs + inputs;
  static constexpr int scalars = Fn::scalars;
  static constexpr bool random = Fn::random;
  static constexpr bool typed = is_typed<Fn>(0);
  template <class Op>  // what the functor takes of it
  using Value = typename ValueOf<typed, typename Op::T, F>::type;

  static constexpr int numel = operands;
  static constexpr int size = numel + 1;
  static constexpr int divider = size + dims - 1;
  static constexpr int stride = divider + dims - 1;
  static constexpr int scalar = stride + operands * dims;
  static constexpr int rng = scalar + scalars;
  static constexpr int words = rng + (random ? Random::words : 0);
};

// Functors inherit what they need: Scalars<2> has two run-time numbers, ScalarsAndDraws adds a
// random word per element as the functor's last argument, where its flag says so.
template <int N>
struct Scalars {
  static constexpr int scalars = N;
  static constexpr bool random = false;
};
template <int N, bool kDraws>
struct ScalarsAndDraws {
  static constexpr int scalars = N;
  static constexpr bool random = kDraws;
};

// A functor with its scalars read from the words. Functors take them as a pointer.
template <class K>
MF_INLINE typename K::Functor make_functor(const u64* words) {
  if constexpr (K::typed) {
    return typename K::Functor(words + K::scalar);
  } else {
    typename K::Compute scalars[K::scalars + 1] = {};
    for (int i = 0; i < K::scalars; ++i)
      scalars[i] = typename K::Compute(bits_as<double>(words[K::scalar + i]));
    return typename K::Functor(scalars);
  }
}

// A number that came as a word.
template <class V>
MF_INLINE V of_word(u64 word) {
  if constexpr (is_floating<V>)
    return V(bits_as<double>(word));
  else
    return V(i64(word));
}

// The value of an operand that does not move along the innermost dimension.
// (Of an index, which does: its first value.)
template <class Op, class F>
MF_INLINE F fixed_value(u64 word, i64 offset) {
  if constexpr (Op::walk == 'v') return of_word<F>(word);
  if constexpr (Op::walk == 'i') return F(i64(word) + offset);
  if constexpr (Op::walk == 'b')
    return cast<F>(reinterpret_cast<const typename Op::T*>(word)[offset]);
  return F(0);
}

// How many results a call of the declared functor with a kernel's inputs has, 0 where there is no
// such call. codegen/render.py asserts what it should be.
struct NotCallable {};
template <>
struct Count<NotCallable> {
  static constexpr int value = 0;
};
template <class T>
MF_DECLARED T some();
template <class T, int>
struct Each {
  using type = T;
};
template <bool>
struct Draws {};

template <class K>
struct Call {
  using F = typename K::Compute;
  template <class Fn, int... I>
  MF_DECLARED static auto of(Indices<I...>, Draws<false>)
      -> decltype(some<const Fn&>()(some<typename Each<F, I>::type>()...));
  template <class Fn, int... I>
  MF_DECLARED static auto of(Indices<I...>, Draws<true>)
      -> decltype(some<const Fn&>()(some<typename Each<F, I>::type>()..., u32()));
  template <class Fn>
  MF_DECLARED static NotCallable of(...);
  using Made = decltype(of<typename K::Declared>(typename MakeIndices<K::inputs>::type(),
                                                 Draws<K::random>()));
  static constexpr int results = Count<Made>::value;
};

}  // namespace mf
