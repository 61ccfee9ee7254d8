"""Python in another process, with a cache and a PATH of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import megafuse
from megafuse.runtime import loader

# What every child starts with: it prints its results for the parent to judge.
PRELUDE = """
import torch, megafuse as mf
torch.manual_seed(0)
x = torch.randn(1003)
def right(name, *args):
    torch.testing.assert_close(getattr(mf, name)(*args), getattr(mf.reference, name)(*args))
"""


def cold_cache(folder: Path) -> Path:
    """A cache that holds the host runtime (30 s to compile) and no kernel."""
    made = folder / "cache"
    made.mkdir(mode=0o700)
    host = loader.load()
    assert host is not None
    assert host.__file__ is not None
    entry = Path(host.__file__).parent
    (made / entry.parent.name).mkdir(mode=0o700)
    shutil.copytree(entry, made / entry.parent.name / entry.name)
    return made


def environment(cache: Path, **changes: str | None) -> dict[str, str]:
    made = {**os.environ, "MEGAFUSE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    made["PYTHONPATH"] = str(Path(megafuse.__file__).parents[1])
    for name, value in changes.items():
        made.pop(name, None)
        if value is not None:
            made[name] = value
    return made


def start(code: str, env: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PRELUDE + code]
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)


def run(code: str, env: dict[str, str], ok: bool = True) -> tuple[str, str]:
    """(stdout, stderr); `ok`: whether it must succeed."""
    child = start(code, env)
    out, err = child.communicate(timeout=180)
    assert (child.returncode == 0) == ok, err
    return out, err


def kernels(cache: Path) -> list[Path]:
    return sorted(p for p in cache.rglob("kernel.*") if p.suffix in (".so", ".cubin"))
