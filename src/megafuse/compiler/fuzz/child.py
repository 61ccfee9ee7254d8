"""Trials in another process: a program that crashes it is a finding, and the next gets a new one.

The parent writes a line of JSON for each program, the child answers with one for its outcome.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from typing import Any

from megafuse.compiler.fuzz.generated import generate
from megafuse.compiler.fuzz.network import Network
from megafuse.compiler.fuzz.program import Program
from megafuse.compiler.fuzz.trial import Outcome, trial
from megafuse.runtime import cpp, loader

LONGEST = 300  # seconds that a program may take


class Child:
    """The process, started when it is needed; one of `jobs`, whose kernels are in `cache`."""

    def __init__(self, device: str = "cpu", cache: str | None = None, jobs: int = 1) -> None:
        self.device, self.cache, self.jobs = device, cache, jobs
        self.hasty = False  # how the kernels are compiled (runtime/cpp.py)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def generated(
        self, seed: int, index: int, hasty: bool = False, modules: bool = False
    ) -> Outcome:
        self.hasty = hasty
        return self._ask({"seed": seed, "index": index, "modules": modules})

    def trial(self, program: Program) -> Outcome:
        return self._ask({"program": program.as_json()})

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ask(self, question: dict[str, Any]) -> Outcome:
        process = self._process or self._started()
        assert process.stdin is not None
        question |= {"device": self.device, "hasty": self.hasty}
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        try:
            line = self._lines.get(timeout=LONGEST)
        except queue.Empty:
            self.close()
            return Outcome("crash", f"it took longer than {LONGEST} s")
        if line is None:
            return Outcome("crash", self._how_it_died())
        return Outcome(**json.loads(line))

    def _started(self) -> subprocess.Popen[str]:
        self._lines = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *([self.cache] if self.cache else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            env={**os.environ, "OMP_NUM_THREADS": str(self._threads())},
        )
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
        return self._process

    def _threads(self) -> int:
        told = os.environ.get("OMP_NUM_THREADS", "")
        return int(told) if told.isdigit() else max((os.cpu_count() or 1) // self.jobs, 1)

    def _how_it_died(self) -> str:
        assert self._process is not None
        status = self._process.wait()
        self._process = None
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def serve() -> None:
    """The child: answers until its input ends."""
    warnings.simplefilter("ignore")
    if len(sys.argv) > 1 and loader.load() is not None:  # which is not in the cache of kernels
        os.environ |= {"MEGAFUSE_CACHE": sys.argv[1], "MEGAFUSE_CACHE_SIZE": "200MB"}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints must not be taken for an answer
    for line in sys.stdin:
        question = json.loads(line)
        cpp.compile_hastily(question["hasty"])
        if "program" in question:
            data = question["program"]
            program = Network.of_json(data) if "layers" in data else Program.of_json(data)
        else:
            program = generate(question["seed"], question["index"], question["modules"])
        answers.write(json.dumps(trial(program, question["device"]).as_json()) + "\n")


if __name__ == "__main__":
    serve()
