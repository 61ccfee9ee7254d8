// float32 products on the tensor cores of float16, as accurate as float32's own.
//
// Each operand is split into a high and a low half (kernels/split.h). Of the four products
// low·low is below float32's last bit; the two mixed ones come first, as one GEMM of twice the
// length, then high·high, added in pieces of K, because a tensor core rounds its sums towards zero:
// the error grows with the length of a piece, not with its root. Against float64, relative to the
// results' root mean square, on an H200:
//
//     M x K x N            float32, us  error   split, us  error, by length of a piece
//   16384 x  768 x 2304        1174     5.0e-7   321  9.5e-7 (768)    426  5.0e-7 (384)
//   16384 x 3072 x  768        1506     9.9e-7   431  9.5e-7 (768)    502  6.5e-7 (512)
//    8192 x 4096 x 4096        5418    1.15e-6  1336 1.25e-6 (1024)  1656  6.5e-7 (512)
//
// (TF32: 2.9e-4.) cuBLAS's own error is 2.2e-7 to 1.2e-6, by K and the kernel it picks: pieces of
// 512 at most keep ours below twice that. The times are the GEMMs' alone. A result is scaled back,
// and gets its bias, activation and residual, in the pass that follows.
#pragma once

#include "programs/epilogue.h"
#include "programs/gemm.h"

namespace megafuse {

struct SplitShape {
  int64_t m, n, k;
  int64_t by_columns = 0;  // elements of operands that lie so: they are read twice

  // a·bᵀ
  static SplitShape of(const at::Tensor& a, const at::Tensor& b) {
    auto by_columns = [](const at::Tensor& t) { return t.stride(1) == 1 ? 0 : t.numel(); };
    return {a.size(0), b.size(0), a.size(1), by_columns(a) + by_columns(b)};
  }

