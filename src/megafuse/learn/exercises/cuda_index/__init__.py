"""Exercise: a CUDA kernel's index."""
