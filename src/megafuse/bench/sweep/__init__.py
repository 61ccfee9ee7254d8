"""`megafuse bench --sweep`: looks for shapes at which a fused op is behind its own parts.

Cases are drawn at random (draw.py) after a list of known ones (known.py), in groups that share
everything but the shape. For each case (look.py):

1. A screening: fused and eager take turns for a few rounds, and torch.compile with them where the
   group has it. Whoever is not within a tenth of fused is done with.
2. A careful comparison with the rest, for more rounds: fused is behind where the whole confidence
   interval of the ratio lies below 1 less a margin (judge.py).
3. A case that is behind is measured a second time with fresh arguments, some cases later, and
   listed only if it is behind again (hunt.py).

torch.compile takes seconds to compile, so it may take a share of the time only (compiling.py): once
for a group with dynamic shapes, and with fixed ones for the cases that need the careful comparison.
"""
