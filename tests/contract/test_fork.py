"""fork(): a child uses ops whatever the parent's threads were doing, and never waits for a thread
that it does not have."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from contract.processes import cold_cache, environment, run
from megafuse.runtime import cpp, loader

pytestmark = [
    pytest.mark.slow,  # each starts processes, and compiles
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]

# in_child(work): "done", what went wrong, or that it hangs; the child is then killed.
FORKS = """
import os, signal, sys, threading, time, traceback, warnings
warnings.simplefilter("ignore")  # of fork in a process with threads, which is the point

def in_child(work, meanwhile=lambda: None, seconds=60):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # as a DataLoader's worker; OpenMP's threads are not copied
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    meanwhile()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "done" if status == 0 else f"status {status}"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"

inside, go_on = threading.Event(), threading.Event()
def wait_inside(*args, **options):
    inside.set()
    go_on.wait()

def call():
    right("gelu_scale", x, 1.7)
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(cold_cache(tmp_path))


def test_fork_while_a_thread_loads_the_runtime(env: dict[str, str]) -> None:
    code = """
from megafuse.runtime import loader
real = loader.load
def slow_load():
    wait_inside()
    return real()
loader.load = slow_load
thread = threading.Thread(target=call)
thread.start()
inside.wait()
def work():
    loader.load = real
    call()
print(in_child(work))
go_on.set()
thread.join()
call()
print(in_child(call))
"""
    assert run(FORKS + code, env)[0] == "done\ndone\n"


def test_fork_while_a_thread_compiles_a_kernel(env: dict[str, str]) -> None:
    """The child compiles other kernels meanwhile, and gets this one when the parent has it."""
    code = """
from megafuse.runtime import cpp
right("swiglu", x, x)
real = cpp.compile_shared
def slow_compile(*args, **options):
    wait_inside()
    return real(*args, **options)
cpp.compile_shared = slow_compile
thread = threading.Thread(target=call)
thread.start()
inside.wait()
def work():
    cpp.compile_shared = real
    right("swiglu", x, x)
    right("add_mul_exp", x, x)
print(in_child(work))
def same_kernel():
    cpp.compile_shared = real
    call()
print(in_child(same_kernel, meanwhile=lambda: (time.sleep(0.5), go_on.set())))
thread.join()
call()
"""
    assert run(FORKS + code, env)[0] == "done\ndone\n"


def test_a_child_outlives_a_parent_that_was_compiling(env: dict[str, str]) -> None:
    """The parent's file lock ends with the parent, though a child was forked while it was held."""
    code = """
import select
from megafuse.runtime import cpp
right("swiglu", x, x)
real = cpp.compile_shared
read, write = os.pipe()
parent = os.fork()
if parent == 0:
    cpp.compile_shared = wait_inside
    threading.Thread(target=call, daemon=True).start()
    inside.wait()
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.02)
        cpp.compile_shared = real
        call()
        os.write(write, b"done")
    os._exit(0)
os.waitpid(parent, 0)
print(os.read(read, 4).decode() if select.select([read], [], [], 60)[0] else "hangs")
"""
    assert run(FORKS + code, env)[0] == "done\n"


def test_workers_of_a_data_loader(env: dict[str, str]) -> None:
    code = """
from torch.utils.data import DataLoader, Dataset
class Squashed(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        out = mf.gelu_scale(torch.full((100,), float(i)), 1.7)  # the parent used this one
        return mf.swiglu(out, out)  # and not this one
call()
exact = torch.stack([torch.full((100,), float(i)) for i in range(8)])
exact = mf.reference.gelu_scale(exact, 1.7)
exact = mf.reference.swiglu(exact, exact)
loaded = DataLoader(Squashed(), batch_size=4, num_workers=2, multiprocessing_context="fork")
torch.testing.assert_close(torch.cat(list(loaded)), exact)
print("done")
"""
    assert run(FORKS + code, env)[0] == "done\n"


def test_fork_while_threads_look_kernels_up(env: dict[str, str]) -> None:
    """Large calls run without the GIL, so that a fork can come in the middle of one."""
    code = """
large = torch.randn(8192)
call()
right("gelu_scale", large, 1.7)
stop = threading.Event()
def use():
    while not stop.is_set():
        mf.gelu_scale(large, 1.7)
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
def work():
    right("gelu_scale", large, 1.7)
    right("gelu_scale", large.double(), 1.7)  # another kernel: the table is written
print({in_child(work) for _ in range(12)})
stop.set()
"""
    assert run(FORKS + code, env)[0] == "{'done'}\n"


LOCKED = """
#include "core/fork.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

using namespace std::chrono_literals;

// Forks while a thread holds the lock for a moment; the child's exit status, 14 where the child
// waited for a lock and SIGALRM ended it.
extern "C" int fork_while_locked(bool shared) {
  static megafuse::Mutex mutex, other;
  std::atomic<bool> held{false};
  std::thread holder([&] {
    if (shared) mutex.lock_shared(); else mutex.lock();
    held = true;
    std::this_thread::sleep_for(300ms);
    if (shared) mutex.unlock_shared(); else mutex.unlock();
  });
  while (!held) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    mutex.lock();
    mutex.unlock();
    other.lock_shared();
    other.unlock_shared();
    _exit(0);
  }
  holder.join();
  int status = -1;
  waitpid(child, &status, 0);
  mutex.lock();
  mutex.unlock();
  return status;
}
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_locks_of_the_host_runtime_are_free_in_a_child(tmp_path: Path) -> None:
    out = tmp_path / "locked.so"
    flags = ["-std=c++20", "-pthread"]
    cpp.compile_shared(LOCKED, out, include=[loader.HOST], flags=flags, libraries=["pthread"])
    locked = ctypes.CDLL(str(out))
    assert locked.fork_while_locked(True) == 0
    assert locked.fork_while_locked(False) == 0


def test_the_host_runtime_has_no_other_lock() -> None:
    """What fork.h says of locks holds for those that are a Mutex."""
    for file in loader.HOST.rglob("*.h"):
        text = file.read_text(encoding="utf-8").replace("std::lock_guard<std::mutex>", "")
        if file.name != "fork.h":
            assert "std::mutex" not in text, file.name
            assert "std::shared_mutex" not in text, file.name
