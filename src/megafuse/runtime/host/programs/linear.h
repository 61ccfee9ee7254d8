// A linear layer and its gradients on matrices: linear(), grad_input() and grad_weight() are the
// only places that call a GEMM. GEMMs are the library's, or sm90.h's; what surrounds one rides in
// its epilogue where it can.
#pragma once

#include "programs/linear_cpu.h"
#include "programs/linear_cuda.h"

namespace megafuse {

// x as a matrix that is fit for a GEMM: copied only if neither its rows nor its columns are
// contiguous.
inline at::Tensor as_operand(const at::Tensor& x) {
  at::Tensor matrix = as_matrix(x);
  return is_gemm_ready(matrix) ? matrix : matrix.contiguous();
}

// A bias, or nothing.
inline at::Tensor as_vector(const at::Tensor& bias) {
  return bias.defined() ? bias.contiguous() : bias;
}

inline LinearResult linear(const LinearCall& call) {
  return call.x.is_cuda() ? linear_cuda(call) : linear_cpu(call);
}

// out = a·b, or out += a·b, on any device.
inline void multiply(const at::Tensor& a, const at::Tensor& b, at::Tensor out, bool add = false) {
  if (a.is_cuda() && split_multiply(a, b, out, add)) return;
  if (a.is_cuda() && run_gemm({a, b, out, add ? out : at::Tensor(), {}, {}})) return;
  if (a.is_cpu() && !library_multiplies(a.scalar_type()))
    multiply_widened(a, b, out, add);
  else if (add)
    at::addmm_out(out, out, a, b);
  else
    at::mm_out(out, a, b);
}

// dy·weight: the gradient of a linear layer's input. Written to `into`, or added to it.
inline at::Tensor grad_input(const at::Tensor& dy, const at::Tensor& weight, at::Tensor into = {},
                             bool add = false) {
  if (!into.defined()) into = new_matrix(dy.size(0), weight.size(1), dy);
  multiply(dy, weight, into, add);
  return into;
}

// dyᵀ·x: the gradient of its weight.
inline at::Tensor grad_weight(const at::Tensor& dy, const at::Tensor& x) {
  at::Tensor out = new_matrix(dy.size(1), x.size(1), dy);
  multiply(transposed(dy), x, out);
  return out;
}

// The gradient of act's argument, and of the bias that was added to it, from the gradient dy of
// the layer that follows: act'(saved) ∘ (dy·weight).
inline ActGradient act_grad_input(const at::Tensor& dy, const at::Tensor& weight,
                                  const at::Tensor& saved, Act act, bool want_bias) {
  at::Tensor gradient = new_matrix(dy.size(0), weight.size(1), dy);
  // 16384x768x3072 in bfloat16 on an H200: 167 µs so, 116 + 72 for a GEMM and a pass; with a bias
  // to sum, which the pass does on its way, they are even. (Our own GEMM with such an epilogue took
  // 175 at best: it reads `saved` 4 bytes a thread.)
  if (dy.is_cuda() && act == Act::kGeluTanh && is_half(dy.scalar_type()) && !want_bias &&
      saved.is_contiguous() &&
      run_gemm({dy, weight, gradient, {}, {}, saved, Epilogue::kGeluGradient}))
    return {gradient, {}};
  multiply(dy, weight, gradient);
  return act_grad(gradient, saved, act, want_bias, gradient);
}

}  // namespace megafuse
