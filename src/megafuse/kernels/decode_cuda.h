// The decode megakernel on a GPU: one cooperative launch of a block a multiprocessor, in which
// every block walks the same list of phases (decode.h) and does its share of each. `run` at the end
// is the whole kernel. The arithmetic is decode_cpu.h's: float32 throughout, the cache in the
// model's dtype.
//
// What a step must take is the time to read the weights once; what it takes beyond that is waiting.
// Weights wait for nothing, so two warps do nothing but send for them, as far ahead as shared
// memory has room (decode_stream_cuda.h), and memory works on meanwhile. The other warps share a
// tile of 16 rows by its columns, and tensor cores multiply it, so that what has arrived is used
// faster than memory delivers: time that was lost is made up for.
//
// Between phases there is no barrier. What a block makes it leaves as words, each a float with the
// number of its phase, and who needs one looks at it until it has that number: a store and a load,
// about 1 us. A barrier would be three times as long, for its fence, its
// count and then the load. That a word is not overwritten too early follows from the phases: who
// writes x, say, has inputs that were made from all of the last x. Only for the sampler, and for
// what it has chosen, all wait for all; so what a token leaves in the cache is seen by every block
// in the next one.
//
// The rest of a phase is kept short: no gathering of inputs before a product begins, few waits
// within a block, sizes of the model as constants. Of models of 16 bits a word has two neighbours,
// so that inputs can be asked for well before they are needed: they take half as many registers.
// Nothing may be left in local memory: with so much of it shared the first cache is too small, and
// a load takes as long as one from another block. So on Hopper the workers get the registers that
// the senders do not need. All of it is inlined into `run` but for the sampler: a step's words are
// then read from the constant bank, not through a pointer.
//
// A wait is bounded: a clock in the loop turns a lost one into an error for all blocks.
#pragma once

#include "activations.h"
#include "decode.h"
#include "decode_memory_cuda.h"
#include "decode_sample_cuda.h"
#include "decode_stream_cuda.h"
#include "math.h"
#include "same.h"

namespace mf::decode {

// A model's sizes as the step has them; or else the source has a struct of constants in its place,
// which makes the code shorter.
struct ReadSizes {
  u32 hidden, heads, kv_heads, head_dim, head_pitch, rotary, chunk;
  u32 x_pitch, qkv_pitch, part_pitch, attended_pitch, inner_pitch, own_pitch, input_floats;
  __device__ __forceinline__ explicit ReadSizes(const Step& s)
      : hidden(u32(s.hidden)),
        heads(u32(s.heads)),
        kv_heads(u32(s.kv_heads)),
        head_dim(u32(s.head_dim)),
        head_pitch(u32(s.head_pitch)),
        rotary(u32(s.rotary)),
        chunk(u32(s.chunk)),
        x_pitch(u32(s.x_pitch)),
        qkv_pitch(u32(s.qkv_pitch)),
        part_pitch(u32(s.part_pitch)),
        attended_pitch(u32(s.attended_pitch)),
        inner_pitch(u32(s.inner_pitch)),
        own_pitch(u32(s.own_pitch)),
        input_floats(u32(s.input_floats)) {}
};

constexpr float kNone = -1e30f;  // a score less than any; not infinite: differences count

template <class W, class T, class Act, bool kRms, bool kGated, int kBatch, int kWorkers, int kSlots,
          int kMine, bool kPacked, class Sizes>
struct DecodeCuda {
  // x, attended and inner values: a word has one, or two neighbours.
  static constexpr int kInWord = kPacked ? 2 : 1;
  using Weights = Stream<W, kGated, kWorkers, kSlots, kMine, kInWord>;
  static constexpr int kThreads = 32 * kWorkers;  // the senders' are not counted
  static constexpr int kVector = 16 / int(sizeof(W));
  static constexpr bool kScaled = is_same<W, i8>;  // each row by a factor
  // Sums of 16 rows of a tile are put together by a thread for each row of the batch: those of so
  // many tiles at once, of which every worker has a part. Neighbouring rows are in one warp.
  static constexpr int kSpread = kBatch <= 2 ? kBatch : kBatch <= 4 ? 4 : 8;
  static constexpr int kTiles = kThreads / (16 * kSpread);
  // By tiles, workers, rows and rows of the batch; a tile's are a quarter of the banks further.
  static constexpr int kOfTile = 16 * kBatch * kWorkers + 8;
  static constexpr int kPartials = kTiles * kOfTile;  // floats

  // What all threads of a block have in common, in shared memory.
  struct Shared {
    typename Weights::Shared stream;
    u64 most[kBatch];
    i64 token[kBatch];  // of each row: what it reads, where that goes, whether it has ended
    int place[kBatch];
    int over[kBatch];
    float sums[kBatch][kWorkers];
    u32 lost[2];  // a wait of an even phase, of an odd one: who is slow still reads the last one's
  };

  const Step& s;
  const Sizes z;
  Shared& here;
  float* const input;  // shared memory: workers' inputs and sums; in attention queries and sums
  const u32 block, blocks;
  const int lane, warp;
  Weights weights;
  u32 now = 0;    // phases that are done
  u32 items = 0;  // of weights that this worker's group has used, before this product

  __device__ __forceinline__ DecodeCuda(const Step& step, Shared& shared, void* dynamic)
      : s(step),
        z(step),
        here(shared),
        input(reinterpret_cast<float*>(static_cast<char*>(dynamic) + step.stage_bytes)),
        block(blockIdx.x),
        blocks(u32(step.threads)),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32),
        weights{shared.stream, static_cast<char*>(dynamic), block, blocks, lane} {}

  // This block's part of n things.
  __device__ __forceinline__ int begin(u64 n) const { return weights.begin(n); }
  __device__ __forceinline__ int end(u64 n) const { return weights.end(n); }
  __device__ __forceinline__ static void sync() { together<kThreads>(); }

  // What blocks leave for each other: words.
  __device__ __forceinline__ u64* x(int b) const { return at<u64>(s.x) + b * i64(z.x_pitch); }
  __device__ __forceinline__ u64* qkv(int b) const { return at<u64>(s.qkv) + b * i64(z.qkv_pitch); }
  __device__ __forceinline__ u64* inner(int b) const {
    return at<u64>(s.inner_values) + b * i64(z.inner_pitch);
  }
  __device__ __forceinline__ u64* attended(int b) const {
    return at<u64>(s.attended) + b * i64(z.attended_pitch);
  }
  __device__ __forceinline__ u64* part(int b, int head, i64 piece) const {
    return at<u64>(s.parts) +
           ((b * i64(z.heads) + head) * i64(s.max_chunks) + piece) * i64(z.part_pitch);
  }
  // What words of this phase have, and those of the one before.
  __device__ __forceinline__ u32 number_now() const { return u32(s.numbered) + now; }
  __device__ __forceinline__ u32 number_before() const { return u32(s.numbered) + now - 1; }

