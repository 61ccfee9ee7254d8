"""What a process is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from megafuse.bench.models.case import Case

REFERENCE = "float64"  # no contender: the results that all are held against


@dataclass(frozen=True)
class Order:
    """`samples` is where results go, `cache` an empty folder for compiled kernels; "" for none.

    `only_first`: nothing but the first step, with a cache that another process has filled.
    """

    case: Case
    contender: str
    budget: float
    samples: str = ""
    cache: str = ""
    only_first: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Order:
        return Order(**data | {"case": Case(**data["case"])})
