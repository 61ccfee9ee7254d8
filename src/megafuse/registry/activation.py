"""Handing the ops to the C++ host runtime, on first use.

Each op is handed over whole or not at all, and once: what an exception or Ctrl-C left undone the
next call does. An op that the runtime refuses raises where it is called, and stops no other op.

Threads that come at the same time wait for the first one, which may be compiling for a minute. The
package's locks, and why a process forked while another thread holds one does not wait for ever:

- `_LOCK` below, and the one around torch's tracer in compiler/fused.py. A forked child gets new
  ones.
- runtime/cache.py has one lock for each entry of the cache, for threads and for processes. A
  child drops its copies of both, and then waits like any other process.
- The tables of compiled kernels in the C++ host runtime, runtime/host/*.h: a `Mutex` each
  (runtime/host/core/fork.h), which fork() waits for.

`functools.cache` holds nothing while it computes. PyTorch's locks, the import system's and those
that C++ puts around a function's static variables are not ours to renew; none of ours is waited
for while one of these is held.
"""

from __future__ import annotations

import functools
import os
import threading
from types import ModuleType
from typing import Any

from megafuse.registry import second_derivative
from megafuse.registry.declared import OPS, Op
from megafuse.runtime import loader

_LOCK = threading.RLock()


def _renew_lock() -> None:
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_renew_lock)


def activate() -> bool:
    """Loads the host runtime (compiling it if need be) and hands it every op.

    False: there is no compiler, and every op runs its reference.
    """
    with _LOCK:
        host = loader.load()
        if host is None:
            return False
        for op in list(OPS.values()):
            try:
                _hand_over(op, host)
            except Exception:
                continue  # a call of this op comes to `ready`, which tries again and raises
        return True


def ready(op: Op) -> bool:
    """Whether this op runs its kernels from now on; raises what the runtime has against it.

    False: there is no compiler.
    """
    if not activate():
        return False
    if not op.handed_over:
        host = loader.load()
        assert host is not None  # else activate() said False
        with _LOCK:
            _hand_over(op, host)
    return True


def _hand_over(op: Op, host: ModuleType) -> None:
    if not op.handed_over:
        op._namespace["direct"] = host.register_op(_description(op))
        op.handed_over = True


def _description(op: Op) -> dict[str, Any]:
    """The op as data for the host runtime (runtime/host/torch/op.h)."""
    said, rule = op.signature, op.autograd
    results = [*said.returns, *rule.keeps]

    def place(name: str | None) -> int:
        return -1 if name is None else op.position(name)

    return {
        "name": op.name,
        "family": op.family,
        "program": op.program,
        "args": [
            (
                a.name,
                a.kind,
                tuple(a.choices),
                float(a.least),
                float(a.most),
                a.optional,
                a.own_dtype,
                a.shape,
            )
            for a in op.arguments
        ],
        "outputs": op.outputs,
        "results": results,
        "dtype": said.output_dtype,
        "dtype_like": place(said.dtype_like),
        "inverted": place(op.inverted),
        "random": op.random,
        "autocast": said.autocast,
        "laid_out_as": place(said.laid_out_as),
        "saved": [-1 - results.index(s) if s in results else place(s) for s in rule.saves],
        "grads": [
            (place(name), result, name in rule.passthrough) for name, result in rule.grads.items()
        ],
        "slow": op._namespace["traced"],
        "reference": op.reference,
        "explain": op.check,
        "vjp": functools.partial(second_derivative.vjp, op),
        "kept_like": rule.kept,
    }
