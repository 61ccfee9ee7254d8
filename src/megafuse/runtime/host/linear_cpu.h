// The linear layer on the CPU: the library's GEMM, and one pass over its result while it is in the
// cache.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include "epilogue.h"

namespace megafuse {

// Rows per block. Below 32 MiB the whole result is one: MKL packs the weight again for every
// block, which cost 4 % in blocks of 512 rows and 1 % in blocks of 1024 (float32, 2048x768x3072, a
// Xeon with AMX), more than the cache gave back. Above, blocks of 1024 rows were even or 2 % ahead.
inline int64_t block_rows(const at::Tensor& out) {
  constexpr int64_t kWhole = int64_t(32) << 20, kRows = 1024;
  return int64_t(out.nbytes()) <= kWhole ? std::max<int64_t>(out.size(0), 1) : kRows;
}

// oneDNN's GEMM for 16-bit floats with the bias in its epilogue, where at::addmm took 11.0 ms and
// this 8.4 (at::mm alone: 8.1; bfloat16, 2048x768x3072, one core); or with bias and erf gelu, up to
// 20 % faster than a pass of ours. Its tanh gelu is slower than one, and its relu turns NaN into 0.
inline bool onednn_has(Act act) { return act == Act::kNone || act == Act::kGelu; }

inline at::Tensor onednn_linear(const LinearCall& call, Act act) {
  using Scalars = c10::List<std::optional<at::Scalar>>;
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                 std::string_view, Scalars, std::optional<std::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Signature>();
  const auto bias = call.bias.defined() ? std::optional<at::Tensor>(call.bias) : std::nullopt;
  return op.call(call.x, call.weight, bias, act == Act::kGelu ? "gelu" : "none", Scalars(), "none");
}

inline bool use_onednn(const LinearCall& call) {
#ifndef __x86_64__
  return false;
#else
  const at::ScalarType dtype = call.x.scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16) return false;
  auto ask = [](const char* name) {
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto supported = dispatcher.findSchema({name, ""});
    if (!supported || !dispatcher.findSchema({"mkldnn::_linear_pointwise", ""})) return false;
    torch::jit::Stack stack;
    supported->callBoxed(stack);
    return stack[0].toBool();
  };
  static const bool half = ask("mkldnn::_is_mkldnn_fp16_supported");
  static const bool bfloat16 = ask("mkldnn::_is_mkldnn_bf16_supported");
  return (dtype == at::kHalf ? half : bfloat16) && at::globalContext().userEnabledMkldnn() &&
         call.x.numel() > 0 && call.weight.numel() > 0;
#endif
}

inline LinearResult linear_onednn(const LinearCall& call) {
  const bool bare = !call.want_pre && !call.residual.defined();
  if (bare && onednn_has(call.act)) return {onednn_linear(call, call.act), {}};
  const at::Tensor pre = onednn_linear(call, Act::kNone);
  if (call.act == Act::kNone && !call.residual.defined()) return {pre, pre};
  LinearResult result{call.want_pre ? at::empty_like(pre) : pre,
                      call.want_pre ? pre : at::Tensor()};
  finish(pre, {}, call.act, call.residual, result.out, {});
  return result;
}

// Row blocks, each finished while it is in the cache.
inline LinearResult linear_cpu(const LinearCall& call) {
  if (use_onednn(call)) return linear_onednn(call);
  const int64_t rows = call.x.size(0);
  const at::Tensor weight = transposed(call.weight);
  LinearResult result{new_matrix(rows, call.weight.size(0), call.x), {}};
  const bool same = call.act == Act::kNone && !call.residual.defined();  // out is pre
  if (call.want_pre) result.pre = same ? result.out : at::empty_like(result.out);
  const int64_t step = block_rows(result.out);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    auto block = [&](const at::Tensor& t) {
      return !t.defined() || count == rows ? t : t.narrow(0, begin, count);
    };
    at::Tensor out = block(result.out);
    at::mm_out(out, block(call.x), weight);
    if (same && !call.bias.defined()) continue;
    const at::Tensor pre = same ? at::Tensor() : block(result.pre);
    finish(out, call.bias, call.act, block(call.residual), out, pre);
  }
  return result;
}

}  // namespace megafuse
