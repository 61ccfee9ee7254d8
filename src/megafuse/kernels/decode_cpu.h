// The decode megakernel on a CPU: a whole step of a language model, from token to token, in one
// parallel region. Every thread walks the same list of phases (decode.h) and does its share of
// each; between two phases all wait for all, at a barrier of our own. `run` at the end is the whole
// kernel.
//
// Weights are read where they lie, in order, by whole rows: a thread has the same rows in every
// step. They are widened in registers; all arithmetic, the residual stream and the logits are
// float32 whatever the weights are, so that the cache, stored as the model's dtype, is the only
// place where a result is rounded to 16 bits.
//
// A thread's share depends on the number of threads, its arithmetic does not: a row's sum is always
// added up in the same order, and attention always goes in the same pieces of `chunk` positions.
#pragma once

// Products and sums are fused here: an accumulation has no other rounding to keep to.
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#include "activations.h"
#include "attention_cpu.h"
#include "decode.h"
#include "decode_pool.h"
#include "decode_sample.h"
#include "dots_cpu.h"
#include "lanes_cpu.h"

namespace mf::decode {

// ---- products

using products::kLanes;
using products::Lanes;
using products::total;
using products::wide;

struct Matrix {
  u64 weight, bias, scale;
};

// Rows [begin, end) of a matrix: use(row, b, value) for each.
template <class W, int kBatch, class Use>
MF_INLINE void product_rows(const Matrix& m, i64 begin, i64 end, i64 cols, const float* x,
                            i64 x_pitch, Use use) {
  constexpr int kTogether = kBatch <= 4 ? 4 : 2;  // sums that fit into the registers
  const W* const weights = at<const W>(m.weight);
  const float *const bias = at<const float>(m.bias), *const scale = at<const float>(m.scale);
  auto finish = [&](i64 row, int b, float value) {
    if (scale) value *= scale[row];
    use(row, b, bias ? value + bias[row] : value);
  };
  const float* inputs[kBatch];
  for (int b = 0; b < kBatch; ++b) inputs[b] = x + b * x_pitch;
  i64 row = begin;
  for (; row + kTogether <= end; row += kTogether) {
    float out[kTogether][kBatch];
    products::dots(weights + row * cols, cols, cols, inputs, out);
    for (int r = 0; r < kTogether; ++r)
      for (int b = 0; b < kBatch; ++b) finish(row + r, b, out[r][b]);
  }
  for (; row < end; ++row) {
    float out[1][kBatch];
    products::dots(weights + row * cols, cols, cols, inputs, out);
    for (int b = 0; b < kBatch; ++b) finish(row, b, out[0][b]);
  }
}

// ---- waiting

struct Barrier {
  u32 arrived, apart[31];  // on cache lines of their own
  u32 generation, apart_too[31];
  u32 failed, apart_again[31];
  u32 halted;  // the host wants no more tokens
};

// Waits until all have come; false where somebody did not within `patience` nanoseconds, and then
// for everyone. Spins: threads come within microseconds of each other.
inline bool all_here(Barrier& barrier, u32 parties, u64 patience) {
  const u32 generation = __atomic_load_n(&barrier.generation, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&barrier.arrived, 1, __ATOMIC_ACQ_REL) == parties) {
    __atomic_store_n(&barrier.arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&barrier.generation, generation + 1, __ATOMIC_RELEASE);
    return !__atomic_load_n(&barrier.failed, __ATOMIC_ACQUIRE);
  }
  u64 start = 0;
  for (u32 turn = 1;; ++turn) {
    if (__atomic_load_n(&barrier.generation, __ATOMIC_ACQUIRE) != generation) break;
    if (__atomic_load_n(&barrier.failed, __ATOMIC_RELAXED)) return false;
    spin(turn);
    if (turn % 4096) continue;
    if (start == 0) start = now();
    if (now() - start > patience) {
      __atomic_store_n(&barrier.failed, 1, __ATOMIC_RELEASE);
      return false;
    }
  }
  return !__atomic_load_n(&barrier.failed, __ATOMIC_ACQUIRE);
}

