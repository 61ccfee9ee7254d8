"""Exercise 8: worth fusing, or not? And which number says so?"""

ANSWERS: dict[str, dict[str, bool | float | None]] = {
    # exp((x + y) * 2), 4 million elements; bytes separate / bytes fused
    "chain": {"fuse": None, "number": None},
    # relu(a @ b) with three loops of our own; operations per byte
    "gemm": {"fuse": None, "number": None},
    # exp((x + y) * 2) on 1,000 elements, all day; operations that become one
    "launches": {"fuse": None, "number": None},
    # gelu(bias + row), once in a model; percent of the layers' bytes
    "tiny": {"fuse": None, "number": None},
    # scaled_dot_product_attention; operations that PyTorch dispatches
    "attention": {"fuse": None, "number": None},
}
