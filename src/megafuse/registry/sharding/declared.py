"""What an op says of how a call can be cut into calls on parts of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Needed only beyond the family's own rule: a pointwise op is cut along any dimension, all
    others along the leading ones (`...` of the signature's shapes).

    cuts        letter of the signature's shapes → the arguments that are added to the result. A
                call can be cut along the letter; where the result has not got it, the result is the
                sum of the parts' results, to which these must come once. Several letters ("HG") are
                cut together, into equal parts
    results     result → its shape in such letters, of a program: "1" is a size of one, "(BS)" one
                dimension made of two, of which the first can be cut into equal parts
    spread      argument without a shape of its own → the shape that it broadcasts to
    whole       flag → the dimension of the first argument, counted from the end, that is not cut
                where the flag is set
    """

    cuts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    spread: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, int] = field(default_factory=dict)
