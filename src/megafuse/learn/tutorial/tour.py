"""What the steps share: the device, its sizes, its probes, and the figures drawn so far."""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from megafuse.bench.timing import Timing, compare
from megafuse.learn import probes
from megafuse.learn.tutorial.screen import Screen
from megafuse.registry import activate
from megafuse.runtime import build
from megafuse.runtime.fp32_matmul import get_fp32_matmul, set_fp32_matmul

if TYPE_CHECKING:
    from megafuse.learn.figures import Figure


IEEE = (
    "megafuse computes its float32 products as PyTorch does here (set_fp32_matmul('ieee')). Its "
    "default splits them into float16 halves for the tensor cores: another product, which is "
    "faster, and which docs/fp32.md is about."
)


@contextlib.contextmanager
def ieee_products() -> Iterator[None]:
    """The same product in every contender, so that what differs is the fusing."""
    before = get_fp32_matmul()
    set_fp32_matmul("ieee")
    try:
        yield
    finally:
        set_fp32_matmul(before)


@dataclass
class Tour:
    """One run of the tutorial."""

    screen: Screen
    device: str
    quick: bool
    figures: list[Figure] | None = None  # None: nobody wants any

    @functools.cached_property
    def compiles(self) -> bool:
        """Whether the rungs can be compiled here; if not, PyTorch alone has to show it."""
        return probes.can_compile(self.device)

    @functools.cached_property
    def fuses(self) -> bool:
        """Whether megafuse's ops run fused here, or as their PyTorch reference."""
        return activate() and build.available(self.device)

    @functools.cached_property
    def probes(self) -> probes.Probes:
        self.screen.working("measuring this machine")
        measured = probes.measure(self.device, self.quick)
        self.screen.working(None)
        return measured

    @property
    def floats(self) -> int:
        """The size of the ladders. On a CPU 29 MB a tensor: two of them are more than a cache of 32
        MiB, and glibc would fetch larger ones fresh from the system at every call, so that the
        price of fresh memory would be measured."""
        if self.device == "cuda":
            return 1 << (22 if self.quick else 26)
        return 1 << 18 if self.quick else 7 << 20

    @property
    def budget(self) -> float:
        """Seconds for one comparison."""
        return 0.1 if self.quick else 3.0

    @property
    def machine(self) -> str:
        if self.device == "cuda":
            return torch.cuda.get_device_name()
        threads = torch.get_num_threads()
        return f"this CPU ({platform.machine()}, {threads} thread{'s' * (threads > 1)})"

    def draw(self, figure: Callable[[], Figure]) -> None:
        """A figure for the page, if there is to be one."""
        if self.figures is not None:
            self.figures.append(figure())

    def time(self, ways: Mapping[str, Callable[[], Any]], what: str) -> dict[str, Timing]:
        """Each way, taking turns, from a cold cache."""
        self.screen.working(f"measuring {what}")
        contenders = {name: functools.partial(_ignore, way) for name, way in ways.items()}
        with torch.no_grad():
            taken = compare(
                contenders, device=self.device, budget=self.budget, rounds=3 if self.quick else 10
            )
        self.screen.working(None)
        return taken


def _ignore(way: Callable[[], Any], _round: int) -> Any:
    return way()
