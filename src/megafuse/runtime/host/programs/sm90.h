// Our own GEMM for Hopper (kernels/gemm_sm90.h): bias, activation, residual and what the backward
// keeps in one launch. The first choice of linear.h where it takes the call; nothing where it does
// not: another GPU, few tiles, addresses that the copy engine cannot take.
#pragma once

#include "programs/epilogue.h"

namespace megafuse {

// How the copy engine finds the tiles of a matrix.
struct alignas(64) TensorMap {
  uint64_t opaque[16];

  static bool takes(const at::Tensor& matrix) {
    const auto address = reinterpret_cast<uint64_t>(matrix.const_data_ptr());
    return matrix.stride(1) == 1 && address % 16 == 0 && matrix.stride(0) % 8 == 0 &&
           matrix.stride(0) >= matrix.size(1);
  }

  // Boxes of `rows` rows of 64 columns (128 bytes, swizzled).
  TensorMap(const at::Tensor& matrix, uint32_t rows) {
    constexpr int kFloat16 = 6, kBfloat16 = 9, kNotInterleaved = 0, kSwizzle128 = 3,
                  kPromote256 = 3, kZeros = 0;
    const uint64_t size[] = {uint64_t(matrix.size(1)), uint64_t(matrix.size(0))};
    const uint64_t stride[] = {uint64_t(matrix.stride(0)) * 2};
    const uint32_t box[] = {64, rows}, step[] = {1, 1};
    const Driver& driver = Driver::get();
    driver.check(
        driver.TensorMapEncodeTiled(this, matrix.scalar_type() == at::kHalf ? kFloat16 : kBfloat16,
                                    2, const_cast<void*>(matrix.const_data_ptr()), size, stride,
                                    box, step, kNotInterleaved, kSwizzle128, kPromote256, kZeros),
        "cuTensorMapEncodeTiled");
  }
};

// What a kernel is compiled for (runtime/gemm_sm90.py).
struct Sm90Gemm {
  at::ScalarType dtype;
  Act act;
  int columns;  // of a tile: 256, or 128 where the warpgroups of a block take turns
  bool bias = false, residual = false, pre = false;
  bool anywhere = false;  // the result's rows are no whole 16 bytes

  Compiled find(c10::Device device) const {
    Key key(Kind::kGemmSm90, device);
    const int flags = bias | residual << 1 | pre << 2 | anywhere << 3;
    for (int part : {int(dtype), int(act), columns / 8, flags}) key.put(part);
    return KernelTable::get().find(key, device, [&] {
      return Py_BuildValue("(ssiOOOO)", c10::toString(dtype), act_choice().values[int(act)].c_str(),
                           columns, flag(bias), flag(residual), flag(pre), flag(anywhere));
    });
  }
};

// Multiprocessors of a Hopper GPU, 0 for any other.
inline int hopper_multiprocessors(c10::Device device) {
  constexpr int kMajor = 75, kCount = 16, kMaxDevices = 64;
  static std::array<std::atomic<int>, kMaxDevices> known{};  // one more than the answer
  std::atomic<int>& slot = known[size_t(device.index()) % kMaxDevices];
  if (const int answer = slot.load(std::memory_order_relaxed)) return answer - 1;
  const Driver& driver = Driver::get();
  const bool is_hopper = driver.TensorMapEncodeTiled && driver.FuncSetAttribute &&
                         driver.attribute(kMajor, device.index()) == 9;
  const int answer = is_hopper ? driver.attribute(kCount, device.index()) : 0;
  slot = answer + 1;
  return answer;
}

// One product: out[m, n] over k of them. The tiles are those of kernels/gemm_sm90.h.
struct Sm90Shape {
  int64_t m, n, k;
  static constexpr int64_t kTileM = 128, kCluster = 2;

  // Tiles of a cluster, one below the other.
  int64_t row_tiles() const { return (m + kTileM * kCluster - 1) / (kTileM * kCluster); }
  int64_t column_tiles(int columns) const { return (n + columns - 1) / columns; }

