"""Exercise: shared memory as a place to sort what was read side by side."""
