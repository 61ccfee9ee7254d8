"""Pictures of what a kernel does, as text for a terminal and as SVG for a page.

access.py    thread → address → sector or bank, as a warp's lanes really touched them
timeline.py  launches one after the other, and what is in between
path.py      the exercises and rungs: a picture each, of what moves and what is reused
"""
