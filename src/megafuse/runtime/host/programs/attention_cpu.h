// Attention on the CPU: our kernel (kernels/attention_cpu.h), or torch's tiled one where that is
// faster.
#pragma once

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "programs/attention_call.h"
#include "programs/cpu_features.h"

namespace megafuse {

// One of our kernels: task() does a piece of the work, scratch() says what memory that takes.
struct AttentionCpuKernel {
  void (*task)(const uint64_t* words, const int64_t* task, int64_t slot);
  int64_t (*scratch)(int64_t dim, int64_t keys, int64_t together);

  static AttentionCpuKernel find(bool backward, const AttentionCall& call) {
    const c10::Device device = call.q.device();
    Key key(Kind::kAttention, device);
    for (int part : {int(backward), int(call.q.scalar_type()), mask_dtype(call)}) key.put(part);
    const Compiled found = KernelTable::get().find(key, device, [&] {
      return Py_BuildValue("(sss)", backward ? "backward" : "forward",
                           c10::toString(call.q.scalar_type()), mask_dtype_name(call));
    });
    return {reinterpret_cast<decltype(task)>(found.function),
            reinterpret_cast<decltype(scratch)>(found.second)};
  }
};

// The work of one call, shared out to torch's threads.
class AttentionCpuRun {
 public:
  AttentionCpuRun(const AttentionCall& c, const at::Tensor& out, const at::Tensor& lse)
      : call(c),
        words(c, out, lse),
        heads(c.batches() * c.key_heads()),
        blocks((c.heads() / c.key_heads() * c.queries() + kQueries - 1) / kQueries) {
    // In products: some 15 µs, and what a block of queries takes before its first.
    constexpr double kWorthAThread = 2e6, kForABlock = 2e5;
    const double products =
        2.0 * double(c.batches() * c.heads() * c.queries()) * double(c.keys() * c.dim()) +
        kForABlock * double(heads * blocks);
    if (!at::in_parallel_region())
      threads = std::clamp<int64_t>(int64_t(products / kWorthAThread), 1, at::get_num_threads());
    words.together = 4;
    while (words.together > 1 && heads * groups() < 3 * threads) words.together /= 2;
  }

  void forward() {
    const auto kernel = AttentionCpuKernel::find(false, call);
    run(kernel, heads * groups(), call.keys(), [](int64_t i, int64_t* task) { task[0] = i; });
  }

  void backward(const at::Tensor& dout, const AttentionGradients& to) {
    const auto kernel = AttentionCpuKernel::find(true, call);
    words.want(dout, to);
    // A whole head to a thread reads everything once (five products). Where that leaves threads
    // idle, queries and keys go separately, in smaller pieces (seven products).
    const int64_t turns = (heads + threads - 1) / threads;
    if (double(turns * threads) <= 1.4 * double(heads)) {
      run(kernel, heads, call.keys(), [&](int64_t i, int64_t* task) {
        task[0] = i, task[1] = 0, task[2] = blocks, task[3] = 0, task[4] = call.keys();
      });
      return;
    }
    if (to.dq.defined()) {
      words.wanted = words.kGradQuery;
      run(kernel, heads * groups(), call.keys(), [&](int64_t i, int64_t* task) {
        task[0] = i / groups(), task[1] = i % groups() * words.together;
        task[2] = std::min(task[1] + words.together, blocks), task[3] = 0, task[4] = call.keys();
      });
    }
    if (to.dk.defined()) {
      words.wanted = words.kGradKeys;
      constexpr int64_t kPiece = 192;
      const int64_t pieces = (call.keys() + kPiece - 1) / kPiece;
      run(kernel, heads * pieces, kPiece, [&](int64_t i, int64_t* task) {
        task[0] = i / pieces, task[1] = 0, task[2] = blocks;
        task[3] = i % pieces * kPiece, task[4] = std::min(task[3] + kPiece, call.keys());
      });
    }
  }

 private:
  static constexpr int64_t kQueries = 64;  // of kernels/attention_cpu.h

  int64_t groups() const { return (blocks + words.together - 1) / words.together; }

