// Plans of pointwise kernels: functors that take the elements of one place, and know no others.
#pragma once

#include "core/launch.h"

namespace megafuse {

// Where addresses or rows allow less than 16 bytes at once. Few elements go one a thread: such a
// kernel waits for its instructions to come from memory, and vectors across rows need seven times
// as many (bias_act, 11 x 2579 in bfloat16 on an H200 with a cold cache: 3.5 us so, 4.3 in
// vectors).
inline void choose_odd_vectors(Request& request, Space& space, int most) {
  constexpr int64_t kFewElements = 1 << 15;
  if (space.numel <= kFewElements && !request.generated) {
    request.few = true;
    request.vector = 1;
  } else if (cut_across(space, most)) {
    request.across = true;
    request.vector = most;
  }
}

// How wide and across what the kernel moves.
inline void choose_vectors(Request& request, Space& space) {
  if (request.device.is_cuda()) {
    set_pairs(space);
    request.vector = vector_width(space);
    const int most = most_vector_width(space);
    if (C10_UNLIKELY(request.vector < most)) choose_odd_vectors(request, space, most);
    request.wide_index = needs_64_bits(space, space.numel / request.vector);
    set_index_walks(space);
    return;
  }
  // On the CPU where a row is so short that a loop of its own costs more than it does.
  constexpr int64_t kFewElements = 64;
  if (space.dims > 1 && space.size[0] < kFewElements) request.across = cut_across(space, 1);
}

inline Launch plan_pointwise(Request& request, Space& space, at::ArrayRef<uint64_t> random) {
  choose_vectors(request, space);
  Launch launch{request.device, find_kernel(request, space)};
  pack(launch.words, space, request.given.words, random, request.across ? 1 : request.vector);
  if (request.device.is_cuda()) {
    const Compiled& kernel = launch.kernel;
    const int64_t groups = std::max<int64_t>(space.numel / request.vector, 1);
    const int64_t per_block = int64_t(kernel.block) * kernel.unroll;
    launch.grid_x =
        unsigned(std::min<int64_t>((groups + per_block - 1) / per_block, kernel.max_grid));
  }
  launch.items = space.numel;
  launch.align = 64;
  return launch;
}

inline void run_pointwise(Request& request, Space& space, at::ArrayRef<uint64_t> random) {
  const OnDevice on(request.device);
  plan_pointwise(request, space, random).run();
}

}  // namespace megafuse
