// A matrix product as a step of a program: act(a·b + bias) by the ladder of linear.h, whatever
// graph it stands in, forward or backward. Schemas are defined in graph/patterns/product.py.
#pragma once

#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include "programs/act_argument.h"
#include "programs/linear.h"

namespace megafuse {

// Sizes that are no whole 16 bytes keep a library from its fast kernels: GPT-2's head has 50257
// columns, and its product for 8192 rows in bfloat16 takes 6.7 ms on an H200, padded to 50264
// columns 1.4 with the copies. So large ones are padded with zeros, and the result's padding is
// dropped; but for those of our own GEMM, whose results may be so (sm90.h).
struct PaddedProduct {
  int64_t m, n, k;  // to be added

  static PaddedProduct of(const at::Tensor& a, const at::Tensor& b) {
    const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
    constexpr int64_t kLeast = 512;
    if (!a.is_cuda() || std::min({m, n, k}) < kLeast) return {0, 0, 0};
    if (splits(a, b.t())) return {0, 0, 0};      // it pads its halves
    const bool a_by_columns = a.stride(1) != 1;  // its rows lie side by side: their number counts
    return {a_by_columns ? rest(m) : 0, rest(n), rest(k)};
  }

  bool any() const { return m || n || k; }

  at::Tensor left(const at::Tensor& a) const { return padded(a, m, k); }
  at::Tensor right(const at::Tensor& b) const { return padded(b, k, n); }
  at::Tensor beside(const at::Tensor& bias) const {
    return bias.defined() && n ? at::constant_pad_nd(bias, {0, n}) : bias;
  }
  // Copied by a pass of ours, in whole rows: PyTorch's copy of GPT-2's logits takes as long as the
  // product, 0.97 ms on an H200.
  at::Tensor wanted(const at::Tensor& out) const {
    if (!out.defined() || !(m || n)) return out;
    const at::Tensor part = out.narrow(0, 0, out.size(0) - m).narrow(1, 0, out.size(1) - n);
    if (!n) return part;
    const at::Tensor made = new_matrix(part.size(0), part.size(1), out);
    finish(part, {}, Act::kNone, {}, made, {});
    return made;
  }

 private:
  static int64_t rest(int64_t size) {
    constexpr int64_t kWhole = 8;
    return (kWhole - size % kWhole) % kWhole;
  }
  // As it lies: by rows or by columns.
  static at::Tensor padded(const at::Tensor& t, int64_t rows, int64_t columns) {
    if (!rows && !columns) return t;
    if (t.stride(1) == 1) return at::constant_pad_nd(t, {0, columns, 0, rows});
    return at::constant_pad_nd(t.t(), {0, rows, 0, columns}).t();
  }
};

// act(a·b + bias), and if `keep` what act was given; else something empty.
inline std::tuple<at::Tensor, at::Tensor> product(const at::Tensor& a, const at::Tensor& b,
                                                  const std::optional<at::Tensor>& bias,
                                                  const std::string& act, bool keep) {
  LinearCall call{as_operand(a), as_operand(b.t()), as_vector(bias.value_or(at::Tensor()))};
  call.act = act == "" ? Act::kNone : act_named(act);
  call.want_pre = call.from_pre = keep;
  const PaddedProduct padding = PaddedProduct::of(call.x, call.weight.t());
  std::optional<LinearResult> result;
  if (padding.any()) {
    if ((result = sm90_linear(call)))
      return {result->out, keep ? result->pre : at::empty({0}, result->out.options())};
    call.weight = padding.right(call.weight.t()).t();
    call.x = padding.left(call.x), call.bias = padding.beside(call.bias);
  }
  result = linear(call);
  return {padding.wanted(result->out),
          keep ? padding.wanted(result->pre) : at::empty({0}, result->out.options())};
}

inline void register_product() {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "megafuse_graph", std::nullopt, __FILE__, __LINE__);
  for (auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
    library->impl("product", torch::dispatch(key, TORCH_FN(product)));
}

}  // namespace megafuse
