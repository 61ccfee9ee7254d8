// attention on CUDA in 16 bits, on the tensor cores: for short sequences, where torch's kernels
// take twice what memory does, and for what those do not know (odd head sizes with masks, say).
//
//   AttentionForward        a block takes 64 queries of a head and goes through the keys
//   AttentionBackward       a block takes 64 or 128 keys and goes through the queries of all heads
//                           that share them; where that is all keys, it has the queries' gradients
//                           too, and everything was read once
//   AttentionGradQuery      the queries' gradients alone, 64 at a time, where it is not
//
// Tiles lie in shared memory row by row with 16 bytes between rows, so that the eight rows of a
// quarter (attention_mma.h) fall on different banks. Sums and softmax are float; probabilities are
// rounded to 16 bits for the second product, as in every such kernel.
#pragma once

#include "attention.h"
#include "attention_mma.h"
#include "math.h"

namespace mf {

// A tile of kDim columns in shared memory.
template <class T, int kDim>
struct Tile {
  static constexpr int step = kDim + 8;  // elements from row to row
  T* at;
  __device__ __forceinline__ T* row(int i) const { return at + i * step; }

  // Rows [first, first + 16) x columns [column, column + 16) as a left operand.
  __device__ __forceinline__ Fragment left(int first, int column) const {
    const int lane = threadIdx.x % 32;
    return load_quarters(row(first + lane % 16) + column + lane / 16 * 8);
  }
  // The same piece turned over: columns become rows.
  __device__ __forceinline__ Fragment left_turned(int first, int column) const {
    const int lane = threadIdx.x % 32;
    return load_quarters_turned(row(first + lane % 8 + lane / 16 * 8) + column + lane / 8 % 2 * 8);
  }
  // Two right operands 16 x 8: rows [first, first + 16) are their columns. part 0, 1 and 2, 3.
  __device__ __forceinline__ Fragment right(int first, int column) const {
    const int lane = threadIdx.x % 32;
    return load_quarters(row(first + lane % 8 + lane / 16 * 8) + column + lane / 8 % 2 * 8);
  }
  // Two right operands 16 x 8 that lie as they are multiplied, side by side.
  __device__ __forceinline__ Fragment right_turned(int first, int column) const {
    const int lane = threadIdx.x % 32;
    return load_quarters_turned(row(first + lane % 16) + column + lane / 16 * 8);
  }
};

// What all of these kernels do: fetch tiles, score, write tiles.
template <class Stored, class Masks, int kDims, int kThreadCount>
struct AttentionTiles {
  using T = Stored;
  using M = Masks;
  static constexpr int kDim = kDims, kThreads = kThreadCount;
  static constexpr bool masked = !is_same<M, NoMask>;
  static constexpr int kScores = 8;  // tiles of 16 x 8 that a warp's 16 queries x 64 keys are
  using Rows = Tile<T, kDim>;

  const AttentionProblem& p;
  const float scale, rate;  // a score is q k scale + mask; its exponent grows with `rate` of it
  int batch, head, key_head;

  __device__ __forceinline__ explicit AttentionTiles(const AttentionProblem& problem)
      : p(problem),
        scale(float(problem.scale * (masked ? 1.0 : kLog2E))),
        rate(masked ? float(kLog2E) : 1.0f) {}

  // `count` rows from `from` on, the rest of `rows` and of the columns 0.
  __device__ __forceinline__ void fetch(const Rows& tile, int rows, const T* from, i64 step,
                                        int count) const {
    if (p.aligned) {
      constexpr int kChunks = kDim / 8;
      for (int i = threadIdx.x; i < rows * kChunks; i += kThreads) {
        const int row = i / kChunks, column = i % kChunks * 8;
        const bool real = row < count && column < int(p.dim);
        copy_16(tile.row(row) + column, real ? from + row * step + column : from, real);
      }
    } else {
      for (int i = threadIdx.x; i < rows * kDim; i += kThreads) {
        const int row = i / kDim, column = i % kDim;
        const bool real = row < count && column < int(p.dim);
        tile.row(row)[column] = real ? from[row * step + column] : T{0};
      }
    }
  }

