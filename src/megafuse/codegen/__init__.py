"""From arithmetic to source: what a kernel computes, the text of it, and how it is launched."""
