// Attention on CUDA: torch's kernels where they are near what the chip can do, ours
// (kernels/attention_cuda.h) where not: short sequences, and what torch's do not take.
#pragma once

#include "programs/attention_torch.h"

namespace megafuse {

// Our kernels' side of a call.
class AttentionCudaRun {
 public:
  AttentionCudaRun(const AttentionCall& c, const at::Tensor& out, const at::Tensor& lse)
      : call(c), words(c, out, lse) {}

  // Whether they take the call at all: 16 bits, tensor cores, tiles that fit.
  static bool takes(const AttentionCall& c, bool backward) {
    const at::ScalarType dtype = c.q.scalar_type();
    return (dtype == at::kHalf || dtype == at::kBFloat16) && major(c.q.device().index()) >= 8 &&
           c.dim() <= (backward ? 128 : 256) && fits(c);
  }

  void forward() {
    words.aligned = aligned({&words.q, &words.k, &words.v, &words.out});
    const CudaScope scope(call.q.device());
    launch({Name::kForward, 0, false, call.keys() <= kTile},
           call.batches() * call.heads() * tiles(call.queries()));
  }

  void backward(const at::Tensor& dout, const AttentionGradients& to) {
    words.want(dout, to);
    words.aligned = aligned(
        {&words.q, &words.k, &words.v, &words.out, &words.dout, &words.dq, &words.dk, &words.dv});
    const CudaScope scope(call.q.device());
    const int64_t heads = call.batches() * call.key_heads();
    const int keys = call.keys() <= kTile ? kTile : 2 * kTile;
    if (call.keys() <= keys) {
      const bool one_tile = call.queries() <= kTile && !call.grouped();
      launch({Name::kBackward, keys, true, one_tile}, heads);
      return;
    }
    const uint64_t wanted = words.wanted;
    if (wanted & words.kGradKeys) {
      words.wanted = words.kGradKeys;
      launch({Name::kBackward, kTile, false, false}, heads * tiles(call.keys()));
    }
    if (wanted & words.kGradQuery) {
      words.wanted = words.kGradQuery;
      launch({Name::kGradQuery, 0, false, false},
             call.batches() * call.heads() * tiles(call.queries()));
    }
  }

 private:
  static constexpr int kTile = 64;
  static int64_t tiles(int64_t n) { return (n + kTile - 1) / kTile; }

  static int major(int device) {
    constexpr int kMajor = 75, kDevices = 64;
    static std::atomic<int> known[kDevices];
    std::atomic<int>& value = known[device % kDevices];
    if (C10_UNLIKELY(value.load(std::memory_order_relaxed) == 0))
      value = Driver::get().attribute(kMajor, device);
    return value.load(std::memory_order_relaxed);
  }

  // Blocks are counted, and rows within a head addressed, in 32 bits.
  static bool fits(const AttentionCall& c) {
    constexpr int64_t limit = int64_t(1) << 30;
    return c.batches() * c.heads() * tiles(std::max(c.queries(), c.keys())) < limit &&
           c.queries() < limit && c.keys() < limit;
  }

  // Rows of whole 16 bytes at whole multiples of them.
  bool aligned(std::initializer_list<const AttentionWords::View*> views) const {
    constexpr int64_t kWhole = 8;
    bool all = call.dim() % kWhole == 0;
    for (const AttentionWords::View* v : views)
      all = all && v->address % 16 == 0 && v->batch % kWhole == 0 && v->head % kWhole == 0 &&
            v->token % kWhole == 0;
    return all;
  }

  // A struct of kernels/attention_cuda.h, keys of a tile (or 0), and two of its flags.
  enum class Name : uint8_t { kForward, kBackward, kGradQuery };
  struct Variant {
    Name name;
    int keys;
    bool query, one_tile;
  };

