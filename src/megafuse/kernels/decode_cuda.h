// The decode megakernel on a GPU: one cooperative launch of a block a multiprocessor, in which
// every block walks the same list of phases (decode.h) and does its share of each. `run` at the end
// is the whole kernel. The arithmetic is decode_cpu.h's: float32 throughout, the cache in the
// model's dtype.
//
// What a step must take is the time to read the weights once; what it takes beyond that is waiting:
// between two phases all blocks wait for all, about 1 us, and a phase begins by loading what the
// others made. Weights wait for nothing, so memory works on meanwhile: every warp has two slots of
// shared memory, which its weights stream through. As soon as it has used one, it sends for what it
// will need next (`send_next`), of this product or of the ones after it, however many phases away.
// What a block must know for that is worked out while it waits (`Plan`).
//
// Of an H200's time more goes into instructions than into waiting for weights: 16 warps have about
// 350 of them for 4 KB each. So the code of a phase is kept short, and is the same for all
// products. It is inlined into `run` but for the sampler: a step's words are then read from the
// constant bank, not through a pointer.
//
// A wait is bounded: a clock in the loop turns a lost one into an error for all blocks.
#pragma once

#include "activations.h"
#include "decode.h"
#include "decode_memory_cuda.h"
#include "decode_sample_cuda.h"
#include "math.h"

namespace mf::decode {

template <class W, class T, class Act, bool kRms, bool kGated, int kBatch, int kThreads>
struct DecodeCuda {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kVector = 16 / int(sizeof(W));
  static constexpr int kNear = 8;   // phases that are at hand: the last one, this one, the next six
  static constexpr int kPlans = 4;  // products that are planned: this one and the next three
  static constexpr int kSlots = 2;  // of a warp: one is used while the other is filled
  static constexpr int kSlot = 4096;  // bytes

  // A product, for this block.
  struct Plan {
    // Of three matrices: the addresses as if each began with row 0 of this block's share.
    u64 weight[3], scale[3], bias[3];
    int until[2];  // the rows of the share at which the second and the third matrix begin
    int first, share, cols;
    int row, slots;  // bytes of a row of weights, and how many slots that is; 0: not by slots
    int both;        // gate and up, of which a row is one row of what is shared out
    __device__ __forceinline__ int matrix(int number, int beside) const {
      return (both ? beside : 0) + (number >= until[0]) + (number >= until[1]);
    }
  };

  // What all threads of a block have in common, in shared memory.
  struct Shared {
    Phase near[kNear];
    Plan plans[kPlans];
    u32 planned;  // products that have a plan, in all
    u64 arrival[kWarps][kSlots];
    u64 most[kBatch];
    i64 token[kBatch];  // of each row: what it reads, where that goes, whether it has ended
    int place[kBatch];
    int over[kBatch];
    float sums[kWarps];
    u32 lost;
  };

  const Step& s;
  Shared& here;
  char* const stage;   // the warps' slots
  float* const input;  // of a product, if it fits; in attention the queries and scores
  const u32 block, blocks;
  const int lane, warp;
  u32 now = 0;   // phases that are done
  u32 done = 0;  // products that are
  // Of this warp's stream, whose slots are taken in turn.
  int filling = 0, taking = 0, sent = 0;  // what is filled next, used next, how many are between
  u32 parity = 0;                         // of the slot that is used next
  struct {
    u32 product = 0;
    int one = -1, slot = 0, beside = 0;  // the row of the share and what of it; -1: from the first
  } next;                                // what is sent next
  // Of the warp that plans.
  u32 looked = 0;  // phases that it has looked at, in all
  u32 looked_phase = 0;
  i64 looked_token = 0;  // of the one that is next

  __device__ __forceinline__ DecodeCuda(const Step& step, Shared& shared, void* dynamic)
      : s(step),
        here(shared),
        stage(static_cast<char*>(dynamic)),
        input(reinterpret_cast<float*>(static_cast<char*>(dynamic) + step.stage_bytes)),
        block(blockIdx.x),
        blocks(u32(step.threads)),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32) {}

  // This block's part of n things.
  __device__ __forceinline__ int begin(u64 n) const { return int(u32(n) * block / blocks); }
  __device__ __forceinline__ int end(u64 n) const { return int(u32(n) * (block + 1) / blocks); }

  // The phase that comes so many after this one.
  __device__ __forceinline__ const Phase& near(int ahead) const {
    return here.near[(now + u32(ahead)) % kNear];
  }

  __device__ __forceinline__ float* x(int b) const { return at<float>(s.x) + b * i64(s.x_pitch); }
  __device__ __forceinline__ float* qkv(int b) const {
    return at<float>(s.qkv) + b * i64(s.qkv_pitch);
  }
  __device__ __forceinline__ float* part(int b, int head, i64 piece) const {
    return at<float>(s.parts) +
           ((b * i64(s.heads) + head) * i64(s.max_chunks) + piece) * i64(s.part_pitch);
  }
  // Where this block puts the input of a product: shared memory, or else memory of its own.
  __device__ __forceinline__ float* own() const {
    const bool fits = s.own_pitch * kBatch <= s.input_floats;
    return fits ? input : at<float>(s.own) + block * i64(s.own_floats);
  }

