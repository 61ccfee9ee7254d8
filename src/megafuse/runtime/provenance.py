"""Where a result comes from: the commit, versions and the CPU."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from megafuse.runtime import cpp


def versions() -> dict[str, str | None]:
    compiler = cpp.find()
    return {
        "megafuse": _version("megafuse") or "checkout",
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "compiler": compiler.version if compiler else None,
    }


def commit() -> tuple[str, bool]:
    """The commit that is measured, and whether the tree has changes that it does not hold.

    `MEGAFUSE_COMMIT` names it where the code is a copy without its repository; a "+" at its end
    says that there are changes.
    """
    told = os.environ.get("MEGAFUSE_COMMIT")
    if told:
        return told.rstrip("+"), told.endswith("+")
    here = Path(__file__).parent
    head = output("git", "-C", str(here), "rev-parse", "HEAD")
    # Installed into an environment inside somebody's repository, it is not of that one.
    if not head or not output("git", "-C", str(here), "ls-files", "--", "."):
        return "unknown", False
    listed = output("git", "-C", str(here), "status", "--porcelain", "--", str(here.parent))
    return head, bool(listed)


def cpu_name() -> str:
    fields = dict(part.strip().partition("=")[::2] for part in cpp.cpu_features().split(";"))
    return fields.get("model name") or fields.get("CPU part") or platform.machine()


def output(*command: str) -> str:
    """What a command prints; nothing where it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
