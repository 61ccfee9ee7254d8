"""Exercise: rows and columns from a two-dimensional grid."""