  __device__ __forceinline__ float* own(int b) const {
    return at<float>(s.own) + block * i64(s.own_floats) + b * i64(z.own_pitch);
  }
  __device__ __forceinline__ float* partials() const {
    return input + (z.input_floats - kPartials);
  }

  // ---- waiting for words

  // After so many looks in vain: whether the wait is lost, here or in another block. The clock is
  // looked at seldom, since that takes time too. The block then ends with this phase, of which what
  // was waited for has no meaning.
  __device__ __forceinline__ bool is_lost(u32 looks, u64& start) const {
    u32* const failed = at<u32>(s.barrier) + 32;
    if (looks % 256) return false;
    start = start ? start : nanoseconds();
    if (nanoseconds() - start > s.watchdog) atomicAdd(failed, 1u);
    if (load_acquire(failed) == 0) return false;
    here.lost[now % 2] = 1;
    return true;
  }
  // Looks until all is there.
  template <class Look>
  __device__ __forceinline__ void wait_until(Look all_there) const {
    u64 start = 0;
    for (u32 looks = 1; !all_there(); ++looks)
      if (is_lost(looks, start)) return;
  }

  // Of x, attended and inner values, by column: where its word is, what that says, and leaving it.
  __device__ __forceinline__ static const u64* word_at(const u64* row, int column) {
    return row + column / kInWord;
  }
  __device__ __forceinline__ static bool is_of(u64 word, u32 number) {
    return kPacked ? left_short_number(word) == short_number(number) : left_number(word) == number;
  }
  __device__ __forceinline__ static u64 nothing_of(u32 number) {
    return kPacked ? u64(short_number(number)) << 56 : u64(number) << 32;
  }
  __device__ __forceinline__ static float value_in(u64 word, int column) {
    if (!kPacked) return left_value(word);
    return column % 2 ? second_value(word) : first_value(word);
  }
  __device__ __forceinline__ void leave_word(u64* row, int column, float first,
                                             float second) const {
    if (kPacked)
      leave_two(row + column / 2, first, second, number_now());
    else
      leave(row + column, first, number_now());
  }
  __device__ __forceinline__ float wait_for_one(const u64* row, int column) const {
    u64 word = 0;
    wait_until([&] {
      word = load_left(word_at(row, column));
      return is_of(word, number_before());
    });
    return value_in(word, column);
  }

  // ---- the input of a product

  // Each worker fetches the columns that it will need straight from where the phase before has left
  // them, so no block gathers a whole row first. An RMS norm's factor is left to the end, when the
  // sums of squares are known too.
  struct Stats {
    float mean[kBatch], inverse[kBatch];  // of a LayerNorm, which must be known before
  };
  __device__ __forceinline__ static bool is_normed(const Phase& p) {
    return p.kind != kProject && p.kind != kDown;
  }
  __device__ __forceinline__ const u64* source(const Phase& p, int b) const {
    return p.kind == kDown ? inner(b) : p.kind == kProject ? attended(b) : x(b);
  }
  // Of a row that has ended nobody attends.
  __device__ __forceinline__ bool is_left(const Phase& p, int b) const {
    return p.kind != kProject || !here.over[b];
  }
  // What a norm multiplies two columns by, and what it adds.
  __device__ __forceinline__ static Two weights_of(const Phase& p, int column) {
    return is_normed(p) && column < int(p.cols) ? two_at(at<const float>(p.norm) + column)
                                                : Two{1, 1};
  }
  __device__ __forceinline__ static Two biases_of(const Phase& p, int column) {
    return is_normed(p) && p.norm_bias && column < int(p.cols)
               ? two_at(at<const float>(p.norm_bias) + column)
               : Two{};
  }
  __device__ __forceinline__ static float centered(const Phase& p, const Stats& stats, int b,
                                                   float value) {
    return !kRms && is_normed(p) ? (value - stats.mean[b]) * stats.inverse[b] : value;
  }

