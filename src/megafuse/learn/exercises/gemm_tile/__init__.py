"""Exercise: tiles of a matrix product, and what is done before it is stored."""
