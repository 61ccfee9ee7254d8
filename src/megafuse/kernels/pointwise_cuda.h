// The CUDA driver: each thread moves 16 bytes at a time per operand, with several
// loads in flight before the first use, over a grid that covers the chip.
#pragma once

#include "pointwise.h"

namespace mf {

template <int N>
struct Words {
  u64 word[N];
};

// N consecutive elements: one memory access up to 16 bytes, several beyond.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T item[N];
};

// Through the read-only cache: inputs are never written during the launch. Streaming hints
// (__ldcs, __stcs) measured 1 to 8 % slower on an H200.
template <class V>
__device__ __forceinline__ V read_once(const V* address) {
  if constexpr (sizeof(V) >= 16) {
    Vector<uint4, sizeof(V) / 16> parts;
#pragma unroll
    for (int i = 0; i < int(sizeof(V) / 16); ++i)
      parts.item[i] = __ldg(reinterpret_cast<const uint4*>(address) + i);
    return bits_as<V>(parts);
  }
  if constexpr (sizeof(V) == 8) return bits_as<V>(__ldg(reinterpret_cast<const uint2*>(address)));
  if constexpr (sizeof(V) == 4) return bits_as<V>(__ldg(reinterpret_cast<const u32*>(address)));
  if constexpr (sizeof(V) == 2) return bits_as<V>(__ldg(reinterpret_cast<const u16*>(address)));
  if constexpr (sizeof(V) == 1) return bits_as<V>(__ldg(reinterpret_cast<const u8*>(address)));
}

// The same at any address: from the aligned 16 bytes around it, of which none lies outside what is
// asked for.
template <class V>
__device__ __forceinline__ V read_unaligned_16(const void* address) {
  constexpr int kWords = sizeof(V) / 4;
  static_assert(sizeof(V) % 16 == 0, "made of 16 bytes");
  const u32 off = u32(reinterpret_cast<u64>(address)) & 15;
  const uint4* const from = reinterpret_cast<const uint4*>(reinterpret_cast<u64>(address) - off);
  u32 word[kWords + 4] = {};
#pragma unroll
  for (int i = 0; i <= kWords / 4; ++i) {
    if (i == kWords / 4 && off == 0) continue;
    const uint4 part = __ldg(from + i);
    word[4 * i] = part.x, word[4 * i + 1] = part.y;
    word[4 * i + 2] = part.z, word[4 * i + 3] = part.w;
  }
#pragma unroll
  for (int i = 0; i < kWords + 2; ++i) word[i] = off & 8 ? word[i + 2] : word[i];
#pragma unroll
  for (int i = 0; i < kWords + 1; ++i) word[i] = off & 4 ? word[i + 1] : word[i];
  Vector<u32, kWords> made;
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    made.item[i] = __funnelshift_r(word[i], word[i + 1], (off & 3) * 8);
  return bits_as<V>(made);
}
template <class V>
__device__ __forceinline__ V read_unaligned(const void* address) {
  if constexpr (sizeof(V) == 8) {  // eight masks beside wider numbers
    const u32 off = u32(reinterpret_cast<u64>(address)) & 7;
    const uint2* const from = reinterpret_cast<const uint2*>(reinterpret_cast<u64>(address) - off);
    const uint2 low = __ldg(from), high = off == 0 ? low : __ldg(from + 1);
    const u32 first = off & 4 ? low.y : low.x, second = off & 4 ? high.x : low.y;
    const u32 third = off & 4 ? high.y : high.x;
    const Vector<u32, 2> made{__funnelshift_r(first, second, (off & 3) * 8),
                              __funnelshift_r(second, third, (off & 3) * 8)};
    return bits_as<V>(made);
  } else {
    return read_unaligned_16<V>(address);
  }
}

