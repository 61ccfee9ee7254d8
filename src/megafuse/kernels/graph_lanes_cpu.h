// Terms of a reduction folded side by side on the CPU, in the lanes of its vectors.
#pragma once

#include "graph_rows.h"
#include "lanes_cpu.h"

namespace mf {

template <class A, class B>
constexpr bool is_one_type = false;
template <class A>
inline constexpr bool is_one_type<A, A> = true;

// kWide terms of one kind, folded side by side.
template <class R, int kWide>
struct Lanes {
  alignas(64) typename R::Lane lane[kWide];
  MF_INLINE void clear() {
    for (int i = 0; i < kWide; ++i) lane[i] = R::none();
  }
  MF_INLINE void join(const Lanes& other) {
    for (int i = 0; i < kWide; ++i) lane[i] = R::joined(lane[i], other.lane[i]);
  }
  // All of them, in pairs.
  MF_INLINE auto found() {
    using T = typename R::Lane;
    if constexpr (is_floating<T> && is_one_type<R, Sum<T>>) {
      return R::found(across<false>(lane));
    } else if constexpr (is_floating<T> && is_one_type<R, Largest<T>>) {
      return R::found(across<true>(lane));
    } else {
      for (int half = kWide / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] = R::joined(lane[i], lane[i + half]);
      return R::found(lane[0]);
    }
  }
};

}  // namespace mf
