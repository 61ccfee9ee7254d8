// Attention on CUDA: torch's kernels where they are near what the chip can do, ours
// (kernels/attention_cuda.h) where not: short sequences, and what torch's do not take.
#pragma once

#include <map>

#include "programs/attention_torch.h"

namespace megafuse {

// One of our kernels, compiled for a device.
struct AttentionCudaKernel {
  void* function = nullptr;
  unsigned threads = 0, shared = 0;

  struct Variant {
    const char* name;  // of its struct in kernels/attention_cuda.h
    at::ScalarType dtype;
    int mask;  // its dtype, or -1
    int dim;   // that tiles have
    int keys;  // of a tile, or 0
    bool query, one_tile;
    int device;
    auto key() const {
      return std::make_tuple(name, dtype, mask, dim, keys, query, one_tile, device);
    }
  };

  static AttentionCudaKernel find(const Variant& variant) {
    static Mutex mutex;
    static auto* const known = new std::map<decltype(variant.key()), AttentionCudaKernel>;
    {
      std::shared_lock<Mutex> lock(mutex);
      const auto found = known->find(variant.key());
      if (C10_LIKELY(found != known->end())) return found->second;
    }
    const AttentionCudaKernel kernel = build(variant);
    std::unique_lock<Mutex> lock(mutex);
    return known->emplace(variant.key(), kernel).first->second;
  }

  void launch(const AttentionWords& words, int64_t blocks, c10::Device device) const {
    const Driver& driver = Driver::get();
    void* params[] = {const_cast<uint64_t*>(words.data())};
    launches.fetch_add(1, std::memory_order_relaxed);
    driver.check(driver.LaunchKernel(function, unsigned(blocks), 1, 1, threads, 1, 1, shared,
                                     current_stream(device), params, nullptr),
                 "a kernel launch");
  }

 private:
  static AttentionCudaKernel build(const Variant& v) {
    GilAcquire gil;
    Owned module(PyImport_ImportModule("megafuse.runtime.attention"));
    Owned built(PyObject_CallMethod(
        module.object, "cuda_kernel", "sssiiOOi", v.name, c10::toString(v.dtype),
        v.mask < 0 ? "" : c10::toString(at::ScalarType(v.mask)), v.dim, v.keys,
        v.query ? Py_True : Py_False, v.one_tile ? Py_True : Py_False, v.device));
    PyObject* cubin;
    const char* symbol;
    AttentionCudaKernel kernel;
    if (!PyArg_ParseTuple(built.object, "SsII", &cubin, &symbol, &kernel.threads, &kernel.shared))
      throw python_error();
    const Driver& driver = Driver::get();
    void* loaded;
    driver.check(driver.ModuleLoadData(&loaded, PyBytes_AS_STRING(cubin)),
                 "loading a kernel (cuModuleLoadData)");
    driver.check(driver.ModuleGetFunction(&kernel.function, loaded, symbol),
                 "finding a kernel (cuModuleGetFunction)");
    constexpr unsigned kGiven = 48 * 1024;  // without asking
    if (kernel.shared > kGiven) driver.allow_shared(kernel.function, int(kernel.shared));
    return kernel;
  }
};

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
    kernel("AttentionForward", 0, false, call.keys() <= kTile)
        .launch(words, call.batches() * call.heads() * tiles(call.queries()), call.q.device());
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
      kernel("AttentionBackward", keys, true, one_tile).launch(words, heads, call.q.device());
      return;
    }
    const uint64_t wanted = words.wanted;
    if (wanted & words.kGradKeys) {
      words.wanted = words.kGradKeys;
      kernel("AttentionBackward", kTile, false, false)
          .launch(words, heads * tiles(call.keys()), call.q.device());
    }
    if (wanted & words.kGradQuery) {
      words.wanted = words.kGradQuery;
      kernel("AttentionGradQuery", 0, false, false)
          .launch(words, call.batches() * call.heads() * tiles(call.queries()), call.q.device());
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

  AttentionCudaKernel kernel(const char* name, int keys, bool query, bool one_tile) const {
    int dim = 0;
    for (int size : {32, 64, 96, 128, 192, 256})
      if (!dim && call.dim() <= size) dim = size;
    return AttentionCudaKernel::find({name, call.q.scalar_type(),
                                      call.mask.defined() ? int(call.mask.scalar_type()) : -1, dim,
                                      keys, query, one_tile, call.q.device().index()});
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

inline AttentionResult attention_cuda(const AttentionCall& call, bool keep) {
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
