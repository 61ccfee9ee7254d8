"""Exercise: a barrier for all blocks of a launch."""