  // A thread's sums are warps' sums in `here.sums`, for after the next sync.
  __device__ __forceinline__ void leave_sum(int b, float sum) const {
    sum = warp_sum(sum);
    if (lane == 0) here.sums[b][warp] = sum;
  }
  __device__ __forceinline__ float left_sum(int b) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWorkers; ++w) sum += here.sums[b][w];
    return sum;
  }
  __device__ __forceinline__ float inverse_of(const Phase& p, float squares) const {
    return 1.0f / sqrtf(squares / float(z.hidden) + float(number(p.eps)));
  }
  // The sum of a row's numbers, or of the squares of what they are off the mean, by this thread.
  template <bool kSquares>
  __device__ __forceinline__ float row_sum_of(int b, float mean) const {
    constexpr int kRound = 4;
    const int n = int(z.hidden) / kInWord;
    float sum = 0;
#pragma unroll 1
    for (int i = int(threadIdx.x); i < n; i += kRound * kThreads) {
      u64 word[kRound];
      wait_until([&] {
        bool all = true;
#pragma unroll
        for (int r = 0; r < kRound; ++r)
          if (i + r * kThreads < n) word[r] = load_left(x(b) + i + r * kThreads);
#pragma unroll
        for (int r = 0; r < kRound; ++r)
          all &= i + r * kThreads >= n || is_of(word[r], number_before());
        return all;
      });
#pragma unroll
      for (int r = 0; r < kRound * kInWord; ++r) {
        const float off = value_in(word[r / kInWord], r) - mean;
        if (i + r / kInWord * kThreads < n) sum += kSquares ? off * off : off;
      }
    }
    return sum;
  }
  __device__ __forceinline__ void look_at(const Phase& p, Stats& stats) const {
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        leave_sum(b, pass ? row_sum_of<true>(b, stats.mean[b]) : row_sum_of<false>(b, 0.0f));
      sync();
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (pass)
          stats.inverse[b] = inverse_of(p, left_sum(b));
        else
          stats.mean[b] = left_sum(b) / float(z.hidden);
      sync();
    }
  }

  // ---- products

  // A worker's columns of an item, and how weights are multiplied. bfloat16 on tensor cores: an
  // input is two bfloat16, of which the second is what the first leaves over, so 16 bits are kept.
  // int8 on tensor cores too: an input is four digits of 7 bits, and a factor for 128 columns. Else
  // in float32.
  static constexpr int kColumns = kMine / int(sizeof(W));
  static constexpr bool kDigits = is_same<W, i8> && kBatch <= 2;
  static constexpr bool kPairs = is_same<W, bfloat16>;
  static constexpr int kSets = kPairs ? (kBatch + 3) / 4 : 1;  // 4 rows of the batch are 8 columns
  // Through shared memory of a worker's own go the inputs that lanes have fetched to those that
  // need them: on tensor cores one row of the batch at a time, in four rows that are in different
  // banks and, of bfloat16, first and second.
  static constexpr int kWords = kPairs ? kColumns / 8 : kDigits ? kColumns / 16 : 1;  // of a lane
  static constexpr int kRow = kWords + (24 - kWords % 16) % 16, kSecond = 4 * kRow + 4;
  static constexpr int kScratch = kPairs    ? 2 * kSecond
                                  : kDigits ? 4 * kSecond
                                            : kColumns * kBatch;  // floats
  static constexpr int kLoads = kColumns / 64;  // of a lane: neighbours, every 64 columns

  // What a lane has of the inputs. With tensor cores, of column lane / 4 of 8: a row of the batch
  // and one of its parts; and of each 16 or 32 of the inputs 4 or 8.
  struct Inputs {
    u32 one[kSets][kWords];
    float factor[2][2];  // of digits: of the first and second 128 inputs, for two columns of sums
  };
  // Of 16 rows of a tile, what a worker has added up so far: with tensor cores rows lane / 4 and 8
  // more by two columns, in two parts that do not wait for each other, or of 8 rows of the batch;
  // else the row lane / 2 and, of each 256 bytes, half.
  struct Sums {
    float value[kPairs ? 8 : kDigits ? 4 : kBatch];
  };

  __device__ __forceinline__ float* scratch() const { return input + warp * kScratch; }
  __device__ __forceinline__ static void read_four(u32* words, const u32* from) {
    const uint4 four = sixteen_in_shared(__cvta_generic_to_shared(from));
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  }

  // Words that a lane has asked for, pairs of neighbours: of all rows of the batch, or of half of
  // them, since one wait for all is shorter than one for each.
  static constexpr int kRows = kBatch * kLoads <= 16 ? kBatch : (kBatch + 1) / 2;
  static constexpr int kOfRow = 2 * kLoads / kInWord;
  struct Asked {
    u64 word[kRows][kOfRow];
    __device__ __forceinline__ bool are_of(u32 number) const {
      bool all = true;
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < kOfRow; ++i) all &= is_of(word[r][i], number);
      return all;
    }
  };
  // Of the rows from b on, from `column` on; those behind a row's end are 0.
  __device__ __forceinline__ void ask(Asked& asked, const Phase& p, int b, int column) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int which = b + r < kBatch ? b + r : b;
      const u64* const row = source(p, which);
      const int cols = is_left(p, which) ? int(p.cols) : 0;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const u64* const there = word_at(row, column + 64 * i);
        u64 &first = asked.word[r][i * kOfRow / kLoads], &last = (&first)[kPacked ? 0 : 1];
        first = last = nothing_of(number_before());
        if (column + 64 * i >= cols) continue;
        if constexpr (kPacked)
          first = load_left(there);
        else
          load_left(there, first, last);
      }
    }
  }
  // Most inputs of a phase are there when its first ones are, so those of the next part are asked
  // for before this one is multiplied: of a 1B model's step that saves 12 us of 717. Not of int8,
  // where it takes 13 us more, nor of more rows than registers have room for.
  static constexpr bool kAhead = kPairs && kPacked && kBatch <= 4;
  __device__ __forceinline__ void have(Asked& asked, bool early, const Phase& p, int b,
                                       int column) const {
    if (early && asked.are_of(number_before())) return;
    wait_until([&] {
      ask(asked, p, b, column);
      return asked.are_of(number_before());
    });
  }
  // A row's, as a norm has them, and their part in the sum of squares.
  __device__ __forceinline__ void have_row(float (&value)[2 * kLoads], const u64 (&word)[kOfRow],
                                           const Two (&weight)[kLoads], const Phase& p,
                                           const Stats& stats, int b, int column,
                                           float& squares) const {
#pragma unroll
    for (int i = 0; i < 2 * kLoads; ++i) {
      value[i] = value_in(word[i / kInWord], i);
      if (kRms) squares = fma(value[i], value[i], squares);
      value[i] = centered(p, stats, b, value[i]) * weight[i / 2].value[i % 2];
      if (!kRms) value[i] += biases_of(p, column + 64 * (i / 2)).value[i % 2];
    }
  }

  // The inputs of a worker's columns from `from` on, which may have been asked for.
  __device__ __forceinline__ void load(Inputs& inputs, const Phase& p, const Stats& stats, int from,
                                       float (&squares)[kBatch], Asked& asked) const {
    const int n = lane / 4, t = lane % 4, column = from + 2 * lane;
    u32* const words = reinterpret_cast<u32*>(scratch());
    float factors[kBatch][2];
    Two weight[kLoads];  // asked for before the wait
#pragma unroll
    for (int i = 0; i < kLoads; ++i) weight[i] = weights_of(p, column + 64 * i);
    Asked rest;
    if constexpr (kRows < kBatch) ask(rest, p, kRows, column);
    have(asked, kAhead, p, 0, column);
#pragma unroll
    for (int i = 0; i < kSets * kWords; ++i) inputs.one[i / kWords][i % kWords] = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      Asked& mine = b < kRows ? asked : rest;
      if (b == kRows) have(mine, true, p, b, column);
      float value[2 * kLoads];
      have_row(value, mine.word[b % kRows], weight, p, stats, b, column, squares[b]);
      __syncwarp();  // what was there has been read
      if constexpr (kPairs) {
        // A pair is a word. Of every 16 inputs a lane needs the pairs t and t + 4.
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const float low = value[2 * i], high = value[2 * i + 1];
          const u32 both = two_bfloat16(low, high);
          u32* const place = words + t * kRow + 8 * i + lane / 4;
          place[0] = both, place[kSecond] = left_over(low, high, both);
        }
        __syncwarp();
        if (n / 2 == b % 4)
#pragma unroll
          for (int i = 0; i < kWords; i += 4)
            read_four(inputs.one[b / 4 % kSets] + i, words + n % 2 * kSecond + t * kRow + i);
      } else if constexpr (kDigits) {
        constexpr float kMost = 1.3e8f;  // 4 digits from -64 to 63, with 128 as their base
        constexpr u32 kBias = 64u * (1 + 128 + 128 * 128 + 128 * 128 * 128);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          // Of four neighbours a lane has two: it gives two of these away for two of others.
          float four[4];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float first = value[4 * h + j], second = value[4 * h + 2 + j];
            const float other = __shfl_xor_sync(0xffffffffu, lane % 2 ? first : second, 1);
            four[j] = lane % 2 ? other : first, four[j + 2] = lane % 2 ? second : other;
          }
          float most = 0;
