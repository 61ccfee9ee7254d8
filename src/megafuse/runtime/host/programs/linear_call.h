// What a linear layer is asked for; the ways to do it are in linear.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/functor.h"

namespace megafuse {

enum class Act : uint8_t { kNone, kRelu, kGelu, kGeluTanh };  // kGelu: the erf form

// The same as a choice of functors, in this order.
inline Functor::Choice act_choice() { return {"act", {"none", "relu", "gelu", "gelu_tanh"}}; }

// out = act(x·weightᵀ + bias) + residual. What is undefined is left out.
struct LinearCall {
  at::Tensor x;          // [M, K], one of its strides 1
  at::Tensor weight;     // [N, K], likewise
  at::Tensor bias = {};  // [N], contiguous
  Act act = Act::kNone;
  at::Tensor residual = {};  // [M, N], of any strides
  bool want_pre = false;     // also x·weightᵀ + bias
  bool from_pre = false;     // out is that of pre as it is stored, for a backward to find it again
};

struct LinearResult {
  at::Tensor out, pre;  // contiguous
};

// Gradients on this side of an activation.
struct ActGradient {
  at::Tensor pre;   // of the activation's argument
  at::Tensor bias;  // the same summed over the rows, if wanted
};

}  // namespace megafuse