  void launch(const Variant& v, int64_t blocks) const {
    const c10::Device device = call.q.device();
    const at::ScalarType dtype = call.q.scalar_type();
    int dim = 0;  // that tiles have
    for (int size : {32, 64, 96, 128, 192, 256})
      if (!dim && call.dim() <= size) dim = size;
    Key key(Kind::kAttention, device);
    for (int part : {int(v.name), int(dtype), mask_dtype(call), dim / 8, v.keys, int(v.query),
                     int(v.one_tile)})
      key.put(part);
    const Compiled kernel = KernelTable::get().find(key, device, [&] {
      static const char* const names[] = {"AttentionForward", "AttentionBackward",
                                          "AttentionGradQuery"};
      return Py_BuildValue("(sssiiOO)", names[int(v.name)], c10::toString(dtype),
                           mask_dtype_name(call), dim, v.keys, flag(v.query), flag(v.one_tile));
    });
    launch_cuda(kernel, device, unsigned(blocks), 1, words.data());
  }

  const AttentionCall& call;
  AttentionWords words;
};

#ifdef MF_CUDA

// Where ours win. On an H200, bfloat16, 12 heads of 64, us, ours | the fastest of torch's:
//
//                  forward   causal    masked     backward   causal    masked
//   256 x 64       35 | 45   35 | 46   51 | 63     95 | 108  111 | 107  114 | 106
//   64 x 128       34 | 21   29 | 22   55 | 28     92 | 81    92 | 92   149 | 89
//
// (The backward's times hold some of the host's.) torch chooses cuDNN for all of these: 57 and 194
// for the first.
inline bool is_short(const AttentionCall& call, bool backward) {
  const int64_t longest = backward && call.causal && !call.mask.defined() ? 128 : 64;
  return call.queries() <= longest && call.keys() <= longest;
}

// A few tokens in float32: torch's kernel has tiles of 64, most of which are empty then. Its
// operations one by one keep nothing for a backward, and waste nothing. (397 sequences of 5 tokens
// with a mask on an H200: 156 us by the kernel, 39 for the two products of the operations.)
inline std::optional<AttentionResult> attention_in_parts(const AttentionCall& call) {
  constexpr int64_t kFew = 16;
  if (call.q.scalar_type() != at::kFloat || call.queries() > kFew || call.keys() > kFew ||
      call.grouped() || (call.causal && call.mask.defined()))
    return std::nullopt;
  const at::Tensor mask = additive_mask(call);
  const at::Tensor out = std::get<0>(at::_scaled_dot_product_attention_math(
      call.q, call.k, call.v, mask.defined() ? std::optional(mask) : std::nullopt, 0.0, call.causal,
      std::nullopt, call.scale));
  return AttentionResult{allocate_like(call.q).copy_(out), {}};
}

inline AttentionResult attention_cuda(const AttentionCall& call, bool keep) {
  if (!keep)
    if (auto result = attention_in_parts(call)) return *result;
  const bool ours = AttentionCudaRun::takes(call, /*backward=*/false);
  if (!(ours && is_short(call, /*backward=*/false)))
    if (auto result = TorchAttention(call).forward(keep)) return *result;
  if (!ours) throw UseReference{};
  AttentionResult result{allocate_like(call.q), keep ? new_lse(call) : at::Tensor()};
  AttentionCudaRun(call, result.out, result.lse).forward();
  return result;
}

inline AttentionGradients attention_grad_cuda(const AttentionCall& call, const at::Tensor& dout,
                                              const AttentionResult& kept, AttentionWants wants) {
  const bool ours = AttentionCudaRun::takes(call, /*backward=*/true);
  if (!(ours && is_short(call, /*backward=*/true)))
    if (auto result = TorchAttention(call).backward(dout, kept, wants)) return *result;
  if (!ours) throw UseReference{};
  AttentionGradients gradients = allocate_gradients(call, wants);
  AttentionCudaRun(call, kept.out, kept.lse).backward(dout, gradients);
  return gradients;
}

#else

inline AttentionResult attention_cuda(const AttentionCall&, bool) { throw UseReference{}; }
inline AttentionGradients attention_grad_cuda(const AttentionCall&, const at::Tensor&,
                                              const AttentionResult&, AttentionWants) {
  throw UseReference{};
}

#endif

}  // namespace megafuse
