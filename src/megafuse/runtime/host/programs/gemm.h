// cuBLASLt, found at run time like the driver: d = epilogue(a·b + beta·c) in one launch, with the
// epilogues that PyTorch's own calls do not reach (GELU with its input kept, a residual beside a
// bias). Its enums are spelled out here, since no CUDA header is needed to build this file; they
// are part of its ABI and the same in CUDA 11.4 to 13.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <bit>
#include <limits>

#include "torch/program.h"

namespace megafuse {

// What happens to a·b + beta·c before it is stored.
enum class Epilogue : int32_t {
  kNone = 1,
  kRelu = 2,
  kBias = 4,
  kBiasRelu = 6,
  kGelu = 32,  // the tanh form, as all of these
  kBiasGelu = 36,
  kGeluAux = 160,  // also writes its input, rounded to d's dtype, to aux
  kBiasGeluAux = 164,
  kGeluGradient = 192,  // times gelu'(aux)
};

// Row-major d[M, N] = epilogue(a[M, K] · b[K, N] + c). a and b may be transposed in memory; c, d
// and aux are not. What is undefined is left out.
struct Gemm {
  at::Tensor a, b, d;
  at::Tensor c = {}, bias = {}, aux = {};
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 1;  // what a·b is multiplied by
};

class BlasLt {
 public:
  // Null where no library of a known version is loaded or can be.
  static const BlasLt* get() {
    static const BlasLt* const found = open();
    return found;
  }

  int (*Create)(void** handle);
  int (*DescCreate)(void** desc, int compute, int scale);
  int (*DescDestroy)(void* desc);
  int (*DescSet)(void* desc, int attribute, const void* value, size_t bytes);
  int (*LayoutCreate)(void** layout, int dtype, uint64_t rows, uint64_t columns, int64_t ld);
  int (*LayoutDestroy)(void* layout);
  int (*PreferenceCreate)(void** preference);
  int (*PreferenceDestroy)(void* preference);
  int (*PreferenceSet)(void* preference, int attribute, const void* value, size_t bytes);
  int (*Heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
                   int wanted, void* results, int* found);
  int (*AlgorithmGet)(const void* algorithm, int attribute, void* value, size_t bytes,
                      size_t* written);
  int (*Matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout,
                const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                void* d, void* d_layout, const void* algorithm, void* workspace,
                size_t workspace_bytes, void* stream);

 private:
  static const BlasLt* open() {
    void* library = nullptr;
    // The one that torch has loaded, whatever else is installed; else one that is installed.
    for (int mode : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW})
      for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"})
        if (!library) library = dlopen(name, mode);
    if (!library) return nullptr;
    auto made = std::make_unique<BlasLt>();
    bool complete = true;
    auto find = [&](auto& slot, const char* name) {
      void* symbol = dlsym(library, name);
      complete &= symbol != nullptr;
      slot = reinterpret_cast<std::decay_t<decltype(slot)>>(symbol);
    };
    find(made->Create, "cublasLtCreate");
    find(made->DescCreate, "cublasLtMatmulDescCreate");
    find(made->DescDestroy, "cublasLtMatmulDescDestroy");
    find(made->DescSet, "cublasLtMatmulDescSetAttribute");
    find(made->LayoutCreate, "cublasLtMatrixLayoutCreate");
    find(made->LayoutDestroy, "cublasLtMatrixLayoutDestroy");
    find(made->PreferenceCreate, "cublasLtMatmulPreferenceCreate");
    find(made->PreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
    find(made->PreferenceSet, "cublasLtMatmulPreferenceSetAttribute");
    find(made->Heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(made->AlgorithmGet, "cublasLtMatmulAlgoConfigGetAttribute");
    find(made->Matmul, "cublasLtMatmul");
    return complete ? made.release() : nullptr;
  }
};

// How a matrix of the problem lies in memory, as cuBLAS sees it (column by column).
struct Matrix {
  bool usable = false;
  bool transposed = false;  // a row-major matrix is one that cuBLAS sees transposed
  int64_t ld = 0;