  // `count` rows of the tile out, by `threads` threads.
  __device__ __forceinline__ void put(const Rows& tile, T* to, i64 step, int count, int thread,
                                      int threads) const {
    if (p.aligned) {
      constexpr int kChunks = kDim / 8;
      for (int i = thread; i < count * kChunks; i += threads) {
        const int row = i / kChunks, column = i % kChunks * 8;
        if (column < int(p.dim))
          *reinterpret_cast<uint4*>(to + row * step + column) =
              *reinterpret_cast<const uint4*>(tile.row(row) + column);
      }
    } else {
      for (int i = thread; i < count * kDim; i += threads) {
        const int row = i / kDim, column = i % kDim;
        if (column < int(p.dim)) to[row * step + column] = tile.row(row)[column];
      }
    }
  }

  // sums = rows [first, first + 16) of a, times those [keys, keys + 64) of b turned over.
  __device__ __forceinline__ static void multiply_rows(float (&sums)[kScores][4], const Rows& a,
                                                       int first, const Rows& b, int keys) {
#pragma unroll
    for (int n = 0; n < kScores; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
      const Fragment left = a.left(first, k);
#pragma unroll
      for (int n = 0; n < kScores; n += 2) {
        const Fragment right = b.right(keys + n * 8, k);
        multiply_add<T>(sums[n], left, right.part[0], right.part[1]);
        multiply_add<T>(sums[n + 1], left, right.part[2], right.part[3]);
      }
    }
  }

  // Which element of a warp's sums a lane's number i is.
  __device__ __forceinline__ static int row_of(int i) { return threadIdx.x % 32 / 4 + i / 2 * 8; }
  __device__ __forceinline__ static int column_of(int n, int i) {
    return n * 8 + threadIdx.x % 4 * 2 + i % 2;
  }

  // Products of the queries from `query` on with the keys from `key` on become scores, those that
  // may not be seen -Inf.
  __device__ __forceinline__ void score(float (&sums)[kScores][4], int query, int key) const {
    const int queries = int(p.queries), keys = int(p.keys);
#pragma unroll
    for (int n = 0; n < kScores; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = query + row_of(i), column = key + column_of(n, i);
        float& s = sums[n][i];
        s *= scale;
        if constexpr (masked) {
          if (row < queries && column < keys) {
            const M mask = p.mask.template at<const M>(batch, head, row)[column * p.mask_key];
            if constexpr (is_same<M, bool>)
              s = mask ? s : -infinity<float>();
            else
              s += cast<float>(mask);
          }
        }
        if (column >= keys || (p.causal && column > row)) s = -infinity<float>();
      }
  }

  // exp(score - base), by powers of two.
  __device__ __forceinline__ float raised(float score, float base) const {
    return exp2_flushed((score - base) * rate);
  }
  // A logarithm kept by the forward, as a base.
  __device__ __forceinline__ float base_of(float lse) const {
    if (lse == -infinity<float>()) return infinity<float>();  // nothing seen: probabilities are 0
    return masked ? lse : lse * float(kLog2E);
  }

  // Keys that some query before `end` may see.
  __device__ __forceinline__ int keys_seen(int end) const {
    return p.causal && end < int(p.keys) ? end : int(p.keys);
  }

  // Writes a warp's sums as 16 rows of a tile, from `column` on, two of each row at a time.
  template <int kCount>
  __device__ __forceinline__ static void keep(T* rows, int step, const float (&sums)[kCount][4],
                                              float low, float high) {
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float factor = i ? high : low;
        *reinterpret_cast<u32*>(rows + row_of(i) * step + column_of(n, 0)) =
            packed<T>(sums[n][i] * factor, sums[n][i + 1] * factor);
      }
  }
};

// kOneTile: there are 64 keys at most, so that nothing is fetched twice nor scaled again.
template <class T, class M, int kDim, bool kOneTile>
struct AttentionForward : AttentionTiles<T, M, kDim, 128> {
  using Base = AttentionTiles<T, M, kDim, 128>;
  using Base::batch, Base::head, Base::key_head, Base::masked, Base::p, Base::raised, Base::rate;
  using Rows = typename Base::Rows;
  static constexpr int kQueries = 64, kKeys = 64, kScores = Base::kScores;
  static constexpr int shared_bytes = (kQueries + 2 * kKeys) * Rows::step * int(sizeof(T));

  __device__ __forceinline__ explicit AttentionForward(const AttentionProblem& problem)
      : Base(problem) {}

