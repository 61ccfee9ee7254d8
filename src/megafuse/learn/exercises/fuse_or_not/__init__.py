"""Exercise: when fusing pays, and the number that decides it."""