  static Matrix of(const at::Tensor& t) {
    const int64_t rows = t.size(0), columns = t.size(1);
    // The stride of a dimension of size 1 says nothing.
    const int64_t down = rows == 1 ? columns : t.stride(0);
    const int64_t across = columns == 1 ? rows : t.stride(1);
    if ((columns == 1 || t.stride(1) == 1) && down >= std::max<int64_t>(columns, 1))
      return {true, false, down};
    if ((rows == 1 || t.stride(0) == 1) && across >= std::max<int64_t>(rows, 1))
      return {true, true, across};
    return {};
  }
};

// Whether rows and address are whole units of 16 bytes: what the fast kernels want. Odd sizes are
// left to PyTorch's own call: with cuBLASLt's first choice for them the contract suite failed on an
// H200 (gradients of a relu layer in bfloat16, of an ffn in float32).
inline bool is_in_units(const at::Tensor& t) {
  const int64_t unit = 16 / t.element_size();
  const bool by_rows = t.stride(1) == 1;
  return reinterpret_cast<uint64_t>(t.const_data_ptr()) % 16 == 0 &&
         t.stride(by_rows ? 0 : 1) % unit == 0 && t.size(by_rows ? 1 : 0) % unit == 0;
}

// Whether a GEMM takes this matrix as it lies, without a copy.
inline bool is_gemm_ready(const at::Tensor& t) { return Matrix::of(t).usable; }

// torch.backends.cuda.matmul.allow_tf32 or its successors: strict float32 stays strict unless told.
template <class Precision, class Backend, class Operation>
bool allows_tf32(Precision (at::Context::*precision)(Backend, Operation) const) {
  if constexpr (std::is_enum_v<Backend>)
    return (at::globalContext().*precision)(Backend::CUDA, Operation::MATMUL) == Precision::TF32;
  else  // up to torch 2.9
    return (at::globalContext().*precision)("cuda", "matmul") == "tf32";
}

// How float32 products are computed on CUDA: megafuse.set_fp32_matmul.
enum class Fp32Matmul : uint8_t { kNotSet, kSplit, kIeee, kTf32 };
inline std::atomic<Fp32Matmul> fp32_matmul{Fp32Matmul::kNotSet};

// What the user set; else torch's own switch, where it allows TF32; else split.
inline Fp32Matmul fp32_products() {
  const Fp32Matmul set = fp32_matmul.load(std::memory_order_relaxed);
  if (set != Fp32Matmul::kNotSet) return set;
  return allows_tf32(&at::Context::float32Precision) ? Fp32Matmul::kTf32 : Fp32Matmul::kSplit;
}

// One problem's descriptors and the algorithm chosen for it: not by timing, so that the same call
// gives the same bits every time.
class GemmPlan {
 public:
  // Everything that the choice depends on.
  using Key = std::array<int64_t, 11>;

  static constexpr size_t kWorkspace = size_t(32) << 20;

  static Key key_of(const Gemm& g, const Matrix& a, const Matrix& b, bool tf32) {
    const int64_t flags = int64_t(g.epilogue) | int64_t(g.d.scalar_type()) << 8 |
                          int64_t(g.a.scalar_type()) << 32 | a.transposed << 16 |
                          b.transposed << 17 | g.c.defined() << 18 |
                          int64_t(g.d.device().index()) << 20;
    int64_t alignment = 0;
    for (const at::Tensor* t : {&g.a, &g.b, &g.c, &g.d, &g.bias, &g.aux})
      alignment = alignment << 4 | (t->defined() ? log2_alignment(*t) : 0);
    return {g.d.size(0),
            g.d.size(1),
            g.a.size(1),
            a.ld,
            b.ld,
            g.c.defined() ? Matrix::of(g.c).ld : 0,
            Matrix::of(g.d).ld,
            g.aux.defined() ? Matrix::of(g.aux).ld : 0,
            flags,
            alignment,
            tf32};
  }

