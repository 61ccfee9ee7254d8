// The decode megakernel on a GPU: one cooperative launch of a block a multiprocessor, in which
// every block walks the same list of phases (decode.h) and does its share of each. `run` at the end
// is the whole kernel. The arithmetic is decode_cpu.h's: float32 throughout, the cache in the
// model's dtype.
//
// Between two phases all blocks wait for all, about 1 us, in which memory would idle: before a
// block waits it asks for the first weights of its next product (asynchronous copies into shared
// memory), and finds them there afterwards. The rest comes from global memory, 16 bytes a lane, a
// warp a row.
//
// A wait is bounded: a clock in the loop turns a lost one into an error for all blocks.
#pragma once

#include "activations.h"
#include "decode.h"
#include "math.h"
#include "random.h"

namespace mf::decode {

// ---- the machine's words

__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ u32 load_acquire(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Words in the host's memory, which it reads and writes while the kernel runs. Each says all by
// itself, so no order among them is asked for.
__device__ __forceinline__ u64 load_from_host(u64 address) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(at<const u64>(address))
               : "memory");
  return value;
}
__device__ __forceinline__ void store_to_host(i64* to, i64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(u64(value)) : "memory");
}
// 16 bytes from global to shared memory, which arrive some time before fetched() returns.
__device__ __forceinline__ void fetch(void* to, const void* from) {
  const u64 place = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"l"(place), "l"(from) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, bit);
    value = other > value ? other : value;
  }
  return value;
}

// 16 bytes of weights as floats.
template <class W>
struct Sixteen {
  static constexpr int count = 16 / int(sizeof(W));
  float value[count];
  __device__ __forceinline__ explicit Sixteen(const W* from) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const auto held = bits_as<Pack<W, count>>(raw);
#pragma unroll
    for (int i = 0; i < count; ++i) value[i] = cast<float>(held[i]);
  }
};

struct alignas(16) Four {
  float value[4];
};

template <class W, class T, class Act, bool kRms, bool kGated, int kBatch, int kThreads>
struct DecodeCuda {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kVector = 16 / int(sizeof(W));

  const Step& s;
  char* const stage;   // weights that were fetched ahead
  float* const input;  // of a product, if it fits; in attention the queries and scores
  const i64 block, blocks;
  const int lane, warp;
  // Of the next product: its first rows, from `staged_from` on, that lie in `stage`.
  i64 staged_phase = -1, staged_from = 0, staged_rows = 0;