// ---- the step

// W: how weights are stored; T: how the cache and the embedding are; Act: the activation;
// kRms: RMS norm, else layer norm; kGated: two matrices into `inner`, else one.
template <class W, class T, class Act, bool kRms, bool kGated, int kBatch>
struct Decode {
  static constexpr i64 kRows = kBatch;
  const Step& s;
  const i64 thread, threads;
  float* const own;  // this thread's input of a product: kBatch rows

  Decode(const Step& step, i64 index)
      : s(step),
        thread(index),
        threads(i64(step.threads)),
        own(at<float>(step.own) + index * i64(step.own_floats)) {}

  // This thread's part of n things.
  i64 begin(i64 n) const { return n * thread / threads; }
  i64 end(i64 n) const { return n * (thread + 1) / threads; }

  float* x(i64 b) const { return at<float>(s.x) + b * i64(s.x_pitch); }
  float* qkv(i64 b) const { return at<float>(s.qkv) + b * i64(s.qkv_pitch); }
  float* inner(i64 b) const { return at<float>(s.inner_values) + b * i64(s.inner_pitch); }
  float* logits(i64 b) const { return at<float>(s.logits) + b * i64(s.vocab); }
  i64 position(i64 b) const { return at<const i64>(s.positions)[b]; }
  bool ended(i64 b) const { return at<const i64>(s.finished)[b] != 0; }
  // The sums over one piece of the cache, then the largest score and the sum of powers.
  float* part(i64 b, i64 head, i64 piece) const {
    return at<float>(s.parts) +
           ((b * i64(s.heads) + head) * i64(s.max_chunks) + piece) * i64(s.part_pitch);
  }

  void embed() const {
    const i64 n = i64(s.hidden);
    for (i64 b = 0; b < kBatch; ++b) {
      if (ended(b)) {  // its token is padding, of which there may be no embedding
        for (i64 i = begin(n); i < end(n); ++i) x(b)[i] = 0;
        continue;
      }
      const T* const row = at<const T>(s.embedding) + at<const i64>(s.tokens)[b] * n;
      const T* const place = at<const T>(s.positions_table);
      for (i64 i = begin(n); i < end(n); ++i) {
        x(b)[i] = cast<float>(row[i]);
        if (place) x(b)[i] += cast<float>(place[position(b) * n + i]);
      }
    }
  }

  // own = norm(x), by every thread for itself: it is less than a barrier.
  __attribute__((noinline)) void norm(const Phase& p) const {
    const i64 n = i64(s.hidden);
    const float *const weight = at<const float>(p.norm), *const bias = at<const float>(p.norm_bias);
    for (i64 b = 0; b < kBatch; ++b) {
      const float* const from = x(b);
      float* const to = own + b * i64(s.own_pitch);
      const float mean = kRms ? 0.0f : sum_of(from, n) / float(n);
      for (i64 i = 0; i < n; ++i) to[i] = (from[i] - mean) * (from[i] - mean);
      const float inverse = 1.0f / __builtin_sqrtf(sum_of(to, n) / float(n) + float(number(p.eps)));
      for (i64 i = 0; i < n; ++i) to[i] = (from[i] - mean) * inverse * weight[i];
      if (bias)
        for (i64 i = 0; i < n; ++i) to[i] += bias[i];
      for (i64 i = n; i < (n + 15) / 16 * 16; ++i) to[i] = 0;
    }
  }

