"""The structs of kernels/decode.h as arrays of 64-bit words, in the header's own order."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from megafuse.runtime import sources

_COMMENT = re.compile(r"//[^\n]*")


@functools.cache
def members(name: str) -> dict[str, int]:
    """Member → its place, of a struct whose members are all u64."""
    text = _COMMENT.sub("", (sources.KERNELS / "decode.h").read_text(encoding="utf-8"))
    body = re.search(rf"struct {name} {{(.*?)\n}};", text, re.S)
    assert body is not None, f"decode.h has no struct {name}"
    declared = re.findall(r"u64 ([\w\s,]+);", body[1])
    names = [word.strip() for line in declared for word in line.split(",")]
    return {member: place for place, member in enumerate(names)}


@functools.cache
def kinds() -> dict[str, int]:
    """kQkv → 1, and so on: the phases' kinds."""
    text = (sources.KERNELS / "decode.h").read_text(encoding="utf-8")
    body = re.search(r"enum PhaseKind : u64 {(.*?)\n};", text, re.S)
    assert body is not None
    return {name: int(value) for name, value in re.findall(r"(k\w+) = (\d+)", body[1])}


def word(value: Any) -> int:
    """A tensor's address, an integer, or the bits of a double; as a signed word, for torch."""
    if value is None:
        return 0
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, float):
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return int(bits)
    signed = int(value)
    return signed - (1 << 64) if signed >= 1 << 63 else signed


def packed(name: str, values: Mapping[str, Any]) -> list[int]:
    """All words of a struct, 0 where nothing is given."""
    places = members(name)
    words = [0] * len(places)
    for member, value in values.items():
        words[places[member]] = word(value)
    return words


class Struct:
    """A struct in memory, whose members can be set one by one."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self._places = members(name)
        self.words = torch.tensor(packed(name, values), dtype=torch.int64)
        self._view = self.words.numpy()

    def __setitem__(self, member: str, value: Any) -> None:
        self._view[self._places[member]] = word(value)

    def __getitem__(self, member: str) -> int:
        return int(self._view[self._places[member]])
