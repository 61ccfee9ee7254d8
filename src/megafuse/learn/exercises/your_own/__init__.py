"""Exercise: a function of the learner's own, through diagnose, fuse and optimize."""
