"""Exercise: add and normalise, reading once."""
