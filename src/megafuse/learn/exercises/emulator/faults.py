"""A mistake that the emulator found, in words: where, what, why it matters, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from megafuse.learn.exercises.findings import Stop


class Kind(IntEnum):
    """As report.h has it."""

    READ_OUTSIDE = 1
    WRITTEN_OUTSIDE = 2
    MISALIGNED = 3
    RACE = 4
    NEVER_WRITTEN = 5
    BARRIER_MISSED = 6
    BARRIERS_MIXED = 7
    SHUFFLE_MISSED = 8
    SHUFFLE_MASK = 9
    DEADLOCK = 10
    TWO_WRITERS = 11  # a race of two writes; here alone


# What the finding is called.
WHAT = {
    Kind.READ_OUTSIDE: "stays inside",
    Kind.WRITTEN_OUTSIDE: "stays inside",
    Kind.MISALIGNED: "aligned",
    Kind.RACE: "no races",
    Kind.NEVER_WRITTEN: "written first",
    Kind.BARRIER_MISSED: "barriers",
    Kind.BARRIERS_MIXED: "barriers",
    Kind.SHUFFLE_MISSED: "shuffles",
    Kind.SHUFFLE_MASK: "shuffles",
    Kind.DEADLOCK: "ends",
    Kind.TWO_WRITERS: "no races",
}


class Fault(Stop):
    """A Stop that knows its kind, so that an exercise can add what it means there."""

    def __init__(
        self, kind: Kind, found: str, says: str, array: str = "", within: bool = True
    ) -> None:
        super().__init__(WHAT[kind], found, says)
        self.kind = kind
        self.array = array  # what was touched
        self.within = within  # of a race: both are threads of one block


def stop(mistake: Any, names: Mapping[int, str], sizes: Mapping[str, int]) -> Fault:
    kind = Kind(mistake.kind)
    if kind == Kind.RACE and mistake.writes and mistake.other_writes:
        kind = Kind.TWO_WRITERS
    array = names.get(mistake.array, "memory")
    found, says = _WORDS[kind](mistake, array, sizes)
    line = f"line {mistake.line}: " if mistake.line else ""
    return Fault(kind, line + found, says, array, mistake.block == mistake.other_block)


def _who(mistake: Any) -> str:
    return f"thread {mistake.thread} of block {mistake.block}"


def _outside(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    did = "writes" if mistake.kind == Kind.WRITTEN_OUTSIDE else "reads"
    if name not in sizes:
        return (
            f"{_who(mistake)} takes [{mistake.index}] of the shared array {name}, outside it",
            "Shared memory has no fence either: behind an array lies the next one. Count from "
            "threadIdx to the largest index that this line can have.",
        )
    return (
        f"{_who(mistake)} {did} {name}[{mistake.index}]; {name} has {sizes[name]} floats",
        f"The valid places are 0 to {sizes[name] - 1}. On a GPU nothing stops such an access: it "
        "reads or overwrites whatever lies there, and no error tells. The emulator caught it. A "
        "thread whose element does not exist must do nothing.",
    )


def _misaligned(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    return (
        f"{_who(mistake)} takes 16 bytes of {name} from float {mistake.index} on",
        "A float4 must begin at a multiple of 16 bytes, four floats. On a GPU this ends the kernel "
        'with "misaligned address", and every later call fails too.',
    )


def _race(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    verb, other = (
        "writes" if wrote else "reads" for wrote in (mistake.writes, mistake.other_writes)
    )
    same = mistake.block == mistake.other_block
    them = f"thread {mistake.other_thread}" + ("" if same else f" of block {mistake.other_block}")
    found = (
        f"{_who(mistake)} {verb} {name}[{mistake.index}] while {them} {other} it "
        f"(line {mistake.other_line})"
    )
    if same:
        return found, (
            "Nothing says which comes first, so the result is chance: that is a race. Threads of a "
            "block wait for each other at __syncthreads(), lanes of a warp at a shuffle or at "
            "__syncwarp(). Between a write and another thread's read there must be one, and "
            "between a read and the write that replaces it."
        )
    return found, (
        "Nothing says which comes first, so the result is chance: that is a race. Blocks run in "
        "any order, and __syncthreads() holds only within one. Two blocks may change the same "
        "place only by an atomic, and may read what another wrote only after a barrier of the "
        "whole grid, with a __threadfence() between the writes and the signal."
    )


def _two_writers(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    found, _ = _race(mistake, name, sizes)
    who = "threads" if mistake.block == mistake.other_block else "blocks"
    return found, (
        f"Two {who} write the same place, and which value stays is chance: that is a race. A "
        "barrier would not help. Either each has a place of its own, and the index must tell them "
        "apart; or one writes for all, after an `if` that picks it; or all of them add, and then "
        "with atomicAdd."
    )


def _never_written(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    if name in sizes:
        return (
            f"{_who(mistake)} reads {name}[{mistake.index}], which nobody has written",
            f"{name} is for results, and begins with whatever lies there. `+=` reads before it "
            "writes, too: collect in a variable of the thread's own, and write once, with `=`.",
        )
    return (
        f"{_who(mistake)} reads {name}[{mistake.index}], which no thread of its block has written",
        "Shared memory begins with whatever the last block left there. No barrier is missing here: "
        "nobody fills this place. Compare the places that are filled with those that are read, and "
        "the conditions around both.",
    )


def _barrier_missed(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    return (
        f"{mistake.waiting} threads wait at __syncthreads(), and {mistake.ended} have ended",
        "All threads of a block must reach the same barrier. A thread that returned before it, or "
        "an `if` around it that some threads skip, lets the others wait for ever, or worse. Let "
        "threads without work skip the work, not the barrier.",
    )


def _barriers_mixed(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    return (
        f"thread {mistake.thread} waits at this __syncthreads(), thread {mistake.other_thread} at "
        f"the one in line {mistake.other_line}",
        "All threads of a block must reach the same barrier. Here a condition sends some to one "
        "and some to another: move the barrier out of the branches, so that it stands once.",
    )


def _shuffle_missed(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    elsewhere = f"; others are in line {mistake.other_line}" if mistake.other_line else ""
    return (
        f"{mistake.waiting} lanes wait at a shuffle for lanes that never come "
        f"({mistake.ended} threads have ended{elsewhere})",
        "A shuffle with the mask 0xffffffff needs all 32 lanes. An `if` or an early `return` that "
        "some lanes take, or a loop that ends earlier for some, keeps them away. Let every lane "
        "take part, with 0 (or -INFINITY for a maximum) where it has no element.",
    )


def _shuffle_mask(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    return (
        f"lane {mistake.thread % 32} shuffles with a mask that does not name it",
        "The mask says which lanes take part, a bit for each, and whoever calls must be among "
        "them: 0xffffffff names all 32.",
    )


def _deadlock(mistake: Any, name: str, sizes: Mapping[str, int]) -> tuple[str, str]:
    late = mistake.index
    who = "1 thread looks" if mistake.waiting == 1 else f"{mistake.waiting} threads look"
    blocks = f"; {late} blocks have not even begun" if late else ""
    return (
        f"{who} at a counter that nobody changes any more, {mistake.ended} have ended{blocks}",
        "That is a deadlock. Either too few arrive (each block must count itself once, and the "
        "goal must be the number of blocks), or the goal is one that was passed already, or those "
        "who should arrive wait elsewhere: for a block that runs to make room, or at a barrier.",
    )


_WORDS = {
    Kind.READ_OUTSIDE: _outside,
    Kind.WRITTEN_OUTSIDE: _outside,
    Kind.MISALIGNED: _misaligned,
    Kind.RACE: _race,
    Kind.NEVER_WRITTEN: _never_written,
    Kind.BARRIER_MISSED: _barrier_missed,
    Kind.BARRIERS_MIXED: _barriers_mixed,
    Kind.SHUFFLE_MISSED: _shuffle_missed,
    Kind.SHUFFLE_MASK: _shuffle_mask,
    Kind.DEADLOCK: _deadlock,
    Kind.TWO_WRITERS: _two_writers,
}