  __device__ DecodeCuda(const Step& step, void* shared)
      : s(step),
        stage(static_cast<char*>(shared)),
        input(reinterpret_cast<float*>(static_cast<char*>(shared) + step.stage_bytes)),
        block(blockIdx.x),
        blocks(i64(step.threads)),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32) {}

  // This block's part of n things.
  __device__ i64 begin(i64 n) const { return n * block / blocks; }
  __device__ i64 end(i64 n) const { return n * (block + 1) / blocks; }

  __device__ float* x(i64 b) const { return at<float>(s.x) + b * i64(s.x_pitch); }
  __device__ float* qkv(i64 b) const { return at<float>(s.qkv) + b * i64(s.qkv_pitch); }
  __device__ float* inner(i64 b) const {
    return at<float>(s.inner_values) + b * i64(s.inner_pitch);
  }
  __device__ float* logits(i64 b) const { return at<float>(s.logits) + b * i64(s.vocab); }
  __device__ i64 position(i64 b) const { return at<const i64>(s.positions)[b]; }
  __device__ bool ended(i64 b) const { return at<const i64>(s.finished)[b] != 0; }
  __device__ float* part(i64 b, i64 head, i64 piece) const {
    return at<float>(s.parts) +
           ((b * i64(s.heads) + head) * i64(s.max_chunks) + piece) * i64(s.part_pitch);
  }
  // Where this block puts the input of a product: shared memory, or else memory of its own.
  __device__ float* own() const {
    const bool fits = s.own_pitch * kBatch <= s.input_floats;
    return fits ? input : at<float>(s.own) + block * i64(s.own_floats);
  }

  // The same for every thread of the block, added up in the same order every time.
  __device__ float block_sum(float value) const {
    __shared__ float sums[kWarps];
    value = warp_sum(value);
    __syncthreads();  // the last sum has been read
    if (lane == 0) sums[warp] = value;
    __syncthreads();
    float all = 0;
    for (int i = 0; i < kWarps; ++i) all += sums[i];
    return all;
  }

  // ---- weights

  struct Matrix {
    const W* weight;
    const float *bias, *scale;
  };
  __device__ static Matrix matrix(const Phase& p, int m) {
    const u64 weight = m == 0 ? p.weight0 : m == 1 ? p.weight1 : p.weight2;
    const u64 bias = m == 0 ? p.bias0 : m == 1 ? p.bias1 : p.bias2;
    const u64 scale = m == 0 ? p.scale0 : m == 1 ? p.scale1 : p.scale2;
    return {at<const W>(weight), at<const float>(bias), at<const float>(scale)};
  }
  __device__ static bool is_product(const Phase& p) {
    return p.kind != kEmbed && p.kind != kAttend && p.kind != kSample;
  }
  __device__ static bool in_vectors(const Phase& p) {
    return p.cols % kVector == 0 && (p.weight0 | p.weight1 | p.weight2) % 16 == 0;
  }

  // Asks for the first rows of this block's share of a product. All threads; nobody reads `stage`.
  __device__ void fetch_ahead(i64 phase, const Phase& p) {
    staged_phase = phase, staged_rows = 0;
    if (!is_product(p) || !in_vectors(p)) return;
    const bool both = p.kind == kGateUp && kGated;
    const i64 bytes = i64(p.cols) * i64(sizeof(W)), first = begin(i64(p.rows));
    i64 before = 0;
    int m = 0;
    const i64 rows[3] = {i64(p.rows0), i64(p.rows1), i64(p.rows2)};
    if (!both)
      while (m < 2 && first - before >= rows[m]) before += rows[m++];
    staged_from = first;
    staged_rows = i64(s.stage_bytes) / (both ? 2 * bytes : bytes);
    const i64 share = end(i64(p.rows)) - first, here = before + rows[m] - first;
    staged_rows = staged_rows < share ? staged_rows : share;
    staged_rows = staged_rows < here ? staged_rows : here;
    for (int k = 0; k < (both ? 2 : 1); ++k) {
      const char* const from =
          reinterpret_cast<const char*>(matrix(p, both ? k : m).weight) + (first - before) * bytes;
      char* const to = stage + k * staged_rows * bytes;
      for (i64 i = i64(threadIdx.x) * 16; i < staged_rows * bytes; i += kThreads * 16)
        fetch(to + i, from + i);
    }
  }

  // Row `row` of matrix m, which is row `shared` of what is shared out.
  __device__ const W* row_of(const Phase& p, int m, i64 row, i64 shared) const {
    const i64 ahead = shared - staged_from;
    if (ahead >= 0 && ahead < staged_rows) {
      const i64 which = p.kind == kGateUp ? m : 0;
      return reinterpret_cast<const W*>(stage) + (which * staged_rows + ahead) * i64(p.cols);
    }
    return matrix(p, m).weight + row * i64(p.cols);
  }

  // One row of weights by kBatch inputs, by a warp: every lane gets the sums. Not inlined: with it
  // in six places NVRTC took minutes.
  __device__ __noinline__ void dot(const W* w, i64 cols, bool vectors, const float* in, i64 pitch,
                                   float (&out)[kBatch]) const {
    constexpr int kAhead = kBatch == 1 ? 4 : 1;  // loads that do not wait for each other
    float sum[kBatch] = {};
    if (vectors) {
#pragma unroll kAhead
      for (i64 k = lane * kVector; k < cols; k += 32 * kVector) {
        const Sixteen<W> weights(w + k);
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
#pragma unroll
          for (int i = 0; i < kVector; i += 4) {
            const Four four = *reinterpret_cast<const Four*>(in + b * pitch + k + i);
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[b] = fma(weights.value[i + j], four.value[j], sum[b]);
          }
      }
    } else {
      for (i64 k = lane; k < cols; k += 32)
        for (int b = 0; b < kBatch; ++b) sum[b] = fma(cast<float>(w[k]), in[b * pitch + k], sum[b]);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) out[b] = warp_sum(sum[b]);
  }
  __device__ static float finished_sum(const Matrix& m, i64 row, float value) {
    if (m.scale) value *= m.scale[row];
    return m.bias ? value + m.bias[row] : value;
  }

  // This block's rows of the phase's matrices, a warp each: use(row, b, value) by one lane.
  template <class Use>
  __device__ void product(const Phase& p, const float* in, i64 pitch, Use use) const {
    const bool vectors = in_vectors(p);
    const i64 last = end(i64(p.rows));
    for (i64 shared = begin(i64(p.rows)) + warp; shared < last; shared += kWarps) {
      int m = 0;
      i64 row = shared;
      if (row >= i64(p.rows0)) row -= i64(p.rows0), m = 1;
      if (m == 1 && row >= i64(p.rows1)) row -= i64(p.rows1), m = 2;
      float out[kBatch];
      dot(row_of(p, m, row, shared), i64(p.cols), vectors, in, pitch, out);
      if (lane == 0)
        for (int b = 0; b < kBatch; ++b) use(shared, b, finished_sum(matrix(p, m), row, out[b]));
    }
  }

  // ---- the phases

  __device__ void embed() const {
    const i64 n = i64(s.hidden);
    for (i64 b = 0; b < kBatch; ++b) {
      const T* const row = at<const T>(s.embedding) + at<const i64>(s.tokens)[b] * n;
      const T* const place = at<const T>(s.positions_table);
      for (i64 i = begin(n) + threadIdx.x; i < end(n); i += kThreads) {
        float value = 0;  // of a row that has ended: there may be no embedding of padding
        if (!ended(b)) value = cast<float>(row[i]);
        if (place && !ended(b)) value += cast<float>(place[position(b) * n + i]);
        x(b)[i] = value;
      }
    }
  }

  // own = norm(x), by every block for itself.
  __device__ float* norm(const Phase& p) const {
    const i64 n = i64(s.hidden);
    const float *const weight = at<const float>(p.norm), *const bias = at<const float>(p.norm_bias);
    for (i64 b = 0; b < kBatch; ++b) {
      const float* const from = x(b);
      float* const to = own() + b * i64(s.own_pitch);
      float sum = 0, squares = 0;
      if constexpr (!kRms)
        for (i64 i = threadIdx.x; i < n; i += kThreads) sum += from[i];
      const float mean = kRms ? 0.0f : block_sum(sum) / float(n);
      for (i64 i = threadIdx.x; i < n; i += kThreads)
        squares += (from[i] - mean) * (from[i] - mean);
      const float inverse = 1.0f / sqrtf(block_sum(squares) / float(n) + float(number(p.eps)));
      for (i64 i = threadIdx.x; i < n; i += kThreads) {
        const float value = (from[i] - mean) * inverse * weight[i];
        to[i] = bias ? value + bias[i] : value;
      }
    }
    __syncthreads();
    return own();
  }

  __device__ void project_qkv(const Phase& p) const {
    const float* const in = norm(p);
    product(p, in, i64(s.own_pitch), [&](i64 row, int b, float v) { qkv(b)[row] = v; });
  }

  // A head of q or k, by a warp into shared memory: its norm, if it has one, and its turn by RoPE.
  __device__ void turned(const float* from, u64 weights, const Phase& p, i64 place,
                         float* to) const {
    const i64 n = i64(s.head_dim), half_turn = i64(s.rotary) / 2;
    const float* const weight = at<const float>(weights);
    float inverse = 1;
    if (weight) {
      float squares = 0;
      for (i64 i = lane; i < n; i += 32) squares += from[i] * from[i];
      inverse = 1.0f / sqrtf(warp_sum(squares) / float(n) + float(number(p.eps)));
    }
    for (i64 i = lane; i < i64(s.head_pitch); i += 32)
      to[i] = i >= n ? 0.0f : weight ? from[i] * inverse * weight[i] : from[i];
    __syncwarp();
    const float* const cosine = at<const float>(s.cosines) + place * half_turn;
    const float* const sine = at<const float>(s.sines) + place * half_turn;
    for (i64 i = lane; i < (p.rope ? half_turn : 0); i += 32) {
      const float low = to[i], high = to[i + half_turn];
      to[i] = low * cosine[i] - high * sine[i];
      to[i + half_turn] = high * cosine[i] + low * sine[i];
    }
    __syncwarp();
  }

  // One row's heads that share a key head, over one piece of its cache, by a block.
  __device__ void attend_piece(const Phase& p, i64 b, i64 kv, i64 piece) const {
    const i64 pitch = i64(s.head_pitch), place = position(b), chunk = i64(s.chunk);
    const i64 group = i64(s.heads / s.kv_heads), width = i64(s.head_dim);
    const i64 low = Pieces(s, p, place).low;
    const i64 from = piece * chunk > low ? piece * chunk : low;
    const i64 to = (piece + 1) * chunk < place + 1 ? (piece + 1) * chunk : place + 1;
    const i64 cache = (b * i64(s.kv_heads) + kv) * i64(s.max_length) * pitch;
    T *const keys = at<T>(p.keys) + cache, *const values = at<T>(p.values) + cache;
    const float* const made = qkv(b);
    const i64 q_rows = i64(s.heads) * width;
    float *const queries = input, *const scores = input + (group + 1) * pitch;
    for (i64 g = warp; g <= group; g += kWarps) {  // the last one is the key
      if (g < group) {
        turned(made + (kv * group + g) * width, p.q_norm, p, place, queries + g * pitch);
      } else if (to == place + 1) {  // the piece that the new position is in: nobody else reads it
        float* const key = queries + group * pitch;
        turned(made + q_rows + kv * width, p.k_norm, p, place, key);
        const float* const value = made + q_rows + (i64(s.kv_heads) + kv) * width;
        for (i64 i = lane; i < pitch; i += 32) {
          keys[place * pitch + i] = cast<T>(key[i]);
          values[place * pitch + i] = cast<T>(i < width ? value[i] : 0.0f);
        }
      }
    }
    __syncthreads();
    const float rate = float(number(p.scaling) * 1.4426950408889634);
    for (i64 i = from + warp; i < to; i += kWarps) {
      constexpr int kMost = 256 / 32;
      float key[kMost];
#pragma unroll
      for (int k = 0; k < kMost; ++k)
        key[k] = lane + 32 * k < pitch ? cast<float>(keys[i * pitch + lane + 32 * k]) : 0.0f;
      for (i64 g = 0; g < group; ++g) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < kMost; ++k)
          if (lane + 32 * k < pitch) sum = fma(key[k], queries[g * pitch + lane + 32 * k], sum);
        sum = warp_sum(sum);
        if (lane == 0) scores[g * chunk + i - from] = sum * rate;
      }
    }
    __syncthreads();
    for (i64 g = warp; g < group; g += kWarps) {
      float* const mine = scores + g * chunk;
      float most = -infinity<float>(), sum = 0;
      for (i64 i = lane; i < to - from; i += 32) most = mine[i] > most ? mine[i] : most;
      most = warp_max(most);
      for (i64 i = lane; i < to - from; i += 32) sum += mine[i] = exp2f(mine[i] - most);
      sum = warp_sum(sum);
      if (lane == 0) {
        float* const out = part(b, kv * group + g, piece);
        out[pitch] = most;
        out[pitch + 1] = sum;
      }
    }
    __syncthreads();
    for (i64 each = threadIdx.x; each < group * pitch; each += kThreads) {
      const i64 g = each / pitch, k = each % pitch;
      float sum = 0;
#pragma unroll 4
      for (i64 i = from; i < to; ++i)
        sum = fma(scores[g * chunk + i - from], cast<float>(values[i * pitch + k]), sum);
      part(b, kv * group + g, piece)[k] = sum;
    }
    __syncthreads();  // the next piece writes over the scores
  }

  __device__ void attend(const Phase& p) const {
    i64 each[kBatch], all = 0;
    for (i64 b = 0; b < kBatch; ++b) {
      each[b] = ended(b) ? 0 : Pieces(s, p, position(b)).count() * i64(s.kv_heads);
      all += each[b];
    }
    i64 b = 0, before = 0;
    for (i64 task = begin(all); task < end(all); ++task) {
      while (task - before >= each[b]) before += each[b++];
      const Pieces pieces(s, p, position(b));
      const i64 inside = task - before;
      attend_piece(p, b, inside / pieces.count(), pieces.first + inside % pieces.count());
    }
  }

  // own = the heads' attention, from their pieces.
  __device__ float* join(const Phase& attention) const {
    const i64 width = i64(s.head_dim), pitch = i64(s.head_pitch);
    for (i64 b = 0; b < kBatch; ++b) {
      float* const to = own() + b * i64(s.own_pitch);
      const Pieces pieces(s, attention, position(b));
      for (i64 each = threadIdx.x; each < i64(s.heads) * width; each += kThreads) {
        const i64 head = each / width, k = each % width;
        float most = -infinity<float>(), sum = 0, value = 0;
        if (!ended(b)) {
          for (i64 i = pieces.first; i <= pieces.last; ++i) {
            const float here = part(b, head, i)[pitch];
            most = here > most ? here : most;
          }
          for (i64 i = pieces.first; i <= pieces.last; ++i) {
            const float* const one = part(b, head, i);
            const float weight = exp2f(one[pitch] - most);
            sum = fma(weight, one[pitch + 1], sum);
            value = fma(weight, one[k], value);
          }
        }
        to[each] = ended(b) ? 0.0f : value / sum;
      }
    }
    __syncthreads();
    return own();
  }

  __device__ void project(const Phase& p, const Phase& attention) const {
    const float* const in = join(attention);
    product(p, in, i64(s.own_pitch), [&](i64 row, int b, float v) { x(b)[row] += v; });
  }

  // A warp has a row of gate and the same row of up.
  __device__ void gate_up(const Phase& p) const {
    const float* const in = norm(p);
    const bool vectors = in_vectors(p);
    const i64 last = end(i64(p.rows)), cols = i64(p.cols), pitch = i64(s.own_pitch);
    for (i64 row = begin(i64(p.rows)) + warp; row < last; row += kWarps) {
      float gate[kBatch], up[kBatch];
      dot(row_of(p, 0, row, row), cols, vectors, in, pitch, gate);
      if constexpr (kGated) dot(row_of(p, 1, row, row), cols, vectors, in, pitch, up);
      if (lane != 0) continue;
      for (int b = 0; b < kBatch; ++b) {
        float value = Act::value(finished_sum(matrix(p, 0), row, gate[b]));
        if constexpr (kGated) value *= finished_sum(matrix(p, 1), row, up[b]);
        inner(b)[row] = value;
      }
    }
  }

  __device__ void down(const Phase& p) const {
    const float* in = inner(0);
    if (s.inner_pitch * kBatch <= s.input_floats) {
      for (i64 i = threadIdx.x; i < i64(s.inner_pitch) * kBatch; i += kThreads) input[i] = in[i];
      __syncthreads();
      in = input;
    }
    product(p, in, i64(s.inner_pitch), [&](i64 row, int b, float v) { x(b)[row] += v; });
  }

  // A score, then the first of those that have it: the largest key is the likeliest token's.
  __device__ static u64 key_of(float score, i64 token) {
    return u64(ordered(score)) << 32 | u32(~u32(token));
  }
  __device__ static i64 token_of(u64 key) { return i64(u32(~u32(key))); }

  // Leaves the largest key of this block's logits beside them, so that no block has to read all of
  // them again to find the likeliest.
  __device__ void head(const Phase& p) const {
    __shared__ u64 most[kBatch];
    if (threadIdx.x < kBatch) most[threadIdx.x] = 0;
    const float* const in = norm(p);
    u64 best[kBatch] = {};  // of this warp, in its lane 0
    product(p, in, i64(s.own_pitch), [&](i64 row, int b, float v) {
      logits(b)[row] = v;
      const u64 key = key_of(v, row);
      best[b] = key > best[b] ? key : best[b];
    });
    if (lane == 0)
      for (int b = 0; b < kBatch; ++b) atomicMax(&most[b], best[b]);
    __syncthreads();
    if (threadIdx.x < kBatch) at<u64>(s.bests)[threadIdx.x * blocks + block] = most[threadIdx.x];
  }

  // Of all blocks, after the head's phase; every thread gets it.
  __device__ i64 likeliest(i64 b) const {
    u64 best = 0;
    for (i64 i = lane; i < blocks; i += 32) {
      const u64 key = at<const u64>(s.bests)[b * blocks + i];
      best = key > best ? key : best;
    }
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) {
      const u64 other = __shfl_xor_sync(0xffffffffu, best, bit);
      best = other > best ? other : best;
    }
    return token_of(best);
  }

  // ---- the next token

  // A probability as an integer, so that the order in which many are added changes nothing.
  __device__ static u64 weight_of(float chance) { return u64(double(chance) * 0x1p40); }

  __device__ u64 block_total(u64 value, u64* room) const {
    __syncthreads();
    if (threadIdx.x == 0) *room = 0;
    __syncthreads();
    if (value) atomicAdd(room, value);
    __syncthreads();
    return *room;
  }

  // The largest key such that all scores from it on weigh at least `wanted`: decode_sample.h.
  __device__ u32 threshold(const float* scores, const float* chances, u32 least, u64 wanted) const {
    u64* const bins = reinterpret_cast<u64*>(stage);
    u64* const found = bins + 2048;  // the bin, and what lies above it
    u32 prefix = 0;
    u64 above = 0;
    int shift = 32;
    for (int digit = 0; digit < 3; ++digit) {
      const int bits = digit < 2 ? 11 : 10, upper = shift;
      shift -= bits;
      const u32 mask = (1u << bits) - 1;
      __syncthreads();
      for (u32 i = threadIdx.x; i <= mask; i += kThreads) bins[i] = 0;
      __syncthreads();
      for (i64 i = threadIdx.x; i < i64(s.vocab); i += kThreads) {
        const u32 key = ordered(scores[i]);
        if (key < least || (upper < 32 && (key >> upper) != (prefix >> upper))) continue;
        atomicAdd(&bins[(key >> shift) & mask], chances ? weight_of(chances[i]) : u64(1));
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        u32 bin = mask, lowest = mask;
        for (;; --bin) {
          if (bins[bin]) lowest = bin;
          if (bins[bin] && above + bins[bin] >= wanted) break;
          if (bin == 0) {
            bin = lowest;
            break;
          }
          above += bins[bin];
        }
        found[0] = bin, found[1] = above;
      }
      __syncthreads();
      prefix |= u32(found[0]) << shift;
      above = found[1];
    }
    return prefix;
  }

  // The first index whose weights, with those before it, are more than `target`: each thread adds
  // up a part of the row, one adds up the parts, and the thread of the part in question looks
  // again.
  __device__ i64 drawn_from(const float* scores, const float* chances, u32 least,
                            u64 target) const {
    u64* const sums = reinterpret_cast<u64*>(stage);
    i64* const chosen = reinterpret_cast<i64*>(sums + kThreads);
    const i64 n = i64(s.vocab), me = threadIdx.x;
    const i64 from = n * me / kThreads, to = n * (me + 1) / kThreads;
    u64 sum = 0;
    for (i64 i = from; i < to; ++i)
      if (ordered(scores[i]) >= least) sum += weight_of(chances[i]);
    __syncthreads();
    sums[me] = sum;
    __syncthreads();
    if (me == 0) {
      u64 before = 0;
      i64 last = -1;  // with any weight
      chosen[0] = -1;
      for (int t = 0; t < kThreads; ++t) {
        const u64 mine = sums[t];
        if (mine) last = t;
        if (mine && before + mine > target) {
          chosen[0] = t;
          break;
        }
        before += mine;
      }
      if (chosen[0] < 0) chosen[0] = last;
      chosen[1] = i64(before);
    }
    __syncthreads();
    if (me == chosen[0]) {
      u64 before = u64(chosen[1]);
      i64 best = from;
      for (i64 i = from; i < to; ++i) {
        const u64 mine = ordered(scores[i]) >= least ? weight_of(chances[i]) : 0;
        if (mine == 0) continue;
        best = i;
        before += mine;
        if (before > target) break;
      }
      chosen[2] = best;
    }
    __syncthreads();
    return chosen[2];
  }

  __device__ i64 next_token(i64 b, u64 draw) const {
    const i64 n = i64(s.vocab);
    const u8* const seen = at<const u8>(s.seen) + b * n;
    float* const scores = at<float>(s.scores) + b * n;
    float* const chances = at<float>(s.chances) + b * n;
    const float penalty = float(number(s.penalty));
    u64* const room = reinterpret_cast<u64*>(stage);
    u64 best = 0;
    for (i64 i = threadIdx.x; i < n; i += kThreads) {
      const float x = logits(b)[i], punished = x < 0 ? x * penalty : x / penalty;
      const float score = seen[i] ? punished : x;
      scores[i] = score;
      const u64 key = key_of(score, i);
      best = key > best ? key : best;
    }
    __syncthreads();
    if (threadIdx.x == 0) *room = 0;
    __syncthreads();
    atomicMax(room, best);
    __syncthreads();
    best = *room;
    const i64 first = token_of(best);
    const double temperature = number(s.temperature), top_p = number(s.top_p);
    if (temperature == 0) return first;
    const float most = scores[first], rate = float(1.0 / temperature);
    u32 least = 0;
    if (s.top_k > 0 && i64(s.top_k) < n) least = threshold(scores, nullptr, 0, s.top_k);
    u64 sum = 0;
    for (i64 i = threadIdx.x; i < n; i += kThreads) {
      chances[i] = exp((scores[i] - most) * rate);
      if (ordered(scores[i]) >= least) sum += weight_of(chances[i]);
    }
    u64 total = block_total(sum, room);
    if (top_p < 1) {
      least = threshold(scores, chances, least, u64(top_p * double(total)));
      sum = 0;
      for (i64 i = threadIdx.x; i < n; i += kThreads)
        if (ordered(scores[i]) >= least) sum += weight_of(chances[i]);
      total = block_total(sum, room);
    }
    u32 words[4];
    const Random random{s.seed, draw};
    random.draw(u64(b), words);
    const u64 high = ((u64(words[0]) << 21) ^ words[1]) & ((u64(1) << 53) - 1);
    return drawn_from(scores, chances, least, u64(double(high) * 0x1p-53 * double(total)));
  }

  __device__ u32* halted() const { return at<u32>(s.barrier) + 64; }

  // Whole rows, a block each. Meanwhile the last block, which seldom has one, asks the host, and
  // passes on what it says, so that all blocks stop after the same token.
  __device__ void sample(i64 token, bool stepped) const {
    const bool plain = number(s.temperature) == 0 && number(s.penalty) == 1;
    if (block == blocks - 1 && threadIdx.x == 0) *halted() = load_from_host(s.halt) != 0;
    for (i64 b = block; b < kBatch; b += blocks) {
      i64 next = i64(s.pad);
      const bool over = ended(b);
      if (!over) next = plain && stepped ? likeliest(b) : next_token(b, s.drawn + u64(token));
      __syncthreads();
      if (threadIdx.x != 0) continue;
      if (!over) {
        at<u8>(s.seen)[b * i64(s.vocab) + next] = 1;
        if (stepped) at<i64>(s.positions)[b] += 1;
        for (u64 i = 0; i < s.stop_count; ++i)
          if (at<const i64>(s.stop)[i] == next) at<i64>(s.finished)[b] = 1;
      }
      at<i64>(s.tokens)[b] = next;
      store_to_host(at<i64>(s.out) + b * i64(s.out_pitch) + token, next);
    }
  }

  // ---- waiting

  // All blocks for all; false, for everyone, where somebody did not come in time. `waits` counts.
  __device__ bool all_here(u32& waits) const {
    __shared__ u32 lost;
    u32 *const arrived = at<u32>(s.barrier), *const failed = arrived + 32;
    ++waits;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(arrived, 1u);
      lost = 0;
      const u32 wanted = waits * u32(s.parties);
      const u64 start = nanoseconds();
      for (u32 turn = 1; load_acquire(arrived) < wanted; ++turn) {
        if (turn % 256) continue;
        if (nanoseconds() - start > s.watchdog) atomicAdd(failed, 1u);
        if (load_acquire(failed)) {
          lost = 1;
          break;
        }
      }
      __threadfence();
    }
    __syncthreads();
    return lost == 0;
  }

  __device__ bool all_ended() const {
    for (i64 b = 0; b < kBatch; ++b)
      if (!ended(b)) return false;
    return true;
  }

  // Not inlined: inside of two loops NVRTC would take minutes over it.
  __device__ __noinline__ void run_phase(const Phase& p, i64 token, bool stepped) const {
    switch (p.kind) {
      case kEmbed:
        return embed();
      case kQkv:
        return project_qkv(p);
      case kAttend:
        return attend(p);
      case kProject:
        return project(p, (&p)[-1]);
      case kGateUp:
        return gate_up(p);
      case kDown:
        return down(p);
      case kHead:
        return head(p);
      case kSample:
        return sample(token, stepped);
    }
  }

  // Weights of the next product go on their way before the wait; attention, which comes between two
  // products, leaves them where they are.
  __device__ void look_ahead(const Phase* phases, i64 done) {
    i64 next = done + 1;
    if (next < i64(s.phase_count) && phases[next].kind == kAttend) ++next;
    if (next >= i64(s.phase_count) || next == staged_phase) return;
    __syncthreads();  // nobody reads the rows of the last product any more
    fetch_ahead(next, phases[next]);
  }

  // The kernel: tokens, phases, waits.
  __device__ void run() {
    const Phase* const phases = at<const Phase>(s.phases);
    u32 waits = 0;
    u64 before = nanoseconds();
    for (i64 token = 0; token < i64(s.steps); ++token) {
      const i64 first = token ? 0 : i64(s.first_phase);
      for (i64 i = first; i < i64(s.phase_count); ++i) {
        if (staged_phase == i) {
          fetched();  // what this thread asked for; with the others' once all are here
          __syncthreads();
        } else if (phases[i].kind != kAttend) {
          staged_rows = 0;
        }
        run_phase(phases[i], token, first == 0);
        look_ahead(phases, i);
        const bool last = token + 1 == i64(s.steps) && i + 1 == i64(s.phase_count);
        if (!last && !all_here(waits)) return;
        if (block == 0 && threadIdx.x == 0) {
          const u64 after = nanoseconds();
          at<i64>(s.clocks)[i] += i64(after - before);
          before = after;
        }
      }
      if (all_ended() || *halted()) return;
    }
  }
};

}  // namespace mf::decode