  __device__ __forceinline__ void run(T* shared) {
    const Rows queries{shared}, keys{queries.row(kQueries)}, values{keys.row(kKeys)};
    const int warp = threadIdx.x / 32, first_row = warp * 16;
    // The last queries of a causal head see most: they come first.
    const unsigned tiles = unsigned((p.queries + kQueries - 1) / kQueries);
    const int first = int(tiles - 1 - blockIdx.x % tiles) * kQueries;
    head = int(blockIdx.x / tiles % unsigned(p.heads));
    batch = int(blockIdx.x / tiles / unsigned(p.heads));
    key_head = head / int(p.heads / p.key_heads);
    const int count = ::min(kQueries, int(p.queries) - first);
    const int seen = this->keys_seen(first + count);
    const T* const k = p.k.template at<const T>(batch, key_head, 0);
    const T* const v = p.v.template at<const T>(batch, key_head, 0);

    this->fetch(queries, kQueries, p.q.template at<const T>(batch, head, first), p.q.token, count);
    this->fetch(keys, kKeys, k, p.k.token, ::min(kKeys, seen));
    end_copies();
    this->fetch(values, kKeys, v, p.v.token, ::min(kKeys, seen));
    end_copies();

    float out[kDim / 8][4] = {};
    float most[2] = {-infinity<float>(), -infinity<float>()}, sum[2] = {};
    for (int key = 0; kOneTile ? key == 0 : key < seen; key += kKeys) {
      wait_copies<1>();
      __syncthreads();  // the keys are there
      float scores[kScores][4];
      Base::multiply_rows(scores, queries, first_row, keys, 0);
      this->score(scores, first + first_row, key);
      const int next = key + kKeys;
      if constexpr (!kOneTile) {
        __syncthreads();  // nobody reads the keys any more
        if (next < seen)
          this->fetch(keys, kKeys, k + next * p.k.token, p.k.token, ::min(kKeys, seen - next));
        end_copies();
      }

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float m = most[half];
#pragma unroll
        for (int n = 0; n < kScores; ++n)
          m = fmaxf(m, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
        m = largest_of_row(m);
        const float base = m == -infinity<float>() ? 0.0f : m;
        const float shrink = kOneTile ? 0.0f : raised(most[half], base);
        most[half] = m;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kScores; ++n)
#pragma unroll
          for (int i = half * 2; i < half * 2 + 2; ++i) {
            scores[n][i] = raised(scores[n][i], base);
            total += scores[n][i];
          }
        sum[half] = kOneTile ? total : fma(sum[half], shrink, total);
        if constexpr (!kOneTile) {
#pragma unroll
          for (int d = 0; d < kDim / 8; ++d)
            out[d][half * 2] *= shrink, out[d][half * 2 + 1] *= shrink;
        }
      }

      wait_copies<kOneTile ? 0 : 1>();
      __syncthreads();  // the values are there
#pragma unroll
      for (int j = 0; j < kKeys; j += 16) {
        const int n = j / 8;
        const Fragment left{{packed<T>(scores[n][0], scores[n][1]),
                             packed<T>(scores[n][2], scores[n][3]),
                             packed<T>(scores[n + 1][0], scores[n + 1][1]),
                             packed<T>(scores[n + 1][2], scores[n + 1][3])}};
#pragma unroll
        for (int d = 0; d < kDim / 8; d += 2) {
          const Fragment right = values.right_turned(j, d * 8);
          multiply_add<T>(out[d], left, right.part[0], right.part[1]);
          multiply_add<T>(out[d + 1], left, right.part[2], right.part[3]);
        }
      }
      if constexpr (!kOneTile) {
        __syncthreads();  // nobody reads the values any more
        if (next < seen)
          this->fetch(values, kKeys, v + next * p.v.token, p.v.token, ::min(kKeys, seen - next));
        end_copies();
      }
    }

    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = sum_of_row(sum[half]);
      factor[half] = total == 0 ? 0.0f : 1.0f / total;
      const int row = first_row + Base::row_of(half * 2);
      if (p.lse.address && row < count && threadIdx.x % 4 == 0) {
        const float m = masked ? most[half] : most[half] * float(kLn2);
        *p.lse.template at<float>(batch, head, first + row) =
            total == 0 ? infinity<float>() : m + logf(total);
      }
    }
    // A warp's queries were its own: their place serves for its results.
    __syncwarp();
    Base::keep(queries.row(first_row), Rows::step, out, factor[0], factor[1]);
    __syncwarp();
    this->put(Rows{queries.row(first_row)}, p.out.template at<T>(batch, head, first + first_row),
              p.out.token, ::min(16, count - first_row), threadIdx.x % 32, 32);
  }
};

