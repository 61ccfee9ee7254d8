// torch's own attention kernels for CUDA, each called as it is: cuDNN's, flash and the "efficient"
// one. Where one does not take a call, or throws, the next is asked.
//
// On an H200, forward, us (plain / causal / masked), and backward:
//                                cuDNN               flash        efficient
//   bfloat16 32 x 12 x 512 x 64   72 / 56 / 113       106 / 93     223 / 145 / 310
//     backward                   241 / 206 / 320                   647
//   float32 32 x 12 x 512 x 64                                     788 / 491 / 884
//     backward                                                    1933
//
// cuDNN's backward could write straight into a packed gradient, but torch's cache of its plans does
// not look at the gradients' strides, so that a later call of torch's own would go by ours.
#pragma once

#include "programs/attention_call.h"

#ifdef MF_CUDA
#include <ATen/native/transformers/cuda/sdp_utils.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>

#include <unordered_set>
#endif

namespace megafuse {

#ifdef MF_CUDA

enum class TorchKernel : uint8_t { kCudnn, kFlash, kEfficient };

class TorchAttention {
 public:
  explicit TorchAttention(const AttentionCall& c) : call(c), half(c.q.scalar_type() != at::kFloat) {
    // All of them want rows of whole 16 bytes, at whole multiples of them.
    added = (c.dim() + unit() - 1) / unit() * unit() - c.dim();
    call.q = whole(c.q), call.k = whole(c.k), call.v = whole(c.v);
    at::Tensor given = additive_mask(c);
    if (!half && c.causal && given.defined()) {
      // The "efficient" kernel takes both, but rows of which all that may be seen is masked by a
      // large number, not -Inf, come out wrong.
      const auto seen = at::ones({c.queries(), c.keys()}, c.q.options().dtype(at::kBool)).tril();
      given = at::where(seen, given, at::full({}, -INFINITY, c.q.options()));
      call.causal = false;
    }
    mask = whole_mask(given);
  }

  std::optional<AttentionResult> forward(bool keep) {
    std::optional<AttentionResult> result;
    for (TorchKernel kernel : kernels)
      if (attempt(kernel, false, [&] { result = forward(kernel, keep); })) return result;
    return std::nullopt;
  }

  std::optional<AttentionGradients> backward(const at::Tensor& dout, const AttentionResult& kept,
                                             AttentionWants wants) {
    std::optional<AttentionGradients> result;
    for (TorchKernel kernel : kernels)
      if (attempt(kernel, true, [&] { result = backward(kernel, dout, kept, wants); }))
        return result;
    return std::nullopt;
  }

 private:
  static constexpr TorchKernel kernels[] = {TorchKernel::kCudnn, TorchKernel::kFlash,
                                            TorchKernel::kEfficient};

  at::Tensor whole(const at::Tensor& t) const {
    if (added) return at::constant_pad_nd(t, {0, added});
    bool fits = reinterpret_cast<uint64_t>(t.const_data_ptr()) % 16 == 0;
    for (int64_t d = 0; d < 3; ++d) fits = fits && (t.size(d) == 1 || t.stride(d) % unit() == 0);
    return fits ? t : allocate_like(t).copy_(t);
  }
  at::Tensor unpadded(const at::Tensor& t) const {
    return added ? t.narrow(3, 0, t.size(3) - added) : t;
  }

  // Runs it if torch would and it has not failed before; what throws is not asked again.
  template <class Run>
  bool attempt(TorchKernel kernel, bool backward, const Run& run) const {
    static Mutex mutex;
    static auto* const failed = new std::unordered_set<uint64_t>;
    static std::atomic<bool> any_failed{false};
    const uint64_t key = key_of(kernel, backward);
    if (any_failed.load(std::memory_order_relaxed)) {
      std::lock_guard<Mutex> lock(mutex);
      if (failed->count(key)) return false;
    }
    if (!takes(kernel, backward)) return false;
    try {
      run();
      launches.fetch_add(1, std::memory_order_relaxed);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::AcceleratorError&) {
      throw;
    } catch (const c10::Error&) {
      std::lock_guard<Mutex> lock(mutex);
      failed->insert(key);
      any_failed = true;
      return false;
    }
  }

