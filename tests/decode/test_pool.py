"""The threads of decoders: they stay between launches, end with the decoder, survive a fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from itertools import islice
from pathlib import Path

import pytest
import torch
from selection import often

import megafuse as mf
from decode.tiny import make, text
from megafuse.decode import Decoder
from megafuse.runtime import cpp, sources

TASKS = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(not TASKS.is_dir(), reason="counts threads in /proc")


def threads() -> set[str]:
    return {task.name for task in TASKS.iterdir()}


def compiled(count: int = 3) -> Decoder:
    return mf.decode.compile(make("llama-3"), max_length=80, threads=count)


def test_threads_stay_and_end_with_the_decoder() -> None:
    prompt = text(5)
    torch.ones(100_000).sum()  # torch's own threads
    first, second = compiled(), compiled()
    before = threads()
    first.generate(prompt, 20)
    mine = threads() - before
    assert len(mine) == 2  # the caller is the third
    first.generate(prompt, 20)
    assert threads() - before == mine
    list(first.stream(prompt, 20))  # all three: the caller takes tokens meanwhile
    assert len(threads() - before) == 3
    second.generate(prompt, 20)
    assert len(threads() - before) == 5
    del first
    gc.collect()
    assert len(threads() - before) == 2
    assert not mine & threads()


def test_several_decoders_in_several_threads() -> None:
    model, prompts = make("llama-3"), [text(4 + i) for i in range(4)]
    alone = mf.decode.compile(model, max_length=80)
    expected = [alone.generate(prompt, 40).tolist() for prompt in prompts]
    decoders = [mf.decode.compile(model, max_length=80, threads=2) for _ in prompts]
    found: dict[int, list[list[int]]] = {i: [] for i in range(len(prompts))}

    def work(i: int) -> None:
        for turn in range(6):
            if (turn + i) % 2:
                found[i].append(list(decoders[i].stream(prompts[i], 40)))
            else:
                found[i].append(decoders[i].generate(prompts[i], 40).tolist())

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [found[i] for i in range(len(prompts))] == [[text] * 6 for text in expected]


def in_child(work: object) -> int:
    """The status of a forked child that runs work(); it is killed after a minute."""
    import signal

    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            status = 0 if work() else 1  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_threads_of_its_own() -> None:
    decoder, prompt = compiled(), text(1)  # no prefill: torch's own threads do not survive a fork
    expected = decoder.generate(prompt, 40).tolist()
    assert in_child(lambda: decoder.generate(prompt, 40).tolist() == expected) == 0
    assert in_child(lambda: list(decoder.stream(prompt, 40)) == expected) == 0
    assert decoder.generate(prompt, 40).tolist() == expected


def test_a_fork_in_the_middle_of_a_stream() -> None:
    """Parent and child both go on from the last token that was taken."""
    decoder, prompt = compiled(), text(1)
    expected = decoder.generate(prompt, 60).tolist()
    stream = decoder.stream(prompt, 60)
    taken = list(islice(stream, 7))
    assert in_child(lambda: taken + list(stream) == expected) == 0
    assert in_child(lambda: stream.close() or True) == 0  # type: ignore[attr-defined]
    assert taken + list(stream) == expected


AT_EXIT = """
    import sys
    sys.path[:0] = {paths!r}
    import torch
    import megafuse as mf
    from megafuse.runtime import cpp
    from decode.tiny import make
    cpp.compile_hastily(True)
    torch.manual_seed(0)
    decoder = mf.decode.compile(make("llama-3"), max_length=2000, threads=3)
    stream = decoder.stream([5], 1900)
    print(next(stream), flush=True)
    {last}
"""


KEPT = "import builtins; builtins.kept = (stream, decoder)"
ENDS = ("pass", "sys.exit(0)", KEPT, "del stream, decoder")


@pytest.mark.slow
@pytest.mark.parametrize("last", often(ENDS, ["sys.exit(0)", KEPT]))
def test_python_ends_in_the_middle_of_a_stream(last: str) -> None:
    tests = Path(__file__).resolve().parents[1]
    source = Path(mf.__file__).resolve().parents[1]
    code = textwrap.dedent(AT_EXIT).format(paths=[str(tests), str(source)], last=last)
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip().isdigit()
    assert not made.stderr.strip(), made.stderr


def test_threads_that_the_system_does_not_start() -> None:
    decoder = compiled()
    decoder._space.step["threads"] = 5000
    with pytest.raises(RuntimeError, match="did not start 5000 threads"):
        decoder.generate([5], 3)


@pytest.mark.slow
def test_threads_do_not_race(tmp_path: Path) -> None:
    """By ThreadSanitizer, which also knows the orders of memory that this CPU never shows."""
    compiler = cpp.find()
    assert compiler is not None
    program = tmp_path / "races"
    source = Path(__file__).with_name("pool_races.cpp")
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", f"-iquote{sources.KERNELS}"]
    command = [*compiler.command, *flags, str(source), "-o", str(program), "-lpthread"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no ThreadSanitizer")
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=200)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("this system's addresses are not ThreadSanitizer's")
    assert "WARNING" not in ran.stderr, ran.stderr
    assert ran.stdout == "done\n"
