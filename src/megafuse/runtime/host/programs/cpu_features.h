// Which instructions for 16-bit floats this CPU has, and its operating system lets it use. Read
// from the CPU: what the library says is not enough. On ARM `_is_mkldnn_fp16_supported` is true
// where oneDNN has only its reference, which takes 6 s for a product that float32 does in 18 ms.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "core/matrix.h"

namespace megafuse {

struct CpuFeatures {
  bool amx = false;       // tiles of bfloat16
  bool bfloat16 = false;  // products of bfloat16 that are added up in float32
  bool half = false;      // the same of float16

  static const CpuFeatures& get() {
    static const CpuFeatures found = read();
    return found;
  }

 private:
  static CpuFeatures read() {
    CpuFeatures found;
#if defined(__x86_64__)
    unsigned a, b, c, d;
    constexpr unsigned kSavesState = 1u << 27;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kSavesState)) return found;
    unsigned low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned kAvx512State = 0xe6, kTileState = 0x60000;
    const bool avx512 = (low & kAvx512State) == kAvx512State;
    const bool tiles = (low & kTileState) == kTileState;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
      found.amx = tiles && (d >> 22 & 1);
      found.half = avx512 && (d >> 23 & 1);
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
      found.bfloat16 = avx512 && (a >> 5 & 1);
      found.half |= tiles && (a >> 21 & 1);
    }
    found.bfloat16 |= found.amx;
#elif defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long kBfloat16 = 1ul << 14;  // HWCAP2_BF16: bfdot and bfmmla
    found.bfloat16 = getauxval(AT_HWCAP2) & kBfloat16;
    // float16 adds up in float16 (asimdhp), or multiplies no matrices (asimdfhm): not what we want.
#endif
    return found;
  }
};

// Whether PyTorch multiplies matrices of this dtype with instructions of the CPU's, here and now.
inline bool library_multiplies(at::ScalarType dtype) {
  if (!is_half(dtype)) return true;
  auto ask = [](const char* name) {
    const auto supported = c10::Dispatcher::singleton().findSchema({name, ""});
    if (!supported) return false;
    torch::jit::Stack stack;
    supported->callBoxed(stack);
    return stack[0].toBool();
  };
  const CpuFeatures& cpu = CpuFeatures::get();
  static const bool half = cpu.half && ask("mkldnn::_is_mkldnn_fp16_supported");
  static const bool bfloat16 = cpu.bfloat16 && ask("mkldnn::_is_mkldnn_bf16_supported");
  return (dtype == at::kHalf ? half : bfloat16) && at::globalContext().userEnabledMkldnn();
}

}  // namespace megafuse
