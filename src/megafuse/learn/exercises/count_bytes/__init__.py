"""Exercise: a ledger of bytes, before anything runs."""
