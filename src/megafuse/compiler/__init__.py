"""What users call to get kernels of their own functions; graph/ does the work."""