  // The same for every thread of the block, added up in the same order every time.
  __device__ __forceinline__ float block_sum(float value) const {
    value = warp_sum(value);
    __syncthreads();  // the last sum has been read
    if (lane == 0) here.sums[warp] = value;
    __syncthreads();
    return warp_sum(lane < kWarps ? here.sums[lane] : 0.0f);
  }

  // use(i, the four floats from 4 i on) for all of a row, by all threads: a thread's loads wait
  // together.
  template <class Use>
  __device__ __forceinline__ static void each_four(const float* from, u64 floats, Use use) {
    constexpr int kRound = 2;
    const int count = int(floats) / 4;
#pragma unroll 1
    for (int i = int(threadIdx.x); i < count; i += kRound * kThreads) {
      Four held[kRound] = {};
#pragma unroll
      for (int r = 0; r < kRound; ++r)
        if (i + r * kThreads < count) held[r] = four_at(from + 4 * (i + r * kThreads));
#pragma unroll
      for (int r = 0; r < kRound; ++r)
        if (i + r * kThreads < count) use(i + r * kThreads, held[r]);
    }
  }

  // ---- weights

  __device__ __forceinline__ static bool is_product(const Phase& p) {
    return p.kind != kEmbed && p.kind != kAttend && p.kind != kSample;
  }

  // Works out the plan of a product, by a warp; lane m is for matrix m.
  __device__ __forceinline__ void make_plan(const Phase& p, Plan& plan) const {
    const int first = begin(p.rows), share = end(p.rows) - first, cols = int(p.cols);
    const int row = cols * int(sizeof(W));
    const bool both = kGated && p.kind == kGateUp;
    const bool vectors = row % 16 == 0 && (p.weight0 | p.weight1 | p.weight2) % 16 == 0;
    const int second = int(p.rows0), third = second + int(p.rows1);  // where these matrices begin
    const u64 weight = lane == 0 ? p.weight0 : lane == 1 ? p.weight1 : p.weight2;
    const u64 scale = lane == 0 ? p.scale0 : lane == 1 ? p.scale1 : p.scale2;
    const u64 bias = lane == 0 ? p.bias0 : lane == 1 ? p.bias1 : p.bias2;
    const i64 shift = first - (lane == 0 || both ? 0 : lane == 1 ? second : third);
    if (lane < 3) {
      plan.weight[lane] = weight + u64(shift * row);
      plan.scale[lane] = scale ? scale + u64(4 * shift) : 0;
      plan.bias[lane] = bias ? bias + u64(4 * shift) : 0;
    }
    if (lane) return;
    plan.until[0] = both ? share : second - first, plan.until[1] = both ? share : third - first;
    plan.first = first, plan.share = share, plan.cols = cols;
    plan.row = row, plan.slots = vectors ? (row + kSlot - 1) / kSlot : 0;
    plan.both = both;
  }

  __device__ __forceinline__ char* slot_at(int slot) const {
    return stage + (warp * kSlots + slot) * kSlot;
  }

  // Sends for what this warp needs next, if there is a slot for it and a plan that tells what it
  // is. The order is that in which `product` uses it: row by row, of gate and up by turns.
  __device__ __forceinline__ void send_next() {
    if (sent == kSlots) return;
    const Plan* plan;
    for (;; ++next.product, next.one = -1) {
      if (next.product >= here.planned) return;
      plan = &here.plans[next.product % kPlans];
      if (next.one < 0) next.one = warp, next.slot = next.beside = 0;
      if (plan->slots && next.one < plan->share) break;
    }
    const u64 from = plan->weight[plan->matrix(next.one, next.beside)] +
                     u64(i64(next.one) * plan->row + next.slot * kSlot);
    const int left = plan->row - next.slot * kSlot;
    send(slot_at(filling), at<const char>(from), u32(left < kSlot ? left : kSlot),
         &here.arrival[warp][filling]);
    filling = filling + 1 == kSlots ? 0 : filling + 1;
    ++sent;
    if (++next.slot < plan->slots) return;
    next.slot = 0;
    if (plan->both && next.beside == 0) {
      next.beside = 1;
      return;
    }
    next.beside = 0;
    next.one += kWarps;
    if (next.one >= plan->share) ++next.product, next.one = -1;
  }

  // Where the slot is that is used next, once it is full, as an address in shared memory.
  __device__ __forceinline__ u64 take() {
    while (!arrived(&here.arrival[warp][taking], parity)) {
    }
    const u64 place = __cvta_generic_to_shared(slot_at(taking));
    taking = taking + 1 == kSlots ? 0 : taking + 1;
    parity ^= u32(taking == 0);
    --sent;
    return place;
  }

