"""Exercise: a reduction that reads its row less often."""
