"""A contender's process, seen from the command: what it answers, and how long it may take."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from megafuse.bench.models.order import Order

CHILD = (sys.executable, "-m", "megafuse.bench.models.child")


class Failed(Exception):
    """A process gave no answer; the message says why, in a line."""


class Worker:
    """Starts the process. It leads a group of its own, so that the compilers it starts end too."""

    def __init__(self, order: Order, log: Path, environment: dict[str, str]) -> None:
        self.order = order
        self._begun = time.monotonic()
        self._log = log
        self._ended = False
        command = [*CHILD, json.dumps(order.to_json())]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | environment,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def prepared(self, limit: float) -> dict[str, Any]:
        """Its answer to having taken the first step; `limit` counts from its start."""
        left = limit - (time.monotonic() - self._begun)
        return self._answer(left, f"no result of the first step within {limit:.0f} s")

    def measured(self, limit: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except OSError:
            raise Failed(self._why_it_ended()) from None
        return self._answer(limit, f"not measured within {limit:.0f} s")

    def profiled(self, limit: float) -> dict[str, Any]:
        return self._answer(limit, f"the profiler took more than {limit:.0f} s")

    def _answer(self, seconds: float, late: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            raise Failed(late) from None
        if line is None:
            raise Failed(self._why_it_ended())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _why_it_ended(self) -> str:
        """A process that died without a word: its status, and the last line it printed."""
        status = self._process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"its process ended with {how}" + (f": {lines[-1][:120]}" if lines else "")

    def end(self) -> None:
        """At once, whatever it is at: it has nothing to tidy up."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
