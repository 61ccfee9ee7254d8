"""Generated kernels: bodies written by hand, compiled for this CPU and held against PyTorch."""
