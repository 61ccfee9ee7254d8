"""The guided climb: `python tutorial_mega_kernel.py` and `megafuse tutorial`.

    command.py   options, and one step after the other
    tour.py      what the steps share: device, sizes, probes, figures
    screen.py    how it looks in a terminal
    climb.py     a ladder: bytes, prediction, measurement
    typed.py     the line of a rung that the reader writes (blanks.py), and its pictures
    roof.py      the rungs under the roof

Each other file is one step, with a TITLE and a `run`.
"""