  // Threads take turns, so that each gets short tasks and long ones of a causal call.
  template <class Fill>
  void run(const AttentionCpuKernel& kernel, int64_t tasks, int64_t keys, const Fill& fill) {
    launches.fetch_add(1, std::memory_order_relaxed);
    const int64_t slots = std::min(threads, tasks);
    constexpr int64_t kLine = 64;
    const int64_t bytes =
        (kernel.scratch(call.dim(), keys, words.together) + kLine - 1) / kLine * kLine;
    const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(size_t(slots * bytes + kLine));
    words.scratch = reinterpret_cast<uint64_t>(scratch.get());
    words.scratch_bytes = uint64_t(bytes);
    auto work = [&](int64_t slot) {
      for (int64_t i = slot; i < tasks; i += slots) {
        int64_t task[5];
        fill(i, task);
        kernel.task(words.data(), task, slot);
      }
    };
    if (slots <= 1)
      work(0);
    else
      on_torch_threads(slots, work);
  }

  const AttentionCall& call;
  AttentionWords words;
  const int64_t heads, blocks;  // key heads of all batches, blocks of queries of each
  int64_t threads = 1;
};

// Where torch's tiled kernel is the faster one, on a Sapphire Rapids (ours against torch's, ms on
// one core, 24 heads of 512 x 64): float32 14.0 to 15.6, causal 8.5 to 15.9, backward 34 to 41;
// bfloat16 13.5 to 5.9, causal 8.0 to 6.4, backward 32 to 39. A few queries leave most of our SIMD
// lanes empty: 1 x 1024 takes us 4.7, torch 2.1, and 384 heads of 8 x 8 0.83 to 0.63.
//
// On one core of a Neoverse-N1, float32: 12 heads of 512 x 64 35.6 to 32.5, causal 20.7 to 36.2,
// backward 78 to 79; 32 heads of 64 x 64 1.72 to 1.58, 16 of 128 x 128 5.8 to 5.3, of 128 x 64 3.2
// to 3.6. In 16 bits torch's takes 9 to 170 times as long.
inline bool torch_is_faster_on_arm(const AttentionCall& c) {
#ifdef __aarch64__
  const bool ours_is = c.keys() > 64 && c.keys() < 256 && c.dim() <= 64;
  return c.q.scalar_type() == at::kFloat && !c.causal && !c.mask.defined() && !ours_is;
#else
  return false;
#endif
}

inline bool torch_is_faster(const AttentionCall& c, bool backward) {
  if (c.grouped()) return false;  // torch would copy k and v for each head
  const at::ScalarType dtype = c.q.scalar_type();
  const bool amx = dtype == at::kBFloat16 && CpuFeatures::get().amx;
  const bool few = c.queries() <= 8 || (c.queries() <= 16 && c.keys() <= 16);
  // Without instructions for them torch's products in 16 bits are oneDNN's reference.
  if (is_half(dtype) && !library_multiplies(dtype)) return false;
  if (!backward) return few || amx || torch_is_faster_on_arm(c);
  if (dtype == at::kHalf || dtype == at::kBFloat16) return amx && !c.causal && c.queries() >= 1024;
  return few && c.keys() >= 64 && !c.causal;
}

inline AttentionResult attention_cpu(const AttentionCall& call, bool keep) {
  AttentionResult result{allocate_like(call.q), keep ? new_lse(call) : at::Tensor()};
  if (torch_is_faster(call, /*backward=*/false)) {
    launches.fetch_add(1, std::memory_order_relaxed);
    const at::Tensor mask = additive_mask(call);
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        call.q, call.k, call.v, 0.0, call.causal,
        mask.defined() ? std::optional(mask.expand({-1, -1, call.queries(), call.keys()}))
                       : std::nullopt,
        call.scale);
    if (out.strides() == result.out.strides())
      result.out = out;
    else
      result.out.copy_(out);
    if (keep) result.lse.copy_(lse);
    return result;
  }
  AttentionCpuRun(call, result.out, result.lse).forward();
  return result;
}

inline AttentionGradients attention_grad_cpu(const AttentionCall& call, const at::Tensor& dout,
                                             const AttentionResult& kept, AttentionWants wants) {
  if (torch_is_faster(call, /*backward=*/true)) {
    launches.fetch_add(1, std::memory_order_relaxed);
    const at::Tensor mask = additive_mask(call);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dout, call.q, call.k, call.v, kept.out, kept.lse, 0.0, call.causal,
        mask.defined() ? std::optional(mask.expand({-1, -1, call.queries(), call.keys()}))
                       : std::nullopt,
        call.scale);
    return as_wanted(call, wants, dq, dk, dv);
  }
  AttentionGradients gradients = allocate_gradients(call, wants);
  AttentionCpuRun(call, kept.out, kept.lse).backward(dout, gradients);
  return gradients;
}

}  // namespace megafuse
