// attention on the CPU: out = softmax(q kᵀ scale + mask) v, kBlock queries at a time against a
// block of keys, so that no matrix of queries by keys ever lies in memory.
//
// All of it is done transposed: queries lie along the SIMD lanes. Scores are K Qᵀ, so that K and V
// are read an element at a time, and only the block of queries is turned over; the softmax's maxima
// and sums run down the columns, with nothing to add up across a register. One matrix product
// serves all seven (two forward, five backward):
//
//   C[i][lane] (+)= sum over k of A[i, k] B[k][lane]      A of any strides, B and C with whole rows
//
// On one core of a Sapphire Rapids it runs at 155 GFLOP/s, of a peak of about 165; torch's own
// tiled kernel, on MKL's products, at 93 in all.
//
// Queries of the heads that share a key head (GQA) are rows of one problem: row r is query r % S of
// head r / S. Scores are scaled after the product, as PyTorch does, so that they overflow alike;
// without a mask that costs nothing, as the exponent is 2^(score rate - base) in one instruction.
#pragma once

// Products and sums are fused here: an accumulation has no other rounding to keep to.
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#include "attention.h"
#include "half_cpu.h"

namespace mf {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kPanel = 4;  // 6 x 4 sums fill most of the 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kPanel = 2;  // 6 x 2 of 16
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kPanel = 4;
#else
constexpr int kVectorBytes = 16, kPanel = 2;
#endif
constexpr int kRows = 6;      // of a tile of sums
constexpr int kQueries = 64;  // lanes of a block
constexpr int kAhead = 8;     // rows to fetch ahead
constexpr int kKeys = 96;     // of a block

template <class F>
struct Simd;
template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(kVectorBytes)));
  typedef float Loose __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  typedef u32 U __attribute__((vector_size(kVectorBytes)));
  static constexpr int lanes = kVectorBytes / 4;
};
template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(kVectorBytes)));
  typedef double Loose __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  typedef u64 U __attribute__((vector_size(kVectorBytes)));
  static constexpr int lanes = kVectorBytes / 8;
};

template <class F>
MF_INLINE typename Simd<F>::V load_vector(const F* from) {
  return *reinterpret_cast<const typename Simd<F>::Loose*>(from);
}
template <class F>
MF_INLINE void store_vector(F* to, typename Simd<F>::V value) {
  *reinterpret_cast<typename Simd<F>::Loose*>(to) = value;
}

// 2^v for v <= 0, as math.h's exp2_in_range; NaN stays NaN, and below 2^-126 it is 0.
MF_INLINE Simd<float>::V exp2_lanes(Simd<float>::V v) {
  using V = Simd<float>::V;
  const V magic = V{} + (0x1.8p23f + 127.0f), least = V{} - 127.0f;
  v = v < least ? least : v;
  const V shifted = v + magic;
  const V f = v - (shifted - magic);
  V p = f * 0.00132697029f + 0.00967139192f;  // exp2_narrow
  p = p * f + 0.0555071086f;
  p = p * f + 0.240222454f;
  p = p * f + 0.693147004f;
  p = p * f + 1.0f;
  return p * (V)((Simd<float>::U)shifted << 23);
}
// The Taylor series: its 13 terms leave 1e-17 at |f| = 1/2.
MF_INLINE Simd<double>::V exp2_lanes(Simd<double>::V v) {
  using V = Simd<double>::V;
  const V magic = V{} + (0x1.8p52 + 1023.0), least = V{} - 1023.0;
  v = v < least ? least : v;
  const V shifted = v + magic;
  const V f = (v - (shifted - magic)) * kLn2;
  V p = V{} + 1.0;
  for (int n = 13; n > 0; --n) p = p * (f * (1.0 / n)) + 1.0;
  return p * (V)((Simd<double>::U)shifted << 52);
}

