"""Mistakes to plant in the decode megakernel, which the emulator must show."""

from __future__ import annotations

# The order of threads that shows it, the header, a part of it, and what stands there instead.
PLANTED = {
    "copies are not waited for": (
        "reverse",
        "decode_stream_cuda.h",
        "arrive_after_fetches(&here.full[slot]);",
        "arrive(&here.full[slot]);",
    ),
    "copies into slots in use": (
        "forward",
        "decode_stream_cuda.h",
        "return passed(&here.empty[slot], before & 1);",
        "return true;",
    ),
    "blocks do not wait for words": (
        "forward",
        "decode_cuda.h",
        "return asked.are_of(number_before());",
        "return true;",
    ),
    "words of any phase are taken": (
        "forward",
        "decode_cuda.h",
        "all &= is_of(word[r][i], number);",
        "all &= word[r][i] != 0;",
    ),
}
