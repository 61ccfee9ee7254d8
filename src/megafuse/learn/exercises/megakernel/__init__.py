"""Exercise: two layers, one launch."""
