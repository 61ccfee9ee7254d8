"""A whole decode step of a language model as one launch.

    decoder = megafuse.decode.compile(model, max_length=4096)    # a Hugging Face causal LM
    tokens = decoder.generate(prompt_ids, max_new_tokens=200)

reading.py takes a model apart, schedule.py makes phases of it, kernels/decode_cpu.h walks them.
"""

from __future__ import annotations

from megafuse.decode.decoder import Decoder, compile
from megafuse.decode.errors import CacheFull, LostWait, Unsupported
from megafuse.decode.schedule import Phase, Schedule

__all__ = [
    "CacheFull",
    "Decoder",
    "LostWait",
    "Phase",
    "Schedule",
    "Unsupported",
    "compile",
]
