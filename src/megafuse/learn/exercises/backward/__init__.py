"""Exercise: a backward pass that recomputes instead of remembering."""
