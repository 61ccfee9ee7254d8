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

inline void ptx_cvt_rn_bf16x2_f32(uint32_t& result, float high, float low) {
  result = uint32_t(ptx_bf16_of(high)) << 16 | ptx_bf16_of(low);
}

// ---- tensor cores

// Four matrices of 8 rows of 16 bytes: lane i tells where row i % 8 of matrix i / 8 is, and lane
// 4 g + t gets four bytes from 4 t on of row g of each.
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t& x, uint32_t& y, uint32_t& z,
                                                         uint32_t& w, uint64_t from) {
  const unsigned lane = emulated_thread->x % 32;
  const uint32_t place[2] = {uint32_t(from), uint32_t(from >> 32)};
  const uint32_t* const places = emulated_gather(place, 2);
  uint32_t found[4];
  for (unsigned m = 0; m < 4; ++m) {
    const uint32_t* const theirs = places + 8 * (8 * m + lane / 4);
    const uint64_t row = uint64_t(theirs[1]) << 32 | theirs[0];
    if (row % 16) __builtin_trap();
    memcpy(&found[m], reinterpret_cast<const char*>(row) + 4 * (lane % 4), 4);
  }
  x = found[0], y = found[1], z = found[2], w = found[3];
}

// A warp's 16 rows of a by 8 columns of b, in words of 4 bytes: 8 words a row or column. Lane 4 g +
// t has the rows g and g + 8 of a and of the result, and column g of b; of every 4 words of these
// the one at t; and columns 2 t and 2 t + 1 of the result. `dot` multiplies two words.
template <class Sum, class Dot>
inline void ptx_multiply_add(Sum* const (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             Dot dot) {
  const unsigned lane = emulated_thread->x % 32, g = lane / 4, t = lane % 4;
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const uint32_t* const all = emulated_gather(mine, 6);
  Sum sums[4] = {*c[0], *c[1], *c[2], *c[3]};
  for (unsigned k = 0; k < 4; ++k)  // the lanes of a row, or of a column
    for (unsigned i = 0; i < 4; ++i) {
      const uint32_t* const row = all + 8 * (4 * g + k);
      const uint32_t* const column = all + 8 * (4 * (2 * t + i % 2) + k) + 4;
      for (unsigned half = 0; half < 2; ++half)
        sums[i] = dot(row[2 * half + i / 2], column[half], sums[i]);
    }
  for (int i = 0; i < 4; ++i) *c[i] = sums[i];
}
inline float ptx_bf16_at(uint32_t pair, int place) {
  const uint32_t bits = place ? pair & 0xffff0000u : pair << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& c0, float& c1, float& c2,
                                                                    float& c3, uint32_t a0,
                                                                    uint32_t a1, uint32_t a2,
                                                                    uint32_t a3, uint32_t b0,
                                                                    uint32_t b1) {
  ptx_multiply_add<float>({&c0, &c1, &c2, &c3}, {a0, a1, a2, a3}, {b0, b1},
                          [](uint32_t mine, uint32_t theirs, float sum) {
                            for (int place = 0; place < 2; ++place)
                              sum += ptx_bf16_at(mine, place) * ptx_bf16_at(theirs, place);
                            return sum;
                          });
}
inline void ptx_mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(int& c0, int& c1, int& c2, int& c3,
                                                                uint32_t a0, uint32_t a1,
                                                                uint32_t a2, uint32_t a3,
                                                                uint32_t b0, uint32_t b1) {
  ptx_multiply_add<int>({&c0, &c1, &c2, &c3}, {a0, a1, a2, a3}, {b0, b1},
                        [](uint32_t mine, uint32_t theirs, int sum) {
                          for (int place = 0; place < 32; place += 8)
                            sum += int(int8_t(mine >> place)) * int(int8_t(theirs >> place));
                          return sum;
                        });
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
// Words that a block leaves for others, who look until they are there.
inline void ptx_ld_relaxed_gpu_global_u64(unsigned long long& value, const void* from) {
  emulated_look();
  value = __atomic_load_n(static_cast<const uint64_t*>(from), __ATOMIC_RELAXED);
}
inline void ptx_ld_relaxed_gpu_global_v2_u64(unsigned long long& first, unsigned long long& second,
                                             const void* from) {
  if (reinterpret_cast<uint64_t>(from) % 16) __builtin_trap();
  ptx_ld_relaxed_gpu_global_u64(second, static_cast<const uint64_t*>(from) + 1);
  ptx_ld_relaxed_gpu_global_u64(first, from);
}
inline void ptx_st_relaxed_gpu_global_u64(void* to, unsigned long long value) {
  __atomic_store_n(static_cast<uint64_t*>(to), uint64_t(value), __ATOMIC_RELAXED);
}
inline void ptx_cp_async_cg_shared_global(uint64_t to, const void* from) {
  if (to % 16 || reinterpret_cast<uint64_t>(from) % 16) __builtin_trap();
  emulated_copy(reinterpret_cast<void*>(to), from, 16);
}
inline void ptx_ld_shared_v4_u32(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w,
                                 uint64_t from) {
  if (from % 16) __builtin_trap();
  const uint32_t* const four = reinterpret_cast<const uint32_t*>(from);
  x = four[0], y = four[1], z = four[2], w = four[3];
}
inline void ptx_red_release_gpu_global_add_u32(uint32_t* at, uint32_t value) {
  __atomic_fetch_add(at, value, __ATOMIC_RELEASE);
}
// Barriers in shared memory.
inline void ptx_mbarrier_init_shared_cta_b64(uint64_t at, uint32_t threads) {
  emulated_open(reinterpret_cast<uint64_t*>(at), threads);
}
inline void ptx_mbarrier_arrive_shared_b64(uint64_t at) {
  emulated_arrive(reinterpret_cast<uint64_t*>(at));
}
inline void ptx_cp_async_mbarrier_arrive_noinc_shared_b64(uint64_t at) {
  emulated_copies_arrive_at(reinterpret_cast<uint64_t*>(at));
}
inline void ptx_mbarrier_test_wait_parity_shared_b64__selp_u32(uint32_t& done, uint64_t at,
                                                               uint32_t parity) {
  done = emulated_passed(reinterpret_cast<uint64_t*>(at), parity);
}

// ---- threads

inline void ptx_bar_sync(int barrier, int threads) {
  emulated_barrier(unsigned(barrier), unsigned(threads));
}
