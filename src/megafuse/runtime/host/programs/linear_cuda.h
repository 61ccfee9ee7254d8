// The linear layer on CUDA: a ladder of choices, the first that takes the call.
#pragma once

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "programs/epilogue.h"
#include "programs/gemm.h"
#include "programs/sm90.h"
#include "programs/split.h"

namespace megafuse {

// cuBLASLt's epilogue for act(x·weightᵀ + bias), if it has one; gelu only in its tanh form.
inline std::optional<Epilogue> library_epilogue(const LinearCall& call) {
  const bool bias = call.bias.defined();
  switch (call.act) {
    case Act::kNone:
      return bias ? Epilogue::kBias : Epilogue::kNone;
    case Act::kRelu:
      if (call.want_pre) return std::nullopt;
      return bias ? Epilogue::kBiasRelu : Epilogue::kRelu;
    case Act::kGeluTanh:
      // In float32 its error is five times that of a tanh of the right precision.
      if (call.x.scalar_type() == at::kFloat) return std::nullopt;
      // It rounds what it writes as pre, not what it goes on with.
      if (call.from_pre) return std::nullopt;
      if (call.want_pre) return bias ? Epilogue::kBiasGeluAux : Epilogue::kGeluAux;
      return bias ? Epilogue::kBiasGelu : Epilogue::kGelu;
    default:
      return std::nullopt;
  }
}

// The whole call in one launch of cuBLASLt's.
inline std::optional<LinearResult> library_linear(const LinearCall& call) {
  const auto epilogue = library_epilogue(call);
  const bool act = call.act != Act::kNone, add = call.residual.defined();
  // A residual is added before the activation there, and takes the place of pre.
  if (!epilogue || (add && (act || call.want_pre))) return std::nullopt;
  if (add && (!Matrix::of(call.residual).usable || Matrix::of(call.residual).transposed))
    return std::nullopt;
  const int64_t rows = call.x.size(0), columns = call.weight.size(0);
  LinearResult result{new_matrix(rows, columns, call.x), {}};
  if (call.want_pre) result.pre = act ? new_matrix(rows, columns, call.x) : result.out;
  const at::Tensor aux = act ? result.pre : at::Tensor();
  if (!run_gemm(
          {call.x, transposed(call.weight), result.out, call.residual, call.bias, aux, *epilogue}))
    return std::nullopt;
  return result;
}

// A GEMM with its bias, then one pass: the erf form of gelu, float64, what cuBLASLt refuses.
inline LinearResult linear_in_two(const LinearCall& call) {
  const int64_t rows = call.x.size(0), columns = call.weight.size(0);
  LinearResult result{new_matrix(rows, columns, call.x), {}};
  if (call.want_pre) result.pre = new_matrix(rows, columns, call.x);
  at::Tensor pre = call.want_pre ? result.pre : result.out;
  const auto epilogue = call.bias.defined() ? Epilogue::kBias : Epilogue::kNone;
  if (!run_gemm({call.x, transposed(call.weight), pre, {}, call.bias, {}, epilogue})) {
    if (call.bias.defined())
      at::addmm_out(pre, call.bias, call.x, transposed(call.weight));
    else
      at::mm_out(pre, call.x, transposed(call.weight));
  }
  if (call.act != Act::kNone || call.residual.defined() || call.want_pre)
    finish(pre, {}, call.act, call.residual, result.out, {});
  return result;
}

inline LinearResult linear_cuda(const LinearCall& call) {
  if (auto done = sm90_linear(call)) return *done;
  if (auto done = split_linear(call)) return *done;
  if (auto done = library_linear(call)) return *done;
  return linear_in_two(call);
}

}  // namespace megafuse