  GemmPlan(const BlasLt& lt, void* handle, const Gemm& g, const Matrix& a, const Matrix& b,
           bool tf32)
      : lt_(lt), handle_(handle) {
    constexpr int kCompute32 = 68, kCompute32FastTf32 = 77, kReal32 = 0;
    constexpr int kTransA = 3, kTransB = 4, kEpilogue = 7, kAuxLd = 12;
    bool fine = lt.DescCreate(&desc_, tf32 ? kCompute32FastTf32 : kCompute32, kReal32) == 0;
    auto set = [&](int attribute, auto value) {
      fine = fine && lt.DescSet(desc_, attribute, &value, sizeof value) == 0;
    };
    auto layout = [&](void*& slot, const at::Tensor& t, const Matrix& m) {
      const uint64_t rows = uint64_t(t.size(m.transposed ? 0 : 1));
      const uint64_t columns = uint64_t(t.size(m.transposed ? 1 : 0));
      const at::ScalarType dtype = t.scalar_type();
      const int type = dtype == at::kHalf ? 2 : dtype == at::kBFloat16 ? 14 : kReal32;
      fine = fine && lt.LayoutCreate(&slot, type, rows, columns, m.ld) == 0;
    };
    // cuBLAS works column by column, where our d is its transpose: d' = b' a'.
    set(kTransA, int32_t(b.transposed));
    set(kTransB, int32_t(a.transposed));
    set(kEpilogue, int32_t(g.epilogue));
    set_pointers(g);
    if (g.aux.defined()) set(kAuxLd, Matrix::of(g.aux).ld);
    layout(a_, g.a, a);
    layout(b_, g.b, b);
    layout(d_, g.d, Matrix::of(g.d));
    const at::Tensor& c = g.c.defined() ? g.c : g.d;
    layout(c_, c, Matrix::of(c));
    usable_ = fine && choose(g, c);
  }

  GemmPlan(const GemmPlan&) = delete;
  ~GemmPlan() {
    if (desc_) lt_.DescDestroy(desc_);
    for (void* layout : {a_, b_, c_, d_})
      if (layout) lt_.LayoutDestroy(layout);
  }

  bool run(const Gemm& g) {
    if (!usable_ || !set_pointers(g)) return false;
    at::Tensor workspace;
    if (workspace_bytes_)
      workspace = allocate({int64_t(workspace_bytes_)}, {}, at::kByte, g.d.device());
    const float alpha = g.alpha, beta = g.c.defined() ? 1 : 0;
    const at::Tensor& c = g.c.defined() ? g.c : g.d;
    return lt_.Matmul(handle_, desc_, &alpha, g.b.const_data_ptr(), b_, g.a.const_data_ptr(), a_,
                      &beta, c.const_data_ptr(), c_, g.d.mutable_data_ptr(), d_, algorithm_.data(),
                      workspace.defined() ? workspace.mutable_data_ptr() : nullptr,
                      workspace_bytes_, current_stream(g.d.device())) == 0;
  }

 private:
  // Of its address, up to the 256 bytes that cuBLASLt asks for at most.
  static int log2_alignment(const at::Tensor& t) {
    return std::countr_zero(reinterpret_cast<uint64_t>(t.const_data_ptr()) | 256);
  }

  bool set_pointers(const Gemm& g) {
    constexpr int kBiasPointer = 8, kAuxPointer = 11;
    auto set = [&](int attribute, const at::Tensor& t) {
      if (!t.defined()) return true;
      const void* address = t.const_data_ptr();
      return lt_.DescSet(desc_, attribute, &address, sizeof address) == 0;
    };
    return set(kBiasPointer, g.bias) && set(kAuxPointer, g.aux);
  }

  struct Choice {  // cublasLtMatmulHeuristicResult_t
    std::array<uint64_t, 8> algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
  };

  // The first that cuBLASLt names; but on Hopper the first of eight whose warpgroups take turns, a
  // tile each, where the product is short beside its epilogue or a weight's gradient. It is often
  // named last. On an H200, 16384 rows, us (first named, this one): 768 -> 3072 as a gradient
  // 117.2, 104.7; 768 -> 768 with a bias 34.8, 31.0, as a gradient 34.1, 31.7; gradients of weights
  // 768 x 3072 115.3, 111.0 and 768 x 768 38.2, 36.2; but 3072 -> 768 107.7, 111.5.
  const Choice& preferred(const Gemm& g, const Choice* named, int count) const {
    constexpr int32_t kHopper = 66, kTakingTurns = 1;
    const int64_t k = g.a.size(1);
    if (g.c.defined() || g.d.scalar_type() == at::kFloat) return named[0];
    for (int i = 0; i < count; ++i) {
      const bool pays = k < 1536 ? named[i].waves > 4 : k >= 8192 && named[i].waves < 1;
      if (pays && named[i].status == 0 && configured(named[i], kAlgorithm) == kHopper &&
          configured(named[i], kCustomOption) == kTakingTurns)
        return named[i];
    }
    return named[0];
  }
  static constexpr int kAlgorithm = 0, kCustomOption = 5;  // cublasLtMatmulAlgoConfigAttributes_t
  int32_t configured(const Choice& choice, int attribute) const {
    int32_t value = -1;
    size_t bytes = 0;
    const int status = lt_.AlgorithmGet(choice.algorithm.data(), attribute, &value, 4, &bytes);
    return status == 0 ? value : -1;
  }