// Turns over a square of as many rows as a vector has lanes. Each step swaps the off-diagonal
// blocks of half the size.
template <class F>
MF_INLINE void transpose_square(const F* from, i64 from_step, F* to, i64 to_step) {
  using V = typename Simd<F>::V;
  using U = typename Simd<F>::U;
  constexpr int n = Simd<F>::lanes;
  V row[n];
  for (int i = 0; i < n; ++i) row[i] = load_vector(from + i * from_step);
#pragma GCC unroll 4
  for (int half = n / 2; half > 0; half /= 2) {
    U low{}, high{};
    for (int lane = 0; lane < n; ++lane) {
      const bool second = lane & half;
      low[lane] = second ? n + lane - half : lane;
      high[lane] = second ? n + lane : lane + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      if (i & half) continue;
      const V a = row[i], b = row[i + half];
#if defined(__clang__)
      for (int lane = 0; lane < n; ++lane) {
        row[i][lane] = low[lane] < n ? a[low[lane]] : b[low[lane] - n];
        row[i + half][lane] = high[lane] < n ? a[high[lane]] : b[high[lane] - n];
      }
#else
      row[i] = __builtin_shuffle(a, b, low);
      row[i + half] = __builtin_shuffle(a, b, high);
#endif
    }
  }
  for (int i = 0; i < n; ++i) store_vector(to + i * to_step, row[i]);
}

