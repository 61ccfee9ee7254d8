// A planned launch: everything but addresses is decided. A plan costs a search for the kernel and
// some arithmetic; run() can follow it again and again, with other addresses that are aligned
// alike.
#pragma once

#include <optional>

#include "core/request.h"
#include "core/threads.h"

namespace megafuse {

using CpuKernel = void (*)(const uint64_t* words, int64_t begin, int64_t end, int64_t slot);

// Elements a thread must have before work is shared out: torch's own ops use a second thread
// from 32 K elements on, and waking one sooner cost more than it saved when cores were busy.
constexpr int64_t kGrain = 16384;

// Splits [0, n) over torch's threads in multiples of `align`; run(begin, end, slot).
template <class Run>
void split(int64_t n, int64_t weight, int64_t align, int64_t max_slots, const Run& run) {
  const int64_t pieces = (n + align - 1) / align;  // a single long row wakes nobody
  int64_t slots =
      std::min<int64_t>({at::get_num_threads(), max_slots, n * weight / kGrain, pieces});
  if (slots <= 1 || at::in_parallel_region()) return run(0, n, 0);
  const int64_t each = ((n + slots - 1) / slots + align - 1) / align * align;
  on_torch_threads(slots, [&](int64_t slot) {
    const int64_t begin = slot * each, end = std::min(n, begin + each);
    if (begin < end) run(begin, end, slot);
  });
}

struct Launch {
  c10::Device device;
  Compiled kernel;
  Words words;                      // of kernels/pointwise.h: the operands' addresses come first
  unsigned grid_x = 1, grid_y = 1;  // CUDA
  // CPU: what is split over threads: so many items, of so many elements each, cut at multiples of
  // `align`, for so many threads at most.
  int64_t items = 0, weight = 1, align = 1, slots = INT64_MAX;

  void set_address(int operand, const void* data) {
    words[operand] = reinterpret_cast<uint64_t>(data);
  }

  // On the current device and stream; without the GIL where that is worth its 0.1 µs.
  void run() const {
    std::optional<GilRelease> no_gil;
    if (device.is_cuda() || items * weight > 4096) no_gil.emplace();
    if (device.is_cuda()) return launch_cuda(kernel, device, grid_x, grid_y, words);
    launches.fetch_add(1, std::memory_order_relaxed);
    const auto function = reinterpret_cast<CpuKernel>(kernel.function);
    split(items, weight, align, slots, [&](int64_t begin, int64_t end, int64_t slot) {
      function(words.data(), begin, end, slot);
    });
  }
};

// Around a plan and its run: driver calls go to the current device.
struct OnDevice {
  explicit OnDevice(c10::Device device) {
    if (device.is_cuda()) scope.emplace(device);
  }
  std::optional<CudaScope> scope;
};

}  // namespace megafuse