  // Whether it takes less time than float32's own product, by an estimate of both. The unit is a
  // multiply-add of the latter, of which an H200 does 20e12 a second (half to nine tenths of its
  // peak, by the size). In that time tensor cores do 14.5, memory moves a fifth of a byte; and a
  // launch takes the host 7 us. So a deep product of few results, of which every piece is a launch,
  // is left to float32: with the gradients of its weights ffn of 45121 x 1049 -> 131 took 3.7 ms,
  // and takes 2.4.
  bool pays() const {
    constexpr double kFaster = 14.5, kByte = 5, kLaunch = 140e6;
    constexpr int64_t kLeast = 128, kLeastWork = int64_t(1) << 29;
    if (std::min({m, n, k}) < kLeast || m * n * k < kLeastWork) return false;
    const double work = double(m) * n * k, results = double(m) * n;
    const double mixed = 2 * work / kFaster + 4 * results * kByte;
    const double piece = work / pieces() / kFaster + 8 * results * kByte;
    const double passes = (8 * (double(m + n) * k + results) + 4 * by_columns) * kByte;
    return std::max(mixed, kLaunch) + pieces() * std::max(piece, kLaunch) + passes + 4 * kLaunch <
           work;
  }
  // Short sums of cuBLAS's are nearer to the truth: 2.2e-7 for K = 444, ours in one piece 5.8e-7.
  int64_t pieces() const {
    const int64_t most = k <= 512 ? 256 : 512;
    return (k + most - 1) / most;
  }
  // All pieces but the last are as long as the first.
  int64_t per_piece() const {
    const int64_t each = (k + pieces() - 1) / pieces();
    return (each + 63) / 64 * 64;
  }
};

// cuBLASLt's fast kernels want sizes in whole 16 bytes. The halves are written anyway, so they get
// what is missing as zeros, for next to nothing. (The large products of a transformer block of 1985
// x 444 in float32 on an H200: 81 us so, and 238 when K = 444 was left to cuBLAS's float32.)
constexpr int64_t whole_halves(int64_t size) { return (size + 7) / 8 * 8; }

struct Halves {
  at::Tensor source;  // [rows, k] float32
  at::Tensor both;    // [rows, 2 k] float16, as the source lies; both rounded up, by zeros along k
  at::Tensor high;    // a view of it
  at::Tensor exponents;  // [rows]
};

// A kernel of split_mend.h, split_most.h or split_columns.h.
enum class Splitting : int { kMend, kMost, kColumns };
inline Compiled splitting_kernel(Splitting which, c10::Device device) {
  static const char* const names[] = {"split_mend", "split_most", "split_columns"};
  Key key(Kind::kWorker, device);
  key.put(int(which));
  return KernelTable::get().find(key, device,
                                 [&] { return Py_BuildValue("(s)", names[int(which)]); });
}

// Zeroes columns from `first` on, in the first `rows` rows. Of few rows by one call of the
// driver's, since at::zero_ of a view takes four times as long on the host, and a small product
// waits for that; of many that is slow on the GPU (90,000 rows 31 us, at::zero_ 3).
inline void zero_columns(const at::Tensor& halves, int64_t first, int64_t rows) {
  constexpr int64_t kFew = 16384;
  const int64_t width = halves.size(1) - first;
  if (rows > kFew) {
    halves.narrow(0, 0, rows).narrow(1, first, width).zero_();
    return;
  }
  CudaScope scope(halves.device());
  const Driver& driver = Driver::get();
  const auto address = reinterpret_cast<uint64_t>(halves.mutable_data_ptr());
  driver.check(
      driver.MemsetD2D16Async(address + 2 * uint64_t(first), 2 * size_t(halves.stride(0)), 0,
                              size_t(width), size_t(rows), current_stream(halves.device())),
      "cuMemsetD2D16Async");
}

// `matrix`, whose rows are contiguous, split row by row; low half first, or last, so that the mixed
// products are one GEMM.
inline Halves split_rows(const at::Tensor& matrix, bool low_first) {
  static const Functor* const split_halves = new Functor("split_halves");
  Halves halves;
  halves.source = matrix;
  const int64_t rows = matrix.size(0), k = matrix.size(1);
  // The left one's rows are those of the result, of which any number will do. The right one's
  // become its columns: what the added ones hold does not matter, nobody reads theirs.
  const int64_t all_rows = low_first ? rows : whole_halves(rows), all_k = whole_halves(k);
  halves.both = allocate({all_rows, 2 * all_k}, {}, at::kHalf, matrix.device());
  const int64_t high_at = low_first ? all_k : 0;
  const at::Tensor used = all_rows > rows ? halves.both.narrow(0, 0, rows) : halves.both;
  const at::Tensor low = used.narrow(1, all_k - high_at, k), high = used.narrow(1, high_at, k);
  halves.high = all_k > k || all_rows > rows ? halves.both.narrow(1, high_at, all_k) : high;
  if (all_k > k) zero_columns(halves.both.view({2 * all_rows, all_k}), k, 2 * rows);
  halves.exponents = allocate({rows}, {}, at::kFloat, matrix.device());
  Pass pass(*split_halves, Family::kRowsForward, matrix.sizes(), matrix.device());
  pass.write(low, 0).write(high, 1);
  pass.write_once(seen_as(halves.exponents, {rows, 1}, {1, 1}), 0);
  pass.read(halves.source).run(at::kFloat);
  return halves;
}

// The same of a matrix whose columns are contiguous: a first pass finds the scale of each row. (A
// copy that turned it took 85 us in the mean of GPT-2's float32 training on an H200.)
inline Halves split_columns(const at::Tensor& matrix, bool low_first) {
  Halves halves;
  halves.source = matrix;
  const c10::Device device = matrix.device();
  const int64_t rows = matrix.size(0), k = matrix.size(1);
  const int64_t width = whole_halves(rows), all_k = whole_halves(k);
  const at::Tensor both = allocate({2 * all_k, width}, {}, at::kHalf, device);
  const int64_t high_at = low_first ? all_k : 0;
  const at::Tensor low = both.narrow(0, all_k - high_at, all_k),
                   high = both.narrow(0, high_at, all_k);
  if (all_k > k) low.narrow(0, k, all_k - k).zero_(), high.narrow(0, k, all_k - k).zero_();
  halves.both = both.t(), halves.high = high.t();
  halves.exponents = allocate({rows}, {}, at::kFloat, device);
  const at::Tensor most = allocate({rows}, {}, at::kInt, device);
  most.zero_();
  struct {
    const void* x;
    void* most;
    int64_t stride, k, columns, rows;
  } find{matrix.const_data_ptr(), most.mutable_data_ptr(), matrix.stride(1), k, rows, 0};
  struct {
    const void *x, *most;
    void *low, *high, *exponents;
    int64_t stride, width, k, columns, rows;
  } split{matrix.const_data_ptr(),
          most.const_data_ptr(),
          low.mutable_data_ptr(),
          high.mutable_data_ptr(),
          halves.exponents.mutable_data_ptr(),
          matrix.stride(1),
          width,
          k,
          rows,
          0};
  // Blocks have 256 columns, and as many rows as leave eight of them for each processor.
  constexpr int64_t kColumns = 256, kBlocks = 8, kLeastRows = 32;
  const int64_t across = (rows + kColumns - 1) / kColumns;
  const int64_t down = std::max<int64_t>(kBlocks * multiprocessors(device.index()) / across, 1);
  find.rows = split.rows = std::max((k + down - 1) / down, kLeastRows);
  const auto blocks = unsigned((k + find.rows - 1) / find.rows);
  CudaScope scope(device);
  launch_cuda(splitting_kernel(Splitting::kMost, device), device, unsigned(across), blocks, &find);
  launch_cuda(splitting_kernel(Splitting::kColumns, device), device, unsigned(across), blocks,
              &split);
  return halves;
}

inline Halves split_matrix(const at::Tensor& matrix, bool low_first) {
  if (matrix.stride(1) == 1) return split_rows(matrix, low_first);
  if (matrix.stride(0) == 1) return split_columns(matrix, low_first);
  return split_rows(matrix.contiguous(), low_first);
}

// Rows with Inf or NaN (kernels/split_mend.h).
inline void mend_product(const at::Tensor& product, const Halves& a, const Halves& b) {
  struct {
    void* product;
    const void *a, *b;
    int64_t a_stride, b_stride, a_step, b_step;
    const void *a_exponent, *b_exponent;
    int64_t m, n, k, product_stride;
  } mend{product.mutable_data_ptr(),
         a.source.const_data_ptr(),
         b.source.const_data_ptr(),
         a.source.stride(0),
         b.source.stride(0),
         a.source.stride(1),
         b.source.stride(1),
         a.exponents.const_data_ptr(),
         b.exponents.const_data_ptr(),
         product.size(0),
         product.size(1),
         a.source.size(1),
         product.stride(0)};
  const c10::Device device = product.device();
  CudaScope scope(device);
  const Compiled kernel = splitting_kernel(Splitting::kMend, device);
  const unsigned blocks = unsigned((mend.m + mend.n + kernel.block - 1) / kernel.block);
  launch_cuda(kernel, device, blocks, 1, &mend);
}

// a·bᵀ, still scaled, its rows perhaps apart; nothing where cuBLASLt does not take it.
inline at::Tensor split_product(const Halves& a, const Halves& b) {
  const SplitShape shape{a.both.size(0), b.both.size(0), a.high.size(1)};
  const at::Tensor all = allocate({shape.m, shape.n}, {}, at::kFloat, a.source.device());
  constexpr float kLowUnit = 1.0f / 2048;
  Gemm mixed{a.both, b.both.t(), all, {}, {}, {}};
  mixed.alpha = kLowUnit;
  if (!run_gemm(mixed)) return {};
  for (int64_t first = 0; first < shape.k; first += shape.per_piece()) {
    const int64_t length = std::min(shape.per_piece(), shape.k - first);
    if (!run_gemm({a.high.narrow(1, first, length),
                   b.high.narrow(1, first, length).t(),
                   all,
                   all,
                   {},
                   {}}))
      return {};
  }
  const at::Tensor product = all.narrow(0, 0, a.source.size(0)).narrow(1, 0, b.source.size(0));
  mend_product(product, a, b);
  return product;
}

// out = act(product, scaled back, + bias) + residual, and pre; `out` or `pre` may be `product`.
inline void finish_split(const at::Tensor& product, const Halves& a, const Halves& b,
                         const at::Tensor& bias, Act act, const at::Tensor& residual,
                         const at::Tensor& out, const at::Tensor& pre) {
  static const Functor* const functor = new Functor("split_epilogue", {act_choice()});
  Pass pass(Given(*functor).choose(0, int(act)), Family::kForward, out.sizes(), out.device());
  pass.write(out);
  if (pre.defined()) pass.write(pre, 1);
  pass.read(product).read(a.exponents.unsqueeze(1)).read(b.exponents);
  pass.read(bias, 0.0).read(residual, 0.0).run(out.scalar_type());
}

// Whether a·bᵀ is to be split.
inline bool splits(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cuda() && a.scalar_type() == at::kFloat && fp32_products() == Fp32Matmul::kSplit &&
         SplitShape::of(a, b).pays();
}

inline std::optional<LinearResult> split_linear(const LinearCall& call) {
  if (!splits(call.x, call.weight)) return std::nullopt;
  const Halves x = split_matrix(call.x, true), weight = split_matrix(call.weight, false);
  const at::Tensor product = split_product(x, weight);
  if (!product.defined()) return std::nullopt;
  auto result_like = [&] { return new_matrix(product.size(0), product.size(1), product); };
  const bool is_whole = product.sizes() == at::IntArrayRef({x.both.size(0), weight.both.size(0)});
  LinearResult result{is_whole ? product : result_like(), {}};
  if (call.want_pre) result.pre = result_like();
  finish_split(product, x, weight, call.bias, call.act, call.residual, result.out, result.pre);
  return result;
}

// out = a·b, or out += a·b; false where it was not done.
inline bool split_multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                           bool add) {
  if (!a.is_cuda() || !out.is_contiguous() || !splits(a, b.t())) return false;
  const Halves rows = split_matrix(a, true), columns = split_matrix(b.t(), false);
  const at::Tensor product = split_product(rows, columns);
  if (!product.defined()) return false;
  finish_split(product, rows, columns, {}, Act::kNone, add ? out : at::Tensor(), out, {});
  return true;
}

}  // namespace megafuse
