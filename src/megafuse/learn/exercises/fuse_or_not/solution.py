"""Exercise 8: worth fusing, or not? And which number says so?"""

ANSWERS: dict[str, dict[str, bool | float | None]] = {
    # exp((x + y) * 2), 4 million elements; bytes separate / bytes fused
    "chain": {"fuse": True, "number": 28 / 12},
    # relu(a @ b) with three loops of our own; operations per byte
    "gemm": {"fuse": False, "number": 2 * 1024**3 / (3 * 1024**2 * 4)},
    # exp((x + y) * 2) on 1,000 elements, all day; operations that become one
    "launches": {"fuse": True, "number": 3},
    # gelu(bias + row), once in a model; percent of the layers' bytes
    "tiny": {"fuse": False, "number": 100 * 5 / (64 * 4.5 * 1024)},
    # scaled_dot_product_attention; operations that PyTorch dispatches
    "attention": {"fuse": False, "number": 1},
}
