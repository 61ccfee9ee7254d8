"""Exercise: a block adds up, and waits as seldom as it can."""
