// CUDA source on a CPU: blocks and threads become loops, one thread after the other. Enough for a
// kernel whose threads do not wait for each other; there is no shared memory and no barrier.
#include <math.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Index {
  unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}

// kernel<<<blocks, threads>>>(arguments...)
template <class Kernel, class... Arguments>
void launch(const Arrays& arrays, unsigned blocks, unsigned threads, Kernel kernel,
            Arguments... arguments) {
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned first = 0; first < threads; first += 32) {
#if defined(MF_COUNTED)
      arrays.machine->warp.begin();
#endif
      for (unsigned lane = 0; lane < 32 && first + lane < threads; ++lane) {
        blockIdx = {block, 0, 0};
        threadIdx = {first + lane, 0, 0};
#if defined(MF_COUNTED)
        arrays.machine->warp.lane = int(lane);
#endif
        kernel(arguments...);
      }
#if defined(MF_COUNTED)
      arrays.machine->warp.end(arrays.machine->counts);
#endif
    }
  }
  (void)arrays;
}
