// An optimizer's step on a GPU, one launch: a block does one piece after another, each thread 16
// bytes of every column at a time.
#pragma once

#include "optimizer.h"
#include "pointwise_cuda.h"

namespace mf::optimizer {

template <class Rule, class T, class F>
struct Cuda {
  static constexpr int kThreads = 256;
  static constexpr int kVector = 16 / int(sizeof(T));

  const u64* table;
  i64 rows, pieces;

  __device__ __forceinline__ void run() const {
    for (i64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
      const Piece at(table, rows, piece);
      double numbers[kRow - kNumbers];
#pragma unroll
      for (int n = 0; n < kRow - kNumbers; ++n) numbers[n] = bits_as<double>(at.row[kNumbers + n]);
      const Rule rule(numbers);
      u64 addresses = 0;
#pragma unroll
      for (int c = 0; c < Rule::kOperands; ++c) addresses |= at.row[kColumns + c];
      const i64 whole = addresses % 16 == 0 ? at.count / kVector * kVector : 0;
      for (i64 i = i64(threadIdx.x) * kVector; i < whole; i += kThreads * kVector)
        some<kVector>(rule, at, at.first + i);
      for (i64 i = whole + threadIdx.x; i < at.count; i += kThreads)
        some<1>(rule, at, at.first + i);
    }
  }

 private:
  template <int N>
  static __device__ __forceinline__ void some(const Rule& rule, const Piece& at, i64 first) {
    using Elements = Vector<T, N>;
    Elements held[Rule::kOperands];
    F x[Rule::kOperands][N];
    auto column = [&](int c) {
      return reinterpret_cast<Elements*>(reinterpret_cast<T*>(at.row[kColumns + c]) + first);
    };
#pragma unroll
    for (int c = 0; c < Rule::kOperands; ++c) held[c] = *column(c);
#pragma unroll
    for (int c = 0; c < Rule::kOperands; ++c) widen(held[c], x[c]);
#pragma unroll
    for (int i = 0; i < N; ++i) rule.step(x, i);
#pragma unroll
    for (int c = 0; c < Rule::kOperands; ++c) {
      if (c == 1) continue;  // the gradient stays as it is
      narrow(x[c], held[c]);
      *column(c) = held[c];
    }
  }
};

}  // namespace mf::optimizer
