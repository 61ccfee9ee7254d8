"""A learner's CUDA file as C++ for the emulator: the same lines, but for what C++ has no words for.

    __shared__ float a[8], b[4][5];   static emulator::Shared<float, 8> a("a"); static …
    (const float4*)x                  emulator::Cast<const float4>() ->* x
    *(const float4*)x                 emulator::Taken<const float4>{__LINE__} ->* x
    const float* p                    emulator::Pointer<const float> p

Every line keeps its number, so that what is said about one can be found.
"""

from __future__ import annotations

import re

from megafuse.learn.exercises.findings import Stop

_NUMBER = r"(?:float4|float|unsigned(?:\s+int)?|int)"
_TYPE = rf"(?:{_NUMBER}|[A-Z]\w*)"  # or a struct of floats
_SHARED = re.compile(rf"__shared__\s+({_NUMBER})\s+([^;=]+);")
_DYNAMIC = re.compile(r"extern\s+__shared__")
# What stands before a * that takes what a pointer points to, and is no product.
_BEFORE = r"(^\s*|[=({,;?:]\s*|\breturn\s+)"
_REINTERPRET = re.compile(rf"reinterpret_cast\s*<\s*((?:(?:const|volatile)\s+)?{_TYPE})\s*\*\s*>")
_C_CAST = re.compile(rf"\(\s*((?:(?:const|volatile)\s+)?{_TYPE})\s*\*\s*\)")
_TAKEN_REINTERPRET = re.compile(rf"(?m){_BEFORE}\*\s*{_REINTERPRET.pattern}")
_TAKEN_C_CAST = re.compile(rf"(?m){_BEFORE}\*\s*{_C_CAST.pattern}")
_POINTER = re.compile(rf"\b((?:(?:const|volatile)\s+)?{_NUMBER})\s*\*\s*(?=(?:const\s+)?[A-Za-z_])")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def without_comments(text: str) -> str:
    """As many lines as before."""
    return _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)


def translated(text: str) -> str:
    """As many lines as before, so that every line keeps its number."""
    text = without_comments(text)
    if dynamic := _DYNAMIC.search(text):
        line = text[: dynamic.start()].count("\n") + 1
        raise Stop(
            "compiles",
            f"line {line}: shared memory whose size the launch gives",
            "The exercises have shared arrays of a fixed size: `__shared__ float tile[32][33];`.",
        )
    text = _SHARED.sub(_shared, text)
    text = _TAKEN_REINTERPRET.sub(
        lambda found: f"{found[1]}emulator::Taken<{found[2]}>{{__LINE__}}", text
    )
    text = _TAKEN_C_CAST.sub(
        lambda found: f"{found[1]}emulator::Taken<{found[2]}>{{__LINE__}} ->* ", text
    )
    text = _REINTERPRET.sub(lambda found: f"emulator::Cast<{found[1]}>()", text)
    text = _C_CAST.sub(lambda found: f"emulator::Cast<{found[1]}>() ->* ", text)
    return _POINTER.sub(lambda found: f"emulator::Pointer<{found[1]}> ", text)


def _shared(found: re.Match[str]) -> str:
    made = []
    for declared in _apart(found[2]):
        name, *sizes = (part.strip().rstrip("]").strip() for part in declared.split("["))
        given = "".join(f", ({size})" for size in sizes)
        made.append(f'static emulator::Shared<{found[1]}{given}> {name}("{name}");')
    return " ".join(made) + "\n" * found[0].count("\n")


def _apart(declarators: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for character in declarators:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
