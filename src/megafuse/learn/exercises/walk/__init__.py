"""Exercise: neighbours in memory, one after the other."""
