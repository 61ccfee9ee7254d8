// The instructions that our kernels write as inline PTX, each as a function of its name: source.py
// puts calls of these in their place.
#pragma once

// ---- numbers

inline float ptx_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

inline void ptx_rcp_approx_ftz_f32(float& result, float x) {
  result = ptx_flushed(1.0f / ptx_flushed(x));
}
inline void ptx_ex2_approx_ftz_f32(float& result, float x) {
  result = ptx_flushed(exp2f(ptx_flushed(x)));
}
inline void ptx_ex2_approx_f32(float& result, float x) { result = exp2f(x); }
inline void ptx_lg2_approx_f32(float& result, float x) { result = log2f(x); }
inline void ptx_sqrt_approx_f32(float& result, float x) { result = sqrtf(x); }
inline void ptx_div_full_f32(float& result, float a, float b) { result = a / b; }
inline void ptx_max_NaN_f32(float& result, float a, float b) {
  result = a != a || b != b ? NAN : fmaxf(a, b);
}
inline void ptx_min_NaN_f32(float& result, float a, float b) {
  result = a != a || b != b ? NAN : fminf(a, b);
}

// ---- 16-bit floats

inline uint16_t ptx_bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value != value ? 0x7fff : uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
// By way of the distance between neighbours of float16: 2^-10 of the power of two, at least 2^-24.
inline uint16_t ptx_f16_of(float value) {
  if (value != value) return 0x7fff;
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const double size = fabs(double(value));
  if (size >= 65520.0) return uint16_t(sign | 0x7c00);  // half a step above the largest
  int exponent = size > 0 ? ilogb(size) : -15;
  if (exponent < -14) exponent = -14;
  const double steps = nearbyint(ldexp(size, 10 - exponent));  // may be 2048: the next exponent
  return uint16_t(sign | (uint32_t(exponent + 14) * 1024 + uint32_t(steps)));
}
inline float ptx_of_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double size = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
  if (exponent == 31) size = mantissa ? double(NAN) : double(INFINITY);
  return float(bits & 0x8000 ? -size : size);
}
inline void ptx_cvt_rn_bf16_f32(uint16_t& result, float value) { result = ptx_bf16_of(value); }
inline void ptx_cvt_rn_f16_f32(uint16_t& result, float value) { result = ptx_f16_of(value); }
inline void ptx_cvt_f32_f16(float& result, uint16_t bits) { result = ptx_of_f16(bits); }

// Where a macro's parameter names the instruction.
inline void ptx_named(const char* name, uint32_t& result, float high, float low) {
  const bool bf16 = strcmp(name, "cvt.rn.bf16x2.f32") == 0;
  if (!bf16 && strcmp(name, "cvt.rn.f16x2.f32") != 0) __builtin_trap();
  const auto of = bf16 ? ptx_bf16_of : ptx_f16_of;
  result = uint32_t(of(high)) << 16 | of(low);
}

// ---- clocks, words that others change meanwhile, and copies

inline void ptx_mov_u64__globaltimer(unsigned long long& now) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  now = uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}
inline void ptx_ld_acquire_gpu_global_u32(uint32_t& value, const uint32_t* from) {
  sched_yield();  // to the block that is waited for
  value = __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
inline void ptx_ld_relaxed_sys_global_u64(unsigned long long& value, const void* from) {
  value = __atomic_load_n(static_cast<const uint64_t*>(from), __ATOMIC_RELAXED);
}
inline void ptx_st_relaxed_sys_global_u64(void* to, unsigned long long value) {
  __atomic_store_n(static_cast<uint64_t*>(to), uint64_t(value), __ATOMIC_RELAXED);
}
inline void ptx_cp_async_cg_shared_global(uint64_t to, const void* from) {
  if (to % 16 || reinterpret_cast<uint64_t>(from) % 16) __builtin_trap();
  emulated_copy(reinterpret_cast<void*>(to), from, 16);
}
inline void ptx_cp_async_ca_shared_global(uint64_t to, const void* from) {
  if (to % 8 || reinterpret_cast<uint64_t>(from) % 8) __builtin_trap();
  emulated_copy(reinterpret_cast<void*>(to), from, 8);
}
inline void ptx_ld_shared_v4_u32(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w,
                                 uint64_t from) {
  if (from % 16) __builtin_trap();
  const uint32_t* const four = reinterpret_cast<const uint32_t*>(from);
  x = four[0], y = four[1], z = four[2], w = four[3];
}
// Every lane reads what it copied itself, so that its own copies are all that it waits for.
inline void ptx_mbarrier_init_shared_cta_b64(uint64_t, uint32_t) {}
inline void ptx_cp_async_mbarrier_arrive_noinc_shared_b64(uint64_t) {}
inline void ptx_mbarrier_test_wait_parity_shared_b64__selp_u32(uint32_t& done, uint64_t, uint32_t) {
  emulated_copies_arrive();
  done = 1;
}
inline void ptx_red_release_gpu_global_add_u32(uint32_t* at, uint32_t value) {
  __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
}
inline void ptx_cp_async_wait_all() { emulated_copies_arrive(); }

// ---- threads

inline void ptx_bar_sync(int barrier, int threads) {
  emulated_barrier(unsigned(barrier), unsigned(threads));
}