#pragma unroll
          for (int j = 0; j < 4; ++j) most = fabsf(four[j]) > most ? fabsf(four[j]) : most;
          most = warp_max(most);
          factors[b][h] = most / kMost;
          const float rate = most > 0 ? kMost / most : 0.0f;
          u32 digits[4] = {};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const u32 biased = u32(__float2int_rn(four[j] * rate)) + kBias;
#pragma unroll
            for (int d = 0; d < 4; ++d) digits[d] |= (biased >> (7 * d) & 127u) << (8 * j);
          }
          // The four are the columns from 4 * place of these 128 on.
          const int place = lane % 2 * 16 + lane / 2;
#pragma unroll
          for (int d = 0; d < 4; ++d)  // less 64, each byte by itself
            words[d * kSecond + place % 4 * kRow + place / 4 + 8 * h] =
                ((digits[d] | 0x80808080u) - 0x40404040u) ^ 0x80808080u;
        }
        __syncwarp();
        if (n / 4 == b)
#pragma unroll
          for (int i = 0; i < kWords; i += 4)
            read_four(inputs.one[0] + i, words + n % 4 * kSecond + t * kRow + i);
      } else {
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
          *reinterpret_cast<Two*>(scratch() + b * kColumns + 64 * i + 2 * lane) =
              Two{value[2 * i], value[2 * i + 1]};
      }
    }
    if constexpr (kDigits) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int digit = (2 * t + c) % 4;
        const float worth = digit == 0   ? 1.0f
                            : digit == 1 ? 128.0f
                            : digit == 2 ? 16384.0f
                                         : 2097152.0f;
