"""Exercise: 16 bytes with each load and store, and the end."""
