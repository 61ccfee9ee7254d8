"""A script or command as a person runs it: a process of its own, piped, 80 columns, no colour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments in the root folder; `changes` are environment variables."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
        **changes,
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        check=False,
    )