#pragma unroll
        for (int h = 0; h < 2; ++h)
          inputs.factor[h][c] =
              worth * (kBatch == 2 && t >= 2 ? factors[kBatch - 1][h] : factors[0][h]);
      }
    }
    __syncwarp();
  }

  // Adds the worker's bytes of each row, from `slot` on; there are `count` weights at most.
  __device__ __forceinline__ void add(u64 slot, const Inputs& inputs, int count, Sums& sums) const {
    if constexpr (kPairs || kDigits) {
      const u64 mine = slot + u64(lane % 16 * Weights::kPitch + lane / 16 * 16);
#pragma unroll
      for (int from = 0; from < kMine / 32; from += 4) {
        uint4 raw[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) raw[i] = matrix_at(mine + u64(32 * (from + i)));
        if constexpr (kDigits) {  // these are 128 columns, which have a factor
          int whole[4] = {};
#pragma unroll
          for (int i = 0; i < 4; ++i)
            multiply_add(whole, raw[i], inputs.one[0][2 * (from + i)],
                         inputs.one[0][2 * (from + i) + 1]);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            sums.value[i] = fma(float(whole[i]), inputs.factor[from / 4][i % 2], sums.value[i]);
          continue;
        }
        if (count < kColumns) {  // what lies behind a row is no number
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (16 * (from + i) >= count) raw[i].x = raw[i].y = 0;
            if (16 * (from + i) + 8 >= count) raw[i].z = raw[i].w = 0;
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int k = kPairs ? 2 * (from + i) : 0;
#pragma unroll
          for (int set = 0; set < kSets; ++set)
            multiply_add(sums.value + 4 * (kSets == 1 ? i % 2 : set), raw[i], inputs.one[set][k],
                         inputs.one[set][k + (kPairs ? 1 : 0)]);
        }
      }
    } else {
      // The two lanes of a row begin with different 16 bytes: 8 lanes are in different banks.
      constexpr int kHalf = kMine / 32;  // of a row, in 16 bytes
      const u64 mine = slot + u64(lane / 2 * Weights::kPitch);
      const u64 in = __cvta_generic_to_shared(scratch());
#pragma unroll 8
      for (int i = 0; i < kHalf; ++i) {
        const int sixteen = lane % 2 * kHalf + (i + lane % 2 * 4) % kHalf;
        const int column = sixteen * kVector;
        if (column >= count) continue;
        const Sixteen<W> held(sixteen_in_shared(mine + u64(16 * sixteen)));
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
#pragma unroll
          for (int j = 0; j < kVector; j += 4) {
            const Four four = four_in_shared(in + u64(4 * (b * kColumns + column + j)));
#pragma unroll
            for (int k = 0; k < 4; ++k)
              sums.value[b] = fma(held.value[j + k], four.value[k], sums.value[b]);
          }
      }
    }
  }
  // Leaves the sums of tile `t` of those that are put together next.
  __device__ __forceinline__ void keep(int t, Sums& sums) const {
    float* const to = partials() + t * kOfTile + warp * 16 * kBatch;
    const int row = lane / 4;
    if constexpr (kDigits) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float some = sums.value[i] + sums.value[i + 1];
        const float all = some + __shfl_xor_sync(0xffffffffu, some, 1);
        const int b = lane % 4 / 2;
        if (lane % 2 == 0 && b < kBatch) to[(row + 4 * i) * kBatch + b] = all;
      }
    } else if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < 4 * kSets; i += 2) {
        const float both = sums.value[i] + sums.value[i + 1];
        const float rest = kSets == 1 ? sums.value[i + 4] + sums.value[i + 5] : 0.0f;
        const int b = i / 4 * 4 + lane % 4;
        if (b < kBatch) to[(row + 4 * (i % 4)) * kBatch + b] = both + rest;
      }
    } else {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const float all = sums.value[b] + __shfl_xor_sync(0xffffffffu, sums.value[b], 1);
        if (lane % 2 == 0) to[lane / 2 * kBatch + b] = all;
      }
    }
  }

  // Where a product's values go: words for other blocks, or the logits, of which the likeliest is
  // kept.
  struct Target {
    u64 kind;
    u64* words;
    int pitch;
    u64 best;
  };
  // What a row's sum meets on its way to its place, for row b of the batch. What is added to was
  // left by this block too: the rows of x are shared out in the same way in all phases.
  struct Beside {
    float before, scale, bias, up_scale, up_bias;
    __device__ __forceinline__ Beside(const Plan& plan, const Target& target, int row, int b)
        : before(0), scale(1), bias(0), up_scale(1), up_bias(0) {
      if (row >= plan.share) return;
      const bool residual = target.kind == kProject || target.kind == kDown;
      const int m = plan.matrix(row, 0);
      const int column = plan.first + row;
      if (residual)
        before = value_in(load_left(word_at(target.words + b * i64(target.pitch), column)), column);
      if (kScaled) scale = at<const float>(plan.scale[m])[row];
      if (plan.bias[m]) bias = at<const float>(plan.bias[m])[row];
      if (!plan.both) return;
      if (kScaled) up_scale = at<const float>(plan.scale[1])[row];
      if (plan.bias[1]) up_bias = at<const float>(plan.bias[1])[row];
    }
  };
  __device__ __forceinline__ static float finished(const Plan& plan, const Target& target,
                                                   float sum, float up, const Beside& beside) {
    sum = sum * beside.scale + beside.bias;
    if (target.kind == kGateUp) sum = Act::value(sum);
    if (plan.both) sum *= up * beside.up_scale + beside.up_bias;
    return sum + beside.before;
  }
  // What is finished goes there; `next` is the next row's, for words that have both.
  __device__ __forceinline__ void put(const Plan& plan, Target& target, int row, int b, float value,
                                      float next) const {
    const int column = plan.first + row;
    const i64 from = b * i64(target.pitch);
    if (target.kind == kQkv) return leave(target.words + from + column, value, number_now());
    if (target.kind != kHead) {
      if (column % kInWord == 0) leave_word(target.words + from, column, value, next);
      return;
    }
    at<float>(s.logits)[from + column] = value;
    const u64 key = key_of(value, column);
    target.best = key > target.best ? key : target.best;
  }

  // This block's rows of the phase's matrices by the input. A tile's pieces go to the two groups by
  // turns; a worker has the same columns of each piece, so its inputs last as long as the part.
  __device__ __forceinline__ void product(const Phase& p, Target& target) {
    const Plan& plan = weights.plan(now);
    const int parts = plan.parts, all_tiles = plan.tiles, share = plan.share;
    if (share == 0) return;
    const bool scaled = kRms && is_normed(p);
    const int me = int(threadIdx.x), b = me % kSpread, rows = plan.rows();
    const int mine = warp % Weights::kGroup, cols = plan.cols;
    const u32 group = u32(warp / Weights::kGroup);
    const auto columns = [&](int part) { return (part * Weights::kGroup + mine) * kColumns; };
    int part = int(group), held = -1;
    float factor = 1, squares[kBatch] = {};
    Stats stats;
    Inputs inputs;
    Asked asked = {};  // of no phase
    if (!kRms && is_normed(p)) look_at(p, stats);
#pragma unroll 1
    for (int from = 0; from < all_tiles; from += kTiles) {
      const int tiles = all_tiles - from < kTiles ? all_tiles - from : kTiles;
      const int in_round = me / kSpread, row = from * rows + in_round;
      const bool puts = in_round < tiles * rows && row < share && b < kBatch;
      const Beside beside(plan, target, puts ? row : share, b);  // is there when it is needed
#pragma unroll 1
      for (int t = 0; t < tiles; ++t, part -= parts) {
        Sums sums = {};
#pragma unroll 1
        for (; part < parts; part += 2) {
          if (part != held) {
            float more[kBatch];
            const bool first = from + t == 0;  // then this is the only one who has the columns
#pragma unroll
            for (int i = 0; i < kBatch; ++i) more[i] = squares[i];
            load(inputs, p, stats, columns(part), more, asked);
            const int then = part + 2 < parts ? part + 2 : part + 2 - parts;
            if (kAhead && then != part) ask(asked, p, 0, columns(then) + 2 * lane);
#pragma unroll
            for (int i = 0; i < kBatch; ++i) squares[i] = first ? more[i] : squares[i];
            held = part;
          }
          const u32 number = items + u32((from + t) * parts + part) / 2;
          add(weights.take(group, number) + u64(kMine * mine), inputs, cols - columns(part), sums);
          weights.give_back(group, number);
        }
        keep(t, sums);
      }
      if (scaled && from == 0)
#pragma unroll
        for (int i = 0; i < kBatch; ++i) leave_sum(i, squares[i]);
      sync();
      if (scaled && from == 0) factor = inverse_of(p, left_sum(b < kBatch ? b : 0));
      float value = 0;
      if (puts) {
        const int t = in_round >> (plan.both ? 3 : 4);
        const float* const some = partials() + t * kOfTile + (in_round - t * rows) * kBatch + b;
        float sum = 0, up = 0;
#pragma unroll
        for (int w = 0; w < kWorkers; ++w) sum += some[w * 16 * kBatch];
        if (plan.both)
#pragma unroll
          for (int w = 0; w < kWorkers; ++w) up += some[w * 16 * kBatch + 8 * kBatch];
        value = finished(plan, target, sum * factor, up * factor, beside);
      }
      const float next = kPacked ? __shfl_xor_sync(0xffffffffu, value, kSpread) : 0.0f;
      if (puts) put(plan, target, row, b, value, next);
      if (from + kTiles < all_tiles) sync();
    }
    items += u32(all_tiles * parts + (warp < Weights::kGroup)) / 2;
  }

  // Of matrices whose rows are not of 16 bytes: a warp for a row, and the input in memory of the
  // block's own.
  __device__ __forceinline__ float row_sum(const Plan& plan, int number, int beside, int b) const {
    const W* const row =
        at<const W>(plan.weight[plan.matrix(number, beside)]) + number * i64(plan.cols);
    const float* const in = own(b);
    float sum = 0;
#pragma unroll 4
    for (int k = lane; k < plan.cols; k += 32) sum = fma(cast<float>(row[k]), in[k], sum);
    return warp_sum(sum);
  }
  __device__ __forceinline__ float have_one(const Phase& p, int b, int column) const {
    return is_left(p, b) ? wait_for_one(source(p, b), column) : 0.0f;
  }
  __device__ __forceinline__ void odd_product(const Phase& p, const Plan& plan,
                                              Target& target) const {
    const bool normed = is_normed(p);
    if (plan.share == 0) return;
    Stats stats;
    if (!kRms && normed) look_at(p, stats);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      float squares = 0;
#pragma unroll 1
      for (int i = int(threadIdx.x); i < plan.cols; i += kThreads) {
        const float value = have_one(p, b, i);
        squares = fma(value, value, squares);
        const float weight = normed ? at<const float>(p.norm)[i] : 1.0f;
        const float bias = normed && p.norm_bias ? at<const float>(p.norm_bias)[i] : 0.0f;
        own(b)[i] = centered(p, stats, b, value) * weight + bias;
      }
      if (kRms) leave_sum(b, squares);
    }
    sync();
