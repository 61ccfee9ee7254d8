// Work on torch's own threads. libtorch exports no plain "run this on n threads", and
// its header-only one would bring a second OpenMP runtime into the process; but its
// iterator has one, so a dummy iterator over n bytes hands out n tasks.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <atomic>

namespace megafuse {

// How often work was shared out: tests of threads make sure that they had some.
inline std::atomic<int64_t> times_shared_out{0};

// Calls task(i) for i in [0, n), each on its own thread of torch's pool.
template <class Task>
void on_torch_threads(int64_t n, const Task& task) {
  times_shared_out.fetch_add(1, std::memory_order_relaxed);
  thread_local at::TensorIterator iterator;
  if (iterator.ntensors() == 0 || iterator.numel() != n) {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor bytes = at::empty({n}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    iterator = at::TensorIteratorConfig()
                   .check_all_same_dtype(false)
                   .resize_outputs(false)
                   .add_owned_output(bytes)
                   .build();
  }
  char* const base = static_cast<char*>(iterator.data_ptr(0));
  iterator.for_each(
      [&](char** data, const int64_t*, int64_t columns, int64_t) {
        for (int64_t i = 0; i < columns; ++i) task(data[0] - base + i);
      },
      /*grain_size=*/1);
}

}  // namespace megafuse
