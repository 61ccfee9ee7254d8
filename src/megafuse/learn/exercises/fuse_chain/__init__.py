"""Exercise: five operations, two kernels."""
