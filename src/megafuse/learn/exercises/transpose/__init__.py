"""Exercise: bank conflicts, and the column that avoids them."""
