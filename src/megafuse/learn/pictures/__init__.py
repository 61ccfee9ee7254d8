"""Pictures of what a kernel does, as text for a terminal and as SVG for a page.

access.py    thread → address → sector or bank, as a warp's lanes really touched them
rung.py      what moves, what is reused and what waits on a rung of a ladder
timeline.py  launches one after the other, and what is in between
roofline.py  kernels under the roof, moving; its figure is figures/roof.py

An exercise's own drawing is the file picture.txt of its folder.
"""
