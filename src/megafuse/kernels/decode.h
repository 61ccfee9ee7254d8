// A decode step as data: what megafuse/decode/schedule.py builds from a model and a kernel walks,
// decode_cpu.h on a CPU and decode_cuda.h on a GPU. Every member is one 64-bit word, so that both
// structs are plain arrays: Python reads the members' names and order from this file. Numbers that
// are no integers are the bits of a double.
#pragma once

#include "portable.h"

namespace mf::decode {

// What a phase does. `x` is the residual stream; every phase but the first reads what the one
// before it wrote, all of it, so each waits for all of the last one.
enum PhaseKind : u64 {
  kEmbed = 0,    // x = embedding[token] (+ position embedding)
  kQkv = 1,      // qkv = norm(x) W^T + b, of the three matrices
  kAttend = 2,   // norm and RoPE of q and k; k and v go to the cache; attention in pieces of it
  kProject = 3,  // x += (the pieces put together) W^T + b
  kGateUp = 4,   // inner = act(norm(x) W0^T + b0) (* (norm(x) W1^T + b1))
  kDown = 5,     // x += inner W^T + b
  kHead = 6,     // logits = norm(x) W^T + b
  kSample = 7,   // the next token of each row
};

struct Phase {
  u64 kind;
  u64 layer;
  u64 rows;  // of all matrices together: what is shared out
  u64 cols;
  u64 weight0, weight1, weight2;  // addresses, each matrix with its rows one after the other
  u64 rows0, rows1, rows2;
  u64 bias0, bias1, bias2;     // addresses of floats, or 0
  u64 scale0, scale1, scale2;  // of int8 weights, a float a row; else 0
  u64 norm, norm_bias;         // addresses of floats, or 0
  u64 eps;                     // a double
  u64 keys, values;            // the layer's cache: [batch, kv_heads, max_length, head_pitch]
  u64 q_norm, k_norm;          // addresses of floats, or 0
  u64 window;                  // of positions that are seen; 0: all
  u64 scaling;                 // a double: of the scores
  u64 rope;                    // whether q and k are turned
};

struct Step {
  u64 phases, phase_count;
  u64 first_phase;  // of the first token: kSample's where the logits are there already
  u64 steps;        // tokens to make
  u64 threads;      // CPU: threads; GPU: blocks
  u64 parties;      // how many the barrier waits for: threads
  u64 watchdog;     // nanoseconds that a wait may take
  u64 hidden, vocab, heads, kv_heads, head_dim, head_pitch, rotary, inner, max_length, chunk;
  u64 embedding, positions_table;  // weights, the second or 0
  u64 cosines, sines;              // floats [max_length, rotary / 2]
  // Scratch, in floats: rows of `*_pitch`, the rest of a row is 0.
  u64 x, x_pitch, qkv, qkv_pitch, parts, part_pitch, max_chunks, inner_values, inner_pitch;
  u64 own, own_pitch, own_floats;  // a thread's own input of a product: own_floats for each
  u64 logits, scores, chances;     // [batch, vocab]
  // Of each row: the token to read next, where it goes, and whether the row has ended (i64).
  u64 tokens, positions, finished;
  u64 seen;                         // u8 [batch, vocab]: tokens of prompt and text
  u64 out, out_pitch;               // i64 [batch, out_pitch]: what is made, kNotYet before that
  u64 halt;                         // i64: not 0 once the host wants no more tokens
  u64 stop, stop_count, pad;        // i64s that end a row, and what follows its end
  u64 temperature, top_p, penalty;  // doubles; temperature 0 takes the likeliest
  u64 top_k;                        // 0: all
  u64 seed, drawn;                  // of the random numbers, and how many were drawn before
  u64 clocks;                       // i64 [phase_count]: nanoseconds (GPU: of %globaltimer), summed
  u64 barrier;                      // 64 words of 0
  u64 pool;                         // CPU: the threads (decode_pool.h)
  u64 stage_bytes, input_floats;    // GPU: shared memory for weights fetched ahead, and the rest
  u64 bests;                        // GPU: [batch, blocks], the likeliest of each block's logits
  // GPU: what no phase of a launch before this had as its number. x, qkv, parts, attended and
  // inner_values are words there: a float, and the number of the phase that made it. Or two floats
  // (decode_memory_cuda.h), not of qkv and parts; then the launch begins with words of 0.
  u64 numbered;
  u64 attended, attended_pitch;  // GPU: [batch, attended_pitch], what the parts make
};

// What a launch returns.
enum Outcome : u64 { kDone = 0, kLostWait = 1, kNoThreads = 2 };

// In the place of a token that is not made yet. The host looks at these words while the kernel
// runs: each is written once, and says all by itself, so no order of writes is relied on.
constexpr i64 kNotYet = i64(u64(1) << 63);

MF_INLINE double number(u64 word) { return bits_as<double>(word); }

// Floats in the order of their values, as integers.
MF_INLINE u32 ordered(float x) {
  const u32 bits = bits_as<u32>(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <class T>
MF_INLINE T* at(u64 address) {
  return reinterpret_cast<T*>(address);
}

// Of a row's cache: the pieces [first, last] that a query at `position` sees.
struct Pieces {
  i64 low, first, last;
  MF_INLINE Pieces(const Step& step, const Phase& phase, i64 position) {
    const i64 window = i64(phase.window), chunk = i64(step.chunk);
    low = window && position + 1 > window ? position + 1 - window : 0;
    first = i64(u32(low) / u32(chunk));
    last = i64(u32(position) / u32(chunk));
  }
  MF_INLINE i64 count() const { return last - first + 1; }
};

}  // namespace mf::decode