  // Rows of the phase's matrices, one after the other; use(row, b, value).
  template <class Use>
  void product(const Phase& p, const float* in, i64 pitch, Use use) const {
    const Matrix all[3] = {{p.weight0, p.bias0, p.scale0},
                           {p.weight1, p.bias1, p.scale1},
                           {p.weight2, p.bias2, p.scale2}};
    const i64 rows[3] = {i64(p.rows0), i64(p.rows1), i64(p.rows2)};
    const i64 first = begin(i64(p.rows)), last = end(i64(p.rows));
    i64 before = 0;
    for (int m = 0; m < 3; before += rows[m++]) {
      const i64 from = first > before ? first - before : 0;
      const i64 to = last - before < rows[m] ? last - before : rows[m];
      if (from >= to) continue;
      product_rows<W, kBatch>(all[m], from, to, i64(p.cols), in, pitch,
                              [&](i64 row, int b, float v) { use(before + row, b, v); });
    }
  }

  void project_qkv(const Phase& p) const {
    norm(p);
    product(p, own, i64(s.own_pitch), [&](i64 row, int b, float v) { qkv(b)[row] = v; });
  }

  // A head of q or k: its norm, if it has one, and its turn by RoPE.
  __attribute__((noinline)) void turned(const float* from, u64 weights, const Phase& p, i64 place,
                                        float* to) const {
    const i64 n = i64(s.head_dim), turning = p.rope ? i64(s.rotary) / 2 : 0;
    const float* const weight = at<const float>(weights);
    float inverse = 1;
    if (weight) {
      float squares[1024];
      for (i64 i = 0; i < n; ++i) squares[i] = from[i] * from[i];
      inverse = 1.0f / __builtin_sqrtf(sum_of(squares, n) / float(n) + float(number(p.eps)));
    }
    for (i64 i = 0; i < n; ++i) to[i] = weight ? from[i] * inverse * weight[i] : from[i];
    const float* const cosine = at<const float>(s.cosines) + place * (i64(s.rotary) / 2);
    const float* const sine = at<const float>(s.sines) + place * (i64(s.rotary) / 2);
    for (i64 i = 0; i < turning; ++i) {
      const float low = to[i], high = to[i + turning];
      to[i] = low * cosine[i] - high * sine[i];
      to[i + turning] = high * cosine[i] + low * sine[i];
    }
    for (i64 i = n; i < i64(s.head_pitch); ++i) to[i] = 0;
  }

  // One row's heads that share a key head, over one piece of its cache.
  void attend_piece(const Phase& p, i64 b, i64 kv, i64 piece) const {
    constexpr i64 kMost = 256, kPiece = 64;  // head dimension, positions
    const i64 pitch = i64(s.head_pitch), place = position(b), chunk = i64(s.chunk);
    const i64 group = i64(s.heads / s.kv_heads);
    const i64 low = Pieces(s, p, place).low;
    const i64 from = piece * chunk > low ? piece * chunk : low;
    const i64 to = (piece + 1) * chunk < place + 1 ? (piece + 1) * chunk : place + 1;
    T* const keys = at<T>(p.keys) + (b * i64(s.kv_heads) + kv) * i64(s.max_length) * pitch;
    T* const values = at<T>(p.values) + (b * i64(s.kv_heads) + kv) * i64(s.max_length) * pitch;
    const float* const made = qkv(b);
    const i64 width = i64(s.head_dim), q_rows = i64(s.heads) * width;
    alignas(64) float head[kMost];
    if (to == place + 1) {  // the piece that the new position is in: nobody else reads it
      turned(made + q_rows + kv * width, p.k_norm, p, place, head);
      narrow_row(head, keys + place * pitch, pitch);
      const float* const value = made + q_rows + (i64(s.kv_heads) + kv) * width;
      for (i64 i = 0; i < pitch; ++i) head[i] = i < width ? value[i] : 0;
      narrow_row(head, values + place * pitch, pitch);
    }
    const float rate = float(number(p.scaling) * 1.4426950408889634);
    for (i64 g = 0; g < group; ++g) {
      const i64 q = kv * group + g;
      turned(made + q * width, p.q_norm, p, place, head);
      alignas(64) float scores[kPiece];
      float most = -infinity<float>();
      for (i64 i = from; i < to; ++i) {
        Lanes sum{};
        for (i64 k = 0; k < pitch; k += kLanes)
          sum += load_vector(head + k) * wide(keys + i * pitch + k);
        const float score = total(sum) * rate;
        scores[i - from] = score;
        most = score > most ? score : most;
      }
      const i64 n = to - from;
      for (i64 i = n; i < (n + 15) / 16 * 16; ++i) scores[i] = -infinity<float>();
      for (i64 i = 0; i < n; i += kLanes)
        store_vector(scores + i, exp2_lanes(load_vector(scores + i) - most));
      float* const out = part(b, q, piece);
      for (i64 k = 0; k < pitch; k += kLanes) {
        Lanes sum{};
        for (i64 i = from; i < to; ++i) sum += scores[i - from] * wide(values + i * pitch + k);
        store_vector(out + k, sum);
      }
      out[pitch] = most;
      out[pitch + 1] = sum_of(scores, n);
    }
  }