#pragma unroll 1
    for (int b = 0; b < kBatch; ++b) {
      const float factor = kRms && normed ? inverse_of(p, left_sum(b)) : 1.0f;
      const auto value_of = [&](int row) {
        if (row >= plan.share) return 0.0f;
        const float sum = row_sum(plan, row, 0, b) * factor;
        const float up = plan.both ? row_sum(plan, row, 1, b) * factor : 0.0f;
        return finished(plan, target, sum, up, Beside(plan, target, row, b));
      };
      for (int row = kInWord * warp; row < plan.share; row += kInWord * kWorkers) {
        const float value = value_of(row), next = kPacked ? value_of(row + 1) : 0.0f;
        if (lane != b) continue;
        put(plan, target, row, b, value, next);
        if (kPacked && row + 1 < plan.share) put(plan, target, row + 1, b, next, 0.0f);
      }
    }
  }

  // ---- the phases

  // Where the rows are: once a token, for all phases.
  __device__ __forceinline__ void look_at_rows() const {
    sync();
    if (threadIdx.x < kBatch) {
      const u32 b = threadIdx.x;
      here.token[b] = at<const i64>(s.tokens)[b];
      here.place[b] = int(at<const i64>(s.positions)[b]);
      here.over[b] = at<const i64>(s.finished)[b] != 0;
    }
    sync();
  }

  __device__ __forceinline__ void embed() const {
    const i64 n = i64(z.hidden);
    const T* const place = at<const T>(s.positions_table);
    for (int b = 0; b < kBatch; ++b) {
      const T* const row = at<const T>(s.embedding) + here.token[b] * n;
      const auto value_of = [&](int i) {
        if (here.over[b]) return 0.0f;  // there may be no embedding of padding
        return cast<float>(row[i]) + (place ? cast<float>(place[here.place[b] * n + i]) : 0.0f);
      };
      const int end = weights.end_row(z.hidden);
      for (int i = weights.first_row(z.hidden) + kInWord * int(threadIdx.x); i < end;
           i += kInWord * kThreads)
        leave_word(x(b), i, value_of(i), kPacked ? value_of(i + 1) : 0.0f);
    }
  }

  // A head of q, k or v, every 32nd number of it.
  static constexpr int kWidest = 256 / 32;
  __device__ __forceinline__ void have_head(float (&held)[kWidest], const u64* from, int n) const {
    u64 word[kWidest];
    wait_until([&] {
      bool all = true;
#pragma unroll
      for (int k = 0; k < kWidest; ++k) {
        word[k] = u64(number_before()) << 32;
        if (lane + 32 * k < n) word[k] = load_left(from + lane + 32 * k);
      }
#pragma unroll
      for (int k = 0; k < kWidest; ++k) all &= left_number(word[k]) == number_before();
      return all;
    });
#pragma unroll
    for (int k = 0; k < kWidest; ++k) held[k] = left_value(word[k]);
  }
  // A head of q or k, by a warp into shared memory: its norm, if it has one, and its turn by RoPE.
  __device__ __forceinline__ void turned(const u64* from, u64 weights, const Phase& p, int place,
                                         float* to) const {
    constexpr int kMost = kWidest;
    const int n = int(z.head_dim), half_turn = p.rope ? int(z.rotary) / 2 : 0;
    const float* const weight = at<const float>(weights);
    const float* const cosines = at<const float>(s.cosines) + place * i64(z.rotary / 2);
    const float* const sines = at<const float>(s.sines) + place * i64(z.rotary / 2);
    float held[kMost], cosine[kMost / 2] = {}, sine[kMost / 2] = {}, squares = 0;
#pragma unroll
    for (int k = 0; k < kMost / 2; ++k)
      if (lane + 32 * k < half_turn)
        cosine[k] = cosines[lane + 32 * k], sine[k] = sines[lane + 32 * k];
    have_head(held, from, n);
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
      if (lane + 32 * k < int(z.head_pitch)) to[lane + 32 * k] = held[k];
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
      stride = kWorkers * (32 / each);  // positions of a block at once
      first = warp * (32 / each);       // of this warp
    }
  };
  // What a lane has of a position: its key and its value, whose loads wait together.
  struct Cached {
    uint4 key[Lanes::kHeld], value[Lanes::kHeld];
    __device__ __forceinline__ void ask(const T* keys, const T* values, int pitch, const Lanes& l,
                                        int position, int end) {
#pragma unroll
      for (int h = 0; h < Lanes::kHeld; ++h) {
        const int v = l.mine + 32 * h;
        const i64 place = position * i64(pitch) + v * Lanes::kCached;
        key[h] = value[h] = uint4{0, 0, 0, 0};
        if (position < end && v < l.vectors)
          key[h] = sixteen_at(keys + place), value[h] = sixteen_at(values + place);
      }
    }
  };
  // Of a lane's positions, for one head: the largest score, and relative to that the weights' sum
  // and the sum of values by weights.
  struct Attended {
    float most, sum, value[Lanes::kHeld * Lanes::kCached];
    __device__ __forceinline__ void add(float score,
                                        const float (&by)[Lanes::kHeld * Lanes::kCached]) {
      const float larger = score > most ? score : most;
      const float shrink = exp2f(most - larger), weight = exp2f(score - larger);
      most = larger, sum = fma(sum, shrink, weight);
#pragma unroll
      for (int j = 0; j < Lanes::kHeld * Lanes::kCached; ++j)
        value[j] = fma(value[j], shrink, weight * by[j]);
    }
    // All positions of the warp.
    __device__ __forceinline__ void put_together(int each) {
      float largest = most;
      for (int bit = each; bit < 32; bit *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, largest, bit);
        largest = other > largest ? other : largest;
      }
      const float shrink = exp2f(most - largest);
      most = largest, sum *= shrink;
#pragma unroll
      for (int j = 0; j < Lanes::kHeld * Lanes::kCached; ++j) value[j] *= shrink;
      for (int bit = each; bit < 32; bit *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, bit);
#pragma unroll
        for (int j = 0; j < Lanes::kHeld * Lanes::kCached; ++j)
          value[j] += __shfl_xor_sync(0xffffffffu, value[j], bit);
      }
    }
  };

  // One row's heads that share a key head, over one piece of its cache, by a block: each warp for
  // positions of its own, then all together. The new position's key and value come from shared
  // memory, rounded as the cache has them; all others were there before this step, and are asked
  // for before anything is computed.
  __device__ __forceinline__ void attend_piece(const Phase& p, int b, int kv, int piece,
                                               bool alone) const {
    constexpr int kHeld = Lanes::kHeld, kCached = Lanes::kCached, kHeads = 4;
    constexpr int kAhead = sizeof(T) == 4 ? 2 : 4;  // positions of a lane that are asked for early
    const int pitch = int(z.head_pitch), place = here.place[b], chunk = int(z.chunk);
    const int group = int(z.heads / z.kv_heads), width = int(z.head_dim);
    const int low = int(Pieces(s, p, place).low), begins = piece * chunk;
    const int from = begins > low ? begins : low;
    const int to = begins + chunk < place + 1 ? begins + chunk : place + 1;
    const i64 cache = (b * i64(z.kv_heads) + kv) * i64(s.max_length) * pitch;
    T *const keys = at<T>(p.keys) + cache, *const values = at<T>(p.values) + cache;
    const Lanes l(pitch, lane, warp);
    const int mine = from + l.first + l.which;
    const int end = to < place ? to : place;
    Cached held[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) held[j].ask(keys, values, pitch, l, mine + j * l.stride, end);
    const u64* const made = qkv(b);
    const int q_rows = int(z.heads) * width;
    // Queries; sums of warps, of each head values, the largest score and the sum; the new position.
    float *const queries = input, *const sums = queries + group * pitch;
    const int at_once = pitch > 128 ? 2 : kHeads;  // heads
    const int of_head = pitch + 4, of_warp = at_once * of_head;
    T* const fresh = reinterpret_cast<T*>(sums + kWorkers * of_warp);
    const bool newest = to == place + 1;  // the new position is in this piece: nobody else reads it
#pragma unroll 1
    for (int g = warp; g < group + int(newest); g += kWorkers) {  // the last is the key
      const int row = g < group ? (kv * group + g) * width : q_rows + kv * width;
      float* const turns = g < group ? queries + g * pitch : sums;
      turned(made + row, g < group ? p.q_norm : p.k_norm, p, place, turns);
      if (g < group) continue;
      for (int i = lane; i < pitch; i += 32)
        keys[place * i64(pitch) + i] = fresh[i] = cast<T>(turns[i]);
    }
    if (newest && warp == kWorkers - 1) {
      float value[kWidest];
      have_head(value, made + q_rows + (int(z.kv_heads) + kv) * width, width);
#pragma unroll
      for (int k = 0; k < kWidest; ++k) {
        const int i = lane + 32 * k;
        if (i < pitch) values[place * i64(pitch) + i] = fresh[pitch + i] = cast<T>(value[k]);
      }
    }
    sync();
    const float rate = float(number(p.scaling) * 1.4426950408889634);
#pragma unroll 1
    for (int g0 = 0; g0 < group; g0 += at_once) {
      Attended heads[kHeads];
#pragma unroll
      for (int g = 0; g < kHeads; ++g) heads[g] = Attended{kNone, 0, {}};
      if (g0 > 0)
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
          held[j].ask(keys, values, pitch, l, mine + j * l.stride, end);
#pragma unroll 1
      for (int i = mine; i - l.which < to; i += l.stride) {  // the whole warp
        Cached current = held[0];
#pragma unroll
        for (int j = 0; j + 1 < kAhead; ++j) held[j] = held[j + 1];
        held[kAhead - 1].ask(keys, values, pitch, l, i + kAhead * l.stride, end);
        float key[kHeld * kCached], value[kHeld * kCached];
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const int v = (l.mine + 32 * h) * kCached;
          if (i == place && v < pitch)
            current.key[h] = sixteen_at(fresh + v),
            current.value[h] = sixteen_at(fresh + pitch + v);
          const Sixteen<T> k(current.key[h]), from_cache(current.value[h]);
#pragma unroll
          for (int j = 0; j < kCached; ++j)
            key[h * kCached + j] = k.value[j], value[h * kCached + j] = from_cache.value[j];
        }
#pragma unroll
        for (int g = 0; g < kHeads; ++g) {
          if (g >= at_once || g0 + g >= group) continue;
          float score = 0;
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            const int v = (l.mine + 32 * h) * kCached;
            if (v >= pitch) continue;
#pragma unroll
            for (int j = 0; j < kCached; j += 4) {
              const Four query =
                  four_in_shared(__cvta_generic_to_shared(queries + (g0 + g) * pitch + v + j));
#pragma unroll
              for (int q = 0; q < 4; ++q)
                score = fma(key[h * kCached + j + q], query.value[q], score);
            }
          }
          for (int bit = l.each / 2; bit > 0; bit /= 2)
            score += __shfl_xor_sync(0xffffffffu, score, bit);
          heads[g].add(i < to ? score * rate : 2 * kNone, value);
        }
      }
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        if (g >= at_once || g0 + g >= group) continue;
        heads[g].put_together(l.each);
        float* const out = sums + warp * of_warp + g * of_head;
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const int v = (l.mine + 32 * h) * kCached;
          if (l.which != g % (32 / l.each) || v >= pitch) continue;