// kQuery: this block has all keys, so the queries' gradients are whole. kOneTile: there are 64
// queries at most, and no other head has these keys.
template <class T, class M, int kDim, int kKeyCount, bool kQuery, bool kOneTile>
struct AttentionBackward : AttentionTiles<T, M, kDim, kKeyCount * 2> {
  using Base = AttentionTiles<T, M, kDim, kKeyCount * 2>;
  using Base::batch, Base::head, Base::key_head, Base::p, Base::raised;
  using Rows = typename Base::Rows;
  static constexpr int kQueries = 64, kKeys = kKeyCount, kScores = Base::kScores;
  static constexpr int kParts = kKeys / 64;  // warps that share 16 queries
  using Square = Tile<T, kKeys>;
  static constexpr int shared_bytes = (2 * kKeys + 2 * kQueries) * Rows::step * int(sizeof(T)) +
                                      2 * kQueries * Square::step * int(sizeof(T)) +
                                      2 * kQueries * int(sizeof(float));

  __device__ __forceinline__ explicit AttentionBackward(const AttentionProblem& problem)
      : Base(problem) {}

  __device__ __forceinline__ void run(T* shared) {
    const Rows keys{shared}, values{keys.row(kKeys)}, queries{values.row(kKeys)},
        douts{queries.row(kQueries)};
    const Square chances{douts.row(kQueries)}, dscores{chances.row(kQueries)};
    float* const bases = reinterpret_cast<float*>(dscores.row(kQueries));
    float* const deltas = bases + kQueries;
    const int warp = threadIdx.x / 32;
    const unsigned tiles = unsigned((p.keys + kKeys - 1) / kKeys);
    const int key = int(blockIdx.x % tiles) * kKeys;
    key_head = int(blockIdx.x / tiles % unsigned(p.key_heads));
    batch = int(blockIdx.x / tiles / unsigned(p.key_heads));
    const int count = ::min(kKeys, int(p.keys) - key);
    const int group = kOneTile ? 1 : int(p.heads / p.key_heads);
    this->fetch(keys, kKeys, p.k.template at<const T>(batch, key_head, key), p.k.token, count);
    this->fetch(values, kKeys, p.v.template at<const T>(batch, key_head, key), p.v.token, count);

    float dkeys[kDim / 8][4] = {}, dvalues[kDim / 8][4] = {};
    // Earlier queries see none of these keys; their gradients, if asked for here, are still due.
    const int begin = p.causal && !kQuery ? key / kQueries * kQueries : 0;
    for (int h = 0; h < group; ++h) {
      head = key_head * group + h;
      for (int first = begin; kOneTile ? first == begin : first < int(p.queries);
           first += kQueries) {
        const int some = ::min(kQueries, int(p.queries) - first);
        if constexpr (!kOneTile) __syncthreads();  // nobody reads the tiles of before
        this->fetch(queries, kQueries, p.q.template at<const T>(batch, head, first), p.q.token,
                    some);
        this->fetch(douts, kQueries, p.dout.template at<const T>(batch, head, first), p.dout.token,
                    some);
        end_copies();
        wait_copies<0>();
        __syncthreads();
        sum_up(douts, first, some, bases, deltas);
        __syncthreads();
        probabilities(queries, douts, keys, values, first, key, bases, deltas, chances, dscores);
        __syncthreads();
        accumulate(dvalues, chances, douts, warp * 16);
        accumulate(dkeys, dscores, queries, warp * 16);
        if constexpr (kQuery) {
          if (p.wanted & AttentionProblem::kGradQuery) {
            __syncthreads();  // nobody reads the queries any more
            query_gradients(dscores, keys, queries);
            __syncthreads();
            this->put(queries, p.dq.template at<T>(batch, head, first), p.dq.token, some,
                      threadIdx.x, Base::kThreads);
          }
        }
      }
    }
    if (!(p.wanted & AttentionProblem::kGradKeys)) return;
    __syncthreads();
    const float scale = float(p.scale);
    Base::keep(keys.row(warp * 16), Rows::step, dkeys, scale, scale);
    Base::keep(values.row(warp * 16), Rows::step, dvalues, 1.0f, 1.0f);
    __syncthreads();
    this->put(keys, p.dk.template at<T>(batch, key_head, key), p.dk.token, count, threadIdx.x,
              Base::kThreads);
    this->put(values, p.dv.template at<T>(batch, key_head, key), p.dv.token, count, threadIdx.x,
              Base::kThreads);
  }

