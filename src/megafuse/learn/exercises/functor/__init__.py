"""Exercise: the arithmetic of a kernel, in one expression."""
