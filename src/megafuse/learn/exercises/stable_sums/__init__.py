"""Exercise: one pass whose numbers neither overflow nor cancel."""