  // Per query: the base of its probabilities, and delta = sum of out dout.
  __device__ __forceinline__ void sum_up(const Rows& douts, int first, int some, float* bases,
                                         float* deltas) const {
    constexpr int kLanes = Base::kThreads / kQueries;  // of one query
    const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    float delta = 0;
    if (row < some) {
      const T* const out = p.out.template at<const T>(batch, head, first + row);
      if (p.aligned) {
        for (int d = lane * 8; d < int(p.dim); d += kLanes * 8) {
          const uint4 chunk = *reinterpret_cast<const uint4*>(out + d);
          const T* const items = reinterpret_cast<const T*>(&chunk);
#pragma unroll
          for (int i = 0; i < 8; ++i)
            delta = fma(cast<float>(items[i]), cast<float>(douts.row(row)[d + i]), delta);
        }
      } else {
        for (int d = lane; d < int(p.dim); d += kLanes)
          delta = fma(cast<float>(out[d]), cast<float>(douts.row(row)[d]), delta);
      }
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) delta += __shfl_xor_sync(0xffffffffu, delta, step);
    if (lane == 0) {
      deltas[row] = delta;
      bases[row] = row < some
                       ? this->base_of(*p.lse.template at<const float>(batch, head, first + row))
                       : infinity<float>();
    }
  }

  // P and dS of 64 queries and all keys of the block, to shared memory.
  __device__ __forceinline__ void probabilities(const Rows& queries, const Rows& douts,
                                                const Rows& keys, const Rows& values, int first,
                                                int key, const float* bases, const float* deltas,
                                                const Square& chances,
                                                const Square& dscores) const {
    const int warp = threadIdx.x / 32, row = warp % 4 * 16, column = warp / 4 * 64;
    float scores[kScores][4], d[kScores][4];
    Base::multiply_rows(scores, queries, row, keys, column);
    this->score(scores, first + row, key + column);
    Base::multiply_rows(d, douts, row, values, column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = row + Base::row_of(i);
      const float base = bases[query], delta = deltas[query];
#pragma unroll
      for (int n = 0; n < kScores; ++n) {
        scores[n][i] = raised(scores[n][i], base);
        d[n][i] = scores[n][i] * (d[n][i] - delta);
      }
    }
    Base::keep(chances.row(row) + column, Square::step, scores, 1.0f, 1.0f);
    Base::keep(dscores.row(row) + column, Square::step, d, 1.0f, 1.0f);
  }

  // sums[16 keys] += squareᵀ rows
  __device__ __forceinline__ static void accumulate(float (&sums)[kDim / 8][4],
                                                    const Square& square, const Rows& rows,
                                                    int key) {
#pragma unroll
    for (int k = 0; k < kQueries; k += 16) {
      const Fragment left = square.left_turned(k, key);
#pragma unroll
      for (int d = 0; d < kDim / 8; d += 2) {
        const Fragment right = rows.right_turned(k, d * 8);
        multiply_add<T>(sums[d], left, right.part[0], right.part[1]);
        multiply_add<T>(sums[d + 1], left, right.part[2], right.part[3]);
      }
    }
  }

  // The queries' gradients, in the place of the queries.
  __device__ __forceinline__ void query_gradients(const Square& dscores, const Rows& keys,
                                                  const Rows& queries) const {
    constexpr int kColumns = kDim / kParts / 8;
    const int warp = threadIdx.x / 32, row = warp % 4 * 16, column = warp / 4 * kColumns * 8;
    float sums[kColumns][4] = {};
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      const Fragment left = dscores.left(row, k);
#pragma unroll
      for (int d = 0; d < kColumns; d += 2) {
        const Fragment right = keys.right_turned(k, column + d * 8);
        multiply_add<T>(sums[d], left, right.part[0], right.part[1]);
        multiply_add<T>(sums[d + 1], left, right.part[2], right.part[3]);
      }
    }
    const float scale = float(p.scale);
    Base::keep(queries.row(row) + column, Rows::step, sums, scale, scale);
  }
};

