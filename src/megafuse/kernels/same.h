// Whether two types are one.
#pragma once

namespace mf {

template <class A, class B>
constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

}  // namespace mf
