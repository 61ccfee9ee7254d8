"""Kernels with a mistake each, and what the emulator must say of it: `python …/planted.py`.

They take the address of `out`, 64 floats, and run as one block of 64 threads.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_on_cpu import gpu

# What the threads do, and what is said; nothing where results differ between orders.
PLANTED = {
    "right": ("out[t] = float(t);", "right"),
    "reads_past_the_end": ("out[t] = out[t + 64];", "byte 256 of a tensor of 256 bytes"),
    "writes_before_the_start": ("out[t - 1] = 1.0f;", "4 bytes before a tensor of 256 bytes"),
    "misaligned": ("out[t] = float(((const uint4*)(out + 1))->x);", "a misaligned access"),
    "some_end_before_a_barrier": ("if (t < 8) return; __syncthreads();", "8 threads have ended"),
    "half_waits_twice": ("if (t < 32) __syncthreads(); __syncthreads();", "32 wait at barrier 0"),
    "named_barrier_for_too_many": (
        'if (t < 32) asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(64) : "memory");',
        "32 wait at barrier 1 for 64",
    ),
    "lane_is_missing": (
        "if (t % 32 < 31) out[t] = __shfl_xor_sync(~0u, t, 1);",
        "wait at a shuffle",
    ),
    "lane_is_not_in_the_mask": ("out[t] = __shfl_xor_sync(0x0000ffffu, t, 1);", "not in its mask"),
    "nobody_wrote_shared_memory": (
        "__shared__ float s[64]; if (t > 1) s[t] = t; out[t] = s[t];",
        "",
    ),
    "no_barrier_after_writing": ("__shared__ float s[64]; s[t] = t; out[t] = s[63 - t];", ""),
    "no_barrier_before_writing_again": (
        "__shared__ float s[64]; s[t] = t; __syncthreads(); out[t] = s[63 - t]; s[t] = 0.0f;",
        "",
    ),
    "two_write_one_place": ("out[t / 2] = float(t);", ""),
    "index_overflows": ("int i = 0x7fffffff - 8; out[t] = float(i + t);", "an integer overflow"),
    "memory_of_the_host": ("out[t] = 1.0f;  // host", "an address on the host"),
    "past_an_array": ("int held[4] = {}; out[t] = float(held[t % 5]);", "outside of its array"),
}

KERNEL = """
struct Out {{ float* out; }};
extern "C" __global__ void planted(const __grid_constant__ Out given) {{
  float* const out = given.out;
  const int t = threadIdx.x;
  {body}
}}
"""


def main() -> int:
    failed = 0
    driver = ctypes.CDLL(str(gpu.driver_library()), mode=ctypes.RTLD_GLOBAL)
    driver.emulated_allocate.restype = ctypes.c_void_p
    for name, (body, expected) in PLANTED.items():
        said = told(driver, KERNEL.format(body=body))
        good = expected in said if expected else said == "differs"
        print(f"{'ok' if good else 'FAIL'} {name}: {said}")
        failed += not good
    return int(failed > 0)


def told(driver: ctypes.CDLL, source: str) -> str:
    """What the driver says of the first launch that fails, or how the results compare."""
    image = gpu.compiled(source, "sm_80", "planted")
    module, function, text = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_char_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"planted") == 0
    found = set()
    for order in range(len(gpu.ORDERS)):
        driver.emulated_order(order)
        out = ctypes.c_void_p(driver.emulated_allocate(256))
        if "host" in source:
            out = ctypes.cast(ctypes.create_string_buffer(256), ctypes.c_void_p)
        params = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        error = driver.cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, params, None)
        found.add(ctypes.string_at(out, 256))
        if "host" not in source:
            driver.emulated_free(out)
        if error:
            driver.cuGetErrorString(error, ctypes.byref(text))
            return (text.value or b"").decode()
    return "right" if len(found) == 1 else "differs"


if __name__ == "__main__":
    sys.exit(main())