// to[j][i] = from[i][j]
template <class F>
void transpose(const F* from, i64 from_step, F* to, i64 to_step, i64 rows, i64 columns) {
  constexpr int n = Simd<F>::lanes;
  const i64 whole_rows = rows / n * n, whole_columns = columns / n * n;
  for (i64 i = 0; i < whole_rows; i += n)
    for (i64 j = 0; j < whole_columns; j += n)
      transpose_square(from + i * from_step + j, from_step, to + j * to_step + i, to_step);
  for (i64 i = 0; i < rows; ++i)
    for (i64 j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      to[j * to_step + i] = from[i * from_step + j];
}

// ---- the product

// kR rows by kL vectors of C, summed over n.
template <class F, int kR, int kL>
__attribute__((noinline)) void product_tile(i64 n, const F* a, i64 row, i64 step, const F* b,
                                            i64 b_step, F* c, i64 c_step, bool add) {
  using V = typename Simd<F>::V;
  constexpr int lanes = Simd<F>::lanes;
  V sum[kR][kL];
  for (int i = 0; i < kR; ++i)
    for (int l = 0; l < kL; ++l) sum[i][l] = add ? load_vector(c + i * c_step + l * lanes) : V{};
  for (i64 k = 0; k < n; ++k) {
    V right[kL];
    for (int l = 0; l < kL; ++l) right[l] = load_vector(b + k * b_step + l * lanes);
    for (int i = 0; i < kR; ++i) {
      const F left = a[i * row + k * step];
      for (int l = 0; l < kL; ++l) sum[i][l] += left * right[l];
    }
  }
  for (int i = 0; i < kR; ++i)
    for (int l = 0; l < kL; ++l) store_vector(c + i * c_step + l * lanes, sum[i][l]);
}

template <class F, int kL>
MF_INLINE void product_panel(i64 rows, i64 n, const F* a, i64 row, i64 step, const F* b, i64 b_step,
                             F* c, i64 c_step, bool add) {
  i64 i = 0;
  auto tile = [&](auto size) {
    constexpr int r = decltype(size)::value;
    for (; i + r <= rows; i += r)
      product_tile<F, r, kL>(n, a + i * row, row, step, b, b_step, c + i * c_step, c_step, add);
  };
  if constexpr (kL == 1) tile(Number<2 * kRows>());  // or the sums would wait for each other
  tile(Number<kRows>());
  tile(Number<4>());
  tile(Number<2>());
  tile(Number<1>());
}

// C[rows][vectors] (+)= A B, with A[i, k] at a[i * row + k * step].
template <class F>
__attribute__((noinline)) void product(i64 rows, i64 n, i64 vectors, const F* a, i64 row, i64 step,
                                       const F* b, i64 b_step, F* c, i64 c_step, bool add) {
  i64 v = 0;
  auto panel = [&](auto width) {
    constexpr int w = decltype(width)::value;
    for (; v + w <= vectors; v += w) {
      const i64 at = v * Simd<F>::lanes;
      product_panel<F, w>(rows, n, a, row, step, b + at, b_step, c + at, c_step, add);
    }
  };
  panel(Number<kPanel>());
  if constexpr (kPanel > 2) panel(Number<2>());
  panel(Number<1>());
}

// ---- rows in and out

// Asks for `bytes` that will be read soon: rows lie too far apart for the CPU to foresee.
MF_INLINE void fetch(const void* from, i64 bytes) {
  for (i64 at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
}

template <class T, class F>
MF_INLINE void widen_row(const T* from, F* to, i64 n) {
  if constexpr (is_half<T>)
    widen(from, to, n);
  else
    for (i64 i = 0; i < n; ++i) to[i] = cast<F>(from[i]);
}
template <class T, class F>
MF_INLINE void narrow_row(const F* from, T* to, i64 n) {
  if constexpr (is_half<T>)
    narrow(from, to, n);
  else
    for (i64 i = 0; i < n; ++i) to[i] = cast<T>(from[i]);
}

// T: how q, k, v are stored; F: what is computed in; M: how the mask is stored.
template <class T, class F, class M>
class AttentionCpu {
  using V = typename Simd<F>::V;
  static constexpr int lanes = Simd<F>::lanes;
  static constexpr bool masked = !is_same<M, NoMask>;

  const AttentionProblem& p;
  const i64 width;  // the head dimension in whole vectors
  // q is packed times `sign`, so that the largest score stays the largest; a score s then has the
  // probability 2^(s rate - base), where with a mask s is q k scale + mask in e's powers.
  const F sign, rate;
  u64 next;  // free scratch

  F* take(i64 count) {
    F* const taken = reinterpret_cast<F*>(next);
    next += (u64(count) * sizeof(F) + 63) / 64 * 64;
    return taken;
  }

  i64 rows() const { return p.heads / p.key_heads * p.queries; }  // of one key head
  i64 blocks() const { return (rows() + kQueries - 1) / kQueries; }
  i64 tasks() const { return (blocks() + p.together - 1) / p.together; }

  // A block of queries: their rows of the problem, and what is kept of them.
  struct Block {
    i64 b, g, first, count;  // batch, key head, rows
    i64 vectors;             // that hold them
    i64 least, most;         // their places in the sequence
    bool one_head;
  };
  Block block(i64 b, i64 g, i64 first) const {
    Block block{};
    block.b = b, block.g = g, block.first = first, block.count = rows() - first;
    if (block.count > kQueries) block.count = kQueries;
    block.vectors = (block.count + lanes - 1) / lanes;
    const i64 last = first + block.count - 1;
    block.one_head = first / p.queries == last / p.queries;
    block.least = block.one_head ? first % p.queries : 0;
    block.most = block.one_head ? last % p.queries : p.queries - 1;
    return block;
  }
  template <class Element>
  Element* row_of(const View& view, const Block& block, i64 i) const {
    const i64 row = block.first + i, head = block.g * (p.heads / p.key_heads) + row / p.queries;
    return view.at<Element>(block.b, head, row % p.queries);
  }
  i64 keys_seen(const Block& block) const {
    return p.causal && block.most + 1 < p.keys ? block.most + 1 : p.keys;
  }

  // to[d][i] = factor * row i of the view; the lanes that hold no row are 0. `wide` gets the rows
  // themselves, padded with zeros.
  void pack(const View& view, const Block& block, F factor, F* to, F* wide) const {
    for (i64 i = 0; i < block.count; ++i) {
      F* const row = wide + i * width;
      fetch(row_of<const T>(view, block, i) + kAhead * view.token, p.dim * i64(sizeof(T)));
      widen_row(row_of<const T>(view, block, i), row, p.dim);
      for (i64 d = p.dim; d < width; ++d) row[d] = 0;
    }
    transpose(wide, width, to, kQueries, block.count, p.dim);
    for (i64 d = 0; d < p.dim; ++d) {
      F* const column = to + d * kQueries;
      for (i64 i = block.count; i < block.vectors * lanes; ++i) column[i] = 0;
      for (i64 v = 0; v < block.vectors; ++v)
        store_vector(column + v * lanes, load_vector(column + v * lanes) * factor);
    }
  }

  void scale_columns(i64 vectors, F* columns, const F* factor) const {
    for (i64 d = 0; d < p.dim; ++d)
      for (i64 v = 0; v < vectors; ++v) {
        F* const at = columns + d * kQueries + v * lanes;
        store_vector(at, load_vector(at) * load_vector(factor + v * lanes));
      }
  }

  // Row i of the view = factor[i] * from[.][i].
  void unpack(const View& view, const Block& block, F* from, const F* factor, F* wide) const {
    scale_columns(block.vectors, from, factor);
    transpose(from, kQueries, wide, width, p.dim, block.count);
    for (i64 i = 0; i < block.count; ++i)
      narrow_row(wide + i * width, row_of<T>(view, block, i), p.dim);
  }

  // `count` keys or values from `first` on, as F, side by side: where they are, their rows are
  // often a power of two apart and fall on each other in the cache (1.4x slower in all).
  void gather(const View& view, i64 b, i64 g, i64 first, i64 count, F* wide) const {
    const T* const at = view.at<const T>(b, g, first);
    for (i64 j = 0; j < count; ++j) {
      fetch(at + (j + kAhead) * view.token, p.dim * i64(sizeof(T)));
      widen_row(at + j * view.token, wide + j * width, p.dim);
    }
  }

  static F mask_value(M mask) {
    if constexpr (is_same<M, bool>)
      return mask ? F(0) : -infinity<F>();
    else
      return cast<F>(mask);
  }

  // Scales and adds the mask, and leaves out keys that a query must not see.
  void apply_masks(const Block& block, i64 first, i64 count, F* scores, F* bias) const {
    if constexpr (masked) {
      const F scale = F(__builtin_fabs(p.scale));
      if (p.mask.token == 0 && (p.mask.head == 0 || block.one_head)) {
        const M* const mask = row_of<const M>(p.mask, block, 0) + first * p.mask_key;
        for (i64 j = 0; j < count; ++j) {
          const F value = mask_value(mask[j * p.mask_key]);
          for (i64 v = 0; v < block.vectors; ++v) {
            F* const at = scores + j * kQueries + v * lanes;
            store_vector(at, load_vector(at) * scale + value);
          }
        }
      } else {
        F* const turned = bias + kQueries * kKeys;
        for (i64 i = 0; i < block.count; ++i) {
          const M* const mask = row_of<const M>(p.mask, block, i) + first * p.mask_key;
          F* const row = bias + i * kKeys;
          if (p.mask_key == 1)
            for (i64 j = 0; j < count; ++j) row[j] = mask_value(mask[j]);
          else
            for (i64 j = 0; j < count; ++j) row[j] = mask_value(mask[j * p.mask_key]);
        }
        transpose(bias, kKeys, turned, kQueries, block.count, count);
        for (i64 j = 0; j < count; ++j) {
          for (i64 i = block.count; i < block.vectors * lanes; ++i) turned[j * kQueries + i] = 0;
          for (i64 v = 0; v < block.vectors; ++v) {
            F* const at = scores + j * kQueries + v * lanes;
            store_vector(at,
                         load_vector(at) * scale + load_vector(turned + j * kQueries + v * lanes));
          }
        }
      }
    }
    if (p.causal && first + count - 1 > block.least) {
      alignas(64) F place[kQueries];
      for (i64 i = 0; i < block.vectors * lanes; ++i) place[i] = F((block.first + i) % p.queries);
      for (i64 j = 0; j < count; ++j)
        for (i64 v = 0; v < block.vectors; ++v) {
          F* const at = scores + j * kQueries + v * lanes;
          const V key = V{} + F(first + j);
          store_vector(
              at, load_vector(place + v * lanes) < key ? V{} - infinity<F>() : load_vector(at));
        }
    }
  }

  // The base that makes the probability of the score `most` 1. What it rounds off is the same for
  // a whole row, and cancels in the division by the sum. Masks of the lowest number, which calls
  // use for minus infinity, would overflow times log2(e): they are subtracted first.
  V base_of(V most) const {
    const V least = V{} - infinity<F>();
    most = most == least ? V{} : most;  // nothing seen yet: any finite number serves
    return masked ? most : most * rate;
  }
  V probability(V score, V base) const {
    return exp2_lanes(masked ? (score - base) * rate : score * rate - base);
  }

  // Scores become probabilities, not yet divided by their sum: `most` and `sum` are the running
  // maxima and sums of the queries. `shrink` is what earlier results are to be multiplied by.
  bool soften(i64 vectors, i64 count, F* scores, F* most, F* sum, F* shrink) const {
    bool changed = false;
    for (i64 v = 0; v < vectors; ++v) {
      const i64 at = v * lanes;
      const V before = load_vector(most + at);
      V a = before, b = before;
      i64 j = 0;
      for (; j + 2 <= count; j += 2) {
        const V s = load_vector(scores + j * kQueries + at);
        const V t = load_vector(scores + (j + 1) * kQueries + at);
        a = s > a ? s : a;
        b = t > b ? t : b;
      }
      for (; j < count; ++j) {
        const V s = load_vector(scores + j * kQueries + at);
        a = s > a ? s : a;
      }
      a = b > a ? b : a;
      store_vector(most + at, a);
      const V base = base_of(a), factor = probability(before, base);
      for (int i = 0; i < lanes; ++i) changed |= before[i] != a[i];
      store_vector(shrink + at, factor);
      V odd{}, even{};
      auto raise = [&](i64 key) {
        F* const here = scores + key * kQueries + at;
        const V e = probability(load_vector(here), base);
        store_vector(here, e);
        return e;
      };
      for (j = 0; j + 2 <= count; j += 2) even += raise(j), odd += raise(j + 1);
      if (j < count) even += raise(j);
      store_vector(sum + at, load_vector(sum + at) * factor + (even + odd));
    }
    return changed;
  }

 public:
  AttentionCpu(const u64* words, i64 slot)
      : p(*reinterpret_cast<const AttentionProblem*>(words)),
        width((p.dim + lanes - 1) / lanes * lanes),
        sign(F(p.scale > 0   ? 1
               : p.scale < 0 ? -1
                             : 0)),
        rate(F(masked ? kLog2E : (p.scale == 0 ? 1 : __builtin_fabs(p.scale)) * kLog2E)),
        next((p.scratch + 63) / 64 * 64 + u64(slot) * p.scratch_bytes) {}

  // Bytes of scratch a thread needs, at most: what take() adds up to below.
  static i64 scratch(i64 dim, i64 keys, i64 together, bool backward) {
    const i64 wide = dim + 16;
    i64 count = 4 * kQueries * kKeys;  // scores, theirs gradients, a mask's block both ways around
    if (backward)
      count += 5 * kQueries * wide + 4 * (keys + kKeys) * wide + 4 * kQueries;
    else
      count += kQueries * wide + 2 * kKeys * wide + together * (2 * kQueries * wide + 2 * kQueries);
    return count * i64(sizeof(F)) + 64 * (32 + 4 * together);
  }

  // The `task`-th group of blocks of queries. A block of keys is gathered once for all of them: its
  // rows lie far apart, and fetching them for each block of queries took 15 % of the time.
  void forward(i64 task) {
    const i64 head = task / tasks(), b = head / p.key_heads, g = head % p.key_heads;
    const i64 begin = task % tasks() * p.together;
    const i64 rest = blocks() - begin, mine = rest < p.together ? rest : p.together;
    F* const wide = take(kQueries * width);
    F* const keys = take(kKeys * width);
    F* const values = take(kKeys * width);
    F* const scores = take(kQueries * kKeys);
    F* const bias = take(masked ? 2 * kQueries * kKeys : 0);
    F* const queries = take(mine * p.dim * kQueries);
    F* const out = take(mine * p.dim * kQueries);
    F* const most = take(mine * kQueries);
    F* const sum = take(mine * kQueries);
    F* const shrink = take(kQueries);
    for (i64 i = 0; i < mine; ++i)
      pack(p.q, block(b, g, (begin + i) * kQueries), sign, queries + i * p.dim * kQueries, wide);
    for (i64 i = 0; i < mine * kQueries; ++i) most[i] = -infinity<F>(), sum[i] = 0;
    for (i64 first = 0, end = 1; first < end; first += kKeys) {
      const i64 count = p.keys - first < kKeys ? p.keys - first : kKeys;
      gather(p.k, b, g, first, count, keys);
      gather(p.v, b, g, first, count, values);
      for (i64 i = 0; i < mine; ++i) {
        const Block here = block(b, g, (begin + i) * kQueries);
        const i64 seen = keys_seen(here), some = seen - first < count ? seen - first : count;
        if (seen > end) end = seen;
        if (some <= 0) continue;
        F* const sums = out + i * p.dim * kQueries;
        product<F>(some, p.dim, here.vectors, keys, width, 1, queries + i * p.dim * kQueries,
                   kQueries, scores, kQueries, false);
        apply_masks(here, first, some, scores, bias);
        const bool changed =
            soften(here.vectors, some, scores, most + i * kQueries, sum + i * kQueries, shrink);
        if (first > 0 && changed) scale_columns(here.vectors, sums, shrink);
        product<F>(p.dim, some, here.vectors, values, 1, width, scores, kQueries, sums, kQueries,
                   first > 0);
      }
    }
    for (i64 i = 0; i < mine; ++i) {
      const Block here = block(b, g, (begin + i) * kQueries);
      for (i64 r = 0; r < here.vectors * lanes; ++r) {
        // A query that sees no key gives 0, as PyTorch's; its lse makes all of its gradients 0.
        const F total = sum[i * kQueries + r];
        shrink[r] = total == 0 ? F(0) : F(1) / total;
        if (r < here.count && p.lse.address) {
          const double base = base_of(V{} + most[i * kQueries + r])[0];
          *row_of<F>(p.lse, here, r) =
              total == 0 ? infinity<F>()
                         : F((masked ? base : base * kLn2) + __builtin_log2(total) * kLn2);
        }
      }
      unpack(p.out, here, out + i * p.dim * kQueries, shrink, wide);
    }
  }

  // The gradients that are wanted: of the queries in blocks [block_begin, block_end) of a key
  // head, of keys and values [key_begin, key_end).
  void backward(i64 head, i64 block_begin, i64 block_end, i64 key_begin, i64 key_end) {
    const bool want_query = p.wanted & AttentionProblem::kGradQuery;
    const bool want_keys = p.wanted & AttentionProblem::kGradKeys;
    const i64 b = head / p.key_heads, g = head % p.key_heads;
    F* const queries = take(p.dim * kQueries);
    F* const douts = take(p.dim * kQueries);
    F* const dqueries = take(p.dim * kQueries);
    F* const wide_queries = take(kQueries * width);
    F* const wide_douts = take(kQueries * width);
    F* const wide = take(width);
    F* const all_keys = take((key_end - key_begin) * width);
    F* const all_values = take((key_end - key_begin) * width);
    F* const scores = take(kQueries * kKeys);
    F* const dscores = take(kQueries * kKeys);
    F* const bias = take(masked ? 2 * kQueries * kKeys : 0);
    F* const lse = take(kQueries);
    F* const delta = take(kQueries);
    F* const factor = take(kQueries);
    F* const dkeys = take(want_keys ? (key_end - key_begin) * width : 0);
    F* const dvalues = take(want_keys ? (key_end - key_begin) * width : 0);
    gather(p.k, b, g, key_begin, key_end - key_begin, all_keys);
    gather(p.v, b, g, key_begin, key_end - key_begin, all_values);
    if (want_keys)
      for (i64 i = 0; i < (key_end - key_begin) * width; ++i) dkeys[i] = dvalues[i] = 0;
    for (i64 at = block_begin; at < block_end; ++at) {
      const Block here = block(b, g, at * kQueries);
      const i64 seen = keys_seen(here), end = seen < key_end ? seen : key_end;
      if (end <= key_begin && !want_query) continue;
      pack(p.dout, here, F(1), douts, wide_douts);
      for (i64 i = 0; i < here.vectors * lanes; ++i) {
        lse[i] = infinity<F>(), delta[i] = 0, factor[i] = F(p.scale);
        if (i >= here.count) continue;
        const F kept = *row_of<const F>(p.lse, here, i);
        lse[i] = kept == -infinity<F>() ? infinity<F>() : masked ? kept : kept * F(kLog2E);
        widen_row(row_of<const T>(p.out, here, i), wide, p.dim);
        V total{};
        for (i64 d = p.dim; d < width; ++d) wide[d] = 0;
        for (i64 d = 0; d < width; d += lanes)
          total += load_vector(wide + d) * load_vector(wide_douts + i * width + d);
        for (int l = 0; l < lanes; ++l) delta[i] += total[l];
      }
      pack(p.q, here, sign, queries, wide_queries);
      for (i64 first = key_begin; first < end; first += kKeys) {
        const i64 count = end - first < kKeys ? end - first : kKeys;
        const F* const keys = all_keys + (first - key_begin) * width;
        const F* const values = all_values + (first - key_begin) * width;
        product<F>(count, p.dim, here.vectors, keys, width, 1, queries, kQueries, scores, kQueries,
                   false);
        apply_masks(here, first, count, scores, bias);
        product<F>(count, p.dim, here.vectors, values, width, 1, douts, kQueries, dscores, kQueries,
                   false);
        for (i64 v = 0; v < here.vectors; ++v) {
          const V base = load_vector(lse + v * lanes), mean = load_vector(delta + v * lanes);
          for (i64 j = 0; j < count; ++j) {
            F* const score = scores + j * kQueries + v * lanes;
            F* const dscore = dscores + j * kQueries + v * lanes;
            const V e = probability(load_vector(score), base);
            store_vector(score, e);
            store_vector(dscore, e * (load_vector(dscore) - mean));
          }
        }
        if (want_keys) {
          const i64 at = (first - key_begin) * width;
          product<F>(count, here.count, width / lanes, scores, kQueries, 1, wide_douts, width,
                     dvalues + at, width, true);
          product<F>(count, here.count, width / lanes, dscores, kQueries, 1, wide_queries, width,
                     dkeys + at, width, true);
        }
        if (want_query)
          product<F>(p.dim, count, here.vectors, keys, 1, width, dscores, kQueries, dqueries,
                     kQueries, first > key_begin);
      }
      if (want_query) {
        if (end <= key_begin)
          for (i64 i = 0; i < p.dim * kQueries; ++i) dqueries[i] = 0;
        unpack(p.dq, here, dqueries, factor, wide_queries);
      }
    }
    if (!want_keys) return;
    for (i64 j = 0; j < key_end - key_begin; ++j) {
      F* const row = dkeys + j * width;
      for (i64 d = 0; d < p.dim; ++d) row[d] *= F(p.scale);
      narrow_row(row, p.dk.at<T>(b, g, key_begin + j), p.dim);
      narrow_row(dvalues + j * width, p.dv.at<T>(b, g, key_begin + j), p.dim);
    }
  }
};

}  // namespace mf
