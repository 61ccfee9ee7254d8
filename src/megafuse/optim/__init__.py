"""Optimizers whose step is one launch for all parameters of a dtype and device.

`Adam`, `AdamW` and `SGD` are torch's own, with their arguments, their state and their `state_dict`:
a checkpoint of either is one of the other. `Lion` has no twin in torch.
"""

from megafuse.optim.adam import Adam, AdamW
from megafuse.optim.lion import Lion
from megafuse.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Lion"]
