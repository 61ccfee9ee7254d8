"""The suite `models`: whole models, each contender in a process of its own.

zoo.py          the ten models: sizes, inputs, losses (vision.py, unet.py, moe.py: written out)
case.py         one row: model, dtype, mode, device
work.py         what a row's step is: forward, train step, decode step
contenders.py   what is done to the model before its first step
child.py        a contender's process: prepares, says so, waits, measures
worker.py       the same process as the command sees it, with its time limits
schedule.py     who prepares side by side
samples.py      results, thinned out, and how far they are from float64's
run.py          from cases and contenders to a Result
options.py      what the command line asks for; show.py prints; merge.py adds runs up
"""
