"""Where a learner starts: the demo, run by simple_demo.py and `megafuse demo`."""
