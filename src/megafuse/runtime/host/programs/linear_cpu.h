// The linear layer on the CPU: the library's GEMM, and one pass over its result while it is in the
// cache.
#pragma once

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>

#include "programs/cpu_features.h"
#include "programs/widened.h"

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

// On x86, where it was measured. Elsewhere PyTorch's addmm also rounds once.
inline bool has_onednn_linear() {
#ifdef __x86_64__
  static const bool has =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""}).has_value();
  return has;
#else
  return false;
#endif
}

// What is left of a call whose x·weightᵀ + bias is `pre`, rounded.
inline LinearResult finished(const at::Tensor& pre, const LinearCall& call) {
  if (call.act == Act::kNone && !call.residual.defined()) return {pre, pre};
  LinearResult result{call.want_pre ? at::empty_like(pre) : pre,
                      call.want_pre ? pre : at::Tensor()};
  finish(pre, {}, call.act, call.residual, result.out, {});
  return result;
}

inline LinearResult linear_onednn(const LinearCall& call) {
  const bool bare = !call.want_pre && !call.residual.defined();
  if (bare && onednn_has(call.act)) return {onednn_linear(call, call.act), {}};
  return finished(onednn_linear(call, Act::kNone), call);
}

// A 16-bit layer by PyTorch's own addmm, which rounds once, as eager has it; then one pass.
inline LinearResult linear_addmm(const LinearCall& call) {
  at::Tensor pre = new_matrix(call.x.size(0), call.weight.size(0), call.x);
  if (call.bias.defined())
    at::addmm_out(pre, call.bias, call.x, transposed(call.weight));
  else
    at::mm_out(pre, call.x, transposed(call.weight));
  return finished(pre, call);
}

// Without instructions for 16-bit products: bias, activation and residual with the float32 product.
inline LinearResult linear_widened(const LinearCall& call) {
  LinearResult result{new_matrix(call.x.size(0), call.weight.size(0), call.x), {}};
  const bool same = call.act == Act::kNone && !call.residual.defined();  // out is pre
  if (call.want_pre) result.pre = same ? result.out : at::empty_like(result.out);
  for_float_product(call.x, transposed(call.weight),
                    [&](const at::Tensor& product, const ProductBlock& block) {
                      finish(product, block.of(call.bias), call.act, block.of(call.residual),
                             block.of(result.out), same ? at::Tensor() : block.of(result.pre));
                    });
  return result;
}

inline LinearResult linear_half(const LinearCall& call) {
  if (!library_multiplies(call.x.scalar_type()) || call.x.numel() == 0 || call.weight.numel() == 0)
    return linear_widened(call);
  return has_onednn_linear() ? linear_onednn(call) : linear_addmm(call);
}

// Row blocks, each finished while it is in the cache.
inline LinearResult linear_cpu(const LinearCall& call) {
  if (is_half(call.x.scalar_type())) return linear_half(call);
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