#pragma unroll
          for (int j = 0; j < kCached; j += 4) {
            const float* const four = heads[g].value + h * kCached + j;
            *reinterpret_cast<Four*>(out + v + j) = Four{four[0], four[1], four[2], four[3]};
          }
        }
        if (lane == 0) out[pitch] = heads[g].most, out[pitch + 1] = heads[g].sum;
      }
      sync();
      const int count = (group - g0 < at_once ? group - g0 : at_once) * of_head;
#pragma unroll 1
      for (int each = kInWord * int(threadIdx.x); each < count; each += kInWord * kThreads) {
        const int g = each / of_head, k = each - g * of_head, head = kv * group + g0 + g;
        if (k > pitch + 1 || (alone && k >= width)) continue;
        const float* const some = sums + g * of_head;
        float most = kNone, all[2] = {}, weights_ = 0;
#pragma unroll
        for (int w = 0; w < kWorkers; ++w) {
          const float theirs = some[w * of_warp + pitch];
          most = theirs > most ? theirs : most;
        }
#pragma unroll
        for (int w = 0; w < kWorkers; ++w) {
          const float shrink = exp2f(some[w * of_warp + pitch] - most);
#pragma unroll
          for (int j = 0; j < kInWord; ++j) all[j] = fma(shrink, some[w * of_warp + k + j], all[j]);
          weights_ = fma(shrink, some[w * of_warp + pitch + 1], weights_);
        }
        if (alone) {
          leave_word(attended(b), head * width + k, all[0] / weights_, all[1] / weights_);
          continue;
        }
#pragma unroll
        for (int j = 0; j < kInWord; ++j)
          leave(part(b, head, piece) + k + j, k + j == pitch ? most : all[j], number_now());
      }
      sync();  // the next heads' sums, or the next piece's queries, go there
    }
  }

  // Of a row whose cache has several pieces, one piece's part in putting these together: the
  // columns of its heads are shared out to the blocks that have attended. Lanes side by side have
  // pieces of one column.
  __device__ __forceinline__ void put_together(int b, int kv, const Pieces& pieces,
                                               int mine) const {
    const int pitch = int(z.head_pitch), width = int(z.head_dim), count = int(pieces.count());
    const int all = int(z.heads / z.kv_heads) * width, words = all / kInWord;
    const int from = words * mine / count, share = words * (mine + 1) / count - from;
    int lanes = 32;
    while (lanes > 1 && (lanes * share > kThreads || lanes / 2 >= count)) lanes /= 2;
#pragma unroll 1
    for (int first = 0; first < share; first += kThreads / lanes) {
      const int place = from + first + int(threadIdx.x) / lanes, column = kInWord * place;
      const int head = column / width;
      const bool any = place < from + share;
      const u64* const parts = part(b, kv * int(z.heads / z.kv_heads) + head, pieces.first);
      float most = kNone, sum = 0, value[2] = {};
#pragma unroll 1
      for (int i = int(threadIdx.x) % lanes; i < count && any; i += lanes) {
        const u64* const one = parts + i * i64(z.part_pitch);
        u64 word[2 + kInWord];
        wait_until([&] {
          const u64* const values = one + (column - head * width);
          load_left(one + pitch, word[0], word[1]);
          if constexpr (kPacked)
            load_left(values, word[2], word[1 + kInWord]);
          else
            word[2] = load_left(values);
          bool all = true;
#pragma unroll
          for (int j = 0; j < 2 + kInWord; ++j) all &= left_number(word[j]) == number_now();
          return all;
        });
        const float theirs = left_value(word[0]), larger = theirs > most ? theirs : most;
        const float shrink = exp2f(most - larger), weight = exp2f(theirs - larger);
        most = larger;
        sum = fma(weight, left_value(word[1]), sum * shrink);
#pragma unroll
        for (int j = 0; j < kInWord; ++j)
          value[j] = fma(weight, left_value(word[2 + j]), value[j] * shrink);
      }
      __syncwarp();
      float largest = most;
      for (int bit = 1; bit < lanes; bit *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, largest, bit);
        largest = other > largest ? other : largest;
      }
      const float shrink = exp2f(most - largest);
      sum *= shrink;
#pragma unroll
      for (int j = 0; j < kInWord; ++j) value[j] *= shrink;
      for (int bit = 1; bit < lanes; bit *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, bit);
#pragma unroll
        for (int j = 0; j < kInWord; ++j) value[j] += __shfl_xor_sync(0xffffffffu, value[j], bit);
      }
      if (any && int(threadIdx.x) % lanes == 0)
        leave_word(attended(b), kv * all + column, value[0] / sum, value[1] / sum);
    }
  }

  // All pieces of all rows are shared out to the blocks. A block's own are all made before it waits
  // for any of others'.
  __device__ __forceinline__ void attend(const Phase& p) const {
    int each[kBatch], all = 0;
    bool several = false;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int count = int(Pieces(s, p, here.place[b]).count());
      each[b] = here.over[b] ? 0 : count * int(z.kv_heads);
      all += each[b];
      several |= count > 1;
    }
