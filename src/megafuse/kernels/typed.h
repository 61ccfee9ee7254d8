// Functors whose operands and results are of several types, as the compiler generates them.
//
// Such a functor inherits Typed<number of scalars>. Each operand comes in the type that arithmetic
// on it is done in (Register), each result goes out in its own (a Tuple, where there are several),
// and the constructor gets the scalars as 64-bit words, doubles or integers as the functor knows.
#pragma once

#include "portable.h"

namespace mf {

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

template <int N>
struct Typed {
  static constexpr int scalars = N;
  static constexpr bool random = false;
  static constexpr bool typed = true;
  static constexpr int runs = 0;  // as graph_rows.h says
};
template <class Fn>
MF_INLINE constexpr auto is_typed(int) -> decltype(Fn::typed) {
  return Fn::typed;
}
template <class Fn>
MF_INLINE constexpr bool is_typed(...) {
  return false;
}

// What a stored number is computed with: 16-bit floats as float, all others as they are.
template <class T>
struct Register {
  using type = T;
};
template <>
struct Register<half> {
  using type = float;
};
template <>
struct Register<bfloat16> {
  using type = float;
};

// The same for any functor: F where it takes all operands in one type.
template <bool kTyped, class T, class F>
struct ValueOf {
  using type = F;
};
template <class T, class F>
struct ValueOf<true, T, F> : Register<T> {};

template <class T>
constexpr bool is_floating = false;
template <>
inline constexpr bool is_floating<float> = true;
template <>
inline constexpr bool is_floating<double> = true;

// Values of several types: get<I>(tuple) is the I-th.
template <int I, class T>
struct Field {
  T value;
};
template <class Is, class... T>
struct Fields;
template <int... I, class... T>
struct Fields<Indices<I...>, T...> : Field<I, T>... {
  Fields() = default;
  MF_INLINE explicit Fields(const T&... values) : Field<I, T>{values}... {}
};
template <>
struct Fields<Indices<>> {};
template <class... T>
struct Tuple : Fields<typename MakeIndices<sizeof...(T)>::type, T...> {
  static constexpr int count = sizeof...(T);
  using Base = Fields<typename MakeIndices<sizeof...(T)>::type, T...>;
  Tuple() = default;
  MF_INLINE explicit Tuple(const T&... values) : Base(values...) {}
};
template <>
struct Tuple<> {
  static constexpr int count = 0;
};
template <int I, class T>
MF_INLINE const T& get(const Field<I, T>& field) {
  return field.value;
}
template <int I, class T>
MF_INLINE T& get(Field<I, T>& field) {
  return field.value;
}

// The I-th of a functor's results, -1 the last: of one number, of a Pack or of a Tuple.
template <int I, class T>
MF_INLINE T pick(const T& value) {
  return value;
}
template <int I, class F, int N>
MF_INLINE F pick(const Pack<F, N>& pack) {
  return pack[I < 0 ? N + I : I];
}
template <int I, class... T>
MF_INLINE auto pick(const Tuple<T...>& tuple) {
  return get<I>(tuple);
}

}  // namespace mf
