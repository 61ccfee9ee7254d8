"""What is refused before anything is measured, and in which words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from megafuse.bench import machine
from megafuse.registry import OPS


class Refused(ValueError):
    """The options do not make sense; the message says which and what would."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """there is no op 'sofmax': did you mean softmax? There are …"""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {close[0]}?" if close else "."
    return f"there is no {what} {name!r}{hint} There are {', '.join(names)}"


def unknown_ops(names: Sequence[str]) -> None:
    for name in names:
        if name not in OPS:
            raise Refused(unknown("op", name, OPS))


def unwritable(*paths: str | None) -> None:
    """Files that could not be written at the end."""
    for path in filter(None, paths):
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise Refused(f"{path}: there is no folder {folder}")
        if Path(path).is_dir():
            raise Refused(f"{path} is a folder, expected a file")


def narrower_float32(device: str) -> None:
    """Products of float32 that are something less: eager would look fast, and be wrong."""
    told = machine.float32_products(device)["float32_torch"]
    if told != "ieee":
        raise Refused(
            f"torch is set to multiply float32 matrices as {told}, and float32 rows would "
            "not be float32: is TORCH_ALLOW_TF32_CUBLAS_OVERRIDE set?"
        )