// Stored numbers to computed ones, a vector at a time: two 16-bit floats share a register, which
// one instruction each splits and one packs.
template <class T, class F, int N>
__device__ __forceinline__ void widen(const Vector<T, N>& from, F (&to)[N]) {
#pragma unroll
  for (int v = 0; v < N; ++v) to[v] = cast<F>(from.item[v]);
}
template <int N>
__device__ __forceinline__ void widen(const Vector<bfloat16, N>& from, float (&to)[N]) {
  if constexpr (N % 2 == 0) {
    const auto pairs = bits_as<Vector<u32, N / 2>>(from);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      to[2 * i] = bits_as<float>(pairs.item[i] << 16);
      to[2 * i + 1] = bits_as<float>(pairs.item[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int v = 0; v < N; ++v) to[v] = to_float(from.item[v]);
  }
}
template <class T, class F, int N>
__device__ __forceinline__ void narrow(const F (&from)[N], Vector<T, N>& to) {
#pragma unroll
  for (int v = 0; v < N; ++v) to.item[v] = cast<T>(from[v]);
}
#if __CUDA_ARCH__ >= 800
#define MF_NARROW_PAIRS(T, instruction)                                              \
  template <int N>                                                                   \
  __device__ __forceinline__ void narrow(const float (&from)[N], Vector<T, N>& to) { \
    if constexpr (N % 2 == 0) {                                                      \
      Vector<u32, N / 2> pairs;                                                      \
      _Pragma("unroll") for (int i = 0; i < N / 2; ++i) asm(                         \
          instruction " %0, %1, %2;" : "=r"(pairs.item[i]) : "f"(from[2 * i + 1]),   \
          "f"(from[2 * i]));                                                         \
      to = bits_as<Vector<T, N>>(pairs);                                             \
    } else {                                                                         \
      _Pragma("unroll") for (int v = 0; v < N; ++v) to.item[v] = cast<T>(from[v]);   \
    }                                                                                \
  }
MF_NARROW_PAIRS(bfloat16, "cvt.rn.bf16x2.f32")
MF_NARROW_PAIRS(half, "cvt.rn.f16x2.f32")
#undef MF_NARROW_PAIRS
#endif

// n / d for n < 2^31 as one multiplication: d's magic number is in the low half of
// the word, its shift in the high half.
__device__ __forceinline__ u32 divide(u32 n, u64 magic) {
  return (__umulhi(n, u32(magic)) + n) >> u32(magic >> 32);
}

// Elements of memory that are loaded for N elements of an operand: the first of a pair has its
// partner's among them, and nothing is loaded for the second.
template <class Op, int N>
constexpr int kLoaded = is_first(Op::walk)    ? 2 * N
                        : is_second(Op::walk) ? 1
                                              : N;

// One vector per input, each of its own type: slot<I>(group) is the I-th.
template <int I, class T, int N>
struct Slot {
  Vector<T, N> data;
};
template <class List, int N, class Is>
struct Loaded;
template <class List, int N, int... I>
struct Loaded<List, N, Indices<I...>>
    : Slot<I, typename At<I, List>::type::T, kLoaded<typename At<I, List>::type, N>>... {};
template <int I, class T, int N>
__device__ __forceinline__ Vector<T, N>& slot(Slot<I, T, N>& s) {
  return s.data;
}
template <int I, class T, int N>
__device__ __forceinline__ const Vector<T, N>& slot(const Slot<I, T, N>& s) {
  return s.data;
}

template <class R, int N>
struct Results {
  R item[N];
};

// Where rows are no whole number of vectors, or an input starts at an odd address, vectors are cut
// across rows (kAcross): outputs and the inputs that lie as they do are read as one long row, the
// others ('e') wherever their elements are. (bias_act, 5000 x 3331 in bfloat16, element by element:
// 39 % of a copy.)
template <class K, int kVector, int kUnroll, class Index, bool kAcross = false>
struct PointwiseCuda {
  using F = typename K::Compute;
  using AllInputs = typename MakeIndices<K::inputs>::type;
  using AllOutputs = typename MakeIndices<K::outputs>::type;
  template <int I>
  using In = typename At<I, typename K::Inputs>::type;
  template <int I>
  using Out = typename At<I, typename K::Outputs>::type;
  template <class Op>
  using Value = typename K::template Value<Op>;

  const u64* words;
  typename K::Functor functor;
  Random random = {};

  // Offsets of all operands' elements for one place in the index space. With kAcross also its
  // number there, and how many elements of its row are left.
  struct Place {
    Index offset[K::operands];
    Index element, left;
  };

  __device__ __forceinline__ explicit PointwiseCuda(const u64* w)
      : words(w), functor(make_functor<K>(w)) {}

  __device__ __forceinline__ Index stride(int operand, int dim) const {
    return Index(words[K::stride + operand * K::dims + dim]);
  }

  // The place of the i-th group of N consecutive elements.
  template <int N>
  __device__ __forceinline__ Place place(Index i) const {
    Place p;
    p.element = i * N;
    p.left = N;
    if constexpr (K::dims == 1) {
#pragma unroll
      for (int op = 0; op < K::operands; ++op) p.offset[op] = p.element * stride(op, 0);
    } else {
      Index rest = kAcross ? p.element : i;  // sizes are in elements, or in groups
#pragma unroll
      for (int dim = 0; dim < K::dims; ++dim) {
        Index at = rest;
        if (dim < K::dims - 1) {
          Index size = Index(words[K::size + dim]);
          if constexpr (sizeof(Index) == 4)
            rest = Index(divide(u32(rest), words[K::divider + dim]));
          else
            rest = rest / size;
          at -= rest * size;
          if (kAcross && dim == 0) p.left = size - at;
        }
        if (!kAcross && dim == 0) at *= N;
#pragma unroll
        for (int op = 0; op < K::operands; ++op)
          p.offset[op] = (dim == 0 ? Index(0) : p.offset[op]) + at * stride(op, dim);
      }
    }
    return p;
  }

  // N elements of an operand, still as stored: conversion waits until all loads are issued.
  template <class Op, int N, int kAlong>
  __device__ __forceinline__ auto load(int operand, Index offset) const {
    using T = typename Op::T;
    using V = Vector<T, kLoaded<Op, N>>;
    V loaded;
    const T* base = reinterpret_cast<const T*>(words[operand]) + offset;
    if constexpr (Op::walk == 'c' || is_first(Op::walk)) {
      loaded = read_once(reinterpret_cast<const V*>(base));
    } else if constexpr (Op::walk == 's') {
#pragma unroll
      for (int v = 0; v < N; ++v) loaded.item[v] = read_once(base + v * stride(operand, kAlong));
    } else if constexpr (Op::walk == 'b') {
      loaded.item[0] = read_once(base);
    } else if constexpr (is_index(Op::walk)) {
      const Index first = start_of_index(operand, offset);
#pragma unroll
      for (int v = 0; v < N; ++v) {
        if constexpr (Op::walk == 'j')
          loaded.item[v] = first;
        else if constexpr (Op::walk == 'k')
          loaded.item[v] = first + v;
        else
          loaded.item[v] = first + v * stride(operand, kAlong);
      }
    }
    return loaded;
  }
  // Where Index has 32 bits, an index does not need more (needs_64_bits of
  // runtime/host/core/space.h), and two are compared as such. (causal softmax in bfloat16: 1370
  // instructions with indices of 64 bits, 999 so.)
  __device__ __forceinline__ Index start_of_index(int operand, Index offset) const {
    return Index(i64(words[operand])) + offset;
  }

  // N elements of an operand that may lie in two rows.
  template <class Op, int N>
  __device__ __forceinline__ Vector<typename Op::T, N> load_across(int operand,
                                                                   const Place& p) const {
    using T = typename Op::T;
    using V = Vector<T, N>;
    const T* const base = reinterpret_cast<const T*>(words[operand]);
    const Index apart = stride(operand, 0);
    if constexpr (sizeof(V) % 16 == 0 && !is_index(Op::walk))
      if (p.left >= N && apart == 1) return read_unaligned<V>(base + p.offset[operand]);
    V loaded;
    if constexpr (!is_index(Op::walk)) {
      if (p.left >= N && apart == 0) {
        const T same = read_once(base + p.offset[operand]);
#pragma unroll
        for (int v = 0; v < N; ++v) loaded.item[v] = same;
        return loaded;
      }
    }
#pragma unroll
    for (int v = 0; v < N; ++v) {
      const Index offset =
          v < p.left ? p.offset[operand] + v * apart : place<1>(p.element + v).offset[operand];
      if constexpr (is_index(Op::walk))
        loaded.item[v] = start_of_index(operand, offset);
      else
        loaded.item[v] = read_once(base + offset);
    }
    return loaded;
  }

  // The same elements as numbers to compute with.
  template <class Op, int N>
  __device__ __forceinline__ void convert(int operand, const Vector<typename Op::T, N>& loaded,
                                          Value<Op> (&values)[N]) const {
    if constexpr (Op::walk == 'c' || Op::walk == 's' || Op::walk == 'u' || Op::walk == 'e' ||
                  is_index(Op::walk)) {
      widen(loaded, values);
    } else {
      Value<Op> fixed;
      if constexpr (Op::walk == 'v')
        fixed = of_word<Value<Op>>(words[operand]);
      else
        fixed = cast<Value<Op>>(loaded.item[0]);
#pragma unroll
      for (int v = 0; v < N; ++v) values[v] = fixed;
    }
  }

  // The same of the I-th input, which may be one of a pair: every second element of what was loaded
  // for both. (Two 16-bit floats share a register: widen gives each of them in one instruction.)
  template <int I, int N, class G>
  __device__ __forceinline__ void convert_from(const G& group, Value<In<I>> (&values)[N]) const {
    constexpr char kWalk = In<I>::walk;
    if constexpr (is_first(kWalk) || is_second(kWalk)) {
      constexpr int kFirst =
          is_first(kWalk) ? I : find_walk(char(kWalk - kPairs), typename K::Inputs());
      Value<In<I>> both[2 * N];
      widen(slot<kFirst>(group), both);
#pragma unroll
      for (int v = 0; v < N; ++v) values[v] = both[2 * v + is_second(kWalk)];
    } else {
      convert<In<I>, N>(K::outputs + I, slot<I>(group), values);
    }
  }

  template <class Op, int N, int kAlong, class R>
  __device__ __forceinline__ void store(int operand, Index offset, const R (&results)[N]) const {
    using T = typename Op::T;
    T* base = reinterpret_cast<T*>(words[operand]) + offset;
    if constexpr (Op::walk == 'c') {
      decltype(pick<Op::result>(results[0])) values[N];
#pragma unroll
      for (int v = 0; v < N; ++v) values[v] = pick<Op::result>(results[v]);
      Vector<T, N> packed;
      narrow(values, packed);
      *reinterpret_cast<Vector<T, N>*>(base) = packed;
    } else if constexpr (is_first(Op::walk)) {
      using Second = Out<find_walk(char(Op::walk + kPairs), typename K::Outputs())>;
      decltype(pick<Op::result>(results[0])) values[2 * N];
#pragma unroll
      for (int v = 0; v < N; ++v) {
        values[2 * v] = pick<Op::result>(results[v]);
        values[2 * v + 1] = pick<Second::result>(results[v]);
      }
      Vector<T, 2 * N> packed;
      narrow(values, packed);
      *reinterpret_cast<Vector<T, 2 * N>*>(base) = packed;
    } else if constexpr (Op::walk == 's') {
#pragma unroll
      for (int v = 0; v < N; ++v)
        base[v * stride(operand, kAlong)] = cast<T>(pick<Op::result>(results[v]));
    }
  }

  using Group = Loaded<typename K::Inputs, kVector, AllInputs>;

  template <int N, int kAlong = 0, int... I>
  __device__ __forceinline__ Loaded<typename K::Inputs, N, AllInputs> load_all(
      const Place& p, Indices<I...>) const {
    Loaded<typename K::Inputs, N, AllInputs> group;
    ((slot<I>(group) = load_one<I, N, kAlong>(p)), ...);
    return group;
  }
  template <int I, int N, int kAlong>
  __device__ __forceinline__ auto load_one(const Place& p) const {
    if constexpr (In<I>::walk == 'e' || (kAcross && is_index(In<I>::walk)))
      return load_across<In<I>, N>(K::outputs + I, p);
    else
      return load<In<I>, N, kAlong>(K::outputs + I, p.offset[K::outputs + I]);
  }

  // The functor, with its random word if it takes one.
  template <class... Values>
  __device__ __forceinline__ auto call(u32 drawn, Values... values) const {
    if constexpr (K::random)
      return functor(values..., drawn);
    else
      return functor(values...);
  }

  // The functor's results for N elements, of which the first is the index-th.
  template <int N, class G, int... I>
  __device__ __forceinline__ auto compute(const G& group, u64 index, Indices<I...>) const {
    Tuple<Results<Value<In<I>>, N>...> values;
    (convert_from<I, N>(group, get<I>(values).item), ...);
    u32 drawn[N] = {};
    if constexpr (K::random) draw(index, drawn);
    Results<decltype(call(0u, get<I>(values).item[0]...)), N> results;
#pragma unroll
    for (int v = 0; v < N; ++v) results.item[v] = call(drawn[v], get<I>(values).item[v]...);
    return results;
  }

  template <int N>
  __device__ __forceinline__ void draw(u64 index, u32 (&drawn)[N]) const {
    if constexpr (N % 4 == 0) {
#pragma unroll
      for (int quad = 0; quad < N / 4; ++quad)
        random.draw((index >> 2) + quad, *reinterpret_cast<u32(*)[4]>(drawn + quad * 4));
    } else {
#pragma unroll
      for (int v = 0; v < N; ++v) drawn[v] = random.draw_one(index + v);
    }
  }

  // Computes and stores one group.
  template <int N, class G, int... O>
  __device__ __forceinline__ void finish(const G& group, const Place& p, u64 index,
                                         Indices<O...>) const {
    const auto results = compute<N>(group, index, AllInputs());
    (store<Out<O>, N, 0>(O, p.offset[O], results.item), ...);
  }

  __device__ __forceinline__ void run() {
    const Index numel = Index(words[K::numel]);
    const Index groups = numel / kVector;
    if constexpr (K::random) {
      random = Random::read(words + K::rng);
      if (blockIdx.x == 0 && threadIdx.x == 0) random.remember(words + K::rng);
    }
    for (Index first = Index(blockIdx.x) * (blockDim.x * kUnroll) + threadIdx.x; first < groups;
         first += Index(gridDim.x) * (blockDim.x * kUnroll)) {
      Place places[kUnroll];
      Group loaded[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index i = first + u * blockDim.x;
        if (u > 0 && i >= groups) break;
        places[u] = place<kVector>(i);
        loaded[u] = load_all<kVector>(places[u], AllInputs());
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const Index i = first + u * blockDim.x;
        if (u > 0 && i >= groups) break;
        finish<kVector>(loaded[u], places[u], u64(i) * kVector, AllOutputs());
      }
    }
    // What is left over after the last whole group (of one row only: several are whole numbers of
    // groups, if they are not cut across) goes to the first threads, one element each.
    if constexpr (kVector > 1 && (K::dims == 1 || kAcross)) {
      const Index i = groups * kVector + threadIdx.x;
      if (blockIdx.x == 0 && i < numel) {
        const Place p = place<1>(i);
        finish<1>(load_all<1>(p, AllInputs()), p, u64(i), AllOutputs());
      }
    }
  }
};

}  // namespace mf
