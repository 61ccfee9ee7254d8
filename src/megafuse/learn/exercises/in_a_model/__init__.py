"""Exercise: the learner's kernel in a model."""
