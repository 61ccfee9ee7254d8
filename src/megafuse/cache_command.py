"""The command `megafuse cache`: what is compiled, and its removal."""

from __future__ import annotations

import argparse
import sys
import time

from megafuse.runtime import cache, cache_limit

_KINDS = {
    "kernel.so": "CPU kernels",
    "kernel.cubin": "GPU kernels",
    "megafuse_host.so": "host runtimes",
    "kernels.h.gch": "headers",
    "failure.json": "failed builds",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove them all")


def run(parsed: argparse.Namespace) -> int:
    try:
        if parsed.clear:
            print(f"removed {_entries(cache.clear())} from {cache.directory()}")
        else:
            print(_contents())
    except cache.CacheError as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 1
    return 0


def _contents() -> str:
    """Place, size and limit of the cache; then each kind of entry, and when it was used."""
    found: dict[str, list[cache_limit.Entry]] = {}
    for entry in cache_limit.listed():
        kind = next((_KINDS[name] for name in entry.files if name in _KINDS), "others")
        found.setdefault(kind, []).append(entry)
    count, total = sum(map(len, found.values())), sum(e.bytes for es in found.values() for e in es)
    limit = cache_limit.limit()
    most = "no limit" if limit is None else f"at most {limit / 1e6:.1f} MB"
    lines = [str(cache.directory()), f"{_entries(count)}, {total / 1e6:.1f} MB ({most})"]
    for kind in (*_KINDS.values(), "others"):
        entries = found.get(kind)
        if entries:
            size = sum(entry.bytes for entry in entries)
            first, last = (f(e.used for e in entries) for f in (min, max))
            lines.append(
                f"  {kind:<13} {len(entries):>6} {size / 1e6:>9.1f} MB   "
                f"used {_day(first)} to {_day(last)}"
            )
    return "\n".join(lines)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
