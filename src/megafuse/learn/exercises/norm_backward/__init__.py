"""Exercise: the gradient of a norm, in one pass, and a sum over rows."""