  uint64_t key_of(TorchKernel kernel, bool backward) const {
    uint64_t hash = 0xcbf29ce484222325u;
    auto put = [&](int64_t value) { hash = (hash ^ uint64_t(value)) * 0x100000001b3u; };
    put(int(kernel) * 2 + backward);
    put(call.q.device().index() * 64 + int(call.q.scalar_type()));
    put(call.causal * 2 + mask.defined());
    for (const at::Tensor* t : {&call.q, &call.k})
      for (int64_t size : t->sizes()) put(size);
    return hash;
  }

  // The conditions are torch's own, of the version that is installed. Tensors that reach here
  // require no gradient, so that it does not check what cuDNN's backward takes.
  bool takes(TorchKernel kernel, bool backward) const {
    constexpr int64_t kMostForCudnnBackward = 128;
    if (!half && kernel != TorchKernel::kEfficient) return false;
    if (backward && kernel == TorchKernel::kCudnn && call.dim() > kMostForCudnnBackward)
      return false;
    const bool expanded = kernel == TorchKernel::kEfficient && call.grouped();
    const sdp::sdp_params params{call.q,
                                 expanded ? call.q : call.k,
                                 expanded ? call.q : call.v,
                                 mask.defined() ? std::optional(mask) : std::nullopt,
                                 0.0,
                                 call.causal,
                                 call.grouped() && !expanded};
    switch (kernel) {
      case TorchKernel::kCudnn:
        return sdp::can_use_cudnn_attention(params, false);
      case TorchKernel::kFlash:
        return sdp::can_use_flash_attention(params, false);
      default:
        return sdp::can_use_mem_efficient_attention(params, false);
    }
  }

  AttentionResult finish(const at::Tensor& out, const at::Tensor& lse, bool keep) const {
    AttentionResult result{unpadded(out), {}};
    if (added || !lies_as_q(out))
      result.out = allocate_like(call.q.narrow(3, 0, call.dim() - added)).copy_(result.out);
    if (!keep) return result;
    result.lse = lse.dim() == 4 ? lse.squeeze(3) : lse;
    result.lse = result.lse.narrow(2, 0, call.queries()).contiguous();
    return result;
  }
  // Whether it has the strides that allocate_like(q) gives.
  bool lies_as_q(const at::Tensor& out) const {
    if (call.q.is_non_overlapping_and_dense()) return out.strides() == call.q.strides();
    return out.strides() ==
           at::IntArrayRef(at::infer_dense_strides(call.q.sizes(), call.q.strides()));
  }

  AttentionResult forward(TorchKernel kernel, bool keep) const {
    const std::optional<double> scale = call.scale;
    switch (kernel) {
      case TorchKernel::kCudnn: {
        const auto r = at::_scaled_dot_product_cudnn_attention(
            call.q, call.k, call.v, mask.defined() ? std::optional(mask) : std::nullopt, keep, 0.0,
            call.causal, false, scale);
        if (keep) cudnn_lse_dim = std::get<1>(r).dim();
        return finish(std::get<0>(r), std::get<1>(r), keep);
      }
      case TorchKernel::kFlash: {
        const auto r = at::_scaled_dot_product_flash_attention(call.q, call.k, call.v, 0.0,
                                                               call.causal, false, scale);
        return finish(std::get<0>(r), std::get<1>(r), keep);
      }
      default: {
        const auto r = at::_scaled_dot_product_efficient_attention(
            call.q, of_each_head(call.k), of_each_head(call.v), expanded_mask(), keep, 0.0,
            call.causal, scale);
        return finish(std::get<0>(r), std::get<1>(r), keep);
      }
    }
  }