  bool choose(const Gemm& g, const at::Tensor& c) {
    constexpr int kMaxWorkspace = 1, kReductionSchemes = 3, kMinAlignmentA = 5, kNamed = 8;
    constexpr uint32_t kSumInComputeType = 2;
    Choice named[kNamed];
    void* preference = nullptr;
    if (lt_.PreferenceCreate(&preference) != 0) return false;
    auto set = [&](int attribute, auto value) {
      lt_.PreferenceSet(preference, attribute, &value, sizeof value);
    };
    set(kMaxWorkspace, kWorkspace);
    // Where K is split, the parts are added in float32, not in the output's dtype.
    set(kReductionSchemes, kSumInComputeType);
    const at::Tensor* operands[] = {&g.b, &g.a, &c, &g.d};
    for (int i = 0; i < 4; ++i)
      set(kMinAlignmentA + i, uint32_t(1) << log2_alignment(*operands[i]));
    int found = 0;
    const int status =
        lt_.Heuristic(handle_, desc_, b_, a_, c_, d_, preference, kNamed, named, &found);
    lt_.PreferenceDestroy(preference);
    if (status != 0 || found == 0 || named[0].status != 0) return false;
    const Choice& chosen = preferred(g, named, found);
    algorithm_ = chosen.algorithm;
    workspace_bytes_ = chosen.workspace_bytes;
    return true;
  }

  const BlasLt& lt_;
  void* handle_;
  void* desc_ = nullptr;
  void *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *d_ = nullptr;
  std::array<uint64_t, 8> algorithm_ = {};
  size_t workspace_bytes_ = 0;
  bool usable_ = false;
};

inline void* blas_lt_handle(const BlasLt& lt, c10::Device device) {
  constexpr int kMaxDevices = 64;
  static Mutex mutex;
  static std::array<std::atomic<void*>, kMaxDevices> handles{};
  TORCH_CHECK(device.index() < kMaxDevices, "megafuse: too many GPUs");
  std::atomic<void*>& slot = handles[size_t(device.index())];
  if (void* handle = slot.load(std::memory_order_acquire)) return handle;
  std::lock_guard<Mutex> lock(mutex);
  void* handle = slot.load();
  if (!handle && lt.Create(&handle) == 0) slot = handle;
  return handle;
}

// Runs g on the current stream of its device; false where cuBLASLt has no way to (a dtype, a
// layout, an alignment), and then nothing has been launched.
inline bool run_gemm(const Gemm& g) {
  const at::ScalarType dtype = g.d.scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16 && dtype != at::kFloat) return false;
  const BlasLt* lt = BlasLt::get();
  const Matrix a = Matrix::of(g.a), b = Matrix::of(g.b);
  if (!lt || !a.usable || !b.usable || g.d.numel() == 0 || g.a.size(1) == 0) return false;
  if (!is_in_units(g.a) || !is_in_units(g.b) || !is_in_units(g.d)) return false;
  CudaScope scope(g.d.device());
  void* handle = blas_lt_handle(*lt, g.d.device());
  if (!handle) return false;
  struct Hash {
    size_t operator()(const GemmPlan::Key& key) const {
      uint64_t hash = 0xcbf29ce484222325u;
      for (int64_t v : key) hash = (hash ^ uint64_t(v)) * 0x100000001b3u ^ hash >> 29;
      return hash;
    }
  };
  // A thread's own, since a plan holds the pointers of the call it serves. Never destroyed: a
  // thread may end after the library is gone.
  using Plans = std::unordered_map<GemmPlan::Key, std::unique_ptr<GemmPlan>, Hash>;
  thread_local auto* plans = new Plans;
  constexpr size_t kMost = 4096;
  const bool tf32 = g.a.scalar_type() == at::kFloat && fp32_products() == Fp32Matmul::kTf32;
  const GemmPlan::Key key = GemmPlan::key_of(g, a, b, tf32);
  auto it = plans->find(key);
  if (it == plans->end()) {
    if (plans->size() >= kMost) plans->clear();
    auto plan = std::make_unique<GemmPlan>(*lt, handle, g, a, b, tf32);
    it = plans->emplace(key, std::move(plan)).first;
  }
  return it->second->run(g);
}

}  // namespace megafuse