template <class T, class M, int kDim>
struct AttentionGradQuery : AttentionTiles<T, M, kDim, 128> {
  using Base = AttentionTiles<T, M, kDim, 128>;
  using Base::batch, Base::head, Base::key_head, Base::p, Base::raised;
  using Rows = typename Base::Rows;
  static constexpr int kQueries = 64, kKeys = 64, kScores = Base::kScores;
  static constexpr int shared_bytes = (2 * kQueries + 2 * kKeys) * Rows::step * int(sizeof(T));

  __device__ __forceinline__ explicit AttentionGradQuery(const AttentionProblem& problem)
      : Base(problem) {}

  __device__ __forceinline__ void run(T* shared) {
    const Rows queries{shared}, douts{queries.row(kQueries)}, keys{douts.row(kQueries)},
        values{keys.row(kKeys)};
    const int warp = threadIdx.x / 32, first_row = warp * 16;
    const unsigned tiles = unsigned((p.queries + kQueries - 1) / kQueries);
    const int first = int(tiles - 1 - blockIdx.x % tiles) * kQueries;
    head = int(blockIdx.x / tiles % unsigned(p.heads));
    batch = int(blockIdx.x / tiles / unsigned(p.heads));
    key_head = head / int(p.heads / p.key_heads);
    const int count = ::min(kQueries, int(p.queries) - first);
    const int seen = this->keys_seen(first + count);
    this->fetch(queries, kQueries, p.q.template at<const T>(batch, head, first), p.q.token, count);
    this->fetch(douts, kQueries, p.dout.template at<const T>(batch, head, first), p.dout.token,
                count);

    float base[2] = {infinity<float>(), infinity<float>()}, delta[2] = {};
    float sums[kDim / 8][4] = {};
    for (int key = 0; key < seen; key += kKeys) {
      const int some = ::min(kKeys, seen - key);
      this->fetch(keys, kKeys, p.k.template at<const T>(batch, key_head, key), p.k.token, some);
      this->fetch(values, kKeys, p.v.template at<const T>(batch, key_head, key), p.v.token, some);
      end_copies();
      wait_copies<0>();
      __syncthreads();
      if (key == 0) sum_up(douts, first, first_row, count, base, delta);
      float scores[kScores][4], d[kScores][4];
      Base::multiply_rows(scores, queries, first_row, keys, 0);
      this->score(scores, first + first_row, key);
      Base::multiply_rows(d, douts, first_row, values, 0);
#pragma unroll
      for (int n = 0; n < kScores; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          d[n][i] = raised(scores[n][i], base[i / 2]) * (d[n][i] - delta[i / 2]);
#pragma unroll
      for (int j = 0; j < kKeys; j += 16) {
        const int n = j / 8;
        const Fragment left{{packed<T>(d[n][0], d[n][1]), packed<T>(d[n][2], d[n][3]),
                             packed<T>(d[n + 1][0], d[n + 1][1]),
                             packed<T>(d[n + 1][2], d[n + 1][3])}};
#pragma unroll
        for (int column = 0; column < kDim / 8; column += 2) {
          const Fragment right = keys.right_turned(j, column * 8);
          multiply_add<T>(sums[column], left, right.part[0], right.part[1]);
          multiply_add<T>(sums[column + 1], left, right.part[2], right.part[3]);
        }
      }
      __syncthreads();  // nobody reads the tiles any more
    }
    __syncwarp();
    const float scale = float(p.scale);
    Base::keep(queries.row(first_row), Rows::step, sums, scale, scale);
    __syncwarp();
    this->put(Rows{queries.row(first_row)}, p.dq.template at<T>(batch, head, first + first_row),
              p.dq.token, ::min(16, count - first_row), threadIdx.x % 32, 32);
  }

  // Of a warp's queries: base and delta, in the registers of the lanes that hold their rows.
  __device__ __forceinline__ void sum_up(const Rows& douts, int first, int first_row, int count,
                                         float (&base)[2], float (&delta)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + Base::row_of(half * 2);
      float total = 0;
      if (row < count) {
        const T* const out = p.out.template at<const T>(batch, head, first + row);
        for (int d = threadIdx.x % 4; d < int(p.dim); d += 4)
          total = fma(cast<float>(out[d]), cast<float>(douts.row(row)[d]), total);
        base[half] = this->base_of(*p.lse.template at<const float>(batch, head, first + row));
      }
      delta[half] = sum_of_row(total);
    }
  }
};

}  // namespace mf
