"""Names in generated source: the user's own, made valid in C++ and unique."""

from __future__ import annotations

import re

from megafuse.codegen.prims import PRIMS

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const
constexpr const_cast continue decltype default delete do double dynamic_cast else enum explicit
export extern false float for friend goto if inline int long mutable namespace new noexcept not
not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true
try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
# What the headers or the functor itself call something else.
_TAKEN = """
mf half bfloat16 i8 i16 i32 i64 u8 u16 u32 u64 select min max fma fetch get to rounded of_word pick
infinity cast terms fold keep results row_results steps held row kept found word scalars random
typed linux unix main brief over over_row fields field kept_in
"""
_TYPES = """
Typed Tuple Step Nothing Row Kept RowField Sum Product Largest Smallest ArgLargest ArgSmallest Any
All Nth
"""
_RESERVED = frozenset([*_KEYWORDS.split(), *_TAKEN.split(), *PRIMS])


def identifier(text: str) -> str:
    """`text` as a C++ identifier: `self.w[0]` becomes `self_w_0`."""
    made = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_")
    made = re.sub(r"_+", "_", made)
    return f"v{made}" if not made or made[0].isdigit() else made


def type_name(text: str) -> str:
    """The same as a type is called: `gated_norm` becomes `GatedNorm`."""
    name = "".join(part[:1].upper() + part[1:] for part in identifier(text).split("_"))
    return f"{name}Kernel" if name in _TYPES.split() else name


class Names:
    """Hands out names, each once."""

    def __init__(self, besides: Names | None = None) -> None:
        """None of those that `besides` gave away."""
        self._used: set[str] = set(besides._used) if besides is not None else set()

    def fresh(self, wanted: str) -> str:
        """`wanted` if it is free, else with a number or, for a word of C++ or ours, a `_`."""
        name = identifier(wanted)
        if name in _RESERVED:
            name += "_"
        candidate, count = name, 2
        while candidate in self._used:
            candidate = f"{name}{'' if name.endswith('_') else '_'}{count}"
            count += 1
        self._used.add(candidate)
        return candidate
