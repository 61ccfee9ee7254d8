"""The guided climb: `python tutorial_mega_kernel.py` and `megafuse tutorial`.

    command.py   options, and one step after the other
    tour.py      what the steps share: device, sizes, probes, figures
    screen.py    how it looks in a terminal
    climb.py     a ladder: bytes, prediction, measurement

Each other file is one step, with a TITLE and a `run`.
"""