  AttentionGradients backward(TorchKernel kernel, const at::Tensor& dout,
                              const AttentionResult& kept, AttentionWants wants) const {
    const at::Tensor grad = whole(dout), out = whole(kept.out), none;
    // Where random numbers would have come from, had anything been dropped.
    const at::Tensor seed = allocate({2}, {}, at::kLong, call.q.device());
    const int64_t queries = call.queries(), keys = call.keys();
    const std::optional<double> scale = call.scale;
    at::Tensor dq, dk, dv;
    switch (kernel) {
      case TorchKernel::kCudnn:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_cudnn_attention_backward(
            grad, call.q, call.k, call.v, out, cudnn_lse(kept.lse), seed, seed, mask, none, none,
            queries, keys, 0.0, call.causal, scale);
        break;
      case TorchKernel::kFlash:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
            grad, call.q, call.k, call.v, out, kept.lse, none, none, queries, keys, 0.0,
            call.causal, seed, seed, scale);
        break;
      default: {
        // This one writes a packed gradient if asked to.
        const bool packed = wants.packed && !added && !call.grouped() && queries == keys;
        auto tokens = [](const at::Tensor& t) { return t.transpose(1, 2); };
        const auto r = at::_efficient_attention_backward(
            tokens(grad), tokens(call.q), tokens(of_each_head(call.k)),
            tokens(of_each_head(call.v)), expanded_mask(), tokens(out), std::nullopt, std::nullopt,
            queries, keys, whole_lse(kept.lse), 0.0, seed, seed, int64_t(call.causal), false, scale,
            std::nullopt, std::nullopt, packed);
        dq = tokens(std::get<0>(r)), dk = tokens(std::get<1>(r)), dv = tokens(std::get<2>(r));
        if (packed) {
          const Shape shape{call.batches(), queries, 3, call.heads(), call.dim()};
          const int64_t row = call.heads() * call.dim();
          return {dq, dk, dv,
                  dq.as_strided(shape, {queries * 3 * row, 3 * row, row, call.dim(), 1})};
        }
        dk = of_each_group(dk), dv = of_each_group(dv);
      }
    }
    AttentionCall given = call;
    given.q = unpadded(call.q), given.k = unpadded(call.k), given.v = unpadded(call.v);
    return as_wanted(given, wants, unpadded(dq), unpadded(dk), unpadded(dv));
  }

  // k or v for each query head; copied where heads share them, which this kernel does not know.
  at::Tensor of_each_head(const at::Tensor& t) const {
    if (!call.grouped()) return t;
    const int64_t share = call.heads() / call.key_heads();
    return t.unsqueeze(2).expand({-1, -1, share, -1, -1}).flatten(1, 2);
  }
  at::Tensor of_each_group(const at::Tensor& t) const {
    if (!call.grouped()) return t;
    return t.unflatten(1, {call.key_heads(), call.heads() / call.key_heads()}).sum(2);
  }

  // A mask with rows of whole 16 bytes, at whole multiples of them.
  at::Tensor whole_mask(const at::Tensor& given) const {
    if (!given.defined()) return given;
    const int64_t keys = call.keys();
    bool fits = given.stride(3) == 1 && given.size(3) == keys && keys % unit() == 0 &&
                reinterpret_cast<uint64_t>(given.const_data_ptr()) % 16 == 0;
    for (int64_t d = 0; d < 3; ++d)
      fits = fits && (given.size(d) == 1 || given.stride(d) % unit() == 0);
    if (fits) return given;
    const int64_t width = (keys + unit() - 1) / unit() * unit();
    at::Tensor rows =
        at::zeros({given.size(0), given.size(1), given.size(2), width}, given.options());
    return rows.narrow(3, 0, keys).copy_(given);
  }
  // The mask seen as [B, H, S, T].
  std::optional<at::Tensor> expanded_mask() const {
    if (!mask.defined()) return std::nullopt;
    return mask.expand({call.batches(), call.heads(), call.queries(), call.keys()});
  }

  // Rows of whole 32 queries.
  at::Tensor whole_lse(const at::Tensor& lse) const {
    constexpr int64_t kWhole = 32;
    const int64_t rest = lse.size(2) % kWhole;
    return rest ? at::constant_pad_nd(lse, {0, kWhole - rest}) : lse;
  }
  // As cuDNN's forward gives it: some versions have a fourth dimension, and its backward reads
  // past a shape that lacks it. Where only our forward has run so far, cuDNN's is asked once.
  at::Tensor cudnn_lse(const at::Tensor& lse) const {
    if (cudnn_lse_dim == 0) forward(TorchKernel::kCudnn, /*keep=*/true);
    return cudnn_lse_dim == 4 ? lse.unsqueeze(3) : lse;
  }
  static inline std::atomic<int64_t> cudnn_lse_dim{0};

  int64_t unit() const { return half ? 8 : 4; }  // elements in 16 bytes

  AttentionCall call;
  const bool half;
  at::Tensor mask;
  int64_t added = 0;  // columns to make rows whole
};

#endif

}  // namespace megafuse