  // How many columns of tiles the tensor cores go through one after the other.
  int64_t depth(int columns, int multiprocessors) const {
    const int64_t at_once = multiprocessors / kCluster * (columns == 256 ? 1 : 2);
    const int64_t tiles = row_tiles() * column_tiles(columns);
    return (tiles + at_once - 1) / at_once * (columns == 256 ? columns : 2 * columns);
  }
  // Which share of the tensor cores' time goes to results that are wanted: the last tiles of a row,
  // a column and a round are in part empty.
  double efficiency(int columns, int multiprocessors) const {
    const double at_once = double(multiprocessors / kCluster * kCluster) * double(kTileM);
    return double(m) * double(n) / (double(depth(columns, multiprocessors)) * at_once);
  }
  bool fits() const {
    return m > 0 && n > 0 && k % 8 == 0 && k > 0 && std::max({m, n, k}) < (1 << 30);
  }
  // Whether the result's rows are no whole 16 bytes: no library has a fast kernel for these.
  bool anywhere() const { return n % 8 != 0; }
};

// The arguments of an epilogue, as its struct in the kernel has them.
struct Sm90Beside {
  const void* bias = nullptr;
  const void* residual = nullptr;
  int64_t residual_stride = 0;
};

inline void launch_sm90(const Sm90Gemm& gemm, const Sm90Shape& shape, const at::Tensor& a,
                        const at::Tensor& b, const at::Tensor& out, const at::Tensor& pre,
                        Sm90Beside beside) {
  const c10::Device device = out.device();
  CudaScope scope(device);
  const Compiled kernel = gemm.find(device);
  const int64_t across = gemm.columns;
  constexpr uint32_t kRowsPerWarp = 16;
  TensorMap a_map(a, Sm90Shape::kTileM);
  TensorMap b_map(b, uint32_t(across / Sm90Shape::kCluster));
  // Where rows begin anywhere, nobody reads these two.
  const at::Tensor& mapped = gemm.anywhere ? a : out;
  TensorMap out_map(mapped, kRowsPerWarp);
  TensorMap pre_map(pre.defined() && !gemm.anywhere ? pre : mapped, kRowsPerWarp);
  struct {
    int m, n, k, column_tiles;
    void *out, *pre;
  } size{int(shape.m), int(shape.n), int(shape.k), 0, out.mutable_data_ptr(), nullptr};
  if (pre.defined()) size.pre = pre.mutable_data_ptr();
  constexpr int64_t kSideBySide = 4096;  // columns
  size.column_tiles = int(std::min(shape.column_tiles(gemm.columns), kSideBySide / across));
  void* params[] = {&a_map, &b_map, &out_map, &pre_map, &size, &beside};
  const int64_t tiles = shape.row_tiles() * shape.column_tiles(gemm.columns);
  const auto grid =
      unsigned(2 * std::min<int64_t>(tiles, hopper_multiprocessors(device) / Sm90Shape::kCluster));
  launch_cuda(kernel, device, grid, 1, params);
}

// Pairs of columns are read at once.
inline bool is_even(const at::Tensor& t) {
  return t.stride(-1) == 1 && reinterpret_cast<uint64_t>(t.const_data_ptr()) % 4 == 0 &&
         (t.dim() == 1 || t.stride(0) % 2 == 0);
}

// K from which on a product is long beside any epilogue: reading less pays more than taking turns.
constexpr int64_t kLongProduct = 1536;

inline std::optional<LinearResult> sm90_linear(const LinearCall& call) {
  if (!is_half(call.x.scalar_type())) return std::nullopt;
  const int multiprocessors = hopper_multiprocessors(call.x.device());
  const Sm90Shape shape{call.x.size(0), call.weight.size(0), call.x.size(1)};
  const bool gelu = call.act == Act::kGelu || call.act == Act::kGeluTanh;
  const bool plain = call.act == Act::kNone, anywhere = shape.anywhere();
  // cuBLAS adds a residual as fast, and is as fast where the epilogue is short beside the product.
  const bool ours = gelu || anywhere;
  if (!multiprocessors || !shape.fits() || (!ours && shape.k >= kLongProduct) ||
      (plain && call.residual.defined()) || (!ours && call.want_pre))
    return std::nullopt;
  const int columns = shape.k < kLongProduct ? 128 : 256;
  if (shape.efficiency(columns, multiprocessors) < (ours ? 0.7 : 0.9)) return std::nullopt;
  if (!TensorMap::takes(call.x) || !TensorMap::takes(call.weight) ||
      (call.bias.defined() && !is_even(call.bias)) ||
      (call.residual.defined() && (shape.n % 2 != 0 || !is_even(call.residual))))
    return std::nullopt;
  LinearResult result{new_matrix(shape.m, shape.n, call.x), {}};
  if (call.want_pre) result.pre = new_matrix(shape.m, shape.n, call.x);
  const Sm90Gemm gemm{call.x.scalar_type(),    call.act,      columns, call.bias.defined(),
                      call.residual.defined(), call.want_pre, anywhere};
  Sm90Beside beside;
  if (call.bias.defined()) beside.bias = call.bias.const_data_ptr();
  if (call.residual.defined())
    beside.residual = call.residual.const_data_ptr(),
    beside.residual_stride = call.residual.stride(0);
  launch_sm90(gemm, shape, call.x, call.weight, result.out, result.pre, beside);
  return result;
}

}  // namespace megafuse
