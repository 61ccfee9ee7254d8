// What a problem of attention is, for every processor: tensors as [batch, head, token, dim] of any
// strides but for whole rows, sizes and a scale.
#pragma once

#include "portable.h"
#include "same.h"

namespace mf {

constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

// One tensor: where it is, and its strides by batch, head and token, in elements.
struct View {
  u64 address;
  i64 batch, head, token;
  template <class T>
  MF_INLINE T* at(i64 b, i64 h, i64 t) const {
    return reinterpret_cast<T*>(address) + b * batch + h * head + t * token;
  }
};

// Made of 64-bit words alone, as the host packs it (runtime/host/programs/attention_call.h).
struct AttentionProblem {
  u64 wanted;  // a backward's: kGradQuery, kGradKeys
  i64 batches, heads, key_heads, queries, keys, dim;
  double scale;
  i64 causal;
  View q, k, v, out, lse, mask;
  i64 mask_key;  // the mask's stride by key
  View dout, dq, dk, dv;
  i64 together;                // CPU: blocks of queries to a task
  u64 scratch, scratch_bytes;  // CPU: its address, and how much of it is a thread's
  i64 aligned;                 // CUDA: all rows begin at multiples of 16 bytes

  static constexpr u64 kGradQuery = 1, kGradKeys = 2;
};

// In the place of a mask's dtype.
struct NoMask {};

}  // namespace mf