  // Adds a slot, `count` weights of a row, by the inputs from `from` on to the lane's sums.
  template <bool kInShared>
  __device__ __forceinline__ void add(u64 slot, int count, const float* in, int from, int pitch,
                                      float (&sum)[kBatch]) const {
    constexpr int kVectors = kSlot / 16 / 32, kStride = 32 * kVector;
    const Turn<W> turn(lane);
    const u64 in_shared = kInShared ? u64(__cvta_generic_to_shared(in)) : 0;
    const int mine = lane * kVector;
    uint4 raw[kVectors];
#pragma unroll
    for (int a = 0; a < kVectors; ++a) {
      raw[a] = uint4{0, 0, 0, 0};
      if (mine + a * kStride < count) raw[a] = sixteen_in_shared(slot + u64(16 * (lane + 32 * a)));
    }
#pragma unroll
    for (int a = 0; a < kVectors; ++a) {
      if (mine + a * kStride >= count) break;
      const Sixteen<W> weights(turn(raw[a]));
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int i = 0; i < Turn<W>::kFours; ++i) {
          const int place = b * pitch + from + mine + a * kStride + 4 * (i ^ turn.by);
          const Four four =
              kInShared ? four_in_shared(in_shared + u64(4 * place)) : four_at(in + place);
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[b] = fma(weights.value[4 * i + j], four.value[j], sum[b]);
        }
    }
  }

  // Row `number` of this block's share, or of `up` beside it, by the inputs: lane b gets the sum of
  // row b of the batch.
  template <bool kInShared>
  __device__ __forceinline__ float row_sum(const Plan& plan, int number, int beside,
                                           const float* in, int pitch) {
    float sum[kBatch] = {};
#pragma unroll 1
    for (int k = 0; k < plan.slots; ++k) {
      const int from = k * (kSlot / int(sizeof(W)));
      add<kInShared>(take(), plan.cols - from, in, from, pitch, sum);
      __syncwarp();  // all lanes have read it
      send_next();
    }
    if (plan.slots == 0) {
      const W* const row =
          at<const W>(plan.weight[plan.matrix(number, beside)]) + number * i64(plan.cols);
#pragma unroll 1
      for (int k = lane; k < plan.cols; k += 32)
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          sum[b] = fma(cast<float>(row[k]), in[b * pitch + k], sum[b]);
    }
    float mine = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const float all = warp_sum(sum[b]);
      mine = lane == b ? all : mine;
    }
    return mine;
  }

  // This block's rows of the phase's matrices by the input, a warp each. Lane b has row b of the
  // batch, and adds what x has there in a phase of the residual stream. Returns the likeliest of a
  // head's, in lane b of each warp.
  template <bool kInShared>
  __device__ __forceinline__ u64 product(u64 kind, const float* in, int pitch, float* out,
                                         int out_pitch) {
    const Plan& plan = here.plans[done % kPlans];
    const bool residual = kind == kProject || kind == kDown;
    float* const to = out + (lane < kBatch ? lane : 0) * out_pitch + plan.first;
    u64 best = 0;
#pragma unroll 1
    for (int row = warp; row < plan.share; row += kWarps) {
      const float before = residual ? to[row] : 0.0f;  // asked for before the sum is made
      float value = 0;
#pragma unroll 1
      for (int beside = 0; beside <= plan.both; ++beside) {
        const int m = plan.matrix(row, beside);
        const float scale = plan.scale[m] ? at<const float>(plan.scale[m])[row] : 1.0f;
        const float bias = plan.bias[m] ? at<const float>(plan.bias[m])[row] : 0.0f;
        const float sum = row_sum<kInShared>(plan, row, beside, in, pitch) * scale + bias;
        value = beside ? value * sum : kind == kGateUp ? Act::value(sum) : sum;
      }
      if (lane >= kBatch) continue;
      to[row] = value + before;
      if (kind != kHead) continue;
      const u64 key = key_of(value, plan.first + row);
      best = key > best ? key : best;
    }
    ++done;
    return best;
  }

  // The input of a product is complete.
  __device__ __forceinline__ void ready() {
#pragma unroll 1
    while (sent < kSlots && next.product < here.planned) send_next();
    __syncthreads();
  }

  // ---- the phases

  // Where the rows are: once a token, for all phases.
  __device__ __forceinline__ void look_at_rows() const {
    __syncthreads();
    if (threadIdx.x < kBatch) {
      const u32 b = threadIdx.x;
      here.token[b] = at<const i64>(s.tokens)[b];
      here.place[b] = int(at<const i64>(s.positions)[b]);
      here.over[b] = at<const i64>(s.finished)[b] != 0;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void embed() const {
    const i64 n = i64(s.hidden);
    const T* const place = at<const T>(s.positions_table);
    for (int b = 0; b < kBatch; ++b) {
      const T* const row = at<const T>(s.embedding) + here.token[b] * n;
      for (int i = begin(s.hidden) + int(threadIdx.x); i < end(s.hidden); i += kThreads) {
        float value = 0;  // of a row that has ended: there may be no embedding of padding
        if (!here.over[b]) value = cast<float>(row[i]);
        if (place && !here.over[b]) value += cast<float>(place[here.place[b] * n + i]);
        x(b)[i] = value;
      }
    }
  }

  // own = norm(x), by every block for itself. Weights are asked for together with x.
  __device__ __forceinline__ float* norm(const Phase& p) {
    const u64 n = s.hidden;
    const float *const weight = at<const float>(p.norm), *const bias = at<const float>(p.norm_bias);
    const float eps = float(number(p.eps));
#pragma unroll 1
    for (int b = 0; b < kBatch; ++b) {
      float* const to = own() + b * i64(s.own_pitch);
      float sum = 0;
      each_four(x(b), s.x_pitch, [&](int i, Four four) {
        const Four weights = kRms ? four_at(weight + 4 * i) : Four{1, 1, 1, 1};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum += kRms ? four.value[j] * four.value[j] : four.value[j];
          four.value[j] *= weights.value[j];
        }
        *reinterpret_cast<Four*>(to + 4 * i) = four;
      });
      sum = block_sum(sum) / float(n);
      if constexpr (kRms) {
        const float inverse = 1.0f / sqrtf(sum + eps);
        for (int i = int(threadIdx.x); i < int(n); i += kThreads) to[i] *= inverse;
      } else {
        float squares = 0;
        for (int i = int(threadIdx.x); i < int(n); i += kThreads)
          squares += (to[i] - sum) * (to[i] - sum);
        const float inverse = 1.0f / sqrtf(block_sum(squares) / float(n) + eps);
        for (int i = int(threadIdx.x); i < int(n); i += kThreads) {
          const float value = (to[i] - sum) * inverse * weight[i];
          to[i] = bias ? value + bias[i] : value;
        }
      }
    }
    ready();
    return own();
  }

  // A head of q or k, by a warp into shared memory: its norm, if it has one, and its turn by RoPE.
  __device__ __forceinline__ void turned(const float* from, u64 weights, const Phase& p, int place,
                                         float* to) const {
    constexpr int kMost = 256 / 32;
    const int n = int(s.head_dim), half_turn = p.rope ? int(s.rotary) / 2 : 0;
    const float* const weight = at<const float>(weights);
    const float* const cosines = at<const float>(s.cosines) + place * i64(s.rotary / 2);
    const float* const sines = at<const float>(s.sines) + place * i64(s.rotary / 2);
    float held[kMost], cosine[kMost / 2] = {}, sine[kMost / 2] = {}, squares = 0;
#pragma unroll
    for (int k = 0; k < kMost; ++k) held[k] = lane + 32 * k < n ? from[lane + 32 * k] : 0.0f;
#pragma unroll
    for (int k = 0; k < kMost / 2; ++k)
      if (lane + 32 * k < half_turn)
        cosine[k] = cosines[lane + 32 * k], sine[k] = sines[lane + 32 * k];
    if (weight) {
#pragma unroll
      for (int k = 0; k < kMost; ++k) squares += held[k] * held[k];
      const float inverse = 1.0f / sqrtf(warp_sum(squares) / float(n) + float(number(p.eps)));
#pragma unroll
      for (int k = 0; k < kMost; ++k)
        if (lane + 32 * k < n) held[k] *= inverse * weight[lane + 32 * k];
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k)
      if (lane + 32 * k < int(s.head_pitch)) to[lane + 32 * k] = held[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kMost / 2; ++k) {
      const int i = lane + 32 * k;
      if (i >= half_turn) continue;
      const float low = to[i], high = to[i + half_turn];
      to[i] = low * cosine[k] - high * sine[k];
      to[i + half_turn] = high * cosine[k] + low * sine[k];
    }
    __syncwarp();
  }

  // Attention's lanes: so many of a warp have one position of the cache together, 16 bytes each.
  struct Lanes {
    static constexpr int kHeld = sizeof(T) == 4 ? 2 : 1;  // vectors of a lane, of the widest heads
    static constexpr int kCached = 16 / int(sizeof(T));
    int vectors, each, mine, which, stride, first;
    __device__ __forceinline__ Lanes(int pitch, int lane, int warp) : vectors(pitch / kCached) {
      each = vectors <= 4 ? 4 : vectors <= 8 ? 8 : vectors <= 16 ? 16 : 32;
      mine = lane % each, which = lane / each;
      stride = kWarps * (32 / each);  // positions of a block at once
      first = warp * (32 / each);     // of this warp
    }
  };
  // Two rounds of positions, a lane's part of each: their loads wait together.
  static constexpr int kRounds = 2;
  struct Cached {
    uint4 raw[kRounds][Lanes::kHeld];
    __device__ __forceinline__ Cached(const T* cache, int pitch, const Lanes& l, int from, int to) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int i = from + r * l.stride + l.first + l.which;
#pragma unroll
        for (int h = 0; h < Lanes::kHeld; ++h) {
          const int v = l.mine + 32 * h;
          raw[r][h] = uint4{0, 0, 0, 0};
          if (i < to && v < l.vectors)
            raw[r][h] = sixteen_at(cache + i * i64(pitch) + v * Lanes::kCached);
        }
      }
    }
  };

  // One row's heads that share a key head, over one piece of its cache, by a block. The new
  // position's key and value come from shared memory, rounded as the cache has them; all others
  // were there before this step, and are asked for before anything is computed.
  __device__ __forceinline__ void attend_piece(const Phase& p, int b, int kv, i64 piece) const {
    constexpr int kHeld = Lanes::kHeld, kCached = Lanes::kCached, kHeads = 4;
    const int pitch = int(s.head_pitch), place = here.place[b], chunk = int(s.chunk);
    const int group = int(u32(s.heads) / u32(s.kv_heads)), width = int(s.head_dim);
    const int low = int(Pieces(s, p, place).low), begins = int(piece) * chunk;
    const int from = begins > low ? begins : low;
    const int to = begins + chunk < place + 1 ? begins + chunk : place + 1;
    const int old = to < place ? to : place;  // up to here it was there before
    const i64 cache = (b * i64(s.kv_heads) + kv) * i64(s.max_length) * pitch;
    T *const keys = at<T>(p.keys) + cache, *const values = at<T>(p.values) + cache;
    const Lanes l(pitch, lane, warp);
    const Cached first_keys(keys, pitch, l, from, old), first_values(values, pitch, l, from, old);
    const float* const made = qkv(b);
    const int q_rows = int(s.heads) * width;
    float *const queries = input, *const new_key = queries + group * pitch;
    float *const new_value = new_key + pitch, *const scores = new_value + pitch;
    float* const sums = scores + group * chunk;  // of kWarps warps
    const bool newest = to == place + 1;  // the new position is in this piece: nobody else reads it
#pragma unroll 1
    for (int g = warp; g < group + int(newest); g += kWarps) {  // the last one is the key
      const int row = g < group ? (kv * group + g) * width : q_rows + kv * width;
      turned(made + row, g < group ? p.q_norm : p.k_norm, p, place, queries + g * pitch);
      if (g < group) continue;
      for (int i = lane; i < pitch; i += 32) {
        const T rounded = cast<T>(new_key[i]);
        keys[place * i64(pitch) + i] = rounded;
        new_key[i] = cast<float>(rounded);
      }
    }
    if (newest && warp == kWarps - 1) {
      const float* const value = made + q_rows + (int(s.kv_heads) + kv) * width;
      for (int i = lane; i < pitch; i += 32) {
        const T rounded = cast<T>(i < width ? value[i] : 0.0f);
        values[place * i64(pitch) + i] = rounded;
        new_value[i] = cast<float>(rounded);
      }
    }
    __syncthreads();
    const float rate = float(number(p.scaling) * 1.4426950408889634);
    const int rounds = kRounds * l.stride;
#pragma unroll 1
    for (int base = from; base < to; base += rounds) {
      const Cached held = base == from ? first_keys : Cached(keys, pitch, l, base, old);
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        if (base + r * l.stride + l.first >= to) break;  // the whole warp
        const int i = base + r * l.stride + l.first + l.which;
        float key[kHeld][kCached];
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const Sixteen<T> sixteen(held.raw[r][h]);
          const int v = l.mine + 32 * h;
#pragma unroll
          for (int j = 0; j < kCached; ++j)
            key[h][j] = i == place && v < l.vectors ? new_key[v * kCached + j] : sixteen.value[j];
        }
#pragma unroll 1
        for (int g = 0; g < group; ++g) {
          float sum = 0;
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            const int v = l.mine + 32 * h;
            if (v >= l.vectors) continue;
#pragma unroll
            for (int j = 0; j < kCached; j += 4) {
              const Four query = four_at(queries + g * pitch + v * kCached + j);
#pragma unroll
              for (int q = 0; q < 4; ++q) sum = fma(key[h][j + q], query.value[q], sum);
            }
          }
          for (int bit = l.each / 2; bit > 0; bit /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, bit);
          if (l.mine == 0 && i < to) scores[g * chunk + i - from] = sum * rate;
        }
      }
    }
    __syncthreads();
    for (int g = warp; g < group; g += kWarps) {
      float* const mine = scores + g * chunk;
      float most = -infinity<float>(), sum = 0;
      for (int i = lane; i < to - from; i += 32) most = mine[i] > most ? mine[i] : most;
      most = warp_max(most);
      for (int i = lane; i < to - from; i += 32) sum += mine[i] = exp2f(mine[i] - most);
      sum = warp_sum(sum);
      if (lane == 0) {
        float* const out = part(b, kv * group + g, piece);
        out[pitch] = most;
        out[pitch + 1] = sum;
      }
    }
    __syncthreads();
    const int heads = pitch > 128 ? 2 : kHeads;  // at once: as many as `sums` has room for