  void attend(const Phase& p) const {
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
  __attribute__((noinline)) void join(const Phase& p, const Phase& attention) const {
    const i64 width = i64(s.head_dim), pitch = i64(s.head_pitch);
    for (i64 b = 0; b < kBatch; ++b) {
      float* const to = own + b * i64(s.own_pitch);
      for (i64 i = 0; i < i64(s.own_pitch); ++i) to[i] = 0;
      if (ended(b)) continue;
      const Pieces pieces(s, attention, position(b));
      for (i64 head = 0; head < i64(s.heads); ++head) {
        float most = -infinity<float>(), sum = 0;
        for (i64 i = pieces.first; i <= pieces.last; ++i) {
          const float here = part(b, head, i)[pitch];
          most = here > most ? here : most;
        }
        float* const out = to + head * width;
        for (i64 i = pieces.first; i <= pieces.last; ++i) {
          const float* const one = part(b, head, i);
          const float weight = exp((one[pitch] - most) * 0.69314718f);  // they are powers of 2
          sum += weight * one[pitch + 1];
          for (i64 k = 0; k < width; ++k) out[k] += weight * one[k];
        }
        for (i64 k = 0; k < width; ++k) out[k] /= sum;
      }
    }
  }

  void project(const Phase& p, const Phase& attention) const {
    join(p, attention);
    product(p, own, i64(s.own_pitch), [&](i64 row, int b, float v) { x(b)[row] += v; });
  }

  // Gate and up go together, so that a thread has both values of a row: a few rows of one, then the
  // same rows of the other.
  void gate_up(const Phase& p) const {
    norm(p);
    const i64 first = begin(i64(p.rows0)), last = end(i64(p.rows0)), pitch = i64(s.own_pitch);
    constexpr i64 kTurn = 32;
    for (i64 row = first; row < last; row += kTurn) {
      const i64 stop = row + kTurn < last ? row + kTurn : last;
      product_rows<W, kBatch>({p.weight0, p.bias0, p.scale0}, row, stop, i64(p.cols), own, pitch,
                              [&](i64 r, int b, float v) { inner(b)[r] = v; });
      for (i64 b = 0; b < kBatch; ++b)
        for (i64 r = row; r < stop; ++r) inner(b)[r] = Act::value(inner(b)[r]);
      if constexpr (kGated)
        product_rows<W, kBatch>({p.weight1, p.bias1, p.scale1}, row, stop, i64(p.cols), own, pitch,
                                [&](i64 r, int b, float v) { inner(b)[r] *= v; });
    }
  }

  void down(const Phase& p) const {
    product(p, inner(0), i64(s.inner_pitch), [&](i64 row, int b, float v) { x(b)[row] += v; });
  }

  void head(const Phase& p) const {
    norm(p);
    product(p, own, i64(s.own_pitch), [&](i64 row, int b, float v) { logits(b)[row] = v; });
  }

  // Whole rows, one thread each. What the host says meanwhile is passed on by the last thread
  // alone, so that all threads stop after the same token.
  void sample(i64 token, bool stepped) const {
    if (thread == threads - 1)
      at<Barrier>(s.barrier)->halted =
          __atomic_load_n(at<const i64>(s.halt), __ATOMIC_RELAXED) != 0;
    const Sampling how{number(s.temperature), number(s.top_p), number(s.penalty), i64(s.top_k),
                       s.seed};
    const i64 n = i64(s.vocab);
    for (i64 b = thread; b < kBatch; b += threads) {
      i64 next = i64(s.pad);
      if (!ended(b)) {
        u8* const seen = at<u8>(s.seen) + b * n;
        next = decode::sample(how, logits(b), seen, at<float>(s.scores) + b * n,
                              at<float>(s.chances) + b * n, n, b, s.drawn + u64(token));
        seen[next] = 1;
        if (stepped) at<i64>(s.positions)[b] += 1;
        for (u64 i = 0; i < s.stop_count; ++i)
          if (at<const i64>(s.stop)[i] == next) at<i64>(s.finished)[b] = 1;
      }
      at<i64>(s.tokens)[b] = next;
      __atomic_store_n(at<i64>(s.out) + b * i64(s.out_pitch) + token, next, __ATOMIC_RELEASE);
    }
  }

  bool all_ended() const {
    for (i64 b = 0; b < kBatch; ++b)
      if (!ended(b)) return false;
    return true;
  }

  void run_phase(const Phase& p, i64 token, bool stepped) const {
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

  // The kernel: tokens, phases, waits.
  void run() const {
    Barrier& barrier = *at<Barrier>(s.barrier);
    const Phase* const phases = at<const Phase>(s.phases);
    u64 before = now();
    for (i64 token = 0; token < i64(s.steps); ++token) {
      const u64 first = token ? 0 : s.first_phase;
      for (u64 i = first; i < s.phase_count; ++i) {
        run_phase(phases[i], token, first == 0);
        if (!all_here(barrier, u32(s.parties), s.watchdog)) return;
        if (thread == 0) {
          const u64 after = now();
          at<i64>(s.clocks)[i] += i64(after - before);
          before = after;
        }
      }
      if (thread == 0) at<Pool>(s.pool)->tell();
      if (all_ended() || barrier.halted) return;
    }
  }
};

// ---- a launch

template <class Kernel>
struct Region {
  static void work(const Step& step, i64 index) { Kernel(step, index).run(); }

  // With `wait`, returns when all is done; without, `outcome` tells later.
  static u64 launch(const Step& step, bool wait) {
    if (!step.pool) return kNoThreads;  // Python is about to end
    __builtin_memset(at<Barrier>(step.barrier), 0, sizeof(Barrier));
    Pool& pool = *at<Pool>(step.pool);
    if (const u64 trouble = wait ? pool.run(step, work) : pool.begin(step, work)) return trouble;
    return wait ? outcome(step) : u64(kDone);
  }

  static u64 outcome(const Step& step) {
    return at<Barrier>(step.barrier)->failed ? kLostWait : kDone;
  }

  // Until a token of every row is in that column of `out` (-1: none is waited for), or the launch
  // has ended, or so many nanoseconds have passed. Returns whether the launch is still running.
  static bool wait(const Step& step, i64 column, u64 nanoseconds) {
    return step.pool && at<Pool>(step.pool)->wait(nanoseconds, [&] {
      if (column < 0) return false;
      const i64* const out = at<const i64>(step.out) + column;
      for (i64 b = 0; b < Kernel::kRows; ++b)
        if (__atomic_load_n(out + b * i64(step.out_pitch), __ATOMIC_ACQUIRE) == kNotYet)
          return false;
      return true;
    });
  }
};

}  // namespace mf::decode
