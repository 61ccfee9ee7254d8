"""What measured numbers prove, in words.

Each verdict is a function from numbers to a sentence, and says no more than they show: a time was
foretold where it came within a quarter of the prediction with a narrow spread (rule.py); else the
sentence says what does not fit, and why where that was measured too. tests/learn/test_verdicts.py
feeds each of them a GPU's numbers, a fast CPU's, a slow CPU's and those of a noisy machine.

    rule        when a number is near, narrow, faster, the same, or not clear
    demo        simple_demo.py
    machine     steps 1 and 2 of the tutorial: memory, and the budget
    ladder      steps 4 and 5: the rungs
    product     steps 6 and 8: matrix products, and when not to fuse
    rightness   step 7: errors
    exercises   `megafuse learn`
"""