#pragma unroll 1
    for (int g0 = 0; g0 < group; g0 += heads) {
      float sum[kHeads][kHeld][kCached] = {};
#pragma unroll 1
      for (int base = from; base < to; base += rounds) {
        const Cached held = base == from ? first_values : Cached(values, pitch, l, base, old);
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int i = base + r * l.stride + l.first + l.which;
          if (i >= to) break;
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            const Sixteen<T> sixteen(held.raw[r][h]);
            const int v = l.mine + 32 * h;
            float value[kCached];
#pragma unroll
            for (int j = 0; j < kCached; ++j)
              value[j] =
                  i == place && v < l.vectors ? new_value[v * kCached + j] : sixteen.value[j];
#pragma unroll
            for (int g = 0; g < kHeads; ++g) {
              if (g >= heads || g0 + g >= group) continue;
              const float weight = scores[(g0 + g) * chunk + i - from];
#pragma unroll
              for (int j = 0; j < kCached; ++j) sum[g][h][j] = fma(weight, value[j], sum[g][h][j]);
            }
          }
        }
      }
#pragma unroll 1
      for (int bit = l.each; bit < 32; bit *= 2)
#pragma unroll
        for (int g = 0; g < kHeads; ++g)
#pragma unroll
          for (int h = 0; h < kHeld; ++h)
