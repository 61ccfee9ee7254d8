"""Small tasks that a learner solves in a file of their own, checked at once: `megafuse learn`.

One folder is one exercise, and nothing else lists it:

    task.md           title, what you learn, the task, the hints (see catalog.py)
    picture.txt       what moves, what is reused, what waits
    starter.*         what the learner begins with; its suffix is the exercise's language
    solution.*        ours
    check.py          check(work) yields a Finding for each thing it looked at (findings.py)
    harness.cpp       C++ exercises: calls the learner's function (counted.h)

    command.py        the command; folder.py the learner's files and progress; screen.py the words
    certificate.py    what the learner has done, as a page
    climbed.py        their tries under this machine's roof
    cuda.py           how CUDA exercises are checked, on the emulator of emulator/
    runner.py         starts child.py, which runs the learner's code: it may hang or crash there

What decides between pass and fail is counted or computed, never timed: bytes by the dispatcher
(learn/ledger.py), by counted.h or by the emulator, results against float64. Times are shown beside
it.
"""
