// What a row-wise kernel keeps of its elements from step to step, in memory on the CPU: an array
// for each number of Kept, so that a step loads vectors of those that it needs, and stores one. (As
// structs of three numbers, the weights of a router took twice the time.)
#pragma once

#include "graph_rows.h"

namespace mf {

constexpr u64 kLine = 64;  // bytes of a cache line
MF_INLINE u64 whole_lines(u64 bytes) { return (bytes + kLine - 1) / kLine * kLine; }

template <class Fn, class Fields = typename MakeIndices<Fn::fields>::type>
struct KeptCpu;
template <class Fn, int... N>
struct KeptCpu<Fn, Indices<N...>> {
  using Kept = typename Fn::Kept;
  template <class T>
  static T number(T&);
  template <int F>
  using Number = decltype(number(Fn::field(Nth<F>(), some<Kept&>())));

  u64 base;
  i64 count;  // of elements

  static MF_INLINE u64 bytes(i64 count) {
    u64 all = 0;
    ((all += whole_lines(count * sizeof(Number<N>))), ...);
    return all;
  }
  template <int F>
  MF_INLINE Number<F>* array() const {
    u64 at = base;
    ((at += N < F ? whole_lines(count * sizeof(Number<N>)) : 0), ...);
    return reinterpret_cast<Number<F>*>(at);
  }
  // What is known of element i before step S.
  template <int S>
  MF_INLINE Kept before(i64 i) const {
    Kept here{};
    (load<S, N>(here, i), ...);
    return here;
  }
  template <int S, int F>
  MF_INLINE void load(Kept& here, i64 i) const {
    if constexpr (Fn::kept_in[F] < S) Fn::field(Nth<F>(), here) = array<F>()[i];
  }
  // Puts away what step S made.
  template <int S>
  MF_INLINE void put(i64 i, const Kept& here) const {
    (store<S, N>(here, i), ...);
  }
  template <int S, int F>
  MF_INLINE void store(const Kept& here, i64 i) const {
    if constexpr (Fn::kept_in[F] == S) array<F>()[i] = Fn::field(Nth<F>(), here);
  }
};

template <class Fn>
struct KeptCpu<Fn, Indices<>> {
  using Kept = typename Fn::Kept;
  u64 base;
  i64 count;
  static MF_INLINE u64 bytes(i64) { return 0; }
  template <int S>
  MF_INLINE Kept before(i64) const {
    return {};
  }
};

}  // namespace mf