#pragma unroll 1
    for (int made = 0; made < 1 + int(several); ++made) {
      int b = 0, before = 0;
#pragma unroll 1
      for (int task = begin(u64(all)); task < end(u64(all)); ++task) {
        while (task - before >= each[b]) before += each[b++];
        const Pieces pieces(s, p, here.place[b]);
        const u32 inside = u32(task - before), count = u32(pieces.count());
        const int kv = int(inside / count), piece = int(inside % count);
        if (!made)
          attend_piece(p, b, kv, int(pieces.first) + piece, count == 1);
        else if (count > 1)
          put_together(b, kv, pieces, piece);
      }
    }
  }

  // Any product. The last block asks the host during the head's, the longest, whether to go on, and
  // passes on what it says, so that all blocks stop after the same token.
  __device__ __forceinline__ void project(const Phase& p) {
    Target target = {p.kind, x(0), int(z.x_pitch), 0};
    if (p.kind == kQkv) target.words = qkv(0), target.pitch = int(z.qkv_pitch);
    if (p.kind == kGateUp) target.words = inner(0), target.pitch = int(z.inner_pitch);
    if (p.kind == kHead) target.pitch = int(s.vocab);
    if (p.kind == kHead && block == blocks - 1 && threadIdx.x == 0)
      *halted() = load_from_host(s.halt) != 0;
    const Plan& plan = weights.plan(now);
    if (plan.parts == 0)
      odd_product(p, plan, target);
    else
      product(p, target);
    if (p.kind == kHead) rank(target.best);
  }

  // After the head's product: leaves the largest key of this block's logits beside them, so that no
  // block has to read all of them again to find the likeliest. A thread's are of one row of the
  // batch.
  __device__ __forceinline__ void rank(u64 best) {
    if (threadIdx.x < kBatch) here.most[threadIdx.x] = 0;
    sync();
    const bool tiles = weights.plan(now).parts;
    if (best) atomicMax(&here.most[tiles ? int(threadIdx.x) % kSpread : lane], best);
    sync();
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
      sync();
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

  // All blocks for all, once everything before is seen by everyone.
  __device__ __forceinline__ void wait_for_all(u32& waits) const {
    u32* const counted = at<u32>(s.barrier);
    ++waits;
    sync();
    if (threadIdx.x != 0) return;
    count_release(counted);
    const u32 wanted = waits * u32(s.parties);
    wait_until([&] { return load_acquire(counted) >= wanted; });
  }
  // False, for all threads, where this block has waited in vain.
  __device__ __forceinline__ bool next_phase() {
    sync();
    const bool lost = here.lost[now % 2];
    weights.pass(now);
    ++now;
    weights.wait_for(now);
    return !lost;
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

  // The workers' part: tokens, phases, waits.
  __device__ __forceinline__ void work() {
    const u32 count = u32(s.phase_count);
    u32 phase = u32(s.first_phase), waits = 0;
    weights.wait_for(0);
    look_at_rows();
    bool stepped = phase == 0;  // whether this token had all phases
    u64 before = nanoseconds();
#pragma unroll 1
    for (i64 token = 0; token < i64(s.steps);) {
      run_phase(weights.near(now), token, stepped);
      const bool last = phase + 1 == count;
      if (last && token + 1 == i64(s.steps)) return;
      if (phase + 2 >= count) wait_for_all(waits);  // for the logits, and for the next tokens
      if (!next_phase()) return;
      if (block == 0 && threadIdx.x == 0) {
        const u64 after = nanoseconds();
        atomicAdd(at<u64>(s.clocks) + phase, after - before);
        before = after;
      }
      ++phase;
      if (!last) continue;
      phase = 0, stepped = true;
      ++token;
      const bool halt = *halted();  // while the rows are looked at
      look_at_rows();
      if (all_over() || halt) return;
    }
  }

  // The kernel.
  __device__ __forceinline__ void run() {
    // What kernel_cuda.py makes room for.
    static_assert(sizeof(Shared) <= 4096 && Weights::kSlot == 16 * (kMine * (kWorkers / 2) + 16),
                  "_DECLARED, Shared.of");
    static_assert(kTiles > 0, "a thread puts one sum together");
    static_assert(Sampler<kThreads>::kScratch <= 4 * 4104, "_SAMPLING");
    if (threadIdx.x == 0) weights.open(), here.lost[0] = here.lost[1] = 0;
    __syncthreads();
    if (warp >= kWorkers) {
      have_fewer_registers<40>();
      if (warp < kWorkers + 2) weights.send_all(s, u32(warp - kWorkers));
      return;
    }
    have_more_registers<232>();
    work();
    if (threadIdx.x == 0) weights.end_all();
  }
};

}  // namespace mf::decode
