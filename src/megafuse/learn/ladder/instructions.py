"""What a CUDA source becomes: PTX, NVIDIA's portable instructions. Needs no GPU."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from megafuse.runtime import nvrtc, sources
from megafuse.runtime.cpp import CompileError

ARCHITECTURE = "compute_90"  # Hopper; the counts of these kernels hardly depend on it


@dataclass(frozen=True)
class Instructions:
    """One kernel's PTX, and how often each kind of instruction stands in it."""

    lines: tuple[str, ...]

    def count(self, *prefixes: str) -> int:
        """Instructions that begin with one of the prefixes: "ld.global", "st.global", "fma"."""
        counts = Counter(line.split()[0] for line in self.unconditional)
        return sum(n for name, n in counts.items() if name.startswith(prefixes))

    @property
    def unconditional(self) -> list[str]:
        """The instructions, without the predicates (`@%p1 bra …`) before some."""
        return [re.sub(r"^@!?%\w+\s+", "", line) for line in self.lines]

    @property
    def bytes_per_load(self) -> int:
        """The widest load from memory: 4 for a float, 16 for four of them."""
        return max((_width(line) for line in self.lines if "ld.global" in line), default=0)

    def around_first(self, word: str, before: int = 2, after: int = 8) -> list[str]:
        """A few lines, from just before the first with `word` in it."""
        at = next((i for i, line in enumerate(self.lines) if word in line), 0)
        return list(self.lines[max(0, at - before) : at + after])


def compiled(source: str, entry: str) -> Instructions:
    """The PTX of one kernel of `source`; raises CompileError where there is no NVRTC."""
    trouble = nvrtc.problem()
    if trouble is not None:
        raise CompileError([], trouble)
    return Instructions(tuple(_instructions(_ptx(source), entry)))


def _ptx(source: str) -> str:
    library = importlib.import_module("cuda.bindings.nvrtc")

    def call(name: str, *arguments: Any) -> Any:
        status, *result = getattr(library, name)(*arguments)
        if status != library.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError([], f"{name} failed: {status}")
        return result[0] if result else None

    options = (
        f"--gpu-architecture={ARCHITECTURE}",
        "--std=c++17",
        "--fmad=false",
        f"--include-path={sources.KERNELS}",
    )
    program = call("nvrtcCreateProgram", source.encode(), b"ladder.cu", 0, [], [])
    try:
        encoded = [option.encode() for option in options]
        call("nvrtcCompileProgram", program, len(encoded), encoded)
        text: bytes = b" " * call("nvrtcGetPTXSize", program)  # written in place
        call("nvrtcGetPTX", program, text)
    finally:
        library.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0 ").decode()


def _instructions(ptx: str, entry: str) -> list[str]:
    """The lines between the braces of `entry` that do something."""
    body = re.search(rf"\.entry {re.escape(entry)}\(.*?^\{{$(.*?)^\}}$", ptx, re.S | re.M)
    if body is None:
        raise ValueError(f"there is no kernel {entry!r} in this PTX")
    lines = (line.strip() for line in body[1].splitlines())
    return [line for line in lines if line.endswith(";") and not line.startswith((".", "//", "$"))]


def _width(line: str) -> int:
    vector = re.search(r"\.v(\d)\.", line)
    bits = re.search(r"\.[bfus](\d+)\s", line)
    return (int(vector[1]) if vector else 1) * (int(bits[1]) // 8 if bits else 0)
