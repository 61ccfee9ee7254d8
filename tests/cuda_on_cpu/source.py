"""CUDA source as C++ for the emulator: the same text, but for what only nvcc understands.

Inline PTX becomes a call of the function of that name in ptx.h, dynamic shared memory a pointer,
and every kernel gets an entry that takes its arguments as cuLaunchKernel has them.
"""

from __future__ import annotations

import re
from pathlib import Path

_ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")
_DYNAMIC = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")
_ALIGNED = re.compile(r"__shared__ (alignas\(\d+\)) ")  # g++ wants it the other way round
_CLUSTERS = "#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900"
_KERNEL = re.compile(
    r'extern "C" __global__ void [^{]*?(\w+)\(\s*const __grid_constant__ ([^{]+?) \w+\) \{'
)


def translated(text: str) -> str:
    """A source or a header."""
    text = _ALIGNED.sub(r"\1 __shared__ ", _calls(text))
    text = _DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(emulated_shared);", text)
    entries = "".join(_entry(kernel[1], kernel[2]) for kernel in _KERNEL.finditer(text))
    return text + entries


def translate_headers(folder: Path, to: Path) -> None:
    """The headers of `folder` into `to`, but for tensor cores and their copies."""
    for header in folder.glob("*.h"):
        if header.name.startswith(("attention_", "gemm_")):
            continue
        text = header.read_text(encoding="utf-8")
        if header.name == "cluster_cuda.h":  # blocks run one after the other here: none has any
            assert _CLUSTERS in text
            text = text.replace(_CLUSTERS, "#if 0")
        (to / header.name).write_text(translated(text), encoding="utf-8")


def _entry(symbol: str, argument: str) -> str:
    return (
        f'\nstatic_assert(sizeof({argument}) <= 4096, "more than a launch takes");'
        f'\nextern "C" void emulated_{symbol}(void** params) {{\n'
        f"  {symbol}(*static_cast<const {argument}*>(params[0]));\n}}\n"
        f'extern "C" const size_t emulated_size_{symbol} = sizeof({argument});\n'
    )


# ---- inline PTX


def _calls(text: str) -> str:
    made, at = [], 0
    for found in _ASM.finditer(text):
        if found.start() < at:
            continue
        end = _closing(text, found.end())
        made += [text[at : found.start()], _call(text[found.end() : end])]
        at = end + 1
    return "".join(made) + text[at:]


def _call(inside: str) -> str:
    """`"name %0, %1;" : "=f"(x) : "f"(y)` → `ptx_name(x, y)`."""
    template, *rest = _split(inside, ":")
    if template == '""':
        return "(void)0"  # a fence for the compiler alone
    operands = [_split(part, ",") for part in rest[:2]]
    names = [name[name.index("(") + 1 : -1] for part in operands for name in part if name]
    if not template.lstrip("\\\n ").startswith('"'):  # a macro's parameter and its operands
        word = re.match(r"[\\\s]*(\w+)", template)
        assert word is not None, template
        return f"ptx_named({', '.join([word[1], *names])})"
    words = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template)).replace("\\n", "\n")
    return f"ptx_{_name(words)}({', '.join(names)})"


def _name(ptx: str) -> str:
    """The instructions' names, with the special registers that they read."""
    lines = [line.strip() for line in re.split(r"[;\n]", ptx)]
    mnemonics = [re.sub(r"^@!?\w+ ", "", line) for line in lines]
    names = [m.split()[0] for m in mnemonics if m and not re.match(r"[{}.]|\w+:$|bra\b", m)]
    special = re.findall(r"%%(\w+)", ptx)
    return re.sub(r"\W+", "_", "__".join([*names, *special]))


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that is open at `at` closes."""
    depth, quoted = 1, False
    while True:
        c = text[at]
        if c == '"' and text[at - 1] != "\\":
            quoted = not quoted
        if not quoted:
            depth += (c == "(") - (c == ")")
            if depth == 0:
                return at
        at += 1


def _split(text: str, by: str) -> list[str]:
    """At each `by` outside of strings and parentheses; names with `::` hold together."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, c in enumerate(text):
        if c == '"' and text[at - 1] != "\\":
            quoted = not quoted
        if quoted:
            continue
        depth += (c == "(") - (c == ")")
        if c == by and depth == 0:
            parts.append(text[start:at].strip(" \n\\"))
            start = at + 1
    return [*parts, text[start:].strip(" \n\\")]