#pragma unroll
            for (int j = 0; j < kCached; ++j)
              sum[g][h][j] += __shfl_xor_sync(0xffffffffu, sum[g][h][j], bit);
#pragma unroll
      for (int g = 0; g < kHeads; ++g)
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const int v = l.mine + 32 * h;
          if (l.which != 0 || v >= l.vectors || g >= heads) continue;
#pragma unroll
          for (int j = 0; j < kCached; j += 4)
            *reinterpret_cast<Four*>(sums + (warp * heads + g) * pitch + v * kCached + j) =
                Four{sum[g][h][j], sum[g][h][j + 1], sum[g][h][j + 2], sum[g][h][j + 3]};
        }
      __syncthreads();
      for (int each = int(threadIdx.x); each < heads * pitch; each += kThreads) {
        const int g = each / pitch;
        float all = 0;
#pragma unroll 4
        for (int w = 0; w < kWarps; ++w) all += sums[w * heads * pitch + each];
        if (g0 + g < group) part(b, kv * group + g0 + g, piece)[each - g * pitch] = all;
      }
      __syncthreads();  // the next heads' sums, or the next piece's scores, go there
    }
  }

  __device__ __forceinline__ void attend(const Phase& p) const {
    int each[kBatch], all = 0;
    for (int b = 0; b < kBatch; ++b) {
      const Pieces pieces(s, p, here.place[b]);
      each[b] = here.over[b] ? 0 : int(pieces.count()) * int(s.kv_heads);
      all += each[b];
    }
    int b = 0, before = 0;
#pragma unroll 1
    for (int task = begin(u64(all)); task < end(u64(all)); ++task) {
      while (task - before >= each[b]) before += each[b++];
      const Pieces pieces(s, p, here.place[b]);
      const u32 inside = u32(task - before), count = u32(pieces.count());
      attend_piece(p, b, int(inside / count), pieces.first + inside % count);
    }
  }

  // own = the heads' attention, from their pieces: four numbers a thread, four pieces at once.
  __device__ __forceinline__ float* join(const Phase& attention) {
    constexpr int kPieces = 4;
    const int width = int(s.head_dim), pitch = int(s.head_pitch), fours = pitch / 4;
#pragma unroll 1
    for (int b = 0; b < kBatch; ++b) {
      float* const to = own() + b * i64(s.own_pitch);
      const Pieces pieces(s, attention, here.place[b]);
#pragma unroll 1
      for (int each = int(threadIdx.x); each < int(s.heads) * fours; each += kThreads) {
        const int head = each / fours, k = 4 * (each - head * fours);
        float most = -infinity<float>(), sum = 0;
        Four value = {};
        const i64 last = here.over[b] ? -1 : pieces.last;
#pragma unroll 1
        for (i64 piece = pieces.first; piece <= last; piece += kPieces) {
          float mosts[kPieces], parts[kPieces] = {};
          Four fours_[kPieces] = {};
#pragma unroll
          for (int i = 0; i < kPieces; ++i) {
            mosts[i] = -infinity<float>();
            if (piece + i > last) continue;
            const float* const one = part(b, head, piece + i);
            mosts[i] = one[pitch], parts[i] = one[pitch + 1], fours_[i] = four_at(one + k);
          }
          float larger = most;
#pragma unroll
          for (int i = 0; i < kPieces; ++i) larger = mosts[i] > larger ? mosts[i] : larger;
          const float shrink = exp2f(most - larger);
          most = larger, sum *= shrink;
          for (int j = 0; j < 4; ++j) value.value[j] *= shrink;
#pragma unroll
          for (int i = 0; i < kPieces; ++i) {
            if (piece + i > last) continue;
            const float weight = exp2f(mosts[i] - most);
            sum = fma(weight, parts[i], sum);
            for (int j = 0; j < 4; ++j)
              value.value[j] = fma(weight, fours_[i].value[j], value.value[j]);
          }
        }
        for (int j = 0; j < 4; ++j)
          if (k + j < width) to[head * width + k + j] = here.over[b] ? 0.0f : value.value[j] / sum;
      }
    }
    ready();
    return own();
  }

  // The input of a product: norm(x), the heads' attention, or what is between the FFN's products.
  __device__ __forceinline__ const float* input_of(const Phase& p) {
    if (p.kind == kProject) return join(near(-1));
    if (p.kind != kDown) return norm(p);
    const float* in = at<const float>(s.inner_values);
    if (s.inner_pitch * kBatch <= s.input_floats) {
      each_four(in, s.inner_pitch * kBatch,
                [&](int i, Four four) { *reinterpret_cast<Four*>(input + 4 * i) = four; });
      in = input;
    }
    ready();
    return in;
  }

  // Any product. The last block asks the host during the head's, the longest, whether to go on, and
  // passes on what it says, so that all blocks stop after the same token.
  __device__ __forceinline__ void project(const Phase& p) {
    const float* const in = input_of(p);
    const int pitch = int(p.kind == kDown ? s.inner_pitch : s.own_pitch);
    float* out = x(0);
    int out_pitch = int(s.x_pitch);
    if (p.kind == kQkv) out = qkv(0), out_pitch = int(s.qkv_pitch);
    if (p.kind == kGateUp) out = at<float>(s.inner_values), out_pitch = int(s.inner_pitch);
    if (p.kind == kHead) out = at<float>(s.logits), out_pitch = int(s.vocab);
    if (p.kind == kHead && block == blocks - 1 && threadIdx.x == 0)
      *halted() = load_from_host(s.halt) != 0;
    const u64 best = in == input ? product<true>(p.kind, in, pitch, out, out_pitch)
                                 : product<false>(p.kind, in, pitch, out, out_pitch);
    if (p.kind == kHead) rank(best);
  }

  // After the head's product: leaves the largest key of this block's logits beside them, so that no
  // block has to read all of them again to find the likeliest.
  __device__ __forceinline__ void rank(u64 best) {
    if (threadIdx.x < kBatch) here.most[threadIdx.x] = 0;
    __syncthreads();
    if (lane < kBatch) atomicMax(&here.most[lane], best);
    __syncthreads();
    if (threadIdx.x < kBatch)
      at<u64>(s.bests)[threadIdx.x * blocks + block] = here.most[threadIdx.x];
  }

  // Of all blocks, after the head's phase; every thread gets it.
  __device__ __forceinline__ i64 likeliest(int b) const {
    constexpr int kRound = 8;
    u64 best = 0;
    for (u32 i = u32(lane); i < blocks; i += 32 * kRound) {
      u64 keys[kRound];
#pragma unroll
      for (int r = 0; r < kRound; ++r)
        keys[r] = i + 32 * r < blocks ? at<const u64>(s.bests)[b * blocks + i + 32 * r] : 0;
#pragma unroll
      for (int r = 0; r < kRound; ++r) best = keys[r] > best ? keys[r] : best;
    }
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) {
      const u64 other = __shfl_xor_sync(0xffffffffu, best, bit);
      best = other > best ? other : best;
    }
    return token_of(best);
  }

  __device__ __forceinline__ u32* halted() const { return at<u32>(s.barrier) + 64; }

  // Whole rows, a block each.
  __device__ __forceinline__ void sample(i64 token, bool stepped) const {
    const bool plain = number(s.temperature) == 0 && number(s.penalty) == 1;
    for (int b = int(block); b < kBatch; b += int(blocks)) {
      i64 next = i64(s.pad);
      const bool over = here.over[b];
      if (!over)
        next = plain && stepped
                   ? likeliest(b)
                   : sampled<kThreads>(s, reinterpret_cast<char*>(input), b, s.drawn + u64(token));
      __syncthreads();
      if (threadIdx.x != 0) continue;
      if (!over) {
        at<u8>(s.seen)[b * i64(s.vocab) + next] = 1;
        if (stepped) at<i64>(s.positions)[b] = here.place[b] + 1;
        for (u64 i = 0; i < s.stop_count; ++i)
          if (at<const i64>(s.stop)[i] == next) at<i64>(s.finished)[b] = 1;
      }
      at<i64>(s.tokens)[b] = next;
      store_to_host(at<i64>(s.out) + b * i64(s.out_pitch) + token, next);
    }
  }

  // ---- waiting

  // All blocks for all; false, for everyone, where somebody did not come in time. `waits` counts.
  __device__ __forceinline__ bool all_here(u32& waits, u32 phase) {
    u32 *const arrived = at<u32>(s.barrier), *const failed = arrived + 32;
    ++waits;
    __syncthreads();
    if (threadIdx.x == 0) {
      count_release(arrived);
      here.lost = 0;
      const u32 wanted = waits * u32(s.parties);
      u64 start = 0;  // of the watch, which is looked at seldom: that takes time too
      for (u32 turn = 1; load_acquire(arrived) < wanted; ++turn) {
        if (turn % 256) continue;
        start = start ? start : nanoseconds();
        if (nanoseconds() - start > s.watchdog) atomicAdd(failed, 1u);
        if (load_acquire(failed)) {
          here.lost = 1;
          break;
        }
      }
    } else if (warp == 1) {
      look_ahead(phase);
    }
    __syncthreads();
    return here.lost == 0;
  }

  __device__ __forceinline__ bool all_over() const {
    for (int b = 0; b < kBatch; ++b)
      if (!here.over[b]) return false;
    return true;
  }

  __device__ __forceinline__ void run_phase(const Phase& p, i64 token, bool stepped) {
    switch (p.kind) {
      case kEmbed:
        return embed();
      case kAttend:
        return attend(p);
      case kSample:
        return sample(token, stepped);
      default:
        return project(p);
    }
  }

  // The words of phase number `phase` on their way, by a warp.
  __device__ __forceinline__ void fetch_phase(u32 ahead, u32 phase) const {
    constexpr u32 kWords = sizeof(Phase) / 8;
    static_assert(kWords <= 32, "a lane has one word");
    if (u32(lane) < kWords)
      fetch_word(reinterpret_cast<u64*>(&here.near[(now + ahead) % kNear]) + lane,
                 at<const u64>(s.phases) + phase * kWords + lane);
  }

  // What can be done for the next phases before this one is done everywhere, by a warp: their words
  // and, of products that will be, their plans.
  __device__ __forceinline__ void look_ahead(u32 phase) {
    fetched();  // words that were asked for after the last phase
    __syncwarp();
    const u32 count = u32(s.phase_count);
    u32 planned = here.planned;
#pragma unroll 1
    while (looked < now + kNear - 1 && planned < done + kPlans && looked_token < i64(s.steps)) {
      const Phase& p = here.near[looked % kNear];
      if (is_product(p)) make_plan(p, here.plans[planned++ % kPlans]);
      ++looked;
      if (++looked_phase == count) looked_phase = 0, ++looked_token;
    }
    __syncwarp();
    if (lane == 0) here.planned = planned;
    fetch_phase(kNear - 1, (phase + kNear - 1) % count);
  }

  // Waits for everything that was sent for.
  __device__ __forceinline__ void drain() {
    while (sent) take();
  }

  // The kernel: tokens, phases, waits.
  __device__ __forceinline__ void run() {
    // What kernel_cuda.py makes room for.
    static_assert(sizeof(Shared) <= 4096 && kSlots * kSlot == 2 * 4096, "_DECLARED, _STREAM");
    static_assert(Sampler<kThreads>::kScratch <= 4 * 4104, "_SAMPLING");
    const u32 count = u32(s.phase_count);
    u32 phase = u32(s.first_phase), waits = 0;
    if (lane < kSlots) open_arrival(&here.arrival[warp][lane]);
    if (threadIdx.x == 0) here.planned = 0;
    __syncthreads();
    if (warp == 1) {
      looked_phase = phase;
      for (u32 ahead = 0; ahead < kNear - 1; ++ahead) fetch_phase(ahead, (phase + ahead) % count);
      look_ahead(phase);
    }
    look_at_rows();
    bool stepped = phase == 0;  // whether this token had all phases
    u64 before = nanoseconds();
#pragma unroll 1
    for (i64 token = 0; token < i64(s.steps);) {
      run_phase(near(0), token, stepped);
      const bool last = phase + 1 == count;
      if (!(last && token + 1 == i64(s.steps)) && !all_here(waits, phase)) return drain();
      if (block == 0 && threadIdx.x == 0) {
        const u64 after = nanoseconds();
        atomicAdd(at<u64>(s.clocks) + phase, after - before);
        before = after;
      }
      ++now;
      ++phase;
      if (!last) continue;
      phase = 0, stepped = true;
      ++token;
      const bool halt = *halted();  // while the rows are looked at
      look_at_rows();
      if (all_over() || halt) break;
    }
    drain();
  }
};

}  // namespace mf::decode
