"""Unique names for values, made from the user's variables."""

from __future__ import annotations

import re


class Names:
    """Hands out h, h_1, h_2, …"""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def fresh(self, wish: str) -> str:
        wish = re.sub(r"\W", "_", wish) or "value"
        while True:
            count = self._counts.get(wish, 0)
            self._counts[wish] = count + 1
            name = f"{wish}_{count}" if count else wish
            if not count or name not in self._counts:
                self._counts.setdefault(name, 1)
                return name
