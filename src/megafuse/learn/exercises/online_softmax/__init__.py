"""Exercise: maximum and sum in one pass, lane by lane."""
